"""Snapshots, and the deadlines of a sandbox."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Any, Literal

from . import _options as check
from ._models import _Reader  # pyright: ignore[reportPrivateUsage]

OnTimeout = Literal["kill", "pause"]


@dataclass(frozen=True, kw_only=True)
class SnapshotInfo:
    """A sandbox's memory and written disk at one instant. It outlives the sandbox.

    Attributes:
        id: "snap_" and 20 of [a-z0-9].
        name: what its maker called it, or "".
        sandbox_id: the sandbox that it is of, which may be gone.
        template: the canonical name of that sandbox's template.
        vcpu: cores of what starts from it.
        memory_mib: MiB of memory of what starts from it.
        disk_mib: MiB that can be written in what starts from it.
        bytes: what it takes on the server's disk.
        created_at: in UTC.
    """

    id: str
    name: str
    sandbox_id: str
    template: str
    vcpu: int
    memory_mib: int
    disk_mib: int
    bytes: int
    created_at: datetime.datetime

    @property
    def snapshot_id(self) -> str:
        """The same as `id`."""
        return self.id

    @staticmethod
    def _from_json(value: object) -> SnapshotInfo:
        r = _Reader(value, "snapshot")
        return SnapshotInfo(
            id=r.text("id"),
            name=r.text_or_none("name") or "",
            sandbox_id=r.text("sandbox_id"),
            template=r.text("template"),
            vcpu=r.integer("vcpu"),
            memory_mib=r.integer("memory_mib"),
            disk_mib=r.integer("disk_mib"),
            bytes=r.integer("bytes"),
            created_at=r.time("created_at"),
        )


def snapshot_id(call: str, value: object) -> str:
    """Return a snapshot's id, out of itself or of a SnapshotInfo."""
    if isinstance(value, SnapshotInfo):
        return value.id
    id = check.text(call, "snapshot", value)
    if not id:
        raise ValueError(f"{call}: snapshot is empty; a snapshot's id is needed")
    return id


def deadlines(
    call: str,
    timeout: object,
    on_timeout: object,
    idle_timeout_seconds: object,
    auto_delete_seconds: object,
    auto_resume: object,
) -> dict[str, Any]:
    """Return those fields of a request that were given; a number of seconds may be None, for none."""
    body: dict[str, Any] = {}
    for key, seconds in (
        ("timeout_seconds", timeout),
        ("idle_timeout_seconds", idle_timeout_seconds),
        ("auto_delete_seconds", auto_delete_seconds),
    ):
        if not isinstance(seconds, check.Unset):
            name = "timeout" if key == "timeout_seconds" else key
            body[key] = None if seconds is None else check.number(call, name, seconds)
    if on_timeout is not None:
        body["on_timeout"] = check.text(call, "on_timeout", on_timeout)
    if auto_resume is not None:
        body["auto_resume"] = check.boolean(call, "auto_resume", auto_resume)
    return body
