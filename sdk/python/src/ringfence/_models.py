"""What the API answers, as frozen values."""

from __future__ import annotations

import base64
import datetime
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

from ._exceptions import APIResponseError, CommandExitError

State = Literal["starting", "running", "pausing", "paused", "resuming", "failed", "deleted"]
FileType = Literal["file", "directory", "symlink", "other"]
Json = Mapping[str, Any]


class SecretStr(str):
    """A string that is itself in every use, but that repr() and so most logs do not show."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"


def _bad(what: str, name: str) -> APIResponseError:
    return APIResponseError(
        f"the server's {what} has no valid {name!r}",
        hint="check that RINGFENCE_URL points at a Ringfence server that is not older than this SDK",
    )


def json_object(value: object, what: str) -> Json:
    """Return value, which has to be a JSON object."""
    if not isinstance(value, dict):
        raise APIResponseError(
            f"the server's {what} is not a JSON object",
            hint="check that RINGFENCE_URL points at a Ringfence server",
        )
    return cast("Json", value)


def json_list(answer: Json, name: str) -> list[object]:
    """Return the list that an answer holds under a name."""
    value: object = answer.get(name)
    if not isinstance(value, list):
        raise _bad("answer", name)
    return cast("list[object]", value)


class _Reader:
    """Takes typed fields out of a JSON object; fields that this version does not know are let be."""

    def __init__(self, value: object, what: str) -> None:
        self._what = what
        self._json = json_object(value, what)

    def text(self, name: str) -> str:
        value = self._json.get(name)
        if not isinstance(value, str):
            raise _bad(self._what, name)
        return value

    def text_or_none(self, name: str) -> str | None:
        return None if self._json.get(name) is None else self.text(name)

    def integer(self, name: str) -> int:
        value = self._json.get(name)
        if not isinstance(value, int) or isinstance(value, bool):
            raise _bad(self._what, name)
        return value

    def integer_or_none(self, name: str) -> int | None:
        return None if self._json.get(name) is None else self.integer(name)

    def number(self, name: str) -> float:
        value = self._json.get(name)
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            raise _bad(self._what, name)
        return float(value)

    def number_or_none(self, name: str) -> float | None:
        return None if self._json.get(name) is None else self.number(name)

    def boolean(self, name: str) -> bool:
        value = self._json.get(name, False)
        if not isinstance(value, bool):
            raise _bad(self._what, name)
        return value

    def time(self, name: str) -> datetime.datetime:
        try:
            return datetime.datetime.fromisoformat(self.text(name).replace("Z", "+00:00"))
        except ValueError:
            raise _bad(self._what, name) from None

    def time_or_none(self, name: str) -> datetime.datetime | None:
        return None if self._json.get(name) is None else self.time(name)

    def texts(self, name: str) -> tuple[str, ...]:
        value: object = self._json.get(name)
        items = cast("list[object]", value) if isinstance(value, list) else []
        return tuple(item for item in items if isinstance(item, str))

    def mapping(self, name: str) -> dict[str, str]:
        value: object = self._json.get(name)
        items = cast("dict[str, object]", value) if isinstance(value, dict) else {}
        return {key: item for key, item in items.items() if isinstance(item, str)}

    def raw(self, name: str) -> Any:
        return self._json.get(name)


@dataclass(frozen=True)
class NetworkConfig:
    """What may leave a sandbox.

    Without any entry the public internet can be reached. What allow_out matches may leave whatever
    deny_out says, and when allow_out is not empty nothing else may. Private and other closed networks
    are out of reach in any case. An entry may end in a port: "api.example.com:443".

    Args:
        allow_out: addresses ("203.0.113.7"), networks ("198.51.100.0/24"), names ("api.example.com",
            "*.example.com") and "~" with an RE2 expression for a whole name, that may be reached.
        deny_out: the same, for what may not.
        allow_internet_access: False denies everything that allow_out does not name. Default None: not said.
        closed_ports: True lets nothing outside reach a port of the sandbox, with an API key neither. Default False.
    """

    allow_out: tuple[str, ...] = ()
    deny_out: tuple[str, ...] = ()
    allow_internet_access: bool | None = None
    closed_ports: bool = False

    def __init__(
        self,
        allow_out: list[str] | tuple[str, ...] | None = None,
        deny_out: list[str] | tuple[str, ...] | None = None,
        allow_internet_access: bool | None = None,
        closed_ports: bool = False,
    ) -> None:
        for name, value in (("allow_out", allow_out), ("deny_out", deny_out)):
            entries = () if value is None else value
            if not isinstance(entries, (list, tuple)) or not all(isinstance(entry, str) for entry in entries):
                raise TypeError(f"NetworkConfig: {name} must be a list of str, got {value!r}")
            object.__setattr__(self, name, tuple(entries))
        if allow_internet_access is not None and not isinstance(allow_internet_access, bool):
            raise TypeError(
                f"NetworkConfig: allow_internet_access must be a bool or None, got {allow_internet_access!r}"
            )
        object.__setattr__(self, "allow_internet_access", allow_internet_access)
        if not isinstance(closed_ports, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"NetworkConfig: closed_ports must be a bool, got {closed_ports!r}")
        object.__setattr__(self, "closed_ports", closed_ports)

    @staticmethod
    def _from_json(value: object) -> NetworkConfig:
        r = _Reader(value, "network")
        allow = r.raw("allow_internet_access")
        return NetworkConfig(
            r.texts("allow_out"),
            r.texts("deny_out"),
            allow if isinstance(allow, bool) else None,
            r.raw("closed_ports") is True,
        )


@dataclass(frozen=True, kw_only=True)
class SandboxInfo:
    """A sandbox as the server describes it.

    Attributes:
        id: 20 of [a-z0-9].
        name: what the creator called it, or "".
        template: the canonical name of its template.
        state: "starting", "running", …; "failed" and "deleted" are ends.
        reason: why it ended ("killed", "expired", "oom", "crashed", …), or None while it lives.
        detail: one sentence about the end, or None.
        vcpu: cores.
        memory_mib: MiB of memory.
        disk_mib: MiB that can be written.
        metadata: the creator's own keys and values.
        user: who runs commands unless a command says otherwise.
        work_dir: where commands start unless a command says otherwise.
        network: the policy.
        created_at: in UTC, as all times here.
        started_at: None until it runs.
        ended_at: None until it ended.
        expires_at: when its running period ends, and on_timeout happens; None without a limit, and while it is paused.
        paused_at: since when it is paused, or None.
        idle_at: when on_timeout happens if nobody uses it until then, or None.
        delete_at: when it is deleted, being paused, or None.
        timeout_seconds: how long a running period may be, or None.
        on_timeout: "kill" or "pause".
        idle_timeout_seconds: for how long nobody may use it, or None.
        auto_delete_seconds: how long it may be paused, or None.
        auto_resume: whether a call on the paused sandbox wakes it.
    """

    id: str
    name: str
    template: str
    state: str
    reason: str | None
    detail: str | None
    vcpu: int
    memory_mib: int
    disk_mib: int
    metadata: dict[str, str]
    user: str
    work_dir: str
    network: NetworkConfig
    created_at: datetime.datetime
    started_at: datetime.datetime | None
    ended_at: datetime.datetime | None
    expires_at: datetime.datetime | None
    paused_at: datetime.datetime | None = None
    idle_at: datetime.datetime | None = None
    delete_at: datetime.datetime | None = None
    timeout_seconds: float | None = None
    on_timeout: str = "kill"
    idle_timeout_seconds: float | None = None
    auto_delete_seconds: float | None = None
    auto_resume: bool = True

    @property
    def sandbox_id(self) -> str:
        """The same as `id`."""
        return self.id

    @property
    def ended(self) -> bool:
        """Whether the sandbox has ended: nothing can be run in it any more."""
        return self.state in ("failed", "deleted")

    @staticmethod
    def _from_json(value: object) -> SandboxInfo:
        r = _Reader(value, "sandbox")
        return SandboxInfo(
            id=r.text("id"),
            name=r.text_or_none("name") or "",
            template=r.text("template"),
            state=r.text("state"),
            reason=r.text_or_none("reason"),
            detail=r.text_or_none("detail"),
            vcpu=r.integer("vcpu"),
            memory_mib=r.integer("memory_mib"),
            disk_mib=r.integer("disk_mib"),
            metadata=r.mapping("metadata"),
            user=r.text_or_none("user") or "",
            work_dir=r.text_or_none("work_dir") or "",
            network=NetworkConfig._from_json(r.raw("network") or {}),
            created_at=r.time("created_at"),
            started_at=r.time_or_none("started_at"),
            ended_at=r.time_or_none("ended_at"),
            expires_at=r.time_or_none("expires_at"),
            paused_at=r.time_or_none("paused_at"),
            idle_at=r.time_or_none("idle_at"),
            delete_at=r.time_or_none("delete_at"),
            timeout_seconds=r.number_or_none("timeout_seconds"),
            on_timeout=r.text_or_none("on_timeout") or "kill",
            idle_timeout_seconds=r.number_or_none("idle_timeout_seconds"),
            auto_delete_seconds=r.number_or_none("auto_delete_seconds"),
            auto_resume=r.raw("auto_resume") is None or r.boolean("auto_resume"),
        )


@dataclass(frozen=True, kw_only=True)
class TemplateInfo:
    """A template: a root file system, how to start in it, and a default size.

    Attributes:
        name: its canonical name.
        aliases: other names that stand for it.
        image: the SHA-256 of its image, in hex.
        recipe: the SHA-256 of the recipe that made it, in hex.
        user: the default user of commands.
        work_dir: the default working directory of commands.
        vcpu: cores.
        memory_mib: MiB of memory.
        disk_mib: MiB that can be written.
        built_at: when it was built, in UTC.
    """

    name: str
    aliases: tuple[str, ...]
    image: str
    recipe: str
    user: str
    work_dir: str
    vcpu: int
    memory_mib: int
    disk_mib: int
    built_at: datetime.datetime | None

    @staticmethod
    def _from_json(value: object) -> TemplateInfo:
        r = _Reader(value, "template")
        return TemplateInfo(
            name=r.text("name"),
            aliases=r.texts("aliases"),
            image=r.text_or_none("image") or "",
            recipe=r.text_or_none("recipe") or "",
            user=r.text_or_none("user") or "",
            work_dir=r.text_or_none("work_dir") or "",
            vcpu=r.integer("vcpu"),
            memory_mib=r.integer("memory_mib"),
            disk_mib=r.integer("disk_mib"),
            built_at=r.time_or_none("built_at"),
        )


@dataclass(frozen=True, kw_only=True)
class CommandResult:
    """How a command ended, and what it wrote.

    Attributes:
        stdout: its standard output as text; bytes that are not UTF-8 become U+FFFD.
        stderr: its standard error, the same way.
        exit_code: 0 to 255. 124: its deadline passed. 128+n: signal n ended it. 127: no such command.
        stdout_bytes: its standard output, byte-exact.
        stderr_bytes: its standard error, byte-exact.
        truncated: whether either stream was over the output limit; then its tail is what was kept.
        stdout_truncated: whether stdout was.
        stderr_truncated: whether stderr was.
        reason: None for an ordinary exit; "deadline", "oom" (it took too much memory; exit code 137) or "signal".
        signal: the number of the signal that ended it, or None.
        duration_ms: how long it ran, in milliseconds.
        id: the id of the process.
    """

    stdout: str
    stderr: str
    exit_code: int
    stdout_bytes: bytes = field(repr=False)
    stderr_bytes: bytes = field(repr=False)
    truncated: bool = False
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    reason: str | None = None
    signal: int | None = None
    duration_ms: float = 0.0
    id: str = ""

    @property
    def ok(self) -> bool:
        """Whether the exit code is 0."""
        return self.exit_code == 0

    def check(self) -> CommandResult:
        """Return the result itself if the exit code is 0.

        Raises:
            CommandExitError: it is not; the error's `result` is this result.
        """
        if self.exit_code != 0:
            raise CommandExitError(self)
        return self

    @staticmethod
    def _from_json(value: object, streams: tuple[StreamTail, StreamTail] | None = None) -> CommandResult:
        """Read a result; streams holds the output of a command that was streamed."""
        r = _Reader(value, "command result")
        if streams is not None:
            out, err = streams[0].value(), streams[1].value()
            # Nothing is cut from a stream: what the server calls truncated here was lost.
            lost = r.boolean("truncated")
            out_cut, err_cut = streams[0].truncated or lost, streams[1].truncated or lost
            stdout, stderr = out.decode("utf-8", "replace"), err.decode("utf-8", "replace")
        else:
            stdout, out = _output(r, "stdout")
            stderr, err = _output(r, "stderr")
            out_cut, err_cut = r.boolean("stdout_truncated"), r.boolean("stderr_truncated")
        return CommandResult(
            stdout=stdout,
            stderr=stderr,
            exit_code=r.integer("exit_code"),
            stdout_bytes=out,
            stderr_bytes=err,
            truncated=out_cut or err_cut,
            stdout_truncated=out_cut,
            stderr_truncated=err_cut,
            reason=r.text_or_none("reason"),
            signal=r.integer_or_none("signal"),
            duration_ms=r.number("duration_ms"),
            id=r.text_or_none("id") or "",
        )

    def _with_output(self, stdout: StreamTail, stderr: StreamTail, lost: bool) -> CommandResult:
        """Return the result with the output that a reader gathered; lost: some had gone before it came."""
        out, err = stdout.value(), stderr.value()
        return replace(
            self,
            stdout=out.decode("utf-8", "replace"),
            stderr=err.decode("utf-8", "replace"),
            stdout_bytes=out,
            stderr_bytes=err,
            truncated=lost or stdout.truncated or stderr.truncated,
            stdout_truncated=lost or stdout.truncated,
            stderr_truncated=lost or stderr.truncated,
        )


def _output(r: _Reader, stream: str) -> tuple[str, bytes]:
    text, encoded = r.text(stream), r.text_or_none(stream + "_base64")
    if encoded is None:
        return text, text.encode("utf-8")
    return text, decode_base64(encoded, "command result")


def decode_base64(encoded: str, what: str) -> bytes:
    """Decode base64 that the server sent."""
    try:
        return base64.b64decode(encoded, validate=True)
    except ValueError:
        raise _bad(what, "base64") from None


class StreamTail:
    """Keeps the last `limit` bytes of a stream, and says whether there were more."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept = bytearray()
        self._total = 0

    def append(self, chunk: bytes) -> None:
        self._total += len(chunk)
        self._kept += chunk
        # Cut only when twice the limit is held, so that each byte is moved once.
        if len(self._kept) > 2 * self._limit + 65536:
            del self._kept[: len(self._kept) - self._limit]

    @property
    def truncated(self) -> bool:
        return self._total > self._limit

    def value(self) -> bytes:
        return bytes(self._kept[-self._limit :])


