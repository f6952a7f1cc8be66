# Generated from ../_async/_commands.py by scripts/generate_sync.py; change that file.
"""Running commands in a sandbox."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast, overload
from urllib.parse import quote

from .. import _bridge_sync as bridge
from .. import _options as check
from .. import _sse as sse
from .. import _wire as wire
from .._bridge_sync import OutputCallback
from .._exceptions import APIConnectionError, APIResponseError
from .._models import CommandResult, json_list
from .._process_models import ProcessInfo, process_path
from ._client import Client
from ._processes import Process, Terminal

_RUN = "commands.run"
_START = "commands.start"


class Commands:
    """Runs commands in one sandbox; it is `sandbox.commands`."""

    def __init__(self, client: Client, sandbox_id: str) -> None:
        self._client = client
        self._sandbox_path = wire.sandbox_path(sandbox_id)
        self._path = wire.sandbox_path(sandbox_id, "commands")

    @overload
    def run(
        self,
        cmd: str | Sequence[str],
        *,
        background: Literal[False] = False,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        envs: Mapping[str, str] | None = None,
        user: str | None = None,
        stdin: str | bytes | None = None,
        timeout: float | check.Unset | None = check.UNSET,
        timeout_seconds: float | check.Unset | None = check.UNSET,
        output_limit_bytes: int | None = None,
        tag: str | None = None,
        on_stdout: OutputCallback | None = None,
        on_stderr: OutputCallback | None = None,
    ) -> CommandResult: ...

    @overload
    def run(
        self,
        cmd: str | Sequence[str],
        *,
        background: Literal[True],
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        envs: Mapping[str, str] | None = None,
        user: str | None = None,
        stdin: str | bytes | bool | None = None,
        timeout: float | check.Unset | None = check.UNSET,
        timeout_seconds: float | check.Unset | None = check.UNSET,
        tag: str | None = None,
    ) -> Process: ...

    def run(
        self,
        cmd: str | Sequence[str],
        *,
        background: bool = False,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        envs: Mapping[str, str] | None = None,
        user: str | None = None,
        stdin: str | bytes | bool | None = None,
        timeout: float | check.Unset | None = check.UNSET,
        timeout_seconds: float | check.Unset | None = check.UNSET,
        output_limit_bytes: int | None = None,
        tag: str | None = None,
        on_stdout: OutputCallback | None = None,
        on_stderr: OutputCallback | None = None,
    ) -> CommandResult | Process:
        r"""Run a command and return how it ended. A failure of the command is a result, not an exception.

        Past its deadline the command and all that it started are killed; the result holds the output so far, with
        exit_code 124 and reason "deadline". When the caller goes away, an exception in a callback included, the command
        is killed. A child that is left in the background does not hold up the result.

        Args:
            cmd: a line for the sandbox's shell, or a list: a program and its arguments, without a shell.
            background: do not wait: return an Process at once, as `start()` does; no deadline unless one is given.
            cwd: an absolute working directory. Default: the template's.
            env: variables for the command, over those of the sandbox.
            envs: another name of env.
            user: who runs it. Default: the sandbox's user.
            stdin: what it reads; text is sent as UTF-8. Default: nothing, an end of file at once.
            timeout: seconds until it is killed. Default 30; None or 0: no deadline.
            timeout_seconds: another name of timeout.
            output_limit_bytes: how much of each stream the result keeps, 1 to 67108864. Default 10485760. Of more, the
                tail is kept, `truncated` says so, and the command goes on.
            tag: a name for the process in `list()`.
            on_stdout: called with each piece of text of stdout as it arrives, and all of it, whatever the limit.
                Characters are whole; bytes that are not UTF-8 become U+FFFD.
            on_stderr: the same for stderr.

        Returns:
            A CommandResult; `result.check()` raises if the exit code is not 0. With background, an Process.

        Raises:
            InvalidArgumentError: cwd or user does not exist in the sandbox, or an option is out of its range.
            SandboxEndedError: the sandbox ended, before or while the command ran.
            SandboxPausedError: it was paused while the command ran, or is paused and not to be woken. The command goes
                on after the resume: `list()` has it, and `connect()` joins it, by its tag for one.
            APIConnectionError: the connection broke; what became of the command is unknown, but the server
                kills a command whose caller is gone. The call is never repeated by itself.
            TypeError, ValueError: an option is wrong; nothing was sent.
        """
        if check.boolean(_RUN, "background", background):
            if output_limit_bytes is not None or on_stdout is not None or on_stderr is not None:
                raise TypeError(
                    f"{_RUN}: with background, output_limit_bytes, on_stdout and on_stderr go to process.wait()"
                )
            return self.start(
                cmd,
                cwd=cwd,
                env=env,
                envs=envs,
                user=user,
                stdin=stdin,
                timeout=timeout,
                timeout_seconds=timeout_seconds,
                tag=tag,
            )
        if isinstance(stdin, bool):
            raise TypeError(f"{_RUN}: stdin must be str or bytes; one that stays open goes with background=True")
        body, limit = _body(cmd, cwd, env, envs, user, stdin, timeout, timeout_seconds, output_limit_bytes)
        if tag is not None:
            body["tag"] = check.text(_RUN, "tag", tag)
        bridge.check_callback(_RUN, "on_stdout", on_stdout)
        bridge.check_callback(_RUN, "on_stderr", on_stderr)
        call = wire.Call("POST", self._path, json=body)
        deadline = body["timeout_seconds"]
        patience = None if deadline is None else deadline + wire.DEADLINE_SLACK
        if on_stdout is None and on_stderr is None:
            call.headers["Accept"] = "application/json"
            call.read_timeout = patience
            return CommandResult._from_json(self._client._json(call))
        call.headers["Accept"] = "text/event-stream"
        call.read_timeout = max(wire.STREAM_SILENCE, patience or 0.0)
        return self._streamed(call, limit, on_stdout, on_stderr)

    def start(
        self,
        cmd: str | Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        envs: Mapping[str, str] | None = None,
        user: str | None = None,
        stdin: str | bytes | bool | None = None,
        timeout: float | check.Unset | None = check.UNSET,
        timeout_seconds: float | check.Unset | None = check.UNSET,
        tag: str | None = None,
        log_bytes: int | None = None,
    ) -> Process:
        """Start a command in the background and return once it runs. It goes on when this program ends.

        Args:
            cmd: a line for the sandbox's shell, or a list: a program and its arguments, without a shell.
            cwd: an absolute working directory. Default: the template's.
            env: variables for the command, over those of the sandbox.
            envs: another name of env.
            user: who runs it. Default: the sandbox's user.
            stdin: text or bytes that it reads, and then an end of file; True: its standard input stays open for
                `process.send_stdin()`. Default: nothing, an end of file at once.
            timeout: seconds until it is killed. Default None: no deadline.
            timeout_seconds: another name of timeout.
            tag: a name for it in `list()`; `connect("tag:NAME")` finds it.
            log_bytes: how many bytes of output are kept, 65536 to 67108864; then the oldest go. Default 8388608.

        Returns:
            An Process: iterate over it, or wait for it.
        """
        body, _ = _body(cmd, cwd, env, envs, user, None, timeout, timeout_seconds, None, call=_START, deadline=None)
        content: bytes | None = None
        if isinstance(stdin, bool):
            body["stdin"] = stdin
        elif isinstance(stdin, (bytes, bytearray, memoryview)):
            content = bytes(stdin)
        elif stdin is not None:
            content = check.text(_START, "stdin", stdin).encode()
        if content is not None:
            body["stdin"] = True
        if tag is not None:
            body["tag"] = check.text(_START, "tag", tag)
        if (size := check.integer_or_none(_START, "log_bytes", log_bytes)) is not None:
            body["log_bytes"] = size
        answer = self._client._json(wire.Call("POST", self._sandbox_path + "/processes", json=body))
        process = Process(self._client, self._sandbox_path, ProcessInfo._from_json(answer))
        if content is not None:
            process.send_stdin(content, close=True)
        return process

    def list(self, *, tag: str | None = None, state: str | None = None) -> list[ProcessInfo]:
        """Return the processes that were started through Ringfence, the oldest first.

        Args:
            tag: only those with this tag.
            state: "running" or "ended"; ended ones are kept for 10 minutes. Default: both.
        """
        params: list[tuple[str, str]] = []
        for name, value in (("tag", tag), ("state", state)):
            if value is not None:
                params.append((name, check.text("commands.list", name, value)))
        answer = self._client._json(wire.Call("GET", self._sandbox_path + "/processes", params=params))
        return [ProcessInfo._from_json(item) for item in json_list(answer, "processes")]

    def get(self, process: str | int) -> ProcessInfo:
        """Return one process.

        Args:
            process: its id, its pid, or "tag:NAME" where exactly one has that tag.

        Raises:
            ProcessNotFoundError: there is none, or it ended more than 10 minutes ago.
        """
        return _get(self._client, self._sandbox_path, process, "commands.get")

    def connect(self, process: str | int, *, from_position: int = 0) -> Process:
        """Return a handle of a process that was started before, here or elsewhere, also after it ended.

        Args:
            process: its id, its pid, or "tag:NAME" where exactly one has that tag.
            from_position: where in its output to begin. Default 0: with all that its log still holds.

        Returns:
            An Process; an Terminal where the process has a terminal.

        Raises:
            ProcessNotFoundError: there is none, or it ended more than 10 minutes ago.
        """
        call = "commands.connect"
        position = check.integer_or_none(call, "from_position", from_position) or 0
        if position < 0:
            raise ValueError(f"{call}: from_position must not be negative")
        info = _get(self._client, self._sandbox_path, process, call)
        kind = Terminal if info.pty else Process
        return kind(self._client, self._sandbox_path, info, position)

    def kill(self, process: str | int) -> bool:
        """Kill a process with all that it started. False: it had ended.

        Args:
            process: its id, its pid, or "tag:NAME" where exactly one has that tag.
        """
        return (self.connect(process)).kill()

    def _streamed(
        self, call: wire.Call, limit: int, on_stdout: OutputCallback | None, on_stderr: OutputCallback | None
    ) -> CommandResult:
        stdout, stderr = sse.OutputStream(limit), sse.OutputStream(limit)
        events = sse.EventDecoder()
        with self._client._stream(call) as response:
            request_id = response.headers.get("x-request-id")
            if not response.headers.get("content-type", "").startswith("text/event-stream"):
                raise APIResponseError(
                    f"{self._client.base_url} answered a streamed command without a stream",
                    hint="check that RINGFENCE_URL points at a Ringfence server and that no proxy is in between",
                    request_id=request_id,
                    status=response.status_code,
                )
            with contextlib.closing(self._client._chunks(call, response)) as chunks:
                for chunk in chunks:
                    for event in events.feed(chunk):
                        if event.name == "stdout":
                            bridge.notify(on_stdout, stdout.take(sse.event_json(event)))
                        elif event.name == "stderr":
                            bridge.notify(on_stderr, stderr.take(sse.event_json(event)))
                        elif event.name == "exit":
                            bridge.notify(on_stdout, stdout.finish())
                            bridge.notify(on_stderr, stderr.finish())
                            return CommandResult._from_json(sse.event_json(event), (stdout.tail, stderr.tail))
                        elif event.name == "error":
                            error = wire.error_body(sse.event_json(event)) or {}
                            raise wire.api_error(error, status=response.status_code, request_id=request_id)
        raise APIConnectionError(
            "the stream ended before the command did; its outcome is unknown",
            hint="did the server stop? see its log",
            request_id=request_id,
        )


def _get(client: Client, sandbox_path: str, process: object, call: str) -> ProcessInfo:
    name = quote(process_path(process, call), safe=":")
    return ProcessInfo._from_json(client._json(wire.Call("GET", f"{sandbox_path}/processes/{name}")))


def _body(
    cmd: object,
    cwd: object,
    env: Mapping[str, str] | None,
    envs: Mapping[str, str] | None,
    user: object,
    stdin: object,
    timeout: float | check.Unset | None,
    timeout_seconds: float | check.Unset | None,
    output_limit_bytes: object,
    *,
    call: str = _RUN,
    deadline: float | None = wire.DEFAULT_COMMAND_TIMEOUT,
) -> tuple[dict[str, Any], int]:
    """Return the request's body, and how much of each stream a result keeps."""
    body: dict[str, Any] = {}
    if isinstance(cmd, str):
        body["command"] = check.text(call, "cmd", cmd)
    elif isinstance(cmd, (list, tuple)):
        body["args"] = check.text_list(call, "cmd", cast("object", cmd))
    else:
        raise TypeError(f"{call}: cmd must be a str for the shell or a list of str, got {type(cmd).__name__}")
    if cwd is not None:
        body["cwd"] = check.text(call, "cwd", cwd)
    variables = check.text_mapping(call, "env", check.one_of_optional(call, "env", env, "envs", envs))
    if variables is not None:
        body["env"] = variables
    if user is not None:
        body["user"] = check.text(call, "user", user)
    if isinstance(stdin, (bytes, bytearray, memoryview)):
        body["stdin_base64"] = base64.b64encode(cast("bytes", stdin)).decode("ascii")
    elif isinstance(stdin, str):
        body["stdin"] = check.text(call, "stdin", stdin)
    elif stdin is not None:
        raise TypeError(f"{call}: stdin must be a str or bytes, got {type(stdin).__name__}")
    seconds = check.one_of(call, "timeout", timeout, "timeout_seconds", timeout_seconds)
    if isinstance(seconds, check.Unset):
        seconds = deadline
    body["timeout_seconds"] = None if seconds is None else check.number(call, "timeout", seconds)
    limit = check.integer_or_none(call, "output_limit_bytes", output_limit_bytes)
    if limit is not None:
        body["output_limit_bytes"] = limit
    return body, max(1, limit or wire.DEFAULT_OUTPUT_LIMIT)
