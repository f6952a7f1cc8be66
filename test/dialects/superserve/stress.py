"""What the package superserve makes of sandboxes that end or pause under it, and of many clients at once."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import superserve
from superserve import AsyncSandbox, Sandbox


def until(what):
    end = time.monotonic() + 60
    while True:
        try:
            return what()
        except (AssertionError, superserve.NotFoundError):
            assert time.monotonic() < end, "it did not come to pass"
            time.sleep(0.05)


def raised(call):
    try:
        call()
    except superserve.SandboxError as error:
        return error
    return None


def under(end):
    """Runs a command in each way, ends them all at once, and returns what came of each."""
    s = Sandbox.create(name="under")
    outcomes = {}

    def buffered():
        outcomes["run"] = s.commands.run("echo x >> /tmp/count; touch /tmp/run; sleep 100", timeout_seconds=90)

    def streamed():
        outcomes["stream"] = s.commands.run("echo x >> /tmp/count; touch /tmp/stream; echo out; sleep 100", timeout_seconds=90, on_stdout=lambda text: None)

    def spawned():
        async def main():
            other = await AsyncSandbox.connect(s.id)
            session = await other.commands.spawn("echo x >> /tmp/count; touch /tmp/spawn; echo out; sleep 100")
            outcomes["spawn"] = await session.wait()

        asyncio.run(main())

    def caught(name, call):
        try:
            call()
        except superserve.SandboxError as error:
            outcomes[name] = error

    threads = [threading.Thread(target=caught, args=each) for each in (("run", buffered), ("stream", streamed), ("spawn", spawned))]
    for thread in threads:
        thread.start()
    for name in ("run", "stream", "spawn"):
        until(lambda: s.files.read(f"/tmp/{name}"))
    end(s)
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "it hangs"
    return s, outcomes


def killed():
    s, outcomes = under(lambda s: Sandbox.kill_by_id(s.id))
    assert isinstance(outcomes["run"], superserve.NotFoundError), outcomes
    for name in ("stream", "spawn"):
        result = outcomes[name]
        assert result.exit_code == 137 and result.stdout == "out\n" and "has ended" in result.stderr, outcomes
    for call in (lambda: s.commands.run("true"), lambda: s.files.read("/tmp/run"), s.get_info, lambda: Sandbox.connect(s.id)):
        assert isinstance(raised(call), superserve.NotFoundError), raised(call)


def paused():
    s, outcomes = under(lambda s: s.pause())
    assert isinstance(outcomes["run"], superserve.ConflictError), outcomes
    assert type(outcomes["stream"]) is superserve.SandboxError, outcomes
    assert type(outcomes["spawn"]) is superserve.SandboxError and "pause" in str(outcomes["spawn"]), outcomes
    # All three go on, and none was started twice.
    assert s.commands.run("wc -l < /tmp/count; pgrep -c sleep").stdout.split() == ["3", "3"]
    s.kill()


def crowd():
    boxes = [Sandbox.create(name=f"crowd {n}") for n in range(3)]

    def client(n):
        s = Sandbox.connect(boxes[n % 3].id)
        s.files.write(f"/tmp/{n}", str(n) * 1000)
        result = s.commands.run(f"cat /tmp/{n}; echo {n} >&2", timeout_seconds=60)
        assert (result.stdout, result.stderr, result.exit_code) == (str(n) * 1000, f"{n}\n", 0)
        result = s.commands.run(f"seq {n}", on_stdout=lambda text: None, timeout_seconds=60)
        assert result.stdout == "".join(f"{i}\n" for i in range(1, n + 1))

    with ThreadPoolExecutor(50) as pool:
        for done in [pool.submit(client, n) for n in range(50)]:
            done.result()
    for s in boxes:
        s.kill()


killed()
paused()
crowd()
print("ok")
