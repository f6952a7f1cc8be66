"""Directories, searches, watches and signed URLs in real sandboxes."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import time
import zipfile
from pathlib import Path
from typing import Any

import httpx
import pytest

import ringfence

pytestmark = [pytest.mark.e2e, pytest.mark.gvisor]


@pytest.fixture
def place(sandbox: Any) -> Any:
    """A directory of the test's own."""
    path = f"/tmp/{os.urandom(6).hex()}"
    sandbox.files.make_dir(path)
    yield path
    sandbox.files.remove(path, recursive=True)


def test_conditional_writes(sandbox: Any, place: str) -> None:
    path = f"{place}/f"
    first = sandbox.files.write(path, "one", create_only=True)
    with pytest.raises(ringfence.PreconditionFailedError):
        sandbox.files.write(path, "two", create_only=True)
    second = sandbox.files.write(path, "two", if_match=first.etag)
    assert second.etag != first.etag
    with pytest.raises(ringfence.PreconditionFailedError):
        sandbox.files.write(path, "three", if_match=first.etag)
    assert sandbox.files.read(path) == b"two"
    assert sandbox.files.get_info(path).etag == second.etag


def test_copy_chmod_checksum_metadata(sandbox: Any, place: str) -> None:
    sandbox.files.write(f"{place}/a/f", "content")
    assert sandbox.files.copy(f"{place}/a/f", f"{place}/g").size == 7
    with pytest.raises(ringfence.IsDirectoryError):
        sandbox.files.copy(f"{place}/a", f"{place}/b")
    sandbox.files.copy(f"{place}/a", f"{place}/b", recursive=True)
    assert sandbox.files.read(f"{place}/b/f") == b"content"
    changed = sandbox.files.chmod(f"{place}/g", 0o600, owner="user")
    assert (changed.mode, changed.owner) == ("0600", "user")
    assert sandbox.files.checksum(f"{place}/g") == hashlib.sha256(b"content").hexdigest()
    assert sandbox.files.checksum(f"{place}/g", "md5") == hashlib.md5(b"content").hexdigest()
    sandbox.files.set_metadata(f"{place}/g", {"a": "1", "b": "zwei"})
    sandbox.files.set_metadata(f"{place}/g", {"c": "3"}, remove=["a", "not there"])
    assert sandbox.files.get_info(f"{place}/g").metadata == {"b": "zwei", "c": "3"}


def test_search_by_name_and_by_content(sandbox: Any, place: str) -> None:
    sandbox.files.write_many(
        {f"{place}/a.py": "import os\nprint('Hello')\n", f"{place}/sub/b.py": "hello\n", f"{place}/c.txt": "hello\n"}
    )
    found = sandbox.files.search(place, name="*.py")
    assert [match.path for match in found.matches] == [f"{place}/a.py", f"{place}/sub/b.py"]
    found = sandbox.files.search(place, content="hello", ignore_case=True, name="*.py")
    assert [(m.path, m.line, m.text) for m in found.matches] == [
        (f"{place}/a.py", 2, "print('Hello')"),
        (f"{place}/sub/b.py", 1, "hello"),
    ]
    assert sandbox.files.search(place, content="h.llo", limit=1).matches == ()
    found = sandbox.files.search(place, content="h.llo", regex=True, limit=1)
    assert (len(found.matches), found.truncated) == (1, True)
    with pytest.raises(ringfence.InvalidArgumentError) as caught:
        sandbox.files.search(place, content="(", regex=True)
    assert caught.value.field == "content"


