"""The SDK against the real server: what the scenarios cannot say."""

from __future__ import annotations

import asyncio
import hashlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from facade import Sdk
from server import DRIVER, Server

import ringfence

pytestmark = pytest.mark.e2e


def test_leaving_the_block_ends_the_sandbox(sdk: Sdk, client: Any) -> None:
    with sdk.Sandbox.create("base", client=client) as sandbox:
        assert sandbox.commands.run("echo hi").stdout == "hi\n"
        assert sandbox.get_info().state == "running"
    info = sdk.Sandbox.get_info(sandbox.id, client=client)
    assert (info.ended, info.reason) == (True, "killed")
    with pytest.raises(ringfence.SandboxEndedError):
        sdk.Sandbox.connect(sandbox.id, client=client)


def test_list_by_metadata_and_state_in_pages(sdk: Sdk, client: Any) -> None:
    mark = os.urandom(8).hex()
    made = [
        sdk.Sandbox.create("base", name=f"s{i}", metadata={"mark": mark, "n": str(i)}, client=client) for i in range(3)
    ]
    made[0].kill()

    def names(**options: Any) -> list[str]:
        return [info.name for info in sdk.Sandbox.list(metadata={"mark": mark}, client=client, **options)]

    assert names() == ["s2", "s1"]
    assert names(page_size=1) == ["s2", "s1"]
    assert names(state=["running", "deleted"], page_size=2) == ["s2", "s1", "s0"]
    assert names(state="deleted") == ["s0"]
    assert [info.name for info in sdk.Sandbox.list(metadata={"mark": mark, "n": "1"}, client=client)] == ["s1"]
    for sandbox in made:
        sandbox.kill()


def test_token_opens_this_sandbox_and_nothing_else(sdk: Sdk, server: Server, shared_sandbox: ringfence.Sandbox) -> None:
    token = str(shared_sandbox.access_token)
    sandbox = sdk.Sandbox.connect(shared_sandbox.id, access_token=token, base_url=server.url)
    assert sandbox.commands.run("echo hi").stdout == "hi\n"
    sandbox.files.write("/tmp/by-token", "x")
    assert sandbox.files.read("/tmp/by-token") == b"x"
    for call in (sandbox.kill, sandbox.get_info):
        with pytest.raises(ringfence.PermissionDeniedError) as caught:
            call()
        assert caught.value.request_id
    other = sdk.Sandbox.connect("abcdefghij0123456789", access_token=token, base_url=server.url)
    with pytest.raises(ringfence.NotFoundError):
        other.commands.run("true")
    (sandbox.client.close if sdk.kind == "sync" else sandbox.client.aclose)()


def test_refusals(sdk: Sdk, server: Server, client: Any) -> None:
    wrong = sdk.Client(api_key="rf_" + "0" * 64, base_url=server.url)
    with pytest.raises(ringfence.AuthenticationError) as caught:
        sdk.Sandbox.create(client=wrong)
    assert caught.value.hint
    (wrong.close if sdk.kind == "sync" else wrong.aclose)()
    with pytest.raises(ringfence.TemplateNotFoundError) as caught:
        sdk.Sandbox.create("code-interpeter", client=client)
    assert "code-interpreter" in (caught.value.hint or "")
    with pytest.raises(ringfence.InvalidArgumentError) as caught:
        sdk.Sandbox.create(idle_timeout_seconds=-1, client=client)
    assert caught.value.field == "idle_timeout_seconds"
    with pytest.raises(ringfence.InvalidArgumentError) as caught:
        sdk.Sandbox.create(network=ringfence.NetworkConfig(allow_out=["https://example.com"]), client=client)
    assert caught.value.field == "network.allow_out[0]"
    with pytest.raises(ringfence.InvalidArgumentError, match="999"):
        sdk.Sandbox.create(network=ringfence.NetworkConfig(deny_out=["1.2.3.999/32"]), client=client)
    with pytest.raises(ringfence.InvalidArgumentError) as caught:
        sdk.Sandbox.create(memory_mib=1, client=client)
    assert caught.value.field == "memory_mib"
    with pytest.raises(ringfence.NotFoundError):
        sdk.Sandbox.connect("abcdefghij0123456789", client=client)


def test_templates(client: Any) -> None:
    assert {"base", "code-interpreter"} <= {template.name for template in client.templates()}
    assert client.template("superserve/code-interpreter").name == "code-interpreter"
    assert client.health()


