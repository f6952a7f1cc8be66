"""Ports, measurements and events of a sandbox, as frozen values."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from ._models import _Reader


@dataclass(frozen=True, kw_only=True)
class PortInfo:
    """A port of a sandbox on which something listens, or that was made public.

    Attributes:
        port: 1 to 65535.
        address: on which it listens inside, "127.0.0.1" or "0.0.0.0" for instance; None where nothing listens now.
        public: whether it is reached without a key.
        wakes: whether that wakes the sandbox when it is paused.
        pid: the process that listens, or None where that is not known.
        command: that process's name, or None.
    """

    port: int
    address: str | None
    public: bool
    wakes: bool
    pid: int | None
    command: str | None

    @staticmethod
    def _from_json(value: object) -> PortInfo:
        r = _Reader(value, "port")
        return PortInfo(
            port=r.integer("port"),
            address=r.text_or_none("address"),
            public=r.boolean("public"),
            wakes=r.boolean("wakes"),
            pid=r.integer_or_none("pid"),
            command=r.text_or_none("command"),
        )


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """What a sandbox used at one instant.

    Attributes:
        at: the instant, in UTC.
        cpu_seconds: of processor time since it was created.
        cpu_percent: of one core, since the sample before.
        memory_bytes: in use.
        memory_limit_bytes: that it may use.
        disk_bytes: written.
        disk_limit_bytes: that it may write.
        network_received_bytes: since it was created.
        network_sent_bytes: since it was created.
        network_denied: flows and lookups that were refused.
        processes: how many run that commands started.
    """

    at: datetime.datetime
    cpu_seconds: float
    cpu_percent: float
    memory_bytes: int
    memory_limit_bytes: int
    disk_bytes: int
    disk_limit_bytes: int
    network_received_bytes: int
    network_sent_bytes: int
    network_denied: int
    processes: int

    @staticmethod
    def _from_json(value: object) -> Metrics:
        r = _Reader(value, "metrics")
        return Metrics(
            at=r.time("at"),
            cpu_seconds=r.number("cpu_seconds"),
            cpu_percent=r.number("cpu_percent"),
            memory_bytes=r.integer("memory_bytes"),
            memory_limit_bytes=r.integer("memory_limit_bytes"),
            disk_bytes=r.integer("disk_bytes"),
            disk_limit_bytes=r.integer("disk_limit_bytes"),
            network_received_bytes=r.integer("network_received_bytes"),
            network_sent_bytes=r.integer("network_sent_bytes"),
            network_denied=r.integer("network_denied"),
            processes=r.integer("processes"),
        )


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened to a sandbox.

    Attributes:
        id: its place in the order; give it to `events(after=…)` to go on from there.
        at: when, in UTC.
        type: "created", "started", "process_started", "process_ended", "file_written", "ended", …; "gap": events were
            lost, `data["reason"]` says why.
        sandbox_id: the sandbox, or None for a gap.
        data: what else there is to say, by the type.
    """

    id: str
    at: datetime.datetime
    type: str
    sandbox_id: str | None
    data: Mapping[str, Any]

    @staticmethod
    def _from_json(value: object) -> Event:
        r = _Reader(value, "event")
        data: object = r.raw("data")
        return Event(
            id=r.text("id"),
            at=r.time("at"),
            type=r.text("type"),
            sandbox_id=r.text_or_none("sandbox_id") or None,
            data=cast("Mapping[str, Any]", data) if isinstance(data, dict) else {},
        )
