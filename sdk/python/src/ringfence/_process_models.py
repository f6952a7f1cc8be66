"""Processes of a sandbox, as frozen values."""

from __future__ import annotations

import datetime
import signal as _signal
from dataclasses import dataclass
from typing import Any, Literal, cast

from . import _options as check
from ._models import _Reader

StreamName = Literal["stdout", "stderr"]


@dataclass(frozen=True, kw_only=True)
class ProcessExit:
    """How a process ended.

    Attributes:
        exit_code: 0 to 255. 124: its deadline passed. 128+n: signal n ended it.
        reason: None for an ordinary exit; "deadline", "oom" or "signal".
        signal: the number of the signal that ended it, or None.
        ended_at: in UTC.
    """

    exit_code: int
    reason: str | None
    signal: int | None
    ended_at: datetime.datetime | None

    @staticmethod
    def _from_json(value: object) -> ProcessExit:
        r = _Reader(value, "process's exit")
        return ProcessExit(
            exit_code=r.integer("exit_code"),
            reason=r.text_or_none("reason"),
            signal=r.integer_or_none("signal"),
            ended_at=r.time_or_none("ended_at"),
        )


@dataclass(frozen=True, kw_only=True)
class ProcessInfo:
    """A process that was started through Ringfence: a command, a background job or a terminal.

    Attributes:
        id: its id, unique in the sandbox.
        pid: as programs in the sandbox see it.
        tag: what its starter called it, or None.
        command: the line that the shell runs, or the argument list, quoted for a shell.
        args: the argument list, or None where a shell runs a line.
        cwd: where it was started.
        user: who runs it.
        pty: whether it has a terminal.
        stdin_open: whether its standard input can still be written.
        started_at: in UTC, as all times here.
        deadline_at: when it is killed, or None.
        state: "running" or "ended"; an ended one is kept for 10 minutes.
        exit: how it ended, or None while it runs.
        log_start: position of the first byte of output that its log still holds.
        log_end: how many bytes it wrote so far; stdout and stderr count together.
    """

    id: str
    pid: int
    tag: str | None
    command: str
    args: tuple[str, ...] | None
    cwd: str
    user: str
    pty: bool
    stdin_open: bool
    started_at: datetime.datetime
    deadline_at: datetime.datetime | None
    state: str
    exit: ProcessExit | None
    log_start: int
    log_end: int

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self.exit is None

    @staticmethod
    def _from_json(value: object) -> ProcessInfo:
        r = _Reader(value, "process")
        log = _Reader(r.raw("log") or {"start": 0, "end": 0}, "process's log")
        exit_json = r.raw("exit")
        return ProcessInfo(
            id=r.text("id"),
            pid=r.integer("pid"),
            tag=r.text_or_none("tag"),
            command=r.text_or_none("command") or "",
            args=None if r.raw("args") is None else r.texts("args"),
            cwd=r.text_or_none("cwd") or "",
            user=r.text_or_none("user") or "",
            pty=r.boolean("pty"),
            stdin_open=r.boolean("stdin"),
            started_at=r.time("started_at"),
            deadline_at=r.time_or_none("deadline_at"),
            state=r.text("state"),
            exit=None if exit_json is None else ProcessExit._from_json(exit_json),
            log_start=log.integer("start"),
            log_end=log.integer("end"),
        )


@dataclass(frozen=True)
class Output:
    """A piece of a process's output.

    Attributes:
        stream: "stdout" or "stderr"; what a terminal shows is "stdout".
        data: the bytes.
        position: where they begin in the process's output, stdout and stderr counted together.
        lost: how many bytes before this piece the log no longer held. 0 as a rule.
    """

    stream: StreamName
    data: bytes
    position: int
    lost: int = 0

    @property
    def text(self) -> str:
        """The bytes as text. A character that is split between two pieces becomes U+FFFD: join `data` to be exact."""
        return self.data.decode("utf-8", "replace")


def signal_name(call: str, signal: object) -> str | int:
    """Return a signal as the API takes it: a name or a number."""
    if isinstance(signal, _signal.Signals):
        return signal.name
    if isinstance(signal, int) and not isinstance(signal, bool):
        return signal
    return check.text(call, "signal", signal)


def process_path(reference: object, call: str) -> str:
    """Return the path element that names a process: an id, a pid, or "tag:NAME"."""
    if isinstance(reference, int) and not isinstance(reference, bool):
        return str(reference)
    text = check.text(call, "process", cast("Any", reference))
    if not text:
        raise ValueError(f"{call}: process must not be empty")
    return text
