"""Connections: retries, proxies, threads, event loops, forks. Some of it over real sockets on loopback."""

from __future__ import annotations

import asyncio
import gc
import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from facade import Sdk
from mock_server import (
    FILE_JSON,
    KEY,
    RESULT_JSON,
    SANDBOX,
    SANDBOX_JSON,
    TOKEN,
    URL,
    answer,
    answering,
    created,
    refusal,
)

import ringfence
from ringfence import _wire as wire
from ringfence._async import _client as async_client
from ringfence._sync import _client as sync_client


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Make waiting instant, and return how long it would have been."""
    waited: list[float] = []

    async def sleep(seconds: float) -> None:
        waited.append(seconds)

    monkeypatch.setattr(sync_client.bridge, "sleep", waited.append)
    monkeypatch.setattr(async_client.bridge, "sleep", sleep)
    return waited


def client_of(sdk: Sdk, *responses: httpx.Response | Exception, **options: Any) -> Any:
    server = answering(*responses)
    client = sdk.Client(api_key=KEY, base_url=URL, transport=server.transport, **options)
    return client, server


FAILURES: list[Any] = [
    lambda: httpx.ConnectError("refused"),
    lambda: httpx.ReadError("reset"),
    lambda: httpx.RemoteProtocolError("server disconnected"),
    lambda: refusal("unavailable", 503),
]


@pytest.mark.parametrize("failure", FAILURES)
def test_what_can_be_repeated_is_tried_three_times(sdk: Sdk, waits: list[float], failure: Any) -> None:
    client, server = client_of(sdk, failure(), failure(), answer(SANDBOX_JSON))
    assert sdk.Sandbox.get_info(SANDBOX, client=client).id == SANDBOX
    assert len(server.requests) == 3
    client, server = client_of(sdk, failure(), answer(status=204))
    sdk.Sandbox.kill(SANDBOX, client=client)
    assert len(server.requests) == 2
    client, server = client_of(sdk, failure(), failure(), failure(), answer(SANDBOX_JSON))
    with pytest.raises((ringfence.APIConnectionError, ringfence.UnavailableError)):
        sdk.Sandbox.get_info(SANDBOX, client=client)
    assert len(server.requests) == 3
    assert waits == [0.2, 0.8, 0.2, 0.2, 0.8]


def test_retry_after_is_heard_and_bounded(sdk: Sdk, waits: list[float]) -> None:
    client, _ = client_of(
        sdk,
        refusal("unavailable", 503, retry_after=3),
        refusal("unavailable", 503, retry_after=999),
        answer(SANDBOX_JSON),
    )
    sdk.Sandbox.get_info(SANDBOX, client=client)
    assert waits == [3.0, 10.0]


@pytest.mark.parametrize(
    "failure", [*FAILURES, lambda: httpx.ConnectTimeout("slow"), lambda: httpx.ReadTimeout("slow")]
)
def test_a_create_is_never_repeated(sdk: Sdk, waits: list[float], failure: Any) -> None:
    client, server = client_of(sdk, failure(), created())
    with pytest.raises((ringfence.APIConnectionError, ringfence.UnavailableError)):
        sdk.Sandbox.create(client=client)
    assert len(server.requests) == 1
    assert waits == []


@pytest.mark.parametrize("code", ["resource_exhausted", "internal"])
def test_other_refusals_are_not_repeated(sdk: Sdk, waits: list[float], code: str) -> None:
    client, server = client_of(sdk, refusal(code, 500), answer(SANDBOX_JSON))
    with pytest.raises(ringfence.APIError):
        sdk.Sandbox.get_info(SANDBOX, client=client)
    assert len(server.requests) == 1


def test_errors_of_the_connection_say_what_to_do(sdk: Sdk, waits: list[float]) -> None:
    client, _ = client_of(sdk, httpx.ConnectError("[Errno 111] Connection refused"))
    with pytest.raises(ringfence.APIConnectionError) as caught:
        sdk.Sandbox.create(client=client)
    assert URL in str(caught.value)
    assert "`ringfence serve`" in str(caught.value)
    assert isinstance(caught.value, ConnectionError)
    client, _ = client_of(sdk, httpx.ReadTimeout("timed out"))
    with pytest.raises(ringfence.APITimeoutError, match="request_timeout") as caught:
        sdk.Sandbox.create(client=client)
    assert "unknown" in str(caught.value)
    assert isinstance(caught.value, TimeoutError)
    client, server = client_of(sdk, httpx.ReadTimeout("timed out"))
    with pytest.raises(ringfence.APITimeoutError):  # would take as long again
        sdk.Sandbox.get_info(SANDBOX, client=client)
    assert len(server.requests) == 1
    client, _ = client_of(sdk, httpx.ReadError(""))
    with pytest.raises(ringfence.APIConnectionError, match="unknown"):
        sdk.Sandbox.create(client=client)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("localhost", True),
        ("a.localhost", True),
        ("127.0.0.1", True),
        ("127.8.9.10", True),
        ("::1", True),
        ("0.0.0.0", True),
        ("10.0.0.1", False),
        ("localhost.example", False),
        ("example.com", False),
    ],
)
def test_loopback(host: str, loopback: bool) -> None:
    assert wire.is_loopback(host) is loopback


def test_a_proxy_is_for_other_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.example:3128")
    monkeypatch.setenv("https_proxy", "proxy.example:3129")
    monkeypatch.setenv("no_proxy", "inside.example")
    assert wire.proxy_of("http://127.0.0.1:7070") is None
    assert wire.proxy_of("http://[::1]:7070") is None
    assert wire.proxy_of("http://localhost:7070") is None
    assert wire.proxy_of("http://server.example:7070") == "http://proxy.example:3128"
    assert wire.proxy_of("https://server.example") == "http://proxy.example:3129"
    assert wire.proxy_of("https://a.inside.example:8443") is None


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers every GET with a sandbox and every other request by its kind; counts connections."""

    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        super().setup()
        self.server.connections += 1  # type: ignore[attr-defined]

    def _send(self, value: Any, status: int = 200) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self._send(SANDBOX_JSON)

    def do_PUT(self) -> None:
        if self.server.refusing:  # type: ignore[attr-defined]
            # Answers before it has read what is being sent, as a server with a full disk does.
            self._send({"error": {"code": "disk_full", "message": "the disk is full"}}, 507)
            self.close_connection = True
            return
        size = 0
        while length := int(self.rfile.readline(), 16):
            size += len(self.rfile.read(length))
            self.rfile.readline()
        self.rfile.readline()
        self._send({**FILE_JSON, "size": size})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._send(RESULT_JSON)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def real() -> Iterator[Any]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # clients that go away are the point here
    server.connections = 0  # type: ignore[attr-defined]
    server.refusing = False  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    server.url = f"http://127.0.0.1:{server.server_port}"  # type: ignore[attr-defined]
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def close(sdk: Sdk, client: Any) -> None:
    (client.close if sdk.kind == "sync" else client.aclose)()


