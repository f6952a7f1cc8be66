from __future__ import annotations

import base64
import pickle
from typing import Any

import httpx
import pytest
from facade import Sdk
from mock_server import (
    KEY,
    REQUEST_ID,
    RESULT_JSON,
    SANDBOX,
    URL,
    MockServer,
    answer,
    answering,
    created,
    refusal,
    sse,
)

import ringfence

EXIT = {key: value for key, value in RESULT_JSON.items() if key not in ("stdout", "stderr")}
STARTED = ("started", {"id": "p1", "pid": 7})


def sandbox_of(sdk: Sdk, *responses: httpx.Response | Exception) -> tuple[Any, MockServer]:
    server = answering(created(), *responses)
    client = sdk.Client(api_key=KEY, base_url=URL, transport=server.transport)
    return sdk.Sandbox.create(client=client), server


def out(position: int, text: str) -> tuple[str, Any]:
    return "stdout", {"position": position, "text": text}


def raw(position: int, data: bytes, stream: str = "stdout") -> tuple[str, Any]:
    return stream, {"position": position, "base64": base64.b64encode(data).decode()}


def test_run_sends_the_command_and_reads_the_result(sdk: Sdk) -> None:
    sandbox, server = sandbox_of(sdk, answer(RESULT_JSON))
    result = sandbox.commands.run("echo hi")
    assert (server.last.method, server.last.url.path) == ("POST", f"/v1/sandboxes/{SANDBOX}/commands")
    assert server.last.headers["accept"] == "application/json"
    assert server.last_json == {"command": "echo hi", "timeout_seconds": 30.0}
    assert (result.exit_code, result.stdout, result.stderr) == (0, "hi\n", "")
    assert (result.stdout_bytes, result.stderr_bytes) == (b"hi\n", b"")
    assert (result.truncated, result.reason, result.signal, result.duration_ms, result.id) == (
        False,
        None,
        None,
        12.0,
        "p1",
    )
    assert result.ok
    assert result.check() is result


def test_run_sends_every_option(sdk: Sdk) -> None:
    sandbox, server = sandbox_of(sdk, answer(RESULT_JSON), answer(RESULT_JSON))
    sandbox.commands.run(
        ["printf", "%s", "a b"],
        cwd="/tmp",
        env={"A": "é"},
        user="user",
        stdin="text",
        timeout=None,
        output_limit_bytes=5,
    )
    assert server.last_json == {
        "args": ["printf", "%s", "a b"],
        "cwd": "/tmp",
        "env": {"A": "é"},
        "user": "user",
        "stdin": "text",
        "timeout_seconds": None,
        "output_limit_bytes": 5,
    }
    sandbox.commands.run(("true",), envs={"B": ""}, stdin=b"\x00\xff", timeout_seconds=0.5)
    assert server.last_json == {"args": ["true"], "env": {"B": ""}, "stdin_base64": "AP8=", "timeout_seconds": 0.5}


@pytest.mark.parametrize("callbacks", [False, True])
@pytest.mark.parametrize("deadline", [0.5, 30, 3600, 86400.0, None])
def test_the_http_timeout_is_never_shorter_than_the_deadline(sdk: Sdk, deadline: Any, callbacks: bool) -> None:
    sandbox, server = sandbox_of(sdk, sse(("exit", EXIT)) if callbacks else answer(RESULT_JSON))
    options = {"on_stdout": print} if callbacks else {}
    sandbox.commands.run("true", timeout=deadline, **options)
    read = server.last.extensions["timeout"]["read"]
    if deadline is None:
        # A stream is never silent for longer than 15 seconds.
        assert read is None or (callbacks and read >= 60)
    else:
        assert read >= deadline + 30
    assert server.last.extensions["timeout"]["connect"] == 60
    assert server.last.extensions["timeout"]["pool"] is None


def test_bytes_that_are_not_utf8_are_exact(sdk: Sdk) -> None:
    body = {**RESULT_JSON, "stdout": "a\ufffdb", "stdout_base64": base64.b64encode(b"a\xffb").decode()}
    sandbox, _ = sandbox_of(sdk, answer(body))
    result = sandbox.commands.run("x")
    assert (result.stdout, result.stdout_bytes) == ("a\ufffdb", b"a\xffb")


def test_a_failure_is_a_result(sdk: Sdk) -> None:
    body = {
        **RESULT_JSON,
        "exit_code": 124,
        "reason": "deadline",
        "stderr": "one\ntwo\n",
        "stdout_truncated": True,
        "truncated": True,
    }
    sandbox, _ = sandbox_of(sdk, answer(body))
    result = sandbox.commands.run("sleep 60")
    assert (result.exit_code, result.reason, result.ok) == (124, "deadline", False)
    assert (result.truncated, result.stdout_truncated, result.stderr_truncated) == (True, True, False)
    with pytest.raises(ringfence.CommandExitError, match=r"exit code 124 \(deadline\): two") as caught:
        result.check()
    assert caught.value.result is result
    assert pickle.loads(pickle.dumps(caught.value)).result == result


