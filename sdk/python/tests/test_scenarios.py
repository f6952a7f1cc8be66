"""Runs the cases of sdk/scenarios, which the TypeScript SDK runs too, against a real server."""

from __future__ import annotations

import base64
import json
import re
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from facade import Sdk
from server import DRIVER, Server

import ringfence

SCENARIOS = Path(__file__).resolve().parents[2] / "scenarios"
CASES = {path.stem: json.loads(path.read_text("utf-8")) for path in sorted(SCENARIOS.glob("*.json"))}
REQUEST_ID = re.compile(r"[0-9a-f]{16}")

RUN = {
    "command",
    "args",
    "cwd",
    "env",
    "user",
    "stdin",
    "stdin_base64",
    "timeout_seconds",
    "output_limit_bytes",
    "stream",
}
DEADLINES = {"timeout_seconds", "on_timeout", "idle_timeout_seconds", "auto_delete_seconds", "auto_resume"}
POLICY = {"allow_out", "deny_out", "allow_internet_access", "closed_ports"}
VERBS: dict[str, set[str]] = {
    "run": RUN,
    "write": {"path", "text", "base64", "repeat", "user", "owner", "mode"},
    "write_many": {"files"},
    "read": {"path", "user", "offset", "length"},
    "read_text": {"path"},
    "stat": {"path", "user"},
    "exists": {"path"},
    "list": {"path", "depth"},
    "make_dir": {"path", "user", "owner", "mode"},
    "rename": {"from", "to", "user"},
    "remove": {"path", "recursive", "user"},
    "get_info": set(),
    "wait_for": {"state"},
    "kill": set(),
    "create": {*DEADLINES, "template", "snapshot", "name", "metadata", "network", "idempotency_key"},
    "pause": set(),
    "resume": set(),
    "update": {*DEADLINES, "metadata"},
    "fork": {"count"},
    "snapshot": {"name"},
    "list_snapshots": set(),
    "get_snapshot": {"snapshot"},
    "delete_snapshot": {"snapshot"},
    "restore": {"snapshot"},
    "update_network": POLICY,
    "get_network": set(),
    "network_flows": {"verdict"},
    "start": {"command", "stdin", "terminal"},
    "send": {"process", "text"},
    "follow": {"process", "until"},
    "request": {"method", "path", "query", "headers", "json", "auth"},
}


def test_there_are_cases_and_they_are_well_formed() -> None:
    assert len(CASES) >= 25
    for name, case in CASES.items():
        assert case["name"] == name
        assert case["description"].endswith(".")
        assert case.keys() <= {"name", "description", "drivers", "create", "own_sandbox", "steps"}
        for step in case["steps"]:
            verb = verb_of(step)
            assert step[verb].keys() <= VERBS[verb], f"{name}: {step}"
            assert "keep" not in step or verb in ("create", "fork", "snapshot", "start")
            assert not ("expect" in step and "error" in step)


def verb_of(step: dict[str, Any]) -> str:
    (verb,) = step.keys() - {"expect", "error", "on", "keep"}
    return verb


def content(options: dict[str, Any]) -> bytes:
    """Return the bytes that text, base64 or repeat stand for."""
    if "base64" in options:
        return base64.b64decode(options["base64"])
    if "repeat" in options:
        return options["repeat"]["text"].encode() * options["repeat"]["times"]
    return options["text"].encode()


