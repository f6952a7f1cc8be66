from __future__ import annotations

import datetime
import json
from typing import Any

import httpx
import pytest
from facade import Sdk
from mock_server import (
    KEY,
    REQUEST_ID,
    SANDBOX,
    SANDBOX_JSON,
    TOKEN,
    URL,
    MockServer,
    answer,
    answering,
    created,
    refusal,
)

import ringfence


def client_of(sdk: Sdk, server: MockServer, **options: Any) -> Any:
    return sdk.Client(api_key=KEY, base_url=URL, transport=server.transport, **options)


def sandbox_of(sdk: Sdk, *responses: httpx.Response | Exception) -> tuple[Any, MockServer]:
    server = answering(created(), *responses)
    return sdk.Sandbox.create(client=client_of(sdk, server)), server


def test_create_sends_nothing_that_was_not_said(sdk: Sdk) -> None:
    sandbox, server = sandbox_of(sdk)
    assert (server.last.method, str(server.last.url)) == ("POST", f"{URL}/v1/sandboxes")
    assert server.last_json == {}
    assert (sandbox.id, sandbox.sandbox_id, sandbox.name) == (SANDBOX, SANDBOX, "mine")
    assert sandbox.template == "code-interpreter"
    assert sandbox.metadata == {"a": "b"}


def test_create_sends_all_that_was_said(sdk: Sdk) -> None:
    server = answering(created())
    sdk.Sandbox.create(
        "base",
        name="n",
        timeout=90,
        env={"A": "1"},
        metadata={"k": "v"},
        user="user",
        vcpu=1,
        memory_mib=512,
        disk_mib=100,
        network=ringfence.NetworkConfig(deny_out=["0.0.0.0/0"], allow_internet_access=False, closed_ports=True),
        idle_timeout_seconds=5,
        auto_delete_seconds=6.5,
        client=client_of(sdk, server),
    )
    assert server.last_json == {
        "template": "base",
        "name": "n",
        "timeout_seconds": 90,
        "env": {"A": "1"},
        "metadata": {"k": "v"},
        "user": "user",
        "vcpu": 1,
        "memory_mib": 512,
        "disk_mib": 100,
        "network": {
            "allow_out": [],
            "deny_out": ["0.0.0.0/0"],
            "allow_internet_access": False,
            "closed_ports": True,
        },
        "idle_timeout_seconds": 5,
        "auto_delete_seconds": 6.5,
    }


def test_create_takes_the_other_names(sdk: Sdk) -> None:
    server = answering(created())
    sdk.Sandbox.create(
        from_template="superserve/code-interpreter",
        timeout_seconds=1.5,
        envs={"A": "1"},
        network=ringfence.NetworkConfig(),
        client=client_of(sdk, server),
    )
    assert server.last_json == {
        "template": "superserve/code-interpreter",
        "timeout_seconds": 1.5,
        "env": {"A": "1"},
        "network": {"allow_out": [], "deny_out": []},
    }


def test_token_is_not_shown(sdk: Sdk) -> None:
    sandbox, server = sandbox_of(sdk)
    assert sandbox.access_token == TOKEN
    assert f"{sandbox.access_token}" == TOKEN
    for shown in (
        repr(sandbox),
        repr(sandbox.access_token),
        repr([sandbox.access_token]),
        repr(client_of(sdk, server)),
    ):
        assert TOKEN not in shown
        assert KEY not in shown
    assert repr(client_of(sdk, server).api_key) == "'***'"


def test_kill_on_the_object_and_on_the_class(sdk: Sdk) -> None:
    sandbox, server = sandbox_of(sdk, answer(status=204), answer(status=204))
    assert sandbox.kill() is None
    assert (server.last.method, server.last.url.path) == ("DELETE", f"/v1/sandboxes/{SANDBOX}")
    sdk.Sandbox.kill("x" * 20, client=client_of(sdk, server))
    assert (server.last.method, server.last.url.path) == ("DELETE", f"/v1/sandboxes/{'x' * 20}")


