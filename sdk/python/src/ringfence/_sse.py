"""Server-sent events, as the WHATWG HTML standard defines them, decoded without I/O."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from typing import NamedTuple

from ._exceptions import APIResponseError
from ._models import Json, StreamTail, decode_base64, json_object


class Event(NamedTuple):
    """One event: its name, and its data as text."""

    name: str
    data: bytes


class EventDecoder:
    """Takes a stream's bytes in any portions and gives its events.

    Lines end with LF or CRLF; a lone CR, which the standard allows too, is not an end for this server.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._searched = 0
        self._name = "message"
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """Yield the events that chunk completes."""
        self._buffer += chunk
        start = 0
        while (end := self._buffer.find(b"\n", max(start, self._searched))) >= 0:
            line = bytes(self._buffer[start:end])
            start = end + 1
            if (event := self._line(line.removesuffix(b"\r"))) is not None:
                yield event
        del self._buffer[:start]
        self._searched = len(self._buffer)

    def _line(self, line: bytes) -> Event | None:
        if not line:
            event = Event(self._name, b"\n".join(self._data)) if self._data else None
            self._name, self._data = "message", []
            return event
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"event":
            self._name = value.decode("utf-8", "replace")
        elif name == b"data":
            self._data.append(value)
        return None  # a comment, or a field that we do not use


def event_json(event: Event) -> Json:
    """Return an event's data, which has to be a JSON object."""
    try:
        value: object = json.loads(event.data)
    except ValueError:
        raise APIResponseError(f"the server sent an event {event.name!r} that is not JSON") from None
    return json_object(value, f"event {event.name!r}")


class OutputStream:
    """One of a command's two streams: keeps its tail, and makes text of it for a callback.

    A character that is split across events is held until it is whole.
    """

    def __init__(self, limit: int) -> None:
        self.tail = StreamTail(limit)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def take(self, event: Json) -> str:
        """Take one event's bytes and return the text that they complete."""
        text, encoded = event.get("text"), event.get("base64")
        if isinstance(text, str):
            chunk = text.encode("utf-8")
        elif isinstance(encoded, str):
            chunk = decode_base64(encoded, "output event")
        else:
            raise APIResponseError("the server sent an output event with neither text nor base64")
        return self.add(chunk)

    def add(self, chunk: bytes) -> str:
        """Take the next bytes and return the text that they complete."""
        self.tail.append(chunk)
        return self._decoder.decode(chunk)

    def finish(self) -> str:
        """Return what is left of a character that never became whole."""
        return self._decoder.decode(b"", final=True)
