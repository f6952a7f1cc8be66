"""Background processes and terminals in real sandboxes."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import pytest
from facade import Sdk
from server import Server

import ringfence

pytestmark = [pytest.mark.e2e, pytest.mark.gvisor]


def test_a_background_command_is_followed_to_its_end(sandbox: Any) -> None:
    process = sandbox.commands.run(
        "for i in 1 2 3; do echo out $i; echo err $i >&2; sleep 0.1; done; exit 5", background=True
    )
    assert process.pid > 0
    pieces = list(process)
    assert b"".join(p.data for p in pieces if p.stream == "stdout") == b"out 1\nout 2\nout 3\n"
    assert b"".join(p.data for p in pieces if p.stream == "stderr") == b"err 1\nerr 2\nerr 3\n"
    ends = [p.position + len(p.data) for p in pieces]
    assert [p.position for p in pieces] == [0, *ends[:-1]]
    assert (process.result.exit_code, process.lost) == (5, 0)


def test_anybody_joins_again_from_any_position_also_after_the_end(sdk: Sdk, client: Any, sandbox: Any) -> None:
    tag = os.urandom(4).hex()
    started = sandbox.commands.start("printf 0123456789; exit 3", tag=tag)
    assert started.wait().stdout == "0123456789"
    other = sdk.Sandbox.connect(sandbox.id, client=client)
    for reference in (started.id, started.pid, f"tag:{tag}"):
        again = other.commands.connect(reference)
        assert (again.id, again.wait().stdout, again.wait().stdout) == (started.id, "0123456789", "")
    assert other.commands.connect(started.id, from_position=7).wait().stdout == "789"
    [info] = other.commands.list(tag=tag)
    assert (info.state, info.running, info.exit.exit_code, info.log_end, info.tag) == ("ended", False, 3, 10, tag)
    assert other.commands.list(tag=tag, state="running") == []
    assert other.commands.get(started.id) == info


def test_stdin_stays_open_until_it_is_closed(sandbox: Any) -> None:
    process = sandbox.commands.start("cat; echo end", stdin=True)
    assert process.send_stdin("tëxt\n") == len("tëxt\n".encode())
    assert process.send_stdin(bytes(range(256))) == 256
    assert process.get_info().stdin_open
    process.close_stdin()
    assert process.wait().stdout_bytes == "tëxt\n".encode() + bytes(range(256)) + b"end\n"
    with pytest.raises(ringfence.FailedPreconditionError):
        process.send_stdin("more")


def test_stdin_of_many_megabytes_in_one_call(sandbox: Any) -> None:
    data = os.urandom(1 << 20) * 4
    process = sandbox.commands.start("sha256sum", stdin=data)
    import hashlib

    assert process.wait().stdout.split()[0] == hashlib.sha256(data).hexdigest()


def test_signals_and_kill(sandbox: Any) -> None:
    # bash: dash loses a signal that comes while it starts a command.
    process = sandbox.commands.start(
        ["bash", "-c", "trap 'echo caught; exit 9' INT; echo ready; while :; do sleep 0.05; done"]
    )
    assert next(iter(process)).data == b"ready\n"
    assert process.signal(signal.SIGINT)
    assert process.wait().exit_code == 9
    assert not process.signal("SIGINT")
    assert not process.kill()

    tree = sandbox.commands.start("setsid sleep 612 & echo $!; wait")
    child = int(next(iter(tree)).data)
    assert tree.kill()
    assert (tree.wait().exit_code, tree.result.signal) == (137, 9)
    assert sandbox.commands.run(f"kill -0 {child}").exit_code != 0


def test_waiting_has_an_end_and_the_process_goes_on(sandbox: Any) -> None:
    with sandbox.commands.start("echo before; sleep 2; echo after") as process:
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            process.wait(timeout=0.5)
        assert time.monotonic() - began < 1.9
        assert process.wait().stdout == "after\n"
        assert sandbox.commands.connect(process.id).wait().stdout == "before\nafter\n"


def test_a_deadline_of_a_background_command(sandbox: Any) -> None:
    result = sandbox.commands.start("echo partial; sleep 60", timeout=0.5).wait()
    assert (result.exit_code, result.reason, result.stdout) == (124, "deadline", "partial\n")
    process = sandbox.commands.start("sleep 613")
    assert process.info.deadline_at is None
    process.kill()


def test_what_the_log_no_longer_holds_is_said(sandbox: Any) -> None:
    process = sandbox.commands.start("head -c 300000 /dev/zero; echo; echo end", log_bytes=65536)
    deadline = time.monotonic() + 20
    while process.get_info().running and time.monotonic() < deadline:
        time.sleep(0.05)
    late = sandbox.commands.connect(process.id)
    result = late.wait()
    assert result.truncated
    assert late.lost > 0
    assert late.lost + len(result.stdout_bytes) == 300000 + len("\nend\n")
    assert result.stdout.endswith("\nend\n")


def test_output_streams_to_callbacks(sandbox: Any) -> None:
    heard: list[str] = []
    result = sandbox.commands.start("printf 'h\\303'; sleep 0.2; printf '\\244ll'; echo oops >&2").wait(
        on_stdout=heard.append, on_stderr=heard.append
    )
    assert "".join(text for text in heard if text != "oops\n") == "häll"
    assert "oops\n" in heard
    assert result.stdout == "häll"


@pytest.mark.parametrize(
    ("options", "field"),
    [({"cwd": "/nowhere"}, "cwd"), ({"user": "nobody-of-that-name"}, "user"), ({"log_bytes": 1}, "log_bytes")],
)
def test_what_is_wrong_is_named(sandbox: Any, options: dict[str, Any], field: str) -> None:
    with pytest.raises(ringfence.InvalidArgumentError) as caught:
        sandbox.commands.start("true", **options)
    assert caught.value.field == field
    assert caught.value.message


def test_a_process_that_is_not_there(sandbox: Any) -> None:
    for reference in ("nothing", 999999, "tag:nothing"):
        with pytest.raises(ringfence.ProcessNotFoundError):
            sandbox.commands.connect(reference)


def test_a_terminal_is_typed_into_and_resized(sandbox: Any) -> None:
    terminal = sandbox.pty.create(cols=100, rows=30, env={"PS1": "$ "})
    assert terminal.info.pty

    def until(marker: bytes) -> bytes:
        seen = b""
        for piece in terminal:
            seen += piece.data
            if marker in seen:
                return seen
        raise AssertionError(seen)

    terminal.send("stty size; tty; echo $TERM; echo do''ne\n")
    seen = until(b"done\r\n")
    assert b"30 100" in seen
    assert b"/dev/pts/" in seen
    assert b"xterm-256color" in seen
    terminal.resize(cols=132, rows=50)
    terminal.send("tput cols; echo a''gain\n")
    assert b"132" in until(b"again\r\n")
    terminal.send("sleep 614\n")
    time.sleep(0.3)
    terminal.send("\x03")
    terminal.send("echo inter''rupted\n")
    until(b"interrupted\r\n")
    again = sandbox.pty.connect(terminal.id)
    assert b"done\r\n" in next(iter(again)).data or again.position > 0
    terminal.send("\x04")
    assert terminal.wait(timeout=20).exit_code == 0
    with pytest.raises(TypeError, match="no terminal"):
        sandbox.pty.connect(sandbox.commands.start("true").id)


def test_many_streams_at_once(server: Server, shared_sandbox: ringfence.Sandbox) -> None:
    results: list[str] = []

    def one(i: int) -> None:
        results.append(shared_sandbox.commands.start(f"for j in $(seq 20); do echo {i} $j; done").wait().stdout)

    threads = [threading.Thread(target=one, args=(i,)) for i in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == sorted("".join(f"{i} {j}\n" for j in range(1, 21)) for i in range(24))


def test_a_restart_of_the_server_is_not_noticed(tmp_path_factory: pytest.TempPathFactory, sdk: Sdk) -> None:
    server = Server(tmp_path_factory.mktemp("restarted"))
    server.start()
    try:
        client = sdk.Client(api_key=server.key, base_url=server.url)
        sandbox = sdk.Sandbox.create("base", client=client)
        process = sandbox.commands.start("for i in $(seq 40); do echo line $i; sleep 0.1; done")
        seen = b""
        restarted = False
        for piece in process:
            seen += piece.data
            if not restarted and b"line 5\n" in seen:
                server.kill()
                server.start()
                restarted = True
        assert seen.decode() == "".join(f"line {i}\n" for i in range(1, 41))
        assert process.result.exit_code == 0
        sandbox.kill()
        (client.close if sdk.kind == "sync" else client.aclose)()
    finally:
        server.stop()