def test_get_info_on_the_object_and_on_the_class(sdk: Sdk) -> None:
    ended = {
        **SANDBOX_JSON,
        "state": "deleted",
        "reason": "killed",
        "detail": "by a caller",
        "ended_at": "2026-11-30T21:00:00.000001Z",
        "something_new": 1,
    }
    sandbox, server = sandbox_of(sdk, answer(SANDBOX_JSON), answer(ended))
    info = sandbox.get_info()
    assert (server.last.method, server.last.url.path) == ("GET", f"/v1/sandboxes/{SANDBOX}")
    assert (info.state, info.reason, info.ended, info.memory_mib) == ("running", None, False, 2048)
    assert info.network.deny_out == ("0.0.0.0/0",)
    assert info.created_at == datetime.datetime(2026, 11, 30, 20, 0, 0, 123456, tzinfo=datetime.timezone.utc)
    info = sdk.Sandbox.get_info(SANDBOX, client=client_of(sdk, server))
    assert (info.state, info.reason, info.ended, info.detail) == ("deleted", "killed", True, "by a caller")
    assert info.ended_at is not None
    assert info.ended_at.microsecond == 1


def test_connect(sdk: Sdk) -> None:
    server = answering(answer(SANDBOX_JSON))
    sandbox = sdk.Sandbox.connect(SANDBOX, client=client_of(sdk, server))
    assert (sandbox.id, sandbox.name, sandbox.access_token) == (SANDBOX, "mine", None)
    server = answering(answer({**SANDBOX_JSON, "state": "failed", "reason": "oom"}))
    with pytest.raises(ringfence.SandboxEndedError, match="oom"):
        sdk.Sandbox.connect(SANDBOX, client=client_of(sdk, server))
    server = answering(refusal("not_found", 404))
    with pytest.raises(ringfence.NotFoundError):
        sdk.Sandbox.connect(SANDBOX, client=client_of(sdk, server))


def test_connect_with_a_token_asks_nothing(sdk: Sdk) -> None:
    sandbox = sdk.Sandbox.connect(SANDBOX, access_token=TOKEN, base_url=URL)
    assert sandbox.access_token == TOKEN
    assert sandbox.client.api_key == TOKEN


def test_list_asks_for_pages_as_it_goes(sdk: Sdk) -> None:
    first = {"sandboxes": [SANDBOX_JSON, {**SANDBOX_JSON, "id": "b" * 20}], "next_cursor": "c/1"}
    second = {"sandboxes": [{**SANDBOX_JSON, "id": "c" * 20}], "next_cursor": None}
    server = answering(answer(first), answer(second))
    found = sdk.Sandbox.list(
        metadata={"team": "a b"}, state=["running", "failed"], page_size=2, client=client_of(sdk, server)
    )
    assert server.requests == []
    found = iter(found)
    assert next(found).id == SANDBOX
    assert len(server.requests) == 1
    assert server.last_query == [("metadata.team", "a b"), ("state", "running,failed"), ("limit", "2")]
    assert [info.id for info in found] == ["b" * 20, "c" * 20]
    assert server.last_query[-1] == ("cursor", "c/1")
    server = answering(answer({"sandboxes": [], "next_cursor": None}))
    assert list(sdk.Sandbox.list(state="running", client=client_of(sdk, server))) == []
    assert server.last_query == [("state", "running")]


def test_leaving_the_block_kills(sdk: Sdk) -> None:
    sandbox, server = sandbox_of(sdk, answer(status=204))
    with sandbox as entered:
        assert entered.id == SANDBOX
        assert len(server.requests) == 1
    assert server.last.method == "DELETE"


def test_an_exception_in_the_block_is_what_is_raised(sdk: Sdk) -> None:
    sandbox, server = sandbox_of(sdk, answer(status=204))
    with pytest.raises(ZeroDivisionError), sandbox:
        1 / 0  # noqa: B018
    assert server.last.method == "DELETE"
    sandbox, server = sandbox_of(sdk, refusal("internal", 500))
    with pytest.raises(ZeroDivisionError) as caught, sandbox:
        1 / 0  # noqa: B018
    assert server.last.method == "DELETE"
    assert "could not be killed" in "".join(getattr(caught.value, "__notes__", ["could not be killed"]))


