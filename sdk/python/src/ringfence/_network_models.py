"""What a sandbox's network log holds."""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from ._models import _Reader  # pyright: ignore[reportPrivateUsage]


@dataclass(frozen=True)
class NetworkFlow:
    """A row of a sandbox's network log: a connection, or a lookup that was refused.

    Attributes:
        id: its number, in the order of their begin.
        at: when it began, in UTC.
        name: what was looked up or announced, or None.
        address: where it went, or None for a lookup.
        port: the port there, or None.
        protocol: "tcp", "udp", "icmp", "dns", or a number of IP.
        verdict: "allowed", "denied", or "failed": allowed, but the other side could not be reached.
        reason: why; docs/network.md lists them.
        rule: the entry of the policy that decided, as it was written, or None.
        bytes_sent: by the sandbox, so far.
        bytes_received: by the sandbox, so far.
        duration_seconds: None while it is open.
        count: how often it happened in a row, for what was denied.
    """

    id: int
    at: datetime.datetime
    name: str | None
    address: str | None
    port: int | None
    protocol: str
    verdict: str
    reason: str
    rule: str | None
    bytes_sent: int
    bytes_received: int
    duration_seconds: float | None
    count: int

    @staticmethod
    def _from_json(value: object) -> NetworkFlow:
        r = _Reader(value, "a network flow")
        return NetworkFlow(
            id=r.integer("id"),
            at=r.time("at"),
            name=r.text_or_none("name"),
            address=r.text_or_none("address"),
            port=r.integer_or_none("port"),
            protocol=r.text("protocol"),
            verdict=r.text("verdict"),
            reason=r.text("reason"),
            rule=r.text_or_none("rule"),
            bytes_sent=r.integer("bytes_sent"),
            bytes_received=r.integer("bytes_received"),
            duration_seconds=r.number_or_none("duration_seconds"),
            count=r.integer("count"),
        )


@dataclass(frozen=True)
class NetworkLog:
    """A page of a network log.

    Attributes:
        flows: the rows, the oldest change first.
        next_cursor: goes on after them, also when there are none yet.
    """

    flows: tuple[NetworkFlow, ...]
    next_cursor: str