@dataclass(frozen=True, kw_only=True)
class FileInfo:
    """A file or directory in a sandbox.

    Attributes:
        path: absolute. A name that is not UTF-8 holds surrogate escapes, as os.fsdecode makes them, and can be
            given back to every call as it is.
        name: the last element of path.
        type: "file", "directory", "symlink" or "other" (a pipe, a socket, a device).
        size: bytes.
        mode: permission bits as four octal digits, "0644".
        uid: the owner's number.
        gid: the group's number.
        owner: the owner's name, or the number where there is none.
        group: the group's name, or the number where there is none.
        modified_at: in UTC.
        target: where a symlink points, else None.
        etag: changes whenever the file does; for `write(if_match=…)`.
        metadata: extended attributes of the namespace "user", as `set_metadata` sets them; only of `get_info`.
    """

    path: str
    name: str
    type: FileType
    size: int
    mode: str
    uid: int
    gid: int
    owner: str
    group: str
    modified_at: datetime.datetime
    target: str | None
    etag: str | None = None
    metadata: Mapping[str, str] = field(default_factory=lambda: {})

    @property
    def is_dir(self) -> bool:
        """Whether it is a directory; a link to one is not."""
        return self.type == "directory"

    @property
    def is_file(self) -> bool:
        """Whether it is a regular file; a link to one is not."""
        return self.type == "file"

    @staticmethod
    def _from_json(value: object) -> FileInfo:
        r = _Reader(value, "file info")
        path, encoded = r.text("path"), r.text_or_none("path_base64")
        name = r.text_or_none("name")
        if encoded is not None:
            path = decode_base64(encoded, "file info").decode("utf-8", "surrogateescape")
            name = None
        return FileInfo(
            path=path,
            name=posixpath.basename(path) if name is None else name,
            type=cast("FileType", r.text("type")),
            size=r.integer("size"),
            mode=r.text("mode"),
            uid=r.integer("uid"),
            gid=r.integer("gid"),
            owner=r.text("owner"),
            group=r.text("group"),
            modified_at=r.time("modified_at"),
            target=r.text_or_none("target"),
            etag=r.text_or_none("etag"),
            metadata=r.mapping("metadata"),
        )
