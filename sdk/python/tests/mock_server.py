"""A server of canned answers behind httpx.MockTransport, which checks every request against the API's rules."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx

KEY = "rf_" + "0123456789abcdef" * 4
URL = "http://ringfence.test:7070"
SANDBOX = "abcdefghij0123456789"
TOKEN = "f" * 64
REQUEST_ID = "00112233445566aa"

SANDBOX_JSON: dict[str, Any] = {
    "id": SANDBOX,
    "name": "mine",
    "template": "code-interpreter",
    "state": "running",
    "reason": None,
    "detail": None,
    "vcpu": 2,
    "memory_mib": 2048,
    "disk_mib": 8192,
    "metadata": {"a": "b"},
    "user": "root",
    "work_dir": "/home/user",
    "network": {"allow_out": [], "deny_out": ["0.0.0.0/0"], "allow_internet_access": None},
    "created_at": "2026-11-30T20:00:00.123456Z",
    "started_at": "2026-11-30T20:00:00.223456Z",
    "ended_at": None,
    "expires_at": None,
    "paused_at": None,
    "idle_at": None,
    "delete_at": None,
    "timeout_seconds": None,
    "on_timeout": "kill",
    "idle_timeout_seconds": None,
    "auto_delete_seconds": None,
    "auto_resume": True,
}

SNAPSHOT = "snap_" + SANDBOX
SNAPSHOT_JSON: dict[str, Any] = {
    "id": SNAPSHOT,
    "name": "before",
    "sandbox_id": SANDBOX,
    "template": "code-interpreter",
    "vcpu": 2,
    "memory_mib": 2048,
    "disk_mib": 8192,
    "bytes": 4194304,
    "created_at": "2026-11-30T20:05:00.000000Z",
}

RESULT_JSON: dict[str, Any] = {
    "id": "p1",
    "exit_code": 0,
    "reason": None,
    "signal": None,
    "stdout": "hi\n",
    "stderr": "",
    "stdout_truncated": False,
    "stderr_truncated": False,
    "truncated": False,
    "duration_ms": 12,
    "started_at": "2026-11-30T20:00:00.123456Z",
}

FILE_JSON: dict[str, Any] = {
    "path": "/tmp/f",
    "name": "f",
    "type": "file",
    "size": 3,
    "mode": "0644",
    "uid": 0,
    "gid": 0,
    "owner": "root",
    "group": "root",
    "modified_at": "2026-11-30T20:00:00.123456Z",
    "target": None,
}


class Portions(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body that arrives in these portions and then ends, or breaks."""

    def __init__(self, *portions: bytes, broken: Exception | None = None) -> None:
        self._portions = portions
        self._broken = broken
        self.closed = False

    def __iter__(self) -> Iterator[bytes]:
        yield from self._portions
        if self._broken:
            raise self._broken

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for portion in self:
            yield portion

    def close(self) -> None:
        self.closed = True

    async def aclose(self) -> None:
        self.closed = True


def answer(value: Any = None, status: int = 200, **headers: str) -> httpx.Response:
    """Return an answer with a JSON body, or with none."""
    body = b"" if value is None else json.dumps(value).encode()
    return httpx.Response(status, headers={"X-Request-Id": REQUEST_ID, **headers}, stream=Portions(body))


def refusal(code: str, status: int, message: str = "cannot do that", **fields: Any) -> httpx.Response:
    """Return an error as the API words it."""
    headers = {"Retry-After": str(fields.pop("retry_after"))} if "retry_after" in fields else {}
    error = {"code": code, "message": message, "hint": "do this", "request_id": REQUEST_ID, **fields}
    return answer({"error": error}, status, **headers)


def sse(*events: tuple[str, Any] | str, broken: Exception | None = None, size: int = 0) -> httpx.Response:
    """Return a stream of events, in portions of size bytes if size is not 0; a str is put in as it is."""
    text = "".join(
        event if isinstance(event, str) else f"event: {event[0]}\ndata: {json.dumps(event[1])}\n\n" for event in events
    ).encode()
    portions = [text[i : i + size] for i in range(0, len(text), size)] if size else [text]
    return httpx.Response(
        200,
        headers={"X-Request-Id": REQUEST_ID, "Content-Type": "text/event-stream"},
        stream=Portions(*portions, broken=broken),
    )


class MockServer:
    """Gives the answers of `handler`, and keeps the requests."""

    def __init__(self, handler: Callable[[httpx.Request], httpx.Response]) -> None:
        self.requests: list[httpx.Request] = []
        self._handler = handler
        self.transport = httpx.MockTransport(self._handle)

    def _handle(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        assert request.headers["authorization"] == f"Bearer {KEY}"
        assert request.headers["user-agent"].startswith("ringfence-python/")
        assert request.headers["accept-encoding"] == "identity"
        return self._handler(request)

    @property
    def last(self) -> httpx.Request:
        return self.requests[-1]

    @property
    def last_json(self) -> Any:
        assert self.last.headers["content-type"] == "application/json"
        return json.loads(self.last.content)

    @property
    def last_query(self) -> list[tuple[str, str]]:
        return self.last.url.params.multi_items()


def answering(*responses: httpx.Response | Exception) -> MockServer:
    """Return a server that gives these answers one after the other; an exception is raised by the transport."""
    left = list(responses)

    def handle(_: httpx.Request) -> httpx.Response:
        response = left.pop(0)
        if isinstance(response, Exception):
            raise response
        return response

    return MockServer(handle)


def created(**changes: Any) -> httpx.Response:
    """Return the answer to a create."""
    return answer({**SANDBOX_JSON, "access_token": TOKEN, **changes}, 201)
