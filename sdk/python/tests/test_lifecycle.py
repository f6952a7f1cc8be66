"""What the calls about a sandbox's life send, and what they make of the answers."""

from __future__ import annotations

import datetime
from typing import Any

import httpx
import pytest
from facade import Sdk
from mock_server import (
    KEY,
    SANDBOX,
    SANDBOX_JSON,
    SNAPSHOT,
    SNAPSHOT_JSON,
    URL,
    MockServer,
    answer,
    answering,
    created,
    refusal,
)

import ringfence


def client_of(sdk: Sdk, server: MockServer) -> Any:
    return sdk.Client(api_key=KEY, base_url=URL, transport=server.transport)


def sandbox_of(sdk: Sdk, *responses: httpx.Response | Exception) -> tuple[Any, MockServer]:
    server = answering(created(), *responses)
    return sdk.Sandbox.create(client=client_of(sdk, server)), server


def asked(server: MockServer) -> tuple[str, str]:
    return server.last.method, server.last.url.path


def test_create_with_deadlines_and_from_a_snapshot(sdk: Sdk) -> None:
    server = answering(created())
    sdk.Sandbox.create(
        snapshot=SNAPSHOT,
        timeout=90,
        on_timeout="pause",
        idle_timeout_seconds=5,
        auto_delete_seconds=0,
        auto_resume=False,
        client=client_of(sdk, server),
    )
    assert server.last_json == {
        "snapshot": SNAPSHOT,
        "timeout_seconds": 90,
        "on_timeout": "pause",
        "idle_timeout_seconds": 5,
        "auto_delete_seconds": 0,
        "auto_resume": False,
    }
    assert "idempotency-key" not in server.last.headers
    server = answering(created())
    taken = ringfence.SnapshotInfo._from_json(SNAPSHOT_JSON)
    sdk.Sandbox.create(from_snapshot=taken, client=client_of(sdk, server))
    assert server.last_json == {"snapshot": SNAPSHOT}


