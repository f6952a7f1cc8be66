# Generated from ../_async/_terminals.py by scripts/generate_sync.py; change that file.
"""Terminals in a sandbox."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from .. import _options as check
from .. import _wire as wire
from .._process_models import ProcessInfo
from ._client import Client
from ._commands import Commands
from ._processes import Terminal

_CREATE: Final = "pty.create"
# A login shell: the best that the template has.
_LOGIN: Final = "[ -x /bin/bash ] && exec /bin/bash -l; exec /bin/sh -l"


class Terminals:
    """Opens terminals in one sandbox; it is `sandbox.pty`."""

    def __init__(self, client: Client, sandbox_id: str) -> None:
        self._client = client
        self._path = wire.sandbox_path(sandbox_id)
        self._commands = Commands(client, sandbox_id)

    def create(
        self,
        cmd: str | Sequence[str] | None = None,
        *,
        cols: int = 80,
        rows: int = 24,
        term: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        envs: Mapping[str, str] | None = None,
        user: str | None = None,
        timeout: float | None = None,
        tag: str | None = None,
        log_bytes: int | None = None,
    ) -> Terminal:
        """Open a terminal with a shell, or another program, in it.

        Args:
            cmd: a line for the sandbox's shell, or a list: a program and its arguments. Default: a login shell.
            cols: width in characters, 1 to 1000. Default 80.
            rows: height in characters, 1 to 1000. Default 24.
            term: what TERM says. Default "xterm-256color".
            cwd: an absolute working directory. Default: the template's.
            env: variables, over those of the sandbox.
            envs: another name of env.
            user: who types. Default: the sandbox's user.
            timeout: seconds until it is killed. Default None: no deadline.
            tag: a name for it in `commands.list()`.
            log_bytes: how many bytes of output are kept, 65536 to 67108864; then the oldest go. Default 8388608.

        Returns:
            An Terminal: `send()` types, iterating shows, `resize()`, `kill()`.
        """
        size: dict[str, Any] = {
            "cols": check.integer_or_none(_CREATE, "cols", cols),
            "rows": check.integer_or_none(_CREATE, "rows", rows),
        }
        if term is not None:
            size["term"] = check.text(_CREATE, "term", term)
        body: dict[str, Any] = {"pty": size}
        if cmd is None:
            body["command"] = _LOGIN
        elif isinstance(cmd, str):
            body["command"] = check.text(_CREATE, "cmd", cmd)
        elif isinstance(cmd, (list, tuple)):
            body["args"] = check.text_list(_CREATE, "cmd", cast("object", cmd))
        else:
            raise TypeError(f"{_CREATE}: cmd must be a str for the shell or a list of str, got {type(cmd).__name__}")
        variables = check.text_mapping(_CREATE, "env", check.one_of_optional(_CREATE, "env", env, "envs", envs))
        if variables is not None:
            body["env"] = variables
        for name, value in (("cwd", cwd), ("user", user), ("tag", tag)):
            if value is not None:
                body[name] = check.text(_CREATE, name, value)
        if timeout is not None:
            body["timeout_seconds"] = check.number(_CREATE, "timeout", timeout)
        if (kept := check.integer_or_none(_CREATE, "log_bytes", log_bytes)) is not None:
            body["log_bytes"] = kept
        answer = self._client._json(wire.Call("POST", self._path + "/processes", json=body))
        return Terminal(self._client, self._path, ProcessInfo._from_json(answer))

    def connect(self, process: str | int, *, from_position: int = 0) -> Terminal:
        """Return a handle of a terminal that was opened before; its screen so far comes first.

        Args:
            process: its id, its pid, or "tag:NAME" where exactly one has that tag.
            from_position: where in its output to begin. Default 0: with all that its log still holds.

        Raises:
            ProcessNotFoundError: there is none.
            TypeError: that process has no terminal.
        """
        found = self._commands.connect(process, from_position=from_position)
        if not isinstance(found, Terminal):
            raise TypeError(f"pty.connect: process {found.id} has no terminal; use commands.connect()")
        return found