@pytest.mark.parametrize("size", [0, 1, 2, 7])
def test_streamed_output_reaches_the_callbacks_and_the_result(sdk: Sdk, size: int) -> None:
    stream = sse(
        STARTED,
        ": keep-alive\n\n",
        out(0, "one\n"),
        ("stderr", {"position": 4, "text": "öops"}),
        raw(9, b"\xf0\x9f"),
        raw(11, b"\x98\x80!"),
        raw(14, b"\xff"),
        raw(15, b"end\xc3"),
        ("exit", {**EXIT, "exit_code": 3}),
        size=size,
    )
    sandbox, server = sandbox_of(sdk, stream)
    stdout: list[str] = []
    stderr: list[str] = []
    result = sandbox.commands.run("x", on_stdout=stdout.append, on_stderr=stderr.append)
    assert server.last.headers["accept"] == "text/event-stream"
    assert "".join(stdout) == "one\n😀!\ufffdend\ufffd"
    assert "" not in stdout
    assert stderr == ["öops"]
    assert (result.exit_code, result.stdout, result.stderr) == (3, "one\n😀!\ufffdend\ufffd", "öops")
    assert result.stdout_bytes == b"one\n\xf0\x9f\x98\x80!\xffend\xc3"
    assert not result.truncated


def test_crlf_and_data_in_two_lines(sdk: Sdk) -> None:
    text = 'event: stdout\r\ndata: {"position":0,\r\ndata: "text":"x"}\r\n\r\n'
    sandbox, _ = sandbox_of(sdk, sse(text, ("exit", EXIT)))
    assert sandbox.commands.run("x", on_stdout=lambda _: None).stdout == "x"


def test_one_callback_is_enough(sdk: Sdk) -> None:
    sandbox, _ = sandbox_of(sdk, sse(out(0, "a"), ("stderr", {"position": 1, "text": "b"}), ("exit", EXIT)))
    seen: list[str] = []
    result = sandbox.commands.run("x", on_stderr=seen.append)
    assert (seen, result.stdout, result.stderr) == (["b"], "a", "b")


def test_the_tail_is_kept(sdk: Sdk) -> None:
    events = [out(i * 10, "0123456789") for i in range(100)]
    sandbox, _ = sandbox_of(sdk, sse(*events, ("exit", EXIT)))
    seen: list[str] = []
    result = sandbox.commands.run("x", output_limit_bytes=25, on_stdout=seen.append)
    assert result.stdout == "56789" + "0123456789" * 2
    assert (result.truncated, result.stdout_truncated, result.stderr_truncated) == (True, True, False)
    assert len("".join(seen)) == 1000
    sandbox, _ = sandbox_of(sdk, sse(out(0, "0123456789"), ("exit", EXIT)))
    result = sandbox.commands.run("x", output_limit_bytes=10, on_stdout=seen.append)
    assert (result.stdout, result.truncated) == ("0123456789", False)


def test_output_that_the_server_lost_is_not_called_whole(sdk: Sdk) -> None:
    sandbox, _ = sandbox_of(sdk, sse(out(0, "a"), ("exit", {**EXIT, "truncated": True})))
    assert sandbox.commands.run("x", on_stdout=lambda _: None).truncated


def test_a_long_stream_is_not_held_whole(sdk: Sdk) -> None:
    from ringfence._models import StreamTail

    tail = StreamTail(1000)
    for i in range(10000):
        tail.append(b"%0100d" % i)
        assert len(tail._kept) < 70_000
    assert tail.truncated
    assert tail.value() == b"".join(b"%0100d" % i for i in range(9990, 10000))


@pytest.mark.parametrize(
    "stream",
    [
        lambda: sse(STARTED, out(0, "partial")),
        lambda: sse(STARTED, out(0, "partial"), "event: exit\ndata: {"),
        lambda: sse(STARTED, broken=httpx.ReadError("reset")),
        lambda: sse(STARTED, broken=httpx.RemoteProtocolError("incomplete chunked read")),
        lambda: sse(""),
    ],
)
def test_a_stream_that_breaks_is_an_error(sdk: Sdk, stream: Any) -> None:
    sandbox, server = sandbox_of(sdk, stream())
    with pytest.raises(ringfence.APIConnectionError, match="unknown"):
        sandbox.commands.run("x", on_stdout=lambda _: None)
    assert len(server.requests) == 2  # never run again


