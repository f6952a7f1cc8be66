"""What the async client does differently from the sync one. `_bridge_sync` has the same names."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import weakref
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from typing import Any, TypeAlias, TypeVar, cast

import httpx

from . import _source as source
from ._source import Readable, Writable

T = TypeVar("T")

FileData: TypeAlias = (
    str | bytes | bytearray | memoryview | os.PathLike[str] | Readable | Iterable[bytes] | AsyncIterable[bytes]
)
OutputCallback: TypeAlias = Callable[[str], Any]


class Pools:
    """One pool of connections for each event loop: connections cannot be used from another."""

    def __init__(self, make: Callable[[], httpx.AsyncClient]) -> None:
        self._make = make
        self._pools: weakref.WeakKeyDictionary[
            asyncio.AbstractEventLoop, tuple[int, httpx.AsyncClient, AsyncGenerator[None, None]]
        ] = weakref.WeakKeyDictionary()

    async def current(self) -> httpx.AsyncClient:
        """Return the running loop's pool; a forked process gets its own."""
        loop, pid = asyncio.get_running_loop(), os.getpid()
        found = self._pools.get(loop)
        if found is None or found[0] != pid:
            pool = self._make()
            guard = _closing(pool)
            found = self._pools[loop] = (pid, pool, guard)
            await anext(guard)
        return found[1]

    async def close(self) -> None:
        """Close the running loop's pool."""
        found = self._pools.pop(asyncio.get_running_loop(), None)
        if found is not None and found[0] == os.getpid():
            await found[2].aclose()


async def _closing(pool: httpx.AsyncClient) -> AsyncGenerator[None, None]:
    """Close a pool before its loop is: asyncio.run() finishes the generators that are still open."""
    try:
        yield
    finally:
        await pool.aclose()


def at_exit(call: Callable[[], Awaitable[object]]) -> None:
    """Do nothing: a pool is closed with its loop."""


def transport(
    limits: httpx.Limits, proxy: str | None, options: list[tuple[int, int, int]], url: str
) -> httpx.AsyncHTTPTransport:
    """Return the transport of a pool."""
    # Reading the system's certificates takes tens of milliseconds, and plain HTTP needs none.
    verify = proxy is not None or not url.startswith("http:")
    return httpx.AsyncHTTPTransport(limits=limits, proxy=proxy, socket_options=options, verify=verify)


async def sleep(seconds: float) -> None:
    """Wait."""
    await asyncio.sleep(seconds)


async def in_thread(call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """Make a call that blocks on local files."""
    return await asyncio.to_thread(call, *args, **kwargs)


async def gather(calls: Sequence[Callable[[], Awaitable[T]]], limit: int) -> list[T]:
    """Make all calls, at most limit at once. The first failure ends the others and is raised."""
    results: dict[int, T] = {}
    pending = iter(enumerate(calls))
    failed = False

    async def work() -> None:
        nonlocal failed
        for i, call in pending:
            if failed:
                return
            try:
                results[i] = await call()
            except BaseException:
                failed = True
                raise

    if not calls:
        return []
    workers = [asyncio.ensure_future(work()) for _ in range(min(limit, len(calls)))]
    try:
        done, _ = await asyncio.wait(workers, return_when=asyncio.FIRST_EXCEPTION)
        for worker in done:
            worker.result()
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    return [results[i] for i in range(len(calls))]


async def finish(call: Callable[[], Awaitable[object]]) -> None:
    """Make a call to its end even when this task is cancelled meanwhile."""

    async def run() -> object:
        return await call()

    task = asyncio.ensure_future(run())
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as exc:
            cancelled = exc
    if cancelled is not None:
        task.exception()  # the cancellation is what is raised
        raise cancelled
    task.result()


def check_callback(call: str, name: str, callback: object) -> None:
    """Refuse what cannot be called."""
    if callback is not None and not callable(callback):
        raise TypeError(f"{call}: {name} must be callable with one str, got {type(callback).__name__}")


async def notify(callback: OutputCallback | None, text: str) -> None:
    """Call a callback, and await what it returns if that can be awaited."""
    if callback is None or not text:
        return
    result = callback(text)
    if inspect.isawaitable(result):
        await result


@contextlib.asynccontextmanager
async def content_of(call: str, data: object) -> AsyncGenerator[bytes | AsyncIterator[bytes], None]:
    """Open what is to be written: bytes, or an iterator that never holds more than a portion."""
    if isinstance(data, (str, bytes, bytearray, memoryview)):
        yield bytes(source.to_bytes(call, cast("object", data)))
    elif isinstance(data, os.PathLike):
        path = os.fspath(cast("os.PathLike[str]", data))
        file = await asyncio.to_thread(open, path, "rb")
        try:
            yield _portions(call, file)
        finally:
            await asyncio.to_thread(file.close)
    elif hasattr(data, "read"):
        yield _portions(call, cast("Readable", data))
    elif isinstance(data, AsyncIterable):
        yield _from_async(call, cast("AsyncIterable[object]", data))
    elif isinstance(data, Iterable) and not isinstance(data, Mapping):
        yield _from_iterable(call, cast("Iterable[object]", data))
    else:
        raise source.refuse(call, cast("object", data))


async def _portions(call: str, file: Readable) -> AsyncIterator[bytes]:
    # A file object that reads asynchronously is as welcome as one that blocks.
    if inspect.iscoroutinefunction(file.read):
        while portion := await cast("Callable[[int], Awaitable[object]]", file.read)(source.CHUNK):
            yield bytes(source.to_bytes(call, portion))
        return
    while portion := await asyncio.to_thread(file.read, source.CHUNK):
        yield bytes(source.to_bytes(call, portion))


async def _from_async(call: str, data: AsyncIterable[object]) -> AsyncIterator[bytes]:
    async for portion in data:
        yield bytes(source.to_bytes(call, portion))


async def _from_iterable(call: str, data: Iterable[object]) -> AsyncIterator[bytes]:
    iterator, end = iter(data), object()
    while (portion := await asyncio.to_thread(next, iterator, end)) is not end:
        yield bytes(source.to_bytes(call, portion))


@contextlib.asynccontextmanager
async def target_of(call: str, target: object) -> AsyncGenerator[Callable[[bytes], Awaitable[None]], None]:
    """Open where to write what is read: a local path or a file object."""
    if isinstance(target, (str, os.PathLike)):
        with source.local_target(cast("str | os.PathLike[str]", target)) as file:

            async def write(portion: bytes) -> None:
                await asyncio.to_thread(source.write_all, file.write, portion)

            yield write
    elif hasattr(target, "write"):
        sink = cast("Writable", target).write

        async def write_to(portion: bytes) -> None:
            if inspect.iscoroutinefunction(sink):
                await sink(portion)
            else:
                await asyncio.to_thread(source.write_all, sink, portion)

        yield write_to
    else:
        raise TypeError(f"{call}: the target must be a local path or a binary file object, got {type(target).__name__}")
