"""Holds the dialect to what it promises under stress, with the Python SDK."""

import asyncio
import threading
import time

from declaw import AsyncSandbox, Sandbox
from declaw.exceptions import NotFoundError, SandboxError

MARK = "/tmp/started"


def until(what, condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.02)


def kill_under(run):
    """Kills a sandbox under what `run` does with it, and returns what that raised or returned."""
    sandbox = Sandbox.create(timeout=300)
    outcome = []

    def work():
        try:
            outcome.append(run(sandbox))
        except Exception as error:  # noqa: BLE001 - the caller says which it is to be
            outcome.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    until("the command", lambda: sandbox.files.exists(MARK))
    sandbox.kill(wait=True)
    thread.join(60)
    assert not thread.is_alive(), "it hangs"
    try:
        sandbox.commands.run("true")
        raise AssertionError("a later call works")
    except SandboxError as error:
        assert type(error) is SandboxError and "HTTP 410" in str(error), error
    return outcome[0]


command = f"echo x >{MARK}; sleep 600"
error = kill_under(lambda s: s.commands.run(command, timeout=0))
assert type(error) is NotFoundError and "it was killed" in str(error), error
error = kill_under(lambda s: s.commands.run(command, background=True, timeout=0).wait())
assert type(error) is NotFoundError and "it was killed" in str(error) or "HTTP 410" in str(error), error
result = kill_under(lambda s: s.commands.run_stream(command, timeout=0))
assert result.exit_code == 137 and "it was killed" in result.stderr, result
result = kill_under(lambda s: s.stdio.start(command).wait())
assert result == 137, result


def terminal(sandbox):
    pty = sandbox.pty.create()
    pty.send_stdin(command + "\n")
    for _ in pty:
        pass
    return pty.exit_code


assert kill_under(terminal) == 137


async def many(count):
    """Many clients at once in one sandbox, each with a pool of connections of its own."""
    sandbox = await AsyncSandbox.create(timeout=300)

    async def one(n):
        result = await sandbox.run_command(f"echo x >>/tmp/runs; echo {n}", timeout=120)
        assert result.stdout == f"{n}\n" and result.exit_code == 0, result
        await sandbox.write_file(f"/tmp/file-{n}", str(n))
        assert await sandbox.read_file(f"/tmp/file-{n}") == str(n)

    await asyncio.gather(*(one(n) for n in range(count)))
    ran = await sandbox.run_command("wc -l </tmp/runs")
    assert ran.stdout.strip() == str(count), f"{count} commands ran {ran.stdout.strip()} times"
    await sandbox.kill()


asyncio.run(many(50))
print("done")