def test_the_environments_proxy_is_not_used_for_this_machine(
    sdk: Sdk, real: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    client = sdk.Client(api_key=KEY, base_url=real.url)
    assert sdk.Sandbox.get_info(SANDBOX, client=client).id == SANDBOX
    close(sdk, client)


def test_connections_are_used_again(sdk: Sdk, real: Any) -> None:
    client = sdk.Client(api_key=KEY, base_url=real.url)
    sandbox = sdk.Sandbox.connect(SANDBOX, client=client)
    for _ in range(20):
        sandbox.commands.run("true")
        sandbox.files.write("/f", [b"x"] * 3)
        sandbox.get_info()
    assert real.connections == 1
    close(sdk, client)


def test_an_early_refusal_of_a_large_upload_is_seen(sdk: Sdk, real: Any) -> None:
    client = sdk.Client(api_key=KEY, base_url=real.url)
    sandbox = sdk.Sandbox.connect(SANDBOX, client=client)
    assert sandbox.files.write("/f", (b"x" * 1_000_000 for _ in range(10))).size == 10_000_000
    real.refusing = True
    with pytest.raises((ringfence.DiskFullError, ringfence.APIConnectionError)):
        sandbox.files.write("/f", (b"x" * 1_000_000 for _ in range(50)))
    close(sdk, client)


def test_a_failing_source_breaks_the_upload_and_is_raised(sdk: Sdk, real: Any) -> None:
    def source() -> Iterator[bytes]:
        yield b"x"
        raise ZeroDivisionError

    client = sdk.Client(api_key=KEY, base_url=real.url)
    sandbox = sdk.Sandbox.connect(SANDBOX, client=client)
    with pytest.raises(ZeroDivisionError):
        sandbox.files.write("/f", source())
    assert sandbox.get_info().id == SANDBOX
    close(sdk, client)


def test_threads_share_a_client(real: Any) -> None:
    client = ringfence.Client(api_key=KEY, base_url=real.url)
    sandboxes = [ringfence.Sandbox.connect(SANDBOX, client=client) for _ in range(8)]
    failures: list[BaseException] = []

    def work(sandbox: ringfence.Sandbox) -> None:
        try:
            for _ in range(25):
                assert sandbox.commands.run("true").stdout == "hi\n"
        except BaseException as exc:
            failures.append(exc)

    threads = [threading.Thread(target=work, args=(sandbox,)) for sandbox in sandboxes * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert real.connections <= 17
    client.close()


def test_event_loops_one_after_the_other(real: Any) -> None:
    client = ringfence.AsyncClient(api_key=KEY, base_url=real.url)

    async def work() -> None:
        sandbox = await ringfence.AsyncSandbox.connect(SANDBOX, client=client)
        results = await asyncio.gather(*(sandbox.commands.run("true") for _ in range(20)))
        assert all(result.ok for result in results)

    # The connections of each loop are closed with it: an unclosed one would be a warning, and that an error here.
    asyncio.run(work())
    asyncio.run(work())
    gc.collect()


QUIET = """
import asyncio, sys
import ringfence

ringfence.Sandbox.connect(sys.argv[1]).commands.run("true").check()

async def main():
    sandbox = await ringfence.AsyncSandbox.connect(sys.argv[1])
    (await sandbox.commands.run("true")).check()

asyncio.run(main())
"""


def test_a_program_that_closes_nothing_ends_without_a_warning(real: Any) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", QUIET, SANDBOX],
        env={**os.environ, "RINGFENCE_URL": real.url, "RINGFENCE_API_KEY": KEY},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the test server's threads do not matter to the child
def test_a_forked_process_has_connections_of_its_own(real: Any) -> None:
    client = ringfence.Client(api_key=KEY, base_url=real.url)
    sandbox = ringfence.Sandbox.connect(SANDBOX, client=client)
    assert real.connections == 1
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = 0 if sandbox.commands.run("true").ok else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert sandbox.commands.run("true").ok
    assert real.connections == 2
    client.close()


def test_a_cancelled_task_still_kills_its_sandbox() -> None:
    killed: list[str] = []

    async def handle(request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(0.05)
        if request.method == "DELETE":
            killed.append(request.url.path)
            return httpx.Response(204)
        return httpx.Response(201, json={**SANDBOX_JSON, "access_token": TOKEN})

    async def main() -> None:
        client = ringfence.AsyncClient(api_key=KEY, base_url=URL, transport=httpx.MockTransport(handle))
        entered = asyncio.Event()

        async def work() -> None:
            async with await ringfence.AsyncSandbox.create(client=client):
                entered.set()
                await asyncio.sleep(60)

        task = asyncio.ensure_future(work())
        await entered.wait()
        task.cancel()
        await asyncio.sleep(0.01)
        task.cancel()  # once more, while it is killing
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert killed == [f"/v1/sandboxes/{SANDBOX}"]