class Case:
    """One case in one sandbox, and in those that it makes."""

    def __init__(self, sdk: Sdk, client: Any, sandbox: Any, server: Server, token: str, directory: str) -> None:
        self.sandbox = sandbox
        self.made: dict[str, Any] = {}
        self._sdk = sdk
        self._client = client
        self._processes: dict[str, tuple[Any, Iterator[Any]]] = {}
        self._server = server
        self._token = token
        self._names = {"{dir}": directory, "{id}": sandbox.id}

    def fill(self, value: Any) -> Any:
        """Put the directory and the id in their places."""
        if isinstance(value, str):
            for name, text in self._names.items():
                value = value.replace(name, text)
            return value
        if isinstance(value, list):
            return [self.fill(item) for item in value]
        if isinstance(value, dict):
            return {self.fill(key): self.fill(item) for key, item in value.items()}
        return value

    def step(self, step: dict[str, Any]) -> None:
        if "on" in step:
            own, self.sandbox = self.sandbox, self.made[step["on"]]
            try:
                self.step({key: value for key, value in step.items() if key != "on"})
            finally:
                self.sandbox = own
            return
        verb = verb_of(step)
        options, expect, error = self.fill(step[verb]), self.fill(step.get("expect", {})), self.fill(step.get("error"))
        check: Callable[..., Any] = getattr(self, "do_" + verb)
        if error is None:
            kept = check(options, expect)
            names = step.get("keep", [])
            for name, value in zip([names] if isinstance(names, str) else names, kept or [], strict=bool(names)):
                self.keep(name, value)
            return
        with pytest.raises(ringfence.RingfenceError) as caught:
            check(options, {})
        exc = caught.value
        if "class" in error:
            assert type(exc).__name__ == error["class"], exc
        assert exc.code == error["code"]
        assert error.get("field") in (None, exc.field)
        for words in error.get("message_contains", []):
            assert words in exc.message
        assert exc.message
        assert REQUEST_ID.fullmatch(exc.request_id or ""), exc.request_id

    def keep(self, name: str, value: Any) -> None:
        """Let later steps name a sandbox, a snapshot or a process."""
        if hasattr(value, "position"):
            self._processes[name] = (value, iter(value))
            return
        if not isinstance(value, ringfence.SnapshotInfo):
            self.made[name] = value
        self._names["{" + name + "}"] = value.id

    def do_run(self, options: dict[str, Any], expect: dict[str, Any]) -> None:
        options = dict(options)
        cmd = options.pop("command") if "command" in options else options.pop("args")
        if "stdin_base64" in options:
            options["stdin"] = base64.b64decode(options.pop("stdin_base64"))
        heard: dict[str, list[str]] = {"stdout": [], "stderr": []}
        streamed = options.pop("stream", False)
        if streamed:
            options.update(on_stdout=heard["stdout"].append, on_stderr=heard["stderr"].append)
        began = time.monotonic()
        result = self.sandbox.commands.run(cmd, **options)
        took_ms = (time.monotonic() - began) * 1000
        if streamed:
            if not result.stdout_truncated:
                assert "".join(heard["stdout"]) == result.stdout
            if not result.stderr_truncated:
                assert "".join(heard["stderr"]) == result.stderr
        for key, wanted in expect.items():
            if key.endswith("_base64"):
                assert getattr(result, key.replace("_base64", "_bytes")) == base64.b64decode(wanted)
            elif key == "stdout_size":
                assert len(result.stdout_bytes) == wanted
            elif key.endswith("_contains"):
                for words in wanted:
                    assert words in getattr(result, key.removesuffix("_contains"))
            elif key == "max_ms":
                assert took_ms <= wanted
            elif key == "min_ms":
                assert took_ms >= wanted
            else:
                assert getattr(result, key) == wanted, (key, result)

    def do_write(self, options: dict[str, Any], expect: dict[str, Any]) -> None:
        keywords = {key: options[key] for key in ("user", "owner", "mode") if key in options}
        data = options["text"] if "text" in options else content(options)
        compare(self.sandbox.files.write(options["path"], data, **keywords), expect)

    def do_write_many(self, options: dict[str, Any], expect: dict[str, Any]) -> None:
        written = self.sandbox.files.write_many([(file["path"], content(file)) for file in options["files"]])
        assert [info.path for info in written] == [file["path"] for file in options["files"]]
        assert expect.get("count") in (None, len(written))

    def do_read(self, options: dict[str, Any], expect: dict[str, Any]) -> None:
        data = self.sandbox.files.read(**options)
        for key, wanted in expect.items():
            if key == "size":
                assert len(data) == wanted
            else:
                assert data == content({key: wanted})

    def do_read_text(self, options: dict[str, Any], expect: dict[str, Any]) -> None:
        assert self.sandbox.files.read_text(**options) == expect["text"]

    def do_stat(self, options: dict[str, Any], expect: dict[str, Any]) -> None:
        compare(self.sandbox.files.stat(**options), expect)

    def do_exists(self, options: dict[str, Any], expect: dict[str, Any]) -> None:
        assert self.sandbox.files.exists(**options) is expect["value"]

    def do_list(self, options: dict[str, Any], expect: dict[str, Any]) -> None:
        found = {info.path: info for info in self.sandbox.files.list(**options)}
        assert sorted(found) == expect.get("paths", sorted(found))
        for path, wanted in expect.get("types", {}).items():
            assert found[path].type == wanted

    def do_make_dir(self, options: dict[str, Any], expect: dict[str, Any]) -> None:
        compare(self.sandbox.files.make_dir(**options), expect)

    def do_rename(self, options: dict[str, Any], expect: dict[str, Any]) -> None:
        options = dict(options)
        compare(self.sandbox.files.rename(options.pop("from"), options.pop("to"), **options), expect)

    def do_remove(self, options: dict[str, Any], _: dict[str, Any]) -> None:
        self.sandbox.files.remove(**options)

    def do_get_info(self, _: dict[str, Any], expect: dict[str, Any]) -> None:
        compare(self.sandbox.get_info(), expect)

    def do_wait_for(self, options: dict[str, Any], expect: dict[str, Any]) -> None:
        end = time.monotonic() + 60
        while (info := self.sandbox.get_info()).state != options["state"]:
            assert time.monotonic() < end, info
            time.sleep(0.05)
        compare(info, expect)

    def do_create(self, options: dict[str, Any], expect: dict[str, Any]) -> list[Any]:
        made = self._sdk.Sandbox.create(client=self._client, **with_network(options))
        compare(made.get_info(), expect)
        return [made]

    def do_pause(self, _: dict[str, Any], expect: dict[str, Any]) -> None:
        compare(self.sandbox.pause(), expect)

    def do_resume(self, _: dict[str, Any], expect: dict[str, Any]) -> None:
        compare(self.sandbox.resume(), expect)

    def do_update(self, options: dict[str, Any], expect: dict[str, Any]) -> None:
        compare(self.sandbox.update(**options), expect)

    def do_fork(self, options: dict[str, Any], expect: dict[str, Any]) -> list[Any]:
        forks = self.sandbox.fork(**options)
        assert len({fork.id for fork in forks} | {self.sandbox.id}) == options.get("count", 1) + 1
        for fork in forks:
            compare(fork.get_info(), expect)
        return forks

    def do_snapshot(self, options: dict[str, Any], expect: dict[str, Any]) -> list[Any]:
        taken = self.sandbox.snapshot(**options)
        compare(taken, expect)
        return [taken]

    def do_list_snapshots(self, _: dict[str, Any], expect: dict[str, Any]) -> None:
        assert [info.name for info in self.sandbox.list_snapshots()] == expect["names"]

    def do_get_snapshot(self, options: dict[str, Any], expect: dict[str, Any]) -> None:
        compare(self._sdk.Sandbox.get_snapshot(options["snapshot"], client=self._client), expect)

    def do_delete_snapshot(self, options: dict[str, Any], _: dict[str, Any]) -> None:
        self._sdk.Sandbox.delete_snapshot(options["snapshot"], client=self._client)

    def do_restore(self, options: dict[str, Any], expect: dict[str, Any]) -> None:
        compare(self.sandbox.restore(options["snapshot"]), expect)

    def do_update_network(self, options: dict[str, Any], _: dict[str, Any]) -> None:
        self.sandbox.update_network(ringfence.NetworkConfig(**options))

    def do_get_network(self, _: dict[str, Any], expect: dict[str, Any]) -> None:
        contains(plain(self.sandbox.get_network()), expect)

    def do_network_flows(self, options: dict[str, Any], expect: dict[str, Any]) -> None:
        end = time.monotonic() + 60
        for wanted in expect.get("has", [{}]):
            while True:
                flows = list(self.sandbox.network_flows(**options))
                if any(all(getattr(flow, key) == value for key, value in wanted.items()) for flow in flows):
                    break
                assert time.monotonic() < end, (wanted, flows)
                time.sleep(0.05)

    def do_start(self, options: dict[str, Any], _: dict[str, Any]) -> list[Any]:
        if options.get("terminal"):
            return [self.sandbox.pty.create(options["command"])]
        return [self.sandbox.commands.start(options["command"], stdin=options.get("stdin", False))]

    def do_send(self, options: dict[str, Any], _: dict[str, Any]) -> None:
        self._processes[options["process"]][0].send_stdin(options["text"])

    def do_follow(self, options: dict[str, Any], expect: dict[str, Any]) -> None:
        name, until = options["process"], options.get("until")
        process, output = self._processes[name]
        text = ""
        try:
            for piece in output:
                text += piece.text
                if until is not None and until in text:
                    break
        except ringfence.RingfenceError:
            self._processes[name] = (process, iter(process))  # another look goes on where this one was
            raise
        assert until is None or until in text
        for key, wanted in expect.items():
            assert {"text": text, "exit_code": process.result and process.result.exit_code}[key] == wanted

    def do_kill(self, _: dict[str, Any], __: dict[str, Any]) -> None:
        self.sandbox.kill()

    def do_request(self, options: dict[str, Any], expect: dict[str, Any]) -> None:
        keys = {"key": self._server.key, "token": self._token, "wrong": "rf_" + "0" * 64}
        auth = options.get("auth", "key")
        headers = {} if auth == "none" else {"Authorization": f"Bearer {keys[auth]}"}
        with httpx.Client(trust_env=False, verify=False, timeout=60) as http:
            response = http.request(
                options["method"],
                self._server.url + options["path"],
                params=options.get("query"),
                json=options.get("json"),
                headers={**headers, **options.get("headers", {})},
            )
        assert response.status_code == expect.get("status", response.status_code), response.text
        assert REQUEST_ID.fullmatch(response.headers["x-request-id"])
        answer = response.json()
        if response.status_code >= 400:
            assert answer["error"]["request_id"] == response.headers["x-request-id"]
        contains(answer, expect.get("json", {}))
        for words in expect.get("message_contains", []):
            assert words in answer["error"]["message"]


