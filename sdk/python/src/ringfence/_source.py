"""What may be written to a file in a sandbox, and where what is read may go."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Generator
from typing import IO, Any, Final, Protocol

CHUNK: Final = 1 << 20


class Readable(Protocol):
    """A file object, opened for reading."""

    def read(self, size: int = -1, /) -> bytes | str: ...


class Writable(Protocol):
    """A binary file object, opened for writing."""

    def write(self, data: bytes, /) -> Any: ...


def to_bytes(call: str, value: object) -> bytes | bytearray | memoryview:
    """Return one portion of a file's content as bytes."""
    if isinstance(value, str):
        try:
            return value.encode("utf-8")
        except UnicodeEncodeError:
            raise ValueError(f"{call}: the text holds surrogates, which UTF-8 cannot carry; pass bytes") from None
    if isinstance(value, memoryview):
        return value.cast("B") if value.contiguous else value.tobytes()
    if isinstance(value, (bytes, bytearray)):
        return value
    raise TypeError(f"{call}: a portion of the content must be bytes or str, got {type(value).__name__}")


def refuse(call: str, data: object) -> TypeError:
    """Return the error for content that cannot be written."""
    return TypeError(
        f"{call}: data must be str, bytes, a pathlib.Path, a file object or an iterable of bytes, "
        f"got {type(data).__name__}"
    )


def write_all(write: Callable[[bytes], object], portion: bytes) -> None:
    """Write a portion whole: a raw file may take a part of it at a time."""
    while True:
        written = write(portion)
        if not isinstance(written, int) or written >= len(portion):
            return
        portion = portion[written:]


@contextlib.contextmanager
def local_target(path: str | os.PathLike[str]) -> Generator[IO[bytes], None, None]:
    """Open a local file that appears under its name only once it is whole.

    Something other than a regular file, such as /dev/stdout, is written in place.
    """
    target = os.path.realpath(path)
    if os.path.isdir(target):
        raise IsADirectoryError(f"{os.fspath(path)!r} is a directory; name a file in it")
    if os.path.exists(target) and not os.path.isfile(target):
        with open(target, "wb") as file:
            yield file
        return
    part = os.path.join(os.path.dirname(target), f".ringfence-{secrets.token_hex(6)}.part")
    try:
        with open(part, "xb") as file:
            yield file
        os.replace(part, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise
