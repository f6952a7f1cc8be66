from __future__ import annotations

import base64
import io
import os
import stat
import threading
import time
from pathlib import Path, PurePosixPath
from typing import Any

import httpx
import pytest
from facade import Sdk
from mock_server import (
    FILE_JSON,
    KEY,
    REQUEST_ID,
    SANDBOX,
    URL,
    MockServer,
    Portions,
    answer,
    answering,
    created,
    refusal,
)

import ringfence

FILES = f"/v1/sandboxes/{SANDBOX}/files"


def sandbox_of(sdk: Sdk, *responses: httpx.Response | Exception) -> tuple[Any, MockServer]:
    server = answering(created(), *responses)
    client = sdk.Client(api_key=KEY, base_url=URL, transport=server.transport)
    return sdk.Sandbox.create(client=client), server


def content(*portions: bytes, status: int = 200, broken: Exception | None = None) -> httpx.Response:
    headers = {"X-Request-Id": REQUEST_ID, "Content-Type": "application/octet-stream"}
    return httpx.Response(status, headers=headers, stream=Portions(*portions, broken=broken))


def test_read(sdk: Sdk) -> None:
    sandbox, server = sandbox_of(sdk, content(b"ab", b"\xff"))
    assert sandbox.files.read("/tmp/a b&é", user="user") == b"ab\xff"
    assert (server.last.method, server.last.url.path) == ("GET", FILES)
    assert server.last_query == [("path", "/tmp/a b&é"), ("user", "user")]
    assert "range" not in server.last.headers


def test_read_text(sdk: Sdk) -> None:
    sandbox, _ = sandbox_of(sdk, content(b"\xc3", b"\xa9\r\n"), content(b"\xe9"), content(b"\xe9"), content(b"\xff"))
    assert sandbox.files.read_text("/f") == "é\r\n"
    assert sandbox.files.read_text("/f", "latin-1") == "é"
    assert sandbox.files.read_text("/f", errors="replace") == "\ufffd"
    with pytest.raises(UnicodeDecodeError):
        sandbox.files.read_text("/f")


@pytest.mark.parametrize(
    ("options", "header", "part", "whole"),
    [
        ({"offset": 2}, "bytes=2-", b"23456789", b"23456789"),
        ({"offset": 2, "length": 3}, "bytes=2-4", b"234", b"234"),
        ({"length": 4}, "bytes=0-3", b"0123", b"0123"),
        ({"length": 0}, None, b"", b""),
    ],
)
def test_ranges(sdk: Sdk, options: dict[str, int], header: str | None, part: bytes, whole: bytes) -> None:
    answers = [content(*[b"%d" % i for i in range(10)])]
    if header is not None:
        answers.insert(0, content(part, status=206))
    sandbox, server = sandbox_of(sdk, *answers)
    if header is not None:
        assert sandbox.files.read("/f", **options) == part
        assert server.last.headers["range"] == header
    # A server, or something in between, may ignore the range.
    assert sandbox.files.read("/f", **options) == whole


def test_read_stream(sdk: Sdk) -> None:
    sandbox, server = sandbox_of(sdk, content(b"a", b"b", b"c"))
    stream = sandbox.files.read_stream("/f")
    assert len(server.requests) == 1
    assert list(stream) == [b"a", b"b", b"c"]
    broken = content(b"a", broken=httpx.RemoteProtocolError("peer closed connection"))
    sandbox, server = sandbox_of(sdk, broken)
    with pytest.raises(ringfence.APIConnectionError, match="broke"):
        list(sandbox.files.read_stream("/f"))


def test_a_stream_that_is_left_early_is_closed(sdk: Sdk) -> None:
    response = content(b"a", b"b")
    sandbox, _ = sandbox_of(sdk, response)
    stream = sandbox.files.read_stream("/f")
    assert next(stream) == b"a"
    stream.close()
    assert response.is_closed


def test_read_to_a_path_and_to_a_file_object(sdk: Sdk, tmp_path: Path) -> None:
    sandbox, _ = sandbox_of(sdk, content(b"ab", b"cd"), content(b"new"), content(b"xyz"), content())
    target = tmp_path / "f"
    assert sandbox.files.read_to("/f", target) == 4
    assert target.read_bytes() == b"abcd"
    assert stat.S_IMODE(target.stat().st_mode) & 0o600 == 0o600
    assert sandbox.files.read_to("/f", str(target)) == 3
    assert target.read_bytes() == b"new"
    buffer = io.BytesIO()
    assert sandbox.files.read_to("/f", buffer) == 3
    assert buffer.getvalue() == b"xyz"
    assert sandbox.files.read_to("/empty", tmp_path / "empty") == 0
    assert sorted(os.listdir(tmp_path)) == ["empty", "f"]