def test_a_kill_that_fails_at_the_end_of_a_block_is_raised(sdk: Sdk) -> None:
    sandbox, _ = sandbox_of(sdk, refusal("internal", 500))
    with pytest.raises(ringfence.InternalError), sandbox:
        pass
    sandbox, _ = sandbox_of(sdk, refusal("not_found", 404))
    with sandbox:
        pass  # gone is what was wanted


def test_a_sandbox_is_not_made_by_calling_the_class() -> None:
    with pytest.raises(TypeError, match=r"Sandbox\.create"):
        ringfence.Sandbox("base")
    with pytest.raises(TypeError, match=r"AsyncSandbox\.create"):
        ringfence.AsyncSandbox()


def test_a_subclass_stays_one() -> None:
    class Mine(ringfence.Sandbox):
        pass

    server = answering(created())
    client = ringfence.Client(api_key=KEY, base_url=URL, transport=server.transport)
    assert type(Mine.create(client=client)) is Mine


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"template": "a", "from_template": "b"}, TypeError, "template and from_template"),
        ({"timeout": 1, "timeout_seconds": 1}, TypeError, "timeout and timeout_seconds"),
        ({"env": {}, "envs": {}}, TypeError, "env and envs"),
        ({"template": 1}, TypeError, "template must be a str, got int"),
        ({"name": b"x"}, TypeError, "name must be a str, got bytes"),
        ({"timeout": "60"}, TypeError, "timeout must be a number of seconds"),
        ({"timeout": True}, TypeError, "timeout must be a number of seconds"),
        ({"timeout": float("inf")}, ValueError, "None means no limit"),
        ({"env": [("A", "1")]}, TypeError, "env must be a dict"),
        ({"env": {"A": 1}}, TypeError, "'A' is int"),
        ({"metadata": {1: "a"}}, TypeError, "metadata must be a dict of str to str"),
        ({"vcpu": 1.5}, TypeError, "vcpu must be an int"),
        ({"memory_mib": "512"}, TypeError, "memory_mib must be an int"),
        ({"network": {"deny_out": []}}, TypeError, "NetworkConfig"),
        ({"request_timeout": 0}, ValueError, "above 0"),
        ({"request_timeout": "1"}, TypeError, "request_timeout must be a number"),
        ({"api_key": "k"}, TypeError, "client has a key"),
        ({"name": "\udc80"}, ValueError, "surrogates"),
        ({"timeout_second": 1}, TypeError, "timeout_second"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_sent(
    sdk: Sdk, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    server = answering()
    with pytest.raises(error, match=words):
        sdk.Sandbox.create(client=client_of(sdk, server), **options)
    assert server.requests == []


def test_wrong_network_options() -> None:
    with pytest.raises(TypeError, match="deny_out must be a list of str"):
        ringfence.NetworkConfig(deny_out="0.0.0.0/0")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="allow_internet_access"):
        ringfence.NetworkConfig(allow_internet_access="no")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="closed_ports"):
        ringfence.NetworkConfig(closed_ports=1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="deny"):
        ringfence.NetworkConfig(deny=["0.0.0.0/0"])  # type: ignore[call-arg]


@pytest.mark.parametrize("id", ["", "../templates", "a b", None, 7])
def test_what_cannot_be_an_id_is_refused(sdk: Sdk, id: Any) -> None:
    server = answering()
    for call in (sdk.Sandbox.connect, sdk.Sandbox.get_info, sdk.Sandbox.kill):
        with pytest.raises((TypeError, ValueError), match="sandbox's id"):
            call(id, client=client_of(sdk, server))
    assert server.requests == []