def plain(value: Any) -> Any:
    """Return what the scenarios compare with: JSON's values."""
    if isinstance(value, ringfence.NetworkConfig):
        return {
            "allow_out": list(value.allow_out),
            "deny_out": list(value.deny_out),
            "allow_internet_access": value.allow_internet_access,
            "closed_ports": value.closed_ports,
        }
    return value


def with_network(options: dict[str, Any]) -> dict[str, Any]:
    """Return options of create with the policy as the SDK takes it."""
    if "network" not in options:
        return options
    return {**options, "network": ringfence.NetworkConfig(**options["network"])}


def compare(info: Any, expect: dict[str, Any]) -> None:
    for key, wanted in expect.items():
        if key == "set":
            for name in wanted:
                assert getattr(info, name) is not None, (name, info)
        else:
            assert plain(getattr(info, key)) == wanted, (key, info)


def contains(answer: Any, wanted: Any) -> None:
    """Check that all keys of wanted are in answer, in depth."""
    if isinstance(wanted, dict):
        for key, value in wanted.items():
            contains(answer[key], value)
    else:
        assert answer == wanted


@pytest.fixture
def case_sandbox(request: pytest.FixtureRequest, sdk: Sdk, server: Server, client: Any) -> Iterator[tuple[Any, str]]:
    case = request.param
    if "create" in case or case.get("own_sandbox"):
        own = sdk.Sandbox.create(client=client, **with_network(case.get("create", {})))
        yield own, own.access_token
        own.kill()
    else:
        shared: ringfence.Sandbox = request.getfixturevalue("shared_sandbox")
        yield sdk.Sandbox.connect(shared.id, client=client), str(shared.access_token)


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("name", "case_sandbox"),
    [(name, case) for name, case in CASES.items() if DRIVER in case.get("drivers", ["gvisor", "fake"])],
    ids=lambda value: value if isinstance(value, str) else "",
    indirect=["case_sandbox"],
)
def test_scenario(name: str, case_sandbox: tuple[Any, str], server: Server, sdk: Sdk, client: Any) -> None:
    sandbox, token = case_sandbox
    directory = f"/tmp/scenario-{name}-{secrets.token_hex(4)}"
    case = Case(sdk, client, sandbox, server, token, directory)
    sandbox.files.make_dir(directory)
    try:
        for number, step in enumerate(CASES[name]["steps"]):
            try:
                case.step(step)
            except BaseException as exc:
                if hasattr(exc, "add_note"):
                    text = json.dumps(step, ensure_ascii=False)[:500]
                    exc.add_note(f"in step {number} of sdk/scenarios/{name}.json: {text}")
                raise
    finally:
        for made in case.made.values():
            made.kill()
    if "create" not in CASES[name] and not CASES[name].get("own_sandbox"):
        sandbox.files.remove(directory, recursive=True)
