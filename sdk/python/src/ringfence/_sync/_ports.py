# Generated from ../_async/_ports.py by scripts/generate_sync.py; change that file.
"""What listens in a sandbox, what it uses, and what happens to it."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Generator, Iterator
from typing import Any

from .. import _bridge_sync as bridge
from .. import _options as check
from .. import _sse as sse
from .. import _wire as wire
from .._exceptions import APIConnectionError, UnavailableError
from .._models import json_list, json_object
from .._port_models import Event, Metrics, PortInfo
from ._client import Client

# How often, one after the other without an event, a stream of events that broke is joined again.
_REJOINS = 12


class Ports:
    """Reaches what listens in one sandbox; it is `sandbox.ports`."""

    def __init__(self, client: Client, sandbox_id: str) -> None:
        self._client = client
        self._path = wire.sandbox_path(sandbox_id)

    def list(self) -> list[PortInfo]:
        """Return the ports on which something listens, and those that were made public."""
        answer = self._client._json(wire.Call("GET", self._path + "/ports"))
        return [PortInfo._from_json(item) for item in json_list(answer, "ports")]

    def publish(self, port: int, *, wakes: bool = False) -> PortInfo:
        """Let anybody who can reach the server reach this port, without a key.

        Args:
            port: 1 to 65535.
            wakes: whether they wake the sandbox when it is paused, 3 times in a row and then every 30 seconds. By
                default they get an error then.
        """
        call = "ports.publish"
        body = {"public": True, "wakes": True} if check.boolean(call, "wakes", wakes) else {"public": True}
        return self._set(call, port, body)

    def unpublish(self, port: int) -> PortInfo:
        """Ask for a key again, or for a link."""
        return self._set("ports.unpublish", port, {"public": False})

    def url(self, port: int, path: str = "/") -> str:
        """Return the URL of a port; it is opened with an API key, or the sandbox's token, as every other call.

        Args:
            port: 1 to 65535. Something that listens on 127.0.0.1 only is reached too.
            path: what comes after it.
        """
        number = _port("ports.url", port)
        rest = check.text("ports.url", "path", path)
        return f"{self._client.base_url}{self._path}/ports/{number}/{rest.removeprefix('/')}"

    def link(self, port: int, path: str = "/", *, expires_in: int | None = None) -> str:
        """Return a URL that opens a port in a browser without a key, until it expires.

        Args:
            port: 1 to 65535.
            path: the page that it opens.
            expires_in: seconds. Default 3600.
        """
        call = "ports.link"
        body: dict[str, Any] = {"port": _port(call, port), "path": check.text(call, "path", path)}
        if (seconds := check.integer_or_none(call, "expires_in", expires_in)) is not None:
            body["expires_in_seconds"] = seconds
        return str((self._client._json(wire.Call("POST", self._path + "/links", json=body))).get("url"))

    def _set(self, call: str, port: int, body: dict[str, Any]) -> PortInfo:
        path = f"{self._path}/ports/{_port(call, port)}"
        return PortInfo._from_json(self._client._json(wire.Call("PUT", path, json=body)))


def _port(call: str, port: object) -> int:
    number = check.integer_or_none(call, "port", port)
    if number is None or not 1 <= number <= 65535:
        raise ValueError(f"{call}: port must be 1 to 65535, got {port!r}")
    return number


def metrics(client: Client, sandbox_path: str) -> Metrics:
    """Return what a sandbox uses now."""
    answer = client._json(wire.Call("GET", sandbox_path + "/metrics"))
    return Metrics._from_json(answer.get("now"))


def metrics_history(
    client: Client, sandbox_path: str, since: datetime.datetime | None, until: datetime.datetime | None
) -> list[Metrics]:
    """Return the samples of a sandbox between two instants."""
    params: list[tuple[str, str]] = []
    for name, value in (("from", since), ("to", until)):
        if value is not None:
            if value.tzinfo is None:
                raise ValueError(
                    "sandbox.metrics_history: an instant needs a time zone, as datetime.now(timezone.utc) has"
                )
            at = value.astimezone(datetime.timezone.utc)
            params.append((name, at.strftime("%Y-%m-%dT%H:%M:%S.%f") + "Z"))
    answer = client._json(wire.Call("GET", sandbox_path + "/metrics", params=params))
    return [Metrics._from_json(item) for item in json_list(answer, "samples")]


def events(client: Client, path: str, after: str | None) -> Iterator[Event]:
    """Yield events as they happen, joining again where a connection broke. Ends only when it is left."""
    failures = 0
    while True:
        try:
            with contextlib.closing(_joined(client, path, after)) as stream:
                for event in stream:
                    after, failures = event.id, 0
                    yield event
        except (APIConnectionError, UnavailableError) as exc:
            failures += 1
            if failures > _REJOINS:
                raise
            bridge.sleep(min(5.0, wire.retry_wait(min(failures, 3), exc.retry_after)))


def _joined(client: Client, path: str, after: str | None) -> Generator[Event, None, None]:
    call = wire.Call("GET", path, read_timeout=wire.STREAM_SILENCE, repeatable=False)
    call.headers["Accept"] = "text/event-stream"
    if after is not None:
        call.headers["Last-Event-ID"] = check.text("events", "after", after)
    decoder = sse.EventDecoder()
    with client._stream(call) as response:
        request_id = response.headers.get("x-request-id")
        with contextlib.closing(client._chunks(call, response)) as chunks:
            for chunk in chunks:
                for event in decoder.feed(chunk):
                    value = json_object(sse.event_json(event), "event")
                    if event.name == "error":
                        raise wire.api_error(
                            wire.error_body(value) or {}, status=response.status_code, request_id=request_id
                        )
                    yield Event._from_json(value)
    raise APIConnectionError(
        "the stream of events broke", hint="did the server stop? see its log", request_id=request_id
    )
