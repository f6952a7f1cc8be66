"""What the sync client does differently from the async one. `_bridge_async` has the same names."""

from __future__ import annotations

import atexit
import contextlib
import inspect
import os
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any, TypeAlias, TypeVar, cast

import httpx

from . import _source as source
from ._source import Readable, Writable

T = TypeVar("T")

FileData: TypeAlias = str | bytes | bytearray | memoryview | os.PathLike[str] | Readable | Iterable[bytes]
OutputCallback: TypeAlias = Callable[[str], Any]


class Pools:
    """One pool of connections for all threads of a process: a fork must not share its parent's."""

    def __init__(self, make: Callable[[], httpx.Client]) -> None:
        self._make = make
        self._pools: dict[int, httpx.Client] = {}
        self._lock = threading.Lock()
        self._lock_pid = os.getpid()

    def current(self) -> httpx.Client:
        """Return this process's pool."""
        pid = os.getpid()
        if (found := self._pools.get(pid)) is not None:
            return found
        if self._lock_pid != pid:
            # Another thread of the parent may have held the lock at the fork.
            self._lock, self._lock_pid = threading.Lock(), pid
        with self._lock:
            if pid not in self._pools:
                self._pools[pid] = self._make()
            return self._pools[pid]

    def close(self) -> None:
        """Close this process's pool."""
        if (pool := self._pools.pop(os.getpid(), None)) is not None:
            pool.close()


def at_exit(call: Callable[[], object]) -> None:
    """Make a call when the interpreter ends."""
    atexit.register(call)


def transport(
    limits: httpx.Limits, proxy: str | None, options: list[tuple[int, int, int]], url: str
) -> httpx.HTTPTransport:
    """Return the transport of a pool."""
    # Reading the system's certificates takes tens of milliseconds, and plain HTTP needs none.
    verify = proxy is not None or not url.startswith("http:")
    return httpx.HTTPTransport(limits=limits, proxy=proxy, socket_options=options, verify=verify)


def sleep(seconds: float) -> None:
    """Wait."""
    time.sleep(seconds)


def in_thread(call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Make a call that blocks on local files."""
    return call(*args, **kwargs)


def gather(calls: Sequence[Callable[[], T]], limit: int) -> list[T]:
    """Make all calls, at most limit at once. The first failure stops those that have not begun and is raised."""
    if not calls:
        return []
    with ThreadPoolExecutor(max_workers=min(limit, len(calls)), thread_name_prefix="ringfence") as pool:
        futures = [pool.submit(call) for call in calls]
        try:
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
            return [future.result() for future in futures]
        finally:
            for future in futures:
                future.cancel()


def finish(call: Callable[[], object]) -> None:
    """Make a call to its end."""
    call()


def check_callback(call: str, name: str, callback: object) -> None:
    """Refuse what cannot be called, and what would have to be awaited."""
    if callback is None:
        return
    if not callable(callback):
        raise TypeError(f"{call}: {name} must be callable with one str, got {type(callback).__name__}")
    if inspect.iscoroutinefunction(callback):
        raise TypeError(f"{call}: {name} is a coroutine function; use AsyncSandbox for those")


def notify(callback: OutputCallback | None, text: str) -> None:
    """Call a callback."""
    if callback is not None and text:
        callback(text)


@contextlib.contextmanager
def content_of(call: str, data: object) -> Generator[bytes | Iterator[bytes], None, None]:
    """Open what is to be written: bytes, or an iterator that never holds more than a portion."""
    if isinstance(data, (str, bytes, bytearray, memoryview)):
        yield bytes(source.to_bytes(call, cast("object", data)))
    elif isinstance(data, os.PathLike):
        with open(cast("os.PathLike[str]", data), "rb") as file:
            yield _portions(call, file)
    elif hasattr(data, "read"):
        yield _portions(call, cast("Readable", data))
    elif isinstance(data, Iterable) and not isinstance(data, Mapping):
        yield _from_iterable(call, cast("Iterable[object]", data))
    else:
        raise source.refuse(call, cast("object", data))


def _portions(call: str, file: Readable) -> Iterator[bytes]:
    while portion := file.read(source.CHUNK):
        yield bytes(source.to_bytes(call, portion))


def _from_iterable(call: str, data: Iterable[object]) -> Iterator[bytes]:
    for portion in data:
        yield bytes(source.to_bytes(call, portion))


@contextlib.contextmanager
def target_of(call: str, target: object) -> Generator[Callable[[bytes], None], None, None]:
    """Open where to write what is read: a local path or a file object."""
    if isinstance(target, (str, os.PathLike)):
        with source.local_target(cast("str | os.PathLike[str]", target)) as file:

            def write(portion: bytes) -> None:
                source.write_all(file.write, portion)

            yield write
    elif hasattr(target, "write"):
        sink = cast("Writable", target).write

        def write_to(portion: bytes) -> None:
            source.write_all(sink, portion)

        yield write_to
    else:
        raise TypeError(f"{call}: the target must be a local path or a binary file object, got {type(target).__name__}")
