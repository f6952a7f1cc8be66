"""The binary stream of a process's output (application/vnd.ringfence.stream), decoded without I/O.

A frame is one byte of kind, four bytes of length, big-endian, and that many bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Final, NamedTuple

from ._exceptions import APIResponseError
from ._models import Json, json_object

MEDIA_TYPE: Final = "application/vnd.ringfence.stream"

STDOUT: Final = 1
STDERR: Final = 2
STARTED: Final = 3
EXIT: Final = 4
ERROR: Final = 5
KEEP_ALIVE: Final = 6
POSITION: Final = 7
LOST: Final = 8

_HEADER: Final = 5
# The server's frames hold at most 1 MiB; what claims more is no stream of ours.
_LARGEST: Final = 16 << 20


class Frame(NamedTuple):
    """One frame: its kind and what it carries."""

    kind: int
    data: bytes

    @property
    def json(self) -> Json:
        """The JSON object that the frame carries."""
        try:
            value: object = json.loads(self.data)
        except ValueError:
            raise APIResponseError(f"the server sent a frame of kind {self.kind} that is not JSON") from None
        return json_object(value, f"frame of kind {self.kind}")

    @property
    def number(self) -> int:
        """The eight-byte number that the frame carries."""
        if len(self.data) != 8:
            raise APIResponseError(f"the server sent a frame of kind {self.kind} with {len(self.data)} bytes, not 8")
        return int.from_bytes(self.data, "big")


class FrameDecoder:
    """Takes a stream's bytes in any portions and gives its frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, chunk: bytes) -> Iterator[Frame]:
        """Yield the frames that chunk completes."""
        self._buffer += chunk
        start = 0
        try:
            while len(self._buffer) - start >= _HEADER:
                size = int.from_bytes(self._buffer[start + 1 : start + _HEADER], "big")
                if size > _LARGEST:
                    raise APIResponseError(f"the server sent a frame of {size} bytes, more than any of ours has")
                end = start + _HEADER + size
                if len(self._buffer) < end:
                    break
                frame = Frame(self._buffer[start], bytes(self._buffer[start + _HEADER : end]))
                start = end
                yield frame
        finally:
            del self._buffer[:start]