def test_output_arrives_while_the_command_runs(sandbox: Any) -> None:
    heard: list[tuple[float, str]] = []
    result = sandbox.commands.run(
        "echo one; sleep 1; echo two", on_stdout=lambda text: heard.append((time.monotonic(), text))
    )
    assert [text for _, text in heard] == ["one\n", "two\n"]
    assert heard[1][0] - heard[0][0] > 0.7
    assert result.duration_ms >= 1000


def test_a_cancelled_command_is_killed(server: Server, shared_sandbox: ringfence.Sandbox) -> None:
    mark = os.urandom(4).hex()

    async def main() -> None:
        async with ringfence.AsyncClient(api_key=server.key, base_url=server.url) as client:
            sandbox = await ringfence.AsyncSandbox.connect(shared_sandbox.id, client=client)
            for options in ({}, {"on_stdout": print}):
                path = f"/tmp/{mark}-{len(options)}"
                task = asyncio.ensure_future(
                    sandbox.commands.run(f"touch {path}-begun; sleep 2; touch {path}-survived", **options)
                )
                while not await sandbox.files.exists(f"{path}-begun"):
                    await asyncio.sleep(0.02)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            await asyncio.sleep(3)
            for length in (0, 1):
                assert not await sandbox.files.exists(f"/tmp/{mark}-{length}-survived")

    asyncio.run(main())


def test_an_exception_in_a_callback_kills_the_command(sandbox: Any) -> None:
    path = f"/tmp/{os.urandom(4).hex()}"

    def callback(_: str) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        sandbox.commands.run(f"echo x; sleep 2; touch {path}", on_stdout=callback)
    time.sleep(3)
    assert not sandbox.files.exists(path)


def portions(count: int) -> Iterator[bytes]:
    """Yield count MiB, each different."""
    for i in range(count):
        yield hashlib.sha256(i.to_bytes(8, "big")).digest() * 32768


def test_files_of_any_size_through_a_local_file(sdk: Sdk, sandbox: Any, tmp_path: Path) -> None:
    digest = hashlib.sha256()
    with open(tmp_path / "up", "wb") as file:
        for portion in portions(20):
            file.write(portion)
            digest.update(portion)
    info = sandbox.files.write("/tmp/large", tmp_path / "up")
    assert info.size == 20 << 20
    assert sandbox.files.read_to("/tmp/large", tmp_path / "down") == 20 << 20
    assert hashlib.sha256((tmp_path / "down").read_bytes()).digest() == digest.digest()
    got = hashlib.sha256()
    for portion in sandbox.files.read_stream("/tmp/large"):
        got.update(portion)
    assert got.digest() == digest.digest()
    assert (
        sandbox.files.read("/tmp/large", offset=(5 << 20) + 3, length=5)
        == next(portion for i, portion in enumerate(portions(6)) if i == 5)[3:8]
    )
    sandbox.files.remove("/tmp/large")


MEMORY = """
import hashlib, resource, sys
import ringfence

def portions(count):
    for i in range(count):
        yield bytes([i % 251]) * (1 << 20)

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10

size = int(sys.argv[2])
sandbox = ringfence.Sandbox.connect(sys.argv[1])
sandbox.files.write("/tmp/flat", portions(2))
with open("/dev/null", "wb") as sink:
    sandbox.files.read_to("/tmp/flat", sink)
    before = peak()
    assert sandbox.files.write("/tmp/flat", portions(size)).size == size << 20
    assert sandbox.files.read_to("/tmp/flat", sink) == size << 20
sandbox.files.remove("/tmp/flat")
heard = 0
def count(text):
    global heard
    heard += len(text)
result = sandbox.commands.run("yes 0123456789abcde | head -c 67108864", on_stdout=count, output_limit_bytes=1000)
assert (result.exit_code, heard, len(result.stdout)) == (0, 67108864, 1000)
print(peak() - before)
"""