def test_a_create_with_a_key_is_repeated_and_one_without_is_not(sdk: Sdk) -> None:
    broken = httpx.ReadError("connection reset")
    server = answering(broken, created())
    sandbox = sdk.Sandbox.create(name="n", idempotency_key="job 42", client=client_of(sdk, server))
    assert sandbox.id == SANDBOX
    assert [request.headers["idempotency-key"] for request in server.requests] == ["job 42", "job 42"]
    server = answering(broken)
    with pytest.raises(ringfence.APIConnectionError):
        sdk.Sandbox.create(name="n", client=client_of(sdk, server))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"snapshot": ""}, "snapshot is empty"),
        ({"snapshot": 7}, "snapshot must be a str"),
        ({"snapshot": "a", "from_snapshot": "b"}, "two names of one option"),
        ({"idle_timeout_seconds": "5"}, "idle_timeout_seconds must be a number"),
        ({"auto_delete_seconds": float("nan")}, "auto_delete_seconds must be finite"),
        ({"auto_resume": 1}, "auto_resume must be a bool"),
        ({"on_timeout": True}, "on_timeout must be a str"),
        ({"idempotency_key": "a\nb"}, "idempotency_key must be printable"),
        ({"idempotency_key": ""}, "idempotency_key must be printable"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_sent(sdk: Sdk, options: dict[str, Any], message: str) -> None:
    server = answering()
    with pytest.raises((TypeError, ValueError), match=message):
        sdk.Sandbox.create(client=client_of(sdk, server), **options)
    assert server.requests == []


@pytest.mark.parametrize("what", ["pause", "resume"])
def test_pause_and_resume(sdk: Sdk, what: str) -> None:
    paused = {
        **SANDBOX_JSON,
        "state": "paused",
        "paused_at": "2026-11-30T20:05:00.000001Z",
        "delete_at": "2026-11-30T20:06:00.000000Z",
        "auto_delete_seconds": 60,
        "on_timeout": "pause",
        "auto_resume": False,
    }
    # Doing it twice is the same as once, so a connection that broke is tried again.
    sandbox, server = sandbox_of(sdk, httpx.ReadError("reset"), answer(paused))
    info = getattr(sandbox, what)()
    assert asked(server) == ("POST", f"/v1/sandboxes/{SANDBOX}/{what}")
    assert server.last_json == {}
    assert server.last.extensions["timeout"]["read"] == 300
    assert (info.state, info.ended, info.on_timeout, info.auto_resume) == ("paused", False, "pause", False)
    assert info.paused_at == datetime.datetime(2026, 11, 30, 20, 5, 0, 1, tzinfo=datetime.timezone.utc)
    assert info.delete_at == datetime.datetime(2026, 11, 30, 20, 6, tzinfo=datetime.timezone.utc)
    assert (info.auto_delete_seconds, info.timeout_seconds, info.idle_timeout_seconds, info.idle_at) == (
        60,
        None,
        None,
        None,
    )


def test_fork(sdk: Sdk) -> None:
    copies = [{**SANDBOX_JSON, "id": letter * 20, "access_token": letter * 64} for letter in "ab"]
    sandbox, server = sandbox_of(sdk, answer({"sandboxes": copies}, 201), answer(status=204))
    first, second = sandbox.fork(2)
    assert asked(server) == ("POST", f"/v1/sandboxes/{SANDBOX}/fork")
    assert server.last_json == {"count": 2}
    assert (first.id, second.id) == ("a" * 20, "b" * 20)
    assert (first.access_token, second.access_token) == ("a" * 64, "b" * 64)
    second.kill()
    assert asked(server) == ("DELETE", f"/v1/sandboxes/{'b' * 20}")
    with pytest.raises(TypeError, match="count must be an int"):
        sandbox.fork("2")


def test_snapshots(sdk: Sdk) -> None:
    sandbox, server = sandbox_of(
        sdk,
        answer(SNAPSHOT_JSON, 201),
        answer({**SNAPSHOT_JSON, "name": ""}, 201),
        answer({"snapshots": [SNAPSHOT_JSON], "next_cursor": "c/1"}),
        answer({"snapshots": [{**SNAPSHOT_JSON, "id": "snap_2"}], "next_cursor": None}),
    )
    taken = sandbox.snapshot("before")
    assert asked(server) == ("POST", f"/v1/sandboxes/{SANDBOX}/snapshots")
    assert server.last_json == {"name": "before"}
    assert (taken.id, taken.snapshot_id, taken.bytes, taken.sandbox_id) == (SNAPSHOT, SNAPSHOT, 4194304, SANDBOX)
    assert sandbox.create_snapshot().name == ""
    assert server.last_json == {}
    assert [info.id for info in sandbox.list_snapshots()] == [SNAPSHOT, "snap_2"]
    assert server.last_query == [("sandbox_id", SANDBOX), ("cursor", "c/1")]

    server = answering(
        answer({"snapshots": [], "next_cursor": None}),
        answer(SNAPSHOT_JSON),
        answer(status=204),
        httpx.ReadError("reset"),
    )
    client = client_of(sdk, server)
    assert list(sdk.Sandbox.list_snapshots(client=client)) == []
    assert server.last_query == []
    assert sdk.Sandbox.get_snapshot(SNAPSHOT, client=client) == taken
    assert asked(server) == ("GET", f"/v1/snapshots/{SNAPSHOT}")
    sdk.Sandbox.delete_snapshot(taken, client=client)
    assert asked(server) == ("DELETE", f"/v1/snapshots/{SNAPSHOT}")
    with pytest.raises(ringfence.APIConnectionError):  # a second try would say that there is none
        sdk.Sandbox.delete_snapshot(SNAPSHOT, client=client)


def test_restore(sdk: Sdk) -> None:
    sandbox, server = sandbox_of(sdk, answer(SANDBOX_JSON), refusal("failed_precondition", 409))
    assert sandbox.restore(SNAPSHOT).state == "running"
    assert asked(server) == ("POST", f"/v1/sandboxes/{SANDBOX}/restore")
    assert server.last_json == {"snapshot": SNAPSHOT}
    with pytest.raises(ringfence.FailedPreconditionError):
        sandbox.restore(ringfence.SnapshotInfo._from_json(SNAPSHOT_JSON))
    assert server.last_json == {"snapshot": SNAPSHOT}


def test_update_sends_what_was_said_and_none_as_null(sdk: Sdk) -> None:
    sandbox, server = sandbox_of(sdk, *(answer({**SANDBOX_JSON, "metadata": {"k": "w"}}) for _ in range(5)))
    sandbox.update(timeout=None, on_timeout="pause", idle_timeout_seconds=1.5)
    assert asked(server) == ("PATCH", f"/v1/sandboxes/{SANDBOX}")
    assert server.last_json == {"timeout_seconds": None, "on_timeout": "pause", "idle_timeout_seconds": 1.5}
    sandbox.update(timeout_seconds=9, idle_timeout_seconds=None, auto_delete_seconds=0, auto_resume=True)
    assert server.last_json == {
        "timeout_seconds": 9,
        "idle_timeout_seconds": None,
        "auto_delete_seconds": 0,
        "auto_resume": True,
    }
    assert sandbox.update(metadata={"k": "w"}).metadata == {"k": "w"}
    assert server.last_json == {"metadata": {"k": "w"}}
    assert sandbox.metadata == {"k": "w"}
    sandbox.set_timeout(60)
    assert server.last_json == {"timeout_seconds": 60}
    sandbox.set_timeout(None)
    assert server.last_json == {"timeout_seconds": None}
    with pytest.raises(TypeError, match="two names of one option"):
        sandbox.update(timeout=1, timeout_seconds=1)


def test_another_access_token(sdk: Sdk) -> None:
    sandbox, server = sandbox_of(sdk, answer({"access_token": "e" * 64}))
    token = sandbox.get_access_token()
    assert (token, repr(token)) == ("e" * 64, "'***'")
    assert asked(server) == ("POST", f"/v1/sandboxes/{SANDBOX}/token")


def test_the_network_policy_is_read(sdk: Sdk) -> None:
    policy = {"allow_out": ["a.example"], "deny_out": [], "allow_internet_access": False, "closed_ports": True}
    sandbox, server = sandbox_of(sdk, answer(policy))
    assert sandbox.get_network() == ringfence.NetworkConfig(["a.example"], [], False, closed_ports=True)
    assert asked(server) == ("GET", f"/v1/sandboxes/{SANDBOX}/network")


FLOW = {
    "id": 1,
    "at": "2026-11-30T20:00:00.123456Z",
    "name": None,
    "address": "198.51.100.7",
    "port": 443,
    "protocol": "tcp",
    "verdict": "denied",
    "reason": "denied",
    "rule": "0.0.0.0/0",
    "bytes_sent": 0,
    "bytes_received": 0,
    "duration_seconds": 0,
    "count": 1,
}


def test_the_network_log_is_iterated_over(sdk: Sdk) -> None:
    pages = [
        answer({"flows": [FLOW, {**FLOW, "id": 2}], "next_cursor": "2"}),
        answer({"flows": [{**FLOW, "id": 3}], "next_cursor": "3"}),
        answer({"flows": [], "next_cursor": "3"}),
    ]
    sandbox, server = sandbox_of(sdk, *pages)
    assert [flow.id for flow in sandbox.network_flows("denied", cursor="0")] == [1, 2, 3]
    assert server.last_query == [("verdict", "denied"), ("cursor", "3"), ("limit", "1000")]

    empty = answer({"flows": [], "next_cursor": "3"})
    sandbox, server = sandbox_of(sdk, empty, answer({"flows": [FLOW], "next_cursor": "4"}))
    following = iter(sandbox.network_flows(follow=True))
    assert next(following).id == 1
    assert server.last_query == [("cursor", "3"), ("limit", "1000"), ("wait_seconds", "30")]
    following.close()


def test_a_paused_sandbox_has_an_error_of_its_own(sdk: Sdk) -> None:
    sandbox, _ = sandbox_of(sdk, refusal("sandbox_paused", 409))
    with pytest.raises(ringfence.SandboxPausedError):
        sandbox.commands.run("true")