def test_an_error_in_the_stream_is_raised(sdk: Sdk) -> None:
    error = {"error": {"code": "sandbox_ended", "message": "out of memory", "hint": "make another"}}
    sandbox, _ = sandbox_of(sdk, sse(STARTED, out(0, "a"), ("error", error)))
    with pytest.raises(ringfence.SandboxEndedError, match="out of memory") as caught:
        sandbox.commands.run("x", on_stdout=lambda _: None)
    assert caught.value.request_id == REQUEST_ID


def test_an_answer_that_is_no_stream(sdk: Sdk) -> None:
    sandbox, _ = sandbox_of(sdk, answer(RESULT_JSON, **{"Content-Type": "application/json"}))
    with pytest.raises(ringfence.APIResponseError, match="without a stream"):
        sandbox.commands.run("x", on_stdout=lambda _: None)
    sandbox, _ = sandbox_of(sdk, sse(("stdout", {"position": 0})))
    with pytest.raises(ringfence.APIResponseError, match="neither text nor base64"):
        sandbox.commands.run("x", on_stdout=lambda _: None)
    sandbox, _ = sandbox_of(sdk, sse("event: stdout\ndata: {{\n\n"))
    with pytest.raises(ringfence.APIResponseError, match="not JSON"):
        sandbox.commands.run("x", on_stdout=lambda _: None)


def test_events_of_a_newer_server_are_let_be(sdk: Sdk) -> None:
    sandbox, _ = sandbox_of(sdk, sse(("weather", {"sunny": True}), out(0, "a"), ("exit", EXIT)))
    assert sandbox.commands.run("x", on_stdout=lambda _: None).stdout == "a"


def test_an_exception_in_a_callback_ends_the_call(sdk: Sdk) -> None:
    response = sse(STARTED, out(0, "a"), ("exit", EXIT))
    sandbox, _ = sandbox_of(sdk, response)

    def callback(_: str) -> None:
        raise httpx.ConnectError("the callback's own")

    with pytest.raises(httpx.ConnectError, match="the callback's own"):
        sandbox.commands.run("x", on_stdout=callback)


def test_coroutine_callbacks(sdk: Sdk) -> None:
    seen: list[str] = []

    async def callback(text: str) -> None:
        seen.append(text)

    sandbox, server = sandbox_of(sdk, sse(out(0, "a"), ("exit", EXIT)))
    if sdk.kind == "sync":
        with pytest.raises(TypeError, match="AsyncSandbox"):
            sandbox.commands.run("x", on_stdout=callback)
        assert len(server.requests) == 1
    else:
        sandbox.commands.run("x", on_stdout=callback)
        assert seen == ["a"]


@pytest.mark.parametrize("kind", [ConnectionRefusedError, None])
def test_a_command_is_never_run_again(sdk: Sdk, kind: Any) -> None:
    for failure in (httpx.ConnectError("refused"), httpx.ReadError("reset"), refusal("unavailable", 503)):
        sandbox, server = sandbox_of(sdk, failure)
        with pytest.raises((ringfence.APIConnectionError, ringfence.UnavailableError)):
            sandbox.commands.run("x", **({} if kind is None else {"on_stdout": print}))
        assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("cmd", "options", "error", "words"),
    [
        (b"true", {}, TypeError, "cmd must be a str"),
        (["a", 1], {}, TypeError, r"cmd\[1\] must be a str"),
        ("x", {"timeout": 1, "timeout_seconds": 1}, TypeError, "timeout and timeout_seconds"),
        ("x", {"timeout": None, "timeout_seconds": 1}, TypeError, "timeout and timeout_seconds"),
        ("x", {"env": {}, "envs": {}}, TypeError, "env and envs"),
        ("x", {"timeout": "1"}, TypeError, "timeout must be a number"),
        ("x", {"timeout": float("nan")}, ValueError, "finite"),
        ("x", {"cwd": 1}, TypeError, "cwd must be a str"),
        ("x", {"stdin": 1}, TypeError, "stdin must be a str or bytes, got int"),
        ("x", {"output_limit_bytes": 1.0}, TypeError, "output_limit_bytes must be an int"),
        ("x", {"on_stdout": 1}, TypeError, "on_stdout must be callable"),
        ("x", {"timeout_ms": 60}, TypeError, "timeout_ms"),
        ("\udcff", {}, ValueError, "surrogates"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_sent(
    sdk: Sdk, cmd: Any, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    sandbox, server = sandbox_of(sdk)
    with pytest.raises(error, match=words):
        sandbox.commands.run(cmd, **options)
    assert len(server.requests) == 1