def test_a_directory_goes_in_and_comes_out(sandbox: Any, place: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "deep/er").mkdir(parents=True)
    (source / "deep/er/blob").write_bytes(bytes(range(256)) * 1000)
    (source / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (source / "run.sh").chmod(0o755)
    (source / "link").symlink_to("deep")
    sandbox.files.upload_dir(source, f"{place}/in", owner="user")
    assert sandbox.commands.run(["./run.sh"], cwd=f"{place}/in").stdout == "ran\n"
    assert sandbox.files.get_info(f"{place}/in/link").target == "deep"
    assert sandbox.files.get_info(f"{place}/in/deep/er/blob").owner == "user"
    result = sandbox.files.download_dir(f"{place}/in", tmp_path / "out")
    assert result.skipped == []
    assert (tmp_path / "out/deep/er/blob").read_bytes() == bytes(range(256)) * 1000
    assert os.access(tmp_path / "out/run.sh", os.X_OK)
    assert os.readlink(tmp_path / "out/link") == "deep"


def test_a_hostile_directory_makes_nothing_outside(sandbox: Any, place: str, tmp_path: Path) -> None:
    sandbox.commands.run(
        f"cd {place} && ln -s /etc/passwd absolute && ln -s ../../../../x up && mkfifo pipe && echo ok > ok"
    )
    with pytest.raises(ringfence.RingfenceError):
        sandbox.files.download_dir(place, tmp_path / "strict")
    result = sandbox.files.download_dir(place, tmp_path / "loose", skip_refused=True)
    assert (tmp_path / "loose/ok").read_text() == "ok\n"
    assert sorted(os.listdir(tmp_path / "loose")) == ["ok"]
    assert {"absolute", "up"} <= {name.removeprefix("./") for name in result.skipped}


def test_archives_of_each_format(sandbox: Any, place: str) -> None:
    sandbox.files.write(f"{place}/d/f", "content")
    tar = b"".join(sandbox.files.read_archive(f"{place}/d"))
    with tarfile.open(fileobj=io.BytesIO(tar)) as opened:
        assert opened.extractfile("f").read() == b"content"  # type: ignore[union-attr]
    packed = b"".join(sandbox.files.read_archive(f"{place}/d", "tar.gz"))
    assert packed[:2] == b"\x1f\x8b"
    zipped = b"".join(sandbox.files.read_archive(f"{place}/d", "zip"))
    assert zipfile.ZipFile(io.BytesIO(zipped)).read("f") == b"content"
    for format, data in (("tar", tar), ("tar.gz", packed), ("zip", zipped)):
        sandbox.files.write_archive(f"{place}/{format}", data, format)
        assert sandbox.files.read(f"{place}/{format}/f") == b"content"
    hostile = io.BytesIO()
    with tarfile.open(fileobj=hostile, mode="w") as archive:
        member = tarfile.TarInfo("../../etc/pwned")
        member.size = 1
        archive.addfile(member, io.BytesIO(b"x"))
    with pytest.raises(ringfence.ArchiveRefusedError, match="pwned"):
        sandbox.files.write_archive(f"{place}/hostile", hostile.getvalue())
    assert not sandbox.files.exists("/etc/pwned")


def test_a_watch_sees_what_happens_below(sandbox: Any, place: str) -> None:
    with sandbox.files.watch(place, recursive=True) as changes:
        sandbox.commands.run(f"cd {place} && mkdir new && echo x > new/f && mv new/f new/g && rm new/g")
        seen: list[tuple[str, str]] = []
        for change in changes:
            seen.append((change.type, change.path))
            if change.type == "remove" and change.path == f"{place}/new/g":
                break
    assert ("create", f"{place}/new") in seen
    assert ("create", f"{place}/new/f") in seen
    assert ("rename_from", f"{place}/new/f") in seen
    assert ("rename_to", f"{place}/new/g") in seen


def test_signed_urls_open_one_file_for_a_while(sandbox: Any, place: str) -> None:
    up = sandbox.files.upload_url(f"{place}/f", expires_in=60)
    assert httpx.put(up, content=b"by a browser").status_code == 200
    down = sandbox.files.download_url(f"{place}/f", expires_in=60)
    answer = httpx.get(down)
    assert answer.content == b"by a browser"
    assert answer.headers["content-disposition"].startswith("attachment")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert httpx.get(down.replace("f&", "g&", 1)).status_code in (401, 404)
    assert httpx.put(down, content=b"x").status_code == 401
    short = sandbox.files.download_url(f"{place}/f", expires_in=1)
    time.sleep(2.1)
    assert httpx.get(short).status_code == 401