def test_the_key_and_the_url_come_from_the_environment(sdk: Sdk, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ringfence.AuthenticationError, match="RINGFENCE_API_KEY"):
        sdk.Client()
    monkeypatch.setenv("RINGFENCE_API_KEY", f" {KEY}\n")
    client = sdk.Client()
    assert (client.api_key, client.base_url) == (KEY, "http://127.0.0.1:7070")
    monkeypatch.setenv("RINGFENCE_URL", "https://sandboxes.example:8443/below/")
    assert sdk.Client().base_url == "https://sandboxes.example:8443/below"
    assert sdk.Client(base_url="http://other").base_url == "http://other"
    for wrong in ("127.0.0.1:7070", "ftp://x", "http://", "http://x/?q=1"):
        with pytest.raises(ValueError, match="is not a URL"):
            sdk.Client(base_url=wrong)
    with pytest.raises(ringfence.AuthenticationError, match="characters"):
        sdk.Client(api_key="rf_\nX-Evil: 1")


def test_sandboxes_share_one_client(sdk: Sdk) -> None:
    a = sdk.Sandbox.connect(SANDBOX, access_token=TOKEN, base_url=URL)
    b = sdk.Sandbox.connect("b" * 20, access_token=TOKEN, base_url=URL + "/")
    other = sdk.Sandbox.connect("b" * 20, access_token="e" * 64, base_url=URL)
    first, second, third = (getattr(s.client, "_target", s.client) for s in (a, b, other))
    assert first is second
    assert first is not third


def test_client_calls(sdk: Sdk) -> None:
    template = {
        "name": "code-interpreter",
        "aliases": ["superserve/code-interpreter"],
        "image": "ab",
        "recipe": "cd",
        "user": "root",
        "work_dir": "/home/user",
        "vcpu": 2,
        "memory_mib": 2048,
        "disk_mib": 8192,
        "built_at": "2026-11-30T20:00:00.123456Z",
    }
    server = answering(answer({"status": "ok", "version": "1.2"}), answer({"templates": [template]}), answer(template))
    client = client_of(sdk, server)
    assert client.health() == "1.2"
    assert server.last.url.path == "/health"
    assert [t.name for t in client.templates()] == ["code-interpreter"]
    assert client.template("superserve/code-interpreter").aliases == ("superserve/code-interpreter",)
    assert server.last.url.raw_path == b"/v1/templates/superserve%2Fcode-interpreter"
    (client.close if sdk.kind == "sync" else client.aclose)()
    with pytest.raises(RuntimeError, match="closed"):
        client.health()


def test_answers_that_are_not_ringfence(sdk: Sdk) -> None:
    for response in (
        httpx.Response(200, text="<html>"),
        answer([1]),
        answer({"id": SANDBOX}, 201),
        answer({**SANDBOX_JSON, "created_at": "yesterday"}, 201),
        answer(SANDBOX_JSON, 201),  # no token
        httpx.Response(302, headers={"Location": "https://login.example"}),
        httpx.Response(502, text="Bad Gateway"),
    ):
        with pytest.raises(ringfence.APIResponseError) as caught:
            sdk.Sandbox.create(client=client_of(sdk, answering(response)))
        assert caught.value.code == "bad_response"


def test_plain_responses_of_a_users_own_mock_transport_work(sdk: Sdk) -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return httpx.Response(200, content=b"bytes")
        return httpx.Response(201, json={**SANDBOX_JSON, "access_token": TOKEN})

    sandbox = sdk.Sandbox.create(client=client_of(sdk, MockServer(handle)))
    assert sandbox.files.read("/f") == b"bytes"


def test_request_ids_and_hints_reach_the_error(sdk: Sdk) -> None:
    response = refusal("resource_exhausted", 429, "no room", retry_after=7, field="memory_mib")
    with pytest.raises(ringfence.ResourceExhaustedError) as caught:
        sdk.Sandbox.create(client=client_of(sdk, answering(response)))
    error = caught.value
    assert (error.code, error.message, error.hint) == ("resource_exhausted", "no room", "do this")
    assert (error.request_id, error.status, error.field, error.retry_after) == (REQUEST_ID, 429, "memory_mib", 7.0)
    assert str(error) == f"no room; do this (resource_exhausted, field memory_mib, request {REQUEST_ID})"
    assert json.dumps(str(error))