def test_read_to_leaves_nothing_half_done(sdk: Sdk, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"old")
    broken = content(b"ab", broken=httpx.ReadError("reset"))
    sandbox, _ = sandbox_of(sdk, refusal("file_not_found", 404), broken)
    for error in (FileNotFoundError, ringfence.APIConnectionError):
        with pytest.raises(error):
            sandbox.files.read_to("/f", tmp_path / "f")
    assert (tmp_path / "f").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["f"]
    with pytest.raises(TypeError, match="the target must be a local path"):
        sandbox_of(sdk, content(b"x"))[0].files.read_to("/f", 7)
    with pytest.raises(IsADirectoryError):
        sandbox_of(sdk, content(b"x"))[0].files.read_to("/f", tmp_path)


def test_read_to_follows_a_local_link_and_writes_devices_in_place(sdk: Sdk, tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real")
    sandbox, _ = sandbox_of(sdk, content(b"new"), content(b"x"))
    sandbox.files.read_to("/f", tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"
    sandbox.files.read_to("/f", "/dev/null")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


class AsyncFile:
    """A file object that reads asynchronously."""

    def __init__(self, data: bytes) -> None:
        self._file = io.BytesIO(data)

    async def read(self, size: int = -1) -> bytes:
        return self._file.read(size)


@pytest.mark.parametrize(
    ("data", "sent"),
    [
        ("é\n", "é\n".encode()),
        ("", b""),
        (b"\x00\xff", b"\x00\xff"),
        (bytearray(b"ab"), b"ab"),
        (memoryview(b"abcdef")[::2], b"ace"),
        (io.BytesIO(b"x" * 3_000_000), b"x" * 3_000_000),
        (io.StringIO("é"), "é".encode()),
        ([b"a", b"", b"b", "é"], "abé".encode()),
        ((part for part in (b"1", b"2")), b"12"),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_write_takes_many_kinds_of_content(data: Any, sent: bytes, kind: str, loop: Any) -> None:
    if kind == "async" and hasattr(data, "seek"):
        data.seek(0)
    if hasattr(data, "gi_frame") and kind == "async":
        data = (part for part in (b"1", b"2"))
    sandbox, server = sandbox_of(Sdk(kind, loop), answer(FILE_JSON))
    info = sandbox.files.write("/tmp/f", data, user="u", owner="o", mode=0o640)
    assert (server.last.method, server.last.url.path) == ("PUT", FILES)
    assert server.last_query == [("path", "/tmp/f"), ("user", "u"), ("owner", "o"), ("mode", "0640")]
    assert server.last.content == sent
    assert server.last.headers["content-type"] == "application/octet-stream"
    assert (info.path, info.name, info.size, info.type, info.mode) == ("/tmp/f", "f", 3, "file", "0644")
    assert info.is_file
    assert not info.is_dir


def test_write_takes_async_content(loop: Any) -> None:
    async def parts() -> Any:
        yield b"a"
        yield "é"

    for data, sent in ((parts(), "aé".encode()), (AsyncFile(b"x" * 2_000_000), b"x" * 2_000_000)):
        sandbox, server = sandbox_of(Sdk("async", loop), answer(FILE_JSON))
        sandbox.files.write("/f", data)
        assert server.last.content == sent


def test_write_sends_a_local_file(sdk: Sdk, tmp_path: Path) -> None:
    (tmp_path / "local").write_bytes(b"content")
    sandbox, server = sandbox_of(sdk, answer(FILE_JSON), answer(FILE_JSON))
    sandbox.files.write("/f", tmp_path / "local")
    assert server.last.content == b"content"
    assert server.last.headers["transfer-encoding"] == "chunked"
    with open(tmp_path / "local", "rb") as file:
        file.seek(3)
        sandbox.files.write("/f", file)
    assert server.last.content == b"tent"
    with pytest.raises(FileNotFoundError) as caught:
        sandbox.files.write("/f", tmp_path / "none")
    assert not isinstance(caught.value, ringfence.RingfenceError)
    assert len(server.requests) == 3


@pytest.mark.parametrize("data", [None, 7, {"a": b"b"}, object()])
def test_write_refuses_other_content(sdk: Sdk, data: Any) -> None:
    sandbox, server = sandbox_of(sdk)
    with pytest.raises(TypeError, match="data must be str, bytes"):
        sandbox.files.write("/f", data)
    with pytest.raises(TypeError, match="a portion of the content must be bytes"):
        sandbox.files.write("/f", [1, 2])
    with pytest.raises(ValueError, match="surrogates"):
        sandbox.files.write("/f", "\udcff")
    assert len(server.requests) == 1


def test_a_write_is_not_repeated(sdk: Sdk) -> None:
    for failure in (httpx.ConnectError("refused"), refusal("unavailable", 503)):
        sandbox, server = sandbox_of(sdk, failure)
        with pytest.raises((ringfence.APIConnectionError, ringfence.UnavailableError)):
            sandbox.files.write("/f", iter([b"x"]))
        assert len(server.requests) == 2


@pytest.mark.parametrize(
    "files",
    [
        {"/a": b"1", "/b": "2"},
        [("/a", b"1"), ("/b", "2")],
        [{"path": "/a", "data": b"1"}, {"path": "/b", "data": "2", "mode": "0600"}],
    ],
)
def test_write_many(sdk: Sdk, files: Any) -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            return created()
        return answer({**FILE_JSON, "path": request.url.params["path"]})

    server = MockServer(handle)
    sandbox = sdk.Sandbox.create(client=sdk.Client(api_key=KEY, base_url=URL, transport=server.transport))
    written = sandbox.files.write_many(files, mode=0o644)
    assert [info.path for info in written] == ["/a", "/b"]
    sent = {request.url.params["path"]: request for request in server.requests[1:]}
    assert (sent["/a"].content, sent["/b"].content) == (b"1", b"2")
    assert sent["/a"].url.params["mode"] == "0644"
    assert sent["/b"].url.params["mode"] == (
        "0600" if isinstance(files, list) and isinstance(files[1], dict) else "0644"
    )
    assert sandbox.files.write_many([]) == []


def test_write_many_is_bounded_and_raises_the_first_failure(sdk: Sdk) -> None:
    running, most, lock = 0, 0, threading.Lock()

    def handle(request: httpx.Request) -> httpx.Response:
        nonlocal running, most
        if request.method == "POST":
            return created()
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.005)
        with lock:
            running -= 1
        if request.url.params["path"] == "/5":
            return refusal("disk_full", 507)
        return answer(FILE_JSON)

    server = MockServer(handle)
    sandbox = sdk.Sandbox.create(client=sdk.Client(api_key=KEY, base_url=URL, transport=server.transport))
    with pytest.raises(ringfence.DiskFullError):
        sandbox.files.write_many({f"/{i}": b"" for i in range(100)})
    assert most <= 8
    assert len(server.requests) < 60


@pytest.mark.parametrize(
    "files", [None, "/a", [("/a",)], [{"path": "/a"}], [{"path": "/a", "data": b"", "owner": "x"}], [7]]
)
def test_write_many_refuses_other_lists(sdk: Sdk, files: Any) -> None:
    sandbox, server = sandbox_of(sdk)
    with pytest.raises(TypeError, match="files"):
        sandbox.files.write_many(files)
    with pytest.raises(TypeError, match="path must be"):
        sandbox.files.write_many([("/a", b""), (7, b"")])
    assert len(server.requests) == 1


def test_list(sdk: Sdk) -> None:
    entries = [FILE_JSON, {**FILE_JSON, "path": "/tmp/d", "name": "d", "type": "directory"}]
    sandbox, server = sandbox_of(sdk, answer({"entries": entries}), answer({"entries": []}))
    found = sandbox.files.list("/tmp")
    assert (server.last.method, server.last.url.path) == ("GET", FILES + "/list")
    assert server.last_query == [("path", "/tmp"), ("depth", "1")]
    assert [(info.name, info.is_dir) for info in found] == [("f", False), ("d", True)]
    assert sandbox.files.list("/tmp", depth=64, user="u") == []
    assert server.last_query == [("path", "/tmp"), ("user", "u"), ("depth", "64")]


def test_get_info_stat_exists(sdk: Sdk) -> None:
    sandbox, server = sandbox_of(
        sdk,
        answer(FILE_JSON),
        answer({**FILE_JSON, "type": "symlink", "target": "x"}),
        answer(FILE_JSON),
        refusal("file_not_found", 404),
        refusal("not_directory", 409),
        refusal("file_permission", 403),
    )
    assert sandbox.files.get_info("/tmp/f").size == 3
    assert (server.last.method, server.last.url.path) == ("GET", FILES + "/stat")
    assert sandbox.files.stat("/tmp/f").target == "x"
    assert sandbox.files.exists("/tmp/f") is True
    assert sandbox.files.exists("/tmp/f") is False
    assert sandbox.files.exists("/tmp/f/g") is False
    with pytest.raises(ringfence.FilePermissionError):
        sandbox.files.exists("/root/f")


def test_make_dir_rename_remove(sdk: Sdk) -> None:
    sandbox, server = sandbox_of(
        sdk, answer(FILE_JSON), answer(FILE_JSON), answer(status=204), answer(status=204), answer(FILE_JSON)
    )
    sandbox.files.make_dir("/d", owner="user", mode="700")
    assert (server.last.method, server.last.url.path) == ("POST", FILES + "/mkdir")
    assert server.last_json == {"path": "/d", "owner": "user", "mode": "0700"}
    sandbox.files.rename("/a", PurePosixPath("/b"), user="u")
    assert (server.last.method, server.last.url.path) == ("POST", FILES + "/rename")
    assert server.last_json == {"from": "/a", "to": "/b", "user": "u"}
    assert sandbox.files.remove("/d") is None
    assert (server.last.method, server.last.url.path) == ("DELETE", FILES)
    assert server.last_query == [("path", "/d")]
    sandbox.files.remove("/d", recursive=True)
    assert server.last_query == [("path", "/d"), ("recursive", "true")]


def test_remove_is_not_repeated(sdk: Sdk) -> None:
    sandbox, server = sandbox_of(sdk, httpx.ReadError("reset"))
    with pytest.raises(ringfence.APIConnectionError, match="unknown"):
        sandbox.files.remove("/d")
    assert len(server.requests) == 2


def test_names_that_are_not_utf8(sdk: Sdk) -> None:
    name = b"/tmp/\xff\n-"
    escaped = name.decode("utf-8", "surrogateescape")
    encoded = base64.b64encode(name).decode()
    listed = {**FILE_JSON, "path": "/tmp/\ufffd\n-", "name": "\ufffd\n-", "path_base64": encoded}
    sandbox, server = sandbox_of(sdk, answer({"entries": [listed]}), content(b"1"), content(b"1"), answer(listed))
    info = sandbox.files.list("/tmp")[0]
    assert (info.path, info.name) == (escaped, "\udcff\n-")
    for path in (info.path, name):
        sandbox.files.read(path)
        assert server.last_query == [("path_base64", encoded)]
    sandbox.files.rename(info.path, "/tmp/ok")
    assert server.last_json == {"from_base64": encoded, "to": "/tmp/ok"}
    with pytest.raises(ValueError, match="stand for no byte"):
        sandbox.files.read("/tmp/\ud800")


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda files: files.read(7), TypeError, "path must be"),
        (lambda files: files.read("/f", offset=-1), ValueError, "must not be negative"),
        (lambda files: files.read("/f", length="1"), TypeError, "length must be an int"),
        (lambda files: files.read("/f", user=0), TypeError, "user must be a str"),
        (lambda files: files.read_stream(None), TypeError, "path must be"),
        (lambda files: files.write("/f", "", mode="rw"), ValueError, "not octal"),
        (lambda files: files.write("/f", "", mode=0o100000), ValueError, "octal"),
        (lambda files: files.write("/f", "", mode=644), ValueError, "0o644"),
        (lambda files: files.write("/f", "", mode=1.0), TypeError, "mode must be"),
        (lambda files: files.list("/f", depth="1"), TypeError, "depth must be an int"),
        (lambda files: files.remove("/f", recursive=1), TypeError, "recursive must be a bool"),
        (lambda files: files.get_info("/f", request_timeout=-1), ValueError, "above 0"),
        (lambda files: files.read("/f", encoding="utf-8"), TypeError, "encoding"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_sent(sdk: Sdk, call: Any, error: Any, words: str) -> None:
    sandbox, server = sandbox_of(sdk)
    with pytest.raises(error, match=words):
        call(sandbox.files)
    assert len(server.requests) == 1


def test_request_timeout_of_one_call(sdk: Sdk) -> None:
    sandbox, server = sandbox_of(sdk, content(b""), content(b""), content(b""))
    sandbox.files.read("/f")
    assert server.last.extensions["timeout"] == {"connect": 60.0, "read": 60.0, "write": 60.0, "pool": None}
    sandbox.files.read("/f", request_timeout=2)
    assert server.last.extensions["timeout"] == {"connect": 2, "read": 2, "write": 2, "pool": None}
    sandbox.files.read("/f", request_timeout=None)
    assert server.last.extensions["timeout"] == {"connect": None, "read": None, "write": None, "pool": None}
