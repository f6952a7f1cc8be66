"""Processes that run beside their caller: background commands and terminals."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator
from types import TracebackType
from typing import Any
from urllib.parse import quote

from .. import _bridge_async as bridge
from .. import _frames as frames
from .. import _options as check
from .. import _sse as sse
from .. import _wire as wire
from .._bridge_async import FileData, OutputCallback
from .._exceptions import (
    APIConnectionError,
    APIResponseError,
    APITimeoutError,
    FailedPreconditionError,
    ProcessNotFoundError,
    UnavailableError,
)
from .._models import CommandResult, Json, StreamTail
from .._process_models import Output, ProcessInfo, StreamName, signal_name
from ._client import AsyncClient

# How often, one after the other without any progress, a stream that broke is joined again: over half a minute.
_REJOINS = 12


class AsyncProcess:
    """A process that goes on by itself: a background command.

    Iterate over it for its output, `async for piece in process`, from the beginning on, as far as its log holds
    it; or `await process.wait()`. Any number of handles may follow one process, from any position, at the same time
    and also after it ended, for 10 minutes. A connection that breaks, because the server was restarted for one, is
    made again where it was.

    Attributes:
        id: its id.
        pid: as programs in the sandbox see it.
        tag: what its starter called it, or None.
    """

    def __init__(self, client: AsyncClient, sandbox_path: str, info: ProcessInfo, position: int = 0) -> None:
        self._client = client
        self._sandbox_path = sandbox_path
        self._path = f"{sandbox_path}/processes/{quote(info.id, safe='')}"
        self._info = info
        self._position = position
        self._result: CommandResult | None = None
        self._lost = 0

    def __repr__(self) -> str:
        return f"{type(self).__name__}(id={self.id!r}, pid={self.pid}, command={self._info.command!r})"

    @property
    def id(self) -> str:
        """Its id."""
        return self._info.id

    @property
    def pid(self) -> int:
        """Its number, as programs in the sandbox see it."""
        return self._info.pid

    @property
    def tag(self) -> str | None:
        """What its starter called it, or None."""
        return self._info.tag

    @property
    def info(self) -> ProcessInfo:
        """What the server last said of it; `get_info()` asks again."""
        return self._info

    @property
    def position(self) -> int:
        """The position after the last piece of output that was iterated over."""
        return self._position

    @property
    def lost(self) -> int:
        """How many bytes of output the log no longer held when this handle asked for them."""
        return self._lost

    @property
    def result(self) -> CommandResult | None:
        """How it ended, with no output, once an iteration has come to its end; None before."""
        return self._result

    async def get_info(self) -> ProcessInfo:
        """Ask the server for the process as it is now.

        Raises:
            ProcessNotFoundError: it ended more than 10 minutes ago.
        """
        self._info = ProcessInfo._from_json(await self._client._json(wire.Call("GET", self._path)))
        return self._info

    async def __aiter__(self) -> AsyncIterator[Output]:
        """Yield the output from `position` on, until the process has ended.

        Raises:
            SandboxEndedError: the sandbox ended, and the process with it.
            SandboxPausedError: the sandbox was paused, and the process with it. Iterate again after the resume.
            APIConnectionError: the connection broke and could not be made again for half a minute.
        """
        async with contextlib.aclosing(self._follow(None)) as output:
            async for piece in output:
                yield piece

    async def wait(
        self,
        timeout: float | None = None,
        *,
        output_limit_bytes: int | None = None,
        on_stdout: OutputCallback | None = None,
        on_stderr: OutputCallback | None = None,
    ) -> CommandResult:
        """Wait for the end, and return it with the output from `position` on.

        Args:
            timeout: seconds to wait. Default None: for ever. The process goes on when it passes.
            output_limit_bytes: how much of each stream the result keeps, 1 to 67108864. Default 10485760. Of more, the
                tail is kept and `truncated` says so.
            on_stdout: called with each piece of text of stdout as it arrives. Characters are whole.
            on_stderr: the same for stderr.

        Raises:
            APITimeoutError: timeout passed; also a builtin TimeoutError. What came until then is not lost: a later call
                goes on where this one was, and the log holds the rest.
            SandboxEndedError: the sandbox ended, and the process with it.
            SandboxPausedError: the sandbox was paused, and the process with it; as with APITimeoutError.
        """
        call = "process.wait"
        seconds = None if timeout is None else check.number(call, "timeout", timeout)
        limit = check.integer_or_none(call, "output_limit_bytes", output_limit_bytes)
        bridge.check_callback(call, "on_stdout", on_stdout)
        bridge.check_callback(call, "on_stderr", on_stderr)
        until = None if seconds is None else time.monotonic() + seconds
        keep = max(1, limit or wire.DEFAULT_OUTPUT_LIMIT)
        stdout, stderr = sse.OutputStream(keep), sse.OutputStream(keep)
        lost = self._lost
        async with contextlib.aclosing(self._follow(until)) as output:
            async for piece in output:
                if piece.stream == "stdout":
                    await bridge.notify(on_stdout, stdout.add(piece.data))
                else:
                    await bridge.notify(on_stderr, stderr.add(piece.data))
        await bridge.notify(on_stdout, stdout.finish())
        await bridge.notify(on_stderr, stderr.finish())
        end = self._result
        if end is None:  # _follow returns only at the end
            raise APIResponseError("the stream ended without the process's exit")
        return end._with_output(stdout.tail, stderr.tail, self._lost > lost)

    async def kill(self) -> bool:
        """Kill it with all that it started. False: it had ended."""
        return await self._signal("SIGKILL", True)

    async def signal(self, signal: str | int, *, tree: bool = False) -> bool:
        """Send a signal.

        Args:
            signal: a name, "SIGINT" or "INT", a number, or a signal.Signals.
            tree: send it to all that the process started too. Default: to it alone.

        Returns:
            False: it had ended.
        """
        call = "process.signal"
        return await self._signal(signal_name(call, signal), check.boolean(call, "tree", tree))

    async def _signal(self, signal: str | int, tree: bool) -> bool:
        body: Json = {"signal": signal, "tree": tree}
        try:
            await self._client._request(wire.Call("POST", self._path + "/signal", json=body))
        except (ProcessNotFoundError, FailedPreconditionError):
            return False
        return True

    async def send_stdin(self, data: FileData, *, close: bool = False) -> int:
        """Write to its standard input, which has to be open: it was started with `stdin=True` or has a terminal.

        Returns when the process, or the pipe to it, has taken all.

        Args:
            data: text, which is sent as UTF-8, bytes, a file object or an iterable of bytes. Any length.
            close: close the standard input afterwards.

        Returns:
            How many bytes were written.

        Raises:
            FailedPreconditionError: its standard input is closed, or it has ended.
        """
        params = [("close", "true")] if check.boolean("process.send_stdin", "close", close) else []
        async with bridge.content_of("process.send_stdin", data) as content:
            call = wire.Call("POST", self._path + "/stdin", params=params, content=content, read_timeout=None)
            call.headers["Content-Type"] = "application/octet-stream"
            written = (await self._client._json(call)).get("written")
        return written if isinstance(written, int) else 0

    async def close_stdin(self) -> None:
        """Close its standard input: it reads an end of file."""
        await self.send_stdin(b"", close=True)

    async def __aenter__(self) -> AsyncProcess:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Kill it if it still runs."""
        try:
            await bridge.finish(self.kill)
        except Exception as failure:
            if exc is None:
                raise
            wire.add_note(exc, f"and the process {self.id} could not be killed: {failure}")

    async def _follow(self, until: float | None) -> AsyncGenerator[Output, None]:
        """Yield the output until the process has ended, joining again where a connection broke."""
        failures = 0
        while True:
            before = self._position
            try:
                async with contextlib.aclosing(self._joined(until)) as output:
                    async for piece in output:
                        failures = 0
                        yield piece
                if self._result is not None:
                    return
                continue  # the stream was left because its patience no longer fits
            except APITimeoutError:
                raise
            except (APIConnectionError, UnavailableError) as exc:
                failures = 0 if self._position > before else failures + 1
                if failures > _REJOINS:
                    raise
                pause = min(5.0, wire.retry_wait(min(failures, 3), exc.retry_after))
                if until is not None and time.monotonic() + pause > until:
                    raise
                await bridge.sleep(pause)

    async def _joined(self, until: float | None) -> AsyncGenerator[Output, None]:
        """Join the output once. Returns without a result when it should be joined again with less patience."""
        call = wire.Call("GET", self._path + "/output", params=[("from", str(self._position))])
        call.headers["Accept"] = frames.MEDIA_TYPE
        call.repeatable = False  # _follow repeats it, from where it was
        patience = wire.STREAM_SILENCE
        if until is not None:
            patience = max(0.05, min(patience, until - time.monotonic()))
        call.read_timeout = patience
        decoder = frames.FrameDecoder()
        lost = 0
        try:
            async with self._client._stream(call) as response:
                if not response.headers.get("content-type", "").startswith(frames.MEDIA_TYPE):
                    raise APIResponseError(
                        f"{self._client.base_url} answered a request for output without a stream",
                        hint="check that RINGFENCE_URL points at a Ringfence server and that no proxy is in between",
                        request_id=response.headers.get("x-request-id"),
                        status=response.status_code,
                    )
                request_id = response.headers.get("x-request-id")
                async with contextlib.aclosing(self._client._chunks(call, response)) as chunks:
                    async for chunk in chunks:
                        for frame in decoder.feed(chunk):
                            if frame.kind == frames.POSITION:
                                self._position = frame.number
                            elif frame.kind == frames.LOST:
                                lost += frame.number
                                self._lost += frame.number
                            elif frame.kind in (frames.STDOUT, frames.STDERR):
                                stream: StreamName = "stdout" if frame.kind == frames.STDOUT else "stderr"
                                piece = Output(stream, frame.data, self._position, lost)
                                self._position += len(frame.data)
                                lost = 0
                                yield piece
                            elif frame.kind == frames.EXIT:
                                self._result = CommandResult._from_json(frame.json, (StreamTail(1), StreamTail(1)))
                                return
                            elif frame.kind == frames.ERROR:
                                error = wire.error_body(frame.json) or {}
                                raise wire.api_error(error, status=response.status_code, request_id=request_id)
                        if until is not None:
                            left = until - time.monotonic()
                            if left <= 0:
                                raise _waited_enough()
                            if left < patience - 1:
                                return
        except APITimeoutError:
            if until is not None and time.monotonic() >= until - 0.01:
                raise _waited_enough() from None
            raise
        raise APIConnectionError(
            "the stream ended before the process did; its outcome is unknown", hint="did the server stop? see its log"
        )


def _waited_enough() -> APITimeoutError:
    return APITimeoutError(
        "the process has not ended in time", hint="it goes on; wait again, or end it with process.kill()"
    )


class AsyncTerminal(AsyncProcess):
    """A process with a terminal of its own (PTY): a shell that a person or an agent types into.

    Output is one stream, "stdout", as a screen would get it; iterate over it, or `wait()`.
    """

    async def send(self, data: str | bytes) -> None:
        r"""Type: text or bytes; "\n" is Enter, "\x03" Ctrl-C, "\x04" Ctrl-D, "\x1a" Ctrl-Z."""
        await self.send_stdin(data)

    async def resize(self, cols: int, rows: int) -> None:
        """Tell the programs in the terminal its new size, in characters: 1 to 1000 each."""
        body: dict[str, Any] = {
            "cols": check.integer_or_none("terminal.resize", "cols", cols),
            "rows": check.integer_or_none("terminal.resize", "rows", rows),
        }
        await self._client._request(wire.Call("POST", self._path + "/resize", json=body))