def test_memory_is_flat(server: Server, shared_sandbox: ringfence.Sandbox) -> None:
    size = 512 if DRIVER == "gvisor" else 64
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, shared_sandbox.id, str(size)],
        env={**os.environ, **server.environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 24, f"{done.stdout} MiB more at the peak"


def test_names_that_are_not_utf8(sdk: Sdk, sandbox: Any) -> None:
    directory = f"/tmp/{os.urandom(4).hex()}"
    name = directory.encode() + b"/\xff\xfe\n-"
    sandbox.files.write(name, b"content")
    (info,) = sandbox.files.list(directory)
    assert os.fsencode(info.path) == name
    assert sandbox.files.read(info.path) == b"content"
    assert sandbox.files.get_info(info.path).path == info.path
    renamed = sandbox.files.rename(info.path, name + b"\xfd")
    assert os.fsencode(renamed.path) == name + b"\xfd"
    sandbox.files.make_dir(directory.encode() + b"/\xf0")
    assert len(sandbox.files.list(directory)) == 2
    sandbox.files.remove(renamed.path)
    sandbox.files.remove(directory, recursive=True)


def test_write_many(sandbox: Any) -> None:
    directory = f"/tmp/{os.urandom(4).hex()}"
    files = {f"{directory}/{i % 7}/{i}": str(i) * 1000 for i in range(60)}
    assert [info.path for info in sandbox.files.write_many(files)] == list(files)
    assert all(sandbox.files.read_text(path) == text for path, text in list(files.items())[::9])
    sandbox.files.remove(directory, recursive=True)


def test_threads_and_tasks_at_once(server: Server, shared_sandbox: ringfence.Sandbox) -> None:
    count = 60
    failures: list[BaseException] = []
    client = ringfence.Client(api_key=server.key, base_url=server.url)
    sandbox = ringfence.Sandbox.connect(shared_sandbox.id, client=client)

    def work(i: int) -> None:
        try:
            assert sandbox.commands.run(["echo", str(i)]).stdout == f"{i}\n"
        except BaseException as exc:
            failures.append(exc)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    client.close()
    assert failures == []

    async def main() -> None:
        async with ringfence.AsyncClient(api_key=server.key, base_url=server.url) as client:
            sandbox = await ringfence.AsyncSandbox.connect(shared_sandbox.id, client=client)
            results = await asyncio.gather(
                *(sandbox.commands.run(["echo", str(i)], on_stdout=lambda _: None) for i in range(count))
            )
            assert [result.stdout for result in results] == [f"{i}\n" for i in range(count)]

    asyncio.run(main())


@pytest.mark.fake
def test_many_sandboxes_share_one_pool(server: Server) -> None:
    async def main() -> None:
        async with ringfence.AsyncClient(api_key=server.key, base_url=server.url, max_connections=10) as client:

            async def one(i: int) -> None:
                async with await ringfence.AsyncSandbox.create("base", client=client) as sandbox:
                    assert (await sandbox.commands.run(f"echo {i}")).stdout == f"{i}\n"

            await asyncio.gather(*(one(i) for i in range(60)))

    asyncio.run(main())


@pytest.mark.parametrize("callbacks", [False, True])
def test_a_server_that_dies_during_a_command(sdk: Sdk, tmp_path: Path, callbacks: bool) -> None:
    server = Server(tmp_path, driver="fake")
    server.start()
    client = sdk.Client(api_key=server.key, base_url=server.url)
    try:
        sandbox = sdk.Sandbox.create("base", client=client)
        killer = threading.Timer(0.5, server.kill)
        killer.start()
        with pytest.raises(ringfence.APIConnectionError, match="unknown"):
            sandbox.commands.run("echo x; sleep 20", **({"on_stdout": print} if callbacks else {}))
        killer.join()
        with pytest.raises(ringfence.APIConnectionError, match="ringfence serve"):
            sandbox.get_info()
    finally:
        (client.close if sdk.kind == "sync" else client.aclose)()
        server.stop()


@pytest.mark.gvisor
def test_a_command_that_was_paused_is_joined_by_its_tag(server: Server) -> None:
    with ringfence.Sandbox.create(api_key=server.key, base_url=server.url) as sandbox:
        pipe = "/tmp/pipe"
        command = f"mkfifo {pipe}; echo begun; read line < {pipe}; echo $line; exit 3"
        with pytest.raises(ringfence.SandboxPausedError):
            sandbox.commands.run(command, tag="job", timeout=None, on_stdout=lambda _: sandbox.pause())
        sandbox.resume()
        sandbox.commands.run(f"echo go > {pipe}").check()
        result = sandbox.commands.connect("tag:job").wait(timeout=60)
        assert (result.stdout, result.exit_code) == ("begun\ngo\n", 3)


@pytest.mark.gvisor
def test_a_sandbox_and_its_object_outlive_the_server(sdk: Sdk, tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.start()
    client = sdk.Client(api_key=server.key, base_url=server.url)
    try:
        sandbox = sdk.Sandbox.create("base", client=client)
        sandbox.files.write("/tmp/kept", "kept")
        server.kill()
        server.start()
        assert sandbox.files.read_text("/tmp/kept") == "kept"
        assert sandbox.commands.run("echo alive").stdout == "alive\n"
        sandbox.kill()
    finally:
        (client.close if sdk.kind == "sync" else client.aclose)()
        server.stop()
