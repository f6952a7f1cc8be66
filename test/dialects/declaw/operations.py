"""Does with the Python SDK what the dialect's table lists."""

import asyncio
import datetime
import os
import threading
import time
import urllib.error
import urllib.request

from declaw import (
    ALL_TRAFFIC,
    AsyncSandbox,
    AuditConfig,
    CodeSecurityConfig,
    ContentGateConfig,
    CustomPolicyConfig,
    EnvSecurityConfig,
    InjectionDefenseConfig,
    InvisibleTextConfig,
    PIIConfig,
    Sandbox,
    SandboxLifecycle,
    SandboxNetworkOpts,
    SandboxQuery,
    SandboxState,
    SecurityPolicy,
    ToxicityConfig,
    TransformationRule,
)
from declaw import exceptions
from declaw.exceptions import CommandExitException, NotFoundError
from declaw.api.client import get_shared_client
from declaw.connection_config import ConnectionConfig
from harness import main, operation

KEY = os.environ["DECLAW_API_KEY"]
URL = "http://" + os.environ["DECLAW_DOMAIN"]
HELLO = "http://203.0.113.7:8080"

sandbox = Sandbox.create(timeout=600)
unsure = []  # what has to be killed at the end


def make(**options):
    made = Sandbox.create(**options)
    unsure.append(made.sandbox_id)
    return made


def until(what, condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.05)


def raises(kind, function):
    try:
        function()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__} was raised")


def request(path, method="GET", body=None, key=KEY, headers=None):
    ask = urllib.request.Request(URL + path, data=body, method=method, headers=headers or {})
    if key:
        ask.add_header("X-API-Key", key)
    try:
        with urllib.request.urlopen(ask) as answer:
            return answer.status, answer.read(), answer.headers
    except urllib.error.HTTPError as error:
        return error.code, error.read(), error.headers


@operation("Sandbox.create")
def _():
    made = make()
    info = made.get_info()
    assert info.state == SandboxState.RUNNING and info.template_id == "tpl-base" and info.name == "base", info
    assert info.metadata == {} and made.sandbox_domain == os.environ["DECLAW_DOMAIN"]
    assert made.traffic_access_token
    assert made.kill() is True


@operation("Sandbox.create(template)")
def _():
    made = make(template="code-interpreter")
    assert made.get_info().name == "code-interpreter"
    assert made.commands.run("python3 -c 'import pandas; print(6 * 7)'").stdout == "42\n"
    made.kill()
    raises(NotFoundError, lambda: make(template="web-dev"))


@operation("Sandbox.create(timeout)")
def _():
    made = make(timeout=120)
    info = made.get_info()
    left = info.end_at - datetime.datetime.now(datetime.timezone.utc)
    assert datetime.timedelta(seconds=30) < left <= datetime.timedelta(seconds=120), left
    assert info.end_at - info.started_at <= datetime.timedelta(seconds=120)
    made.kill()
    try:
        short = make(timeout=1)  # it counts from the creation, and kills
    except exceptions.SandboxError as error:  # a busy machine took longer to start it
        assert "its life limit passed" in str(error), error
        return
    until("the timeout", lambda: short.get_info().state == SandboxState.KILLED)


@operation("Sandbox.create(metadata, envs)")
def _():
    made = make(metadata={"owner": "x", "emoji": "é"}, envs={"GREETING": "hello", "OVERRIDDEN": "no"})
    assert made.get_info().metadata == {"owner": "x", "emoji": "é"}
    told = made.commands.run('echo "$GREETING $OVERRIDDEN $DECLAW_SANDBOX $DECLAW_SANDBOX_ID"', envs={"OVERRIDDEN": "yes"}).stdout
    assert told == f"hello yes true {made.sandbox_id}\n", told
    made.kill()


@operation("Sandbox.create(secure, security)")
def _():
    policy = SecurityPolicy(audit=AuditConfig(enabled=True), env_security=EnvSecurityConfig())
    made = make(secure=False, security=policy)
    assert made.is_running()
    made.kill()
    assert make(secure=True, security=SecurityPolicy(audit=False)).kill()


@operation("Sandbox.create(lifecycle)")
def _():
    made = make(timeout=300, lifecycle=SandboxLifecycle(on_timeout="pause", auto_resume=True))
    made.set_timeout(1)
    until("the pause", lambda: made.get_info().state == SandboxState.PAUSED)
    made.set_timeout(300)
    assert made.commands.run("echo woken").stdout == "woken\n"
    assert made.is_running()
    made.kill()


@operation("Sandbox.create, repeated")
def _():
    client = get_shared_client(ConnectionConfig())
    body = {"template": "base", "timeout": 60, "secure": True}
    headers = {"Idempotency-Key": "a key of " + sandbox.sandbox_id}
    first = client.post("/sandboxes", json=body, headers=headers)
    again = client.post("/sandboxes", json=body, headers=headers)
    unsure.append(first.json()["sandbox_id"])
    assert first.status_code == again.status_code == 201 and first.json() == again.json()
    error = raises(exceptions.InvalidArgumentError, lambda: client.post("/sandboxes", json=body | {"timeout": 61}, headers=headers))
    assert error.code == "idempotency_key_reused", error.code
    Sandbox.kill_by_id(first.json()["sandbox_id"])


@operation("Sandbox.connect")
def _():
    again = Sandbox.connect(sandbox.sandbox_id)
    assert again.commands.run("echo same").stdout == "same\n"


@operation("Sandbox.connect(timeout)", "python")
def _():
    made = make(timeout=60)
    again = Sandbox.connect(made.sandbox_id, timeout=1000)
    assert again.get_info().end_at - datetime.datetime.now(datetime.timezone.utc) > datetime.timedelta(seconds=500)
    made.kill()


@operation("Sandbox.list")
def _():
    found = Sandbox.list(limit=1000)
    assert sandbox.sandbox_id in [s["sandbox_id"] for s in found["sandboxes"]]
    assert found["total"] == len(found["sandboxes"])


@operation("Sandbox.list(state, metadata)")
def _():
    made = make(metadata={"batch": sandbox.sandbox_id})
    query = SandboxQuery(metadata={"batch": sandbox.sandbox_id}, state=[SandboxState.RUNNING, SandboxState.PAUSED])
    assert [s["sandbox_id"] for s in Sandbox.list(query=query)["sandboxes"]] == [made.sandbox_id]
    made.kill()
    assert Sandbox.list(query=query)["sandboxes"] == []
    killed = Sandbox.list(query=SandboxQuery(metadata={"batch": sandbox.sandbox_id}, state=[SandboxState.KILLED]))
    assert [s["state"] for s in killed["sandboxes"]] == ["killed"]


@operation("SandboxPaginator")
def _():
    from declaw.sandbox_sync.paginator import SandboxPaginator

    made = [make(metadata={"paged": "1"}).sandbox_id for _ in range(3)]
    pages = SandboxPaginator(client=get_shared_client(ConnectionConfig()), limit=2)
    seen = []
    while pages.has_next:
        items = pages.next_items()
        assert len(items) <= 2
        seen += [item.sandbox_id for item in items]
    assert len(seen) == len(set(seen)) and set(made) <= set(seen), seen
    Sandbox.kill_many(made)


@operation("sandbox.get_info")
def _():
    info = sandbox.get_info()
    assert info.sandbox_id == sandbox.sandbox_id and info.started_at < info.end_at


@operation("sandbox.is_running")
def _():
    assert sandbox.is_running() is True


@operation("sandbox.set_timeout")
def _():
    made = make(timeout=60)
    made.set_timeout(1000)
    assert made.get_info().end_at - datetime.datetime.now(datetime.timezone.utc) > datetime.timedelta(seconds=500)
    made.set_timeout(0)
    assert made.get_info().end_at is None
    made.set_timeout(1)
    until("the timeout", lambda: not made.is_running())


@operation("sandbox.get_metrics")
def _():
    now = datetime.datetime.now(datetime.timezone.utc)
    samples = sandbox.get_metrics(start=now - datetime.timedelta(hours=1), end=now + datetime.timedelta(hours=1))
    assert samples and samples[-1].memory_usage_mb > 1 and samples[-1].timestamp.tzinfo is not None, samples
    assert sandbox.get_metrics(end=now - datetime.timedelta(hours=1)) == []


@operation("sandbox.pause, resume")
def _():
    made = make(timeout=600)
    handle = made.commands.run("sleep 1; echo slept", background=True)
    made.pause()
    assert made.get_info().state == SandboxState.PAUSED and not made.is_running()
    raises(exceptions.ConflictError, lambda: made.commands.run("true"))
    made.resume()
    assert made.is_running() and handle.wait().stdout == "slept\n"
    made.kill()


@operation("sandbox.kill")
def _():
    for wait in (False, True):
        made = make()
        assert made.kill(wait=wait) is True
        assert made.get_info().state == SandboxState.KILLED
        assert made.kill(wait=wait) is False


@operation("Sandbox.kill_many")
def _():
    made = [make().sandbox_id for _ in range(2)]
    results = Sandbox.kill_many([*made, "00000000000000000000"])
    assert all(results[one] == {"queued": True} for one in made) and "error" in results["00000000000000000000"], results
    made = [make().sandbox_id]
    assert Sandbox.kill_many(made, wait=True) == {made[0]: {"killed": True}}


@operation("Sandbox.kill by id")
def _():
    assert Sandbox.kill_by_id(make().sandbox_id) is True


@operation("a killed sandbox")
def _():
    made = make()
    made.kill()
    info = Sandbox.connect(made.sandbox_id).get_info()
    assert info.state == SandboxState.KILLED and info.end_at is not None
    for call in (lambda: made.commands.run("true"), lambda: made.files.read("/etc/hostname"), made.pause, lambda: made.set_timeout(5)):
        error = raises(exceptions.SandboxError, call)
        assert "HTTP 410" in str(error) and type(error).__name__ in ("SandboxError", "SandboxException"), error
    assert made.sandbox_id not in [s["sandbox_id"] for s in Sandbox.list(limit=1000)["sandboxes"]]


@operation("an unknown sandbox")
def _():
    raises(NotFoundError, lambda: Sandbox.connect("00000000000000000000"))


@operation("a wrong API key")
def _():
    error = raises(exceptions.AuthenticationError, lambda: Sandbox.list(api_key="dcl_wrong"))
    assert "unauthorized" in str(error)


@operation("AsyncSandbox", "python")
async def _():
    made = await AsyncSandbox.create(timeout=300)
    unsure.append(made.sandbox_id)
    results = await asyncio.gather(*(made.run_command(f"echo {n}") for n in range(8)))
    assert [r.stdout for r in results] == [f"{n}\n" for n in range(8)]
    await made.write_file("/tmp/a.txt", "text")
    assert await made.read_file("/tmp/a.txt") == "text"
    assert (await made.get_file_info("/tmp/a.txt")).size == 4
    assert "a.txt" in [e.name for e in await made.list_files("/tmp")]
    assert await made.kill()


@operation("sandbox.create_snapshot, snapshot")
def _():
    made = make(timeout=600)
    info = made.create_snapshot()
    assert info.sandbox_id == made.sandbox_id and info.created_at is not None
    taken = made.snapshot()
    assert taken.source == "manual" and taken.mem_size_bytes > 0 and taken.snapshot_id != info.snapshot_id
    made.kill()


@operation("sandbox.list_snapshots")
def _():
    made = make(timeout=600)
    first, second = made.snapshot(), made.snapshot()
    assert [s.snapshot_id for s in made.list_snapshots()] == [second.snapshot_id, first.snapshot_id]
    made.pause()
    listed = made.list_snapshots()
    assert [s.source for s in listed] == ["pause", "manual", "manual"], listed
    raises(exceptions.ConflictError, lambda: made.delete_snapshot(listed[0].snapshot_id))
    made.kill()


@operation("Sandbox.restore")
def _():
    made = make(timeout=600)
    made.files.write("/tmp/state", "before")
    taken = made.snapshot()
    made.files.write("/tmp/state", "after")
    assert Sandbox.restore(made.sandbox_id, snapshot_id=taken.snapshot_id).files.read("/tmp/state") == "before"
    made.files.write("/tmp/state", "again")
    assert Sandbox.restore(made.sandbox_id).files.read("/tmp/state") == "before"
    made.files.write("/tmp/state", "paused")
    made.pause()
    assert Sandbox.restore(made.sandbox_id).files.read("/tmp/state") == "paused"
    made.kill()
    raises(NotFoundError, lambda: Sandbox.restore(sandbox.sandbox_id))


@operation("sandbox.delete_snapshot")
def _():
    made = make(timeout=600)
    taken = made.snapshot()
    assert made.delete_snapshot(taken.snapshot_id) is True and made.list_snapshots() == []
    assert made.delete_snapshot(taken.snapshot_id) is True
    made.kill()


@operation("SnapshotPaginator")
def _():
    from declaw import SnapshotPaginator

    made = make(timeout=600)
    taken = {made.snapshot().snapshot_id for _ in range(3)}
    pages = SnapshotPaginator(client=get_shared_client(ConnectionConfig()), sandbox_id=made.sandbox_id, limit=2)
    first, second = pages.next_items(), pages.next_items()
    assert len(first) == 2 and len(second) == 1 and not pages.has_next
    assert {s.snapshot_id for s in first + second} == taken
    made.kill()


@operation("commands.run")
def _():
    result = sandbox.commands.run("echo out; echo err >&2; exit 3")
    assert (result.stdout, result.stderr, result.exit_code) == ("out\n", "err\n", 3), result
    assert sandbox.commands.run("cat; whoami; pwd").stdout == "user\n/home/user\n"
    big = sandbox.commands.run("head -c 3000000 /dev/zero | tr '\\0' x")
    assert big.stdout == "x" * 3000000


@operation("commands.run(user, cwd, envs)")
def _():
    result = sandbox.commands.run('whoami; pwd; echo "$X"', user="root", cwd="/tmp", envs={"X": "a b"})
    assert result.stdout == "root\n/tmp\na b\n", result
    raises(exceptions.InvalidArgumentError, lambda: sandbox.commands.run("true", user="nobody-here"))


@operation("commands.run(timeout)")
def _():
    error = raises(exceptions.TimeoutError, lambda: sandbox.commands.run("echo $$ >/tmp/timed; sleep 600", timeout=0.5))
    assert "HTTP 408" in str(error)
    assert sandbox.commands.run("kill -0 $(cat /tmp/timed)").exit_code != 0


@operation("commands.run(on_stdout, on_stderr)")
def _():
    out, err = [], []
    sandbox.commands.run("echo a; echo b; echo c >&2", on_stdout=out.append, on_stderr=err.append)
    assert (out, err) == (["a\n", "b\n"], ["c\n"]), (out, err)


@operation("commands.run_stream")
def _():
    seen = []
    go = threading.Event()

    def heard(text):
        seen.append(text)
        if not go.is_set():
            go.set()
            sandbox.files.write("/tmp/go", "")

    # It says more only when the first word has arrived here.
    result = sandbox.commands.run_stream("rm -f /tmp/go; echo é; until [ -e /tmp/go ]; do sleep 0.1; done; echo two >&2; exit 4", on_stdout=heard)
    assert seen == ["é\n"] and result.stderr == "two\n" and result.exit_code == 4, (seen, result)
    late = sandbox.commands.run_stream("sleep 600", timeout=3)
    assert late.exit_code == 124 and "timeout" in late.stderr, late


@operation("commands.run_stream, refused")
def _():
    made = make()
    made.kill()
    result = made.commands.run_stream("true")
    assert result.exit_code != 0 and "has ended" in result.stderr, result


@operation("commands.run(background)")
def _():
    handle = sandbox.commands.run("echo started; sleep 600", background=True)
    assert handle.pid > 0 and handle.kill() is True


@operation("handle.wait")
def _():
    heard = []
    handle = sandbox.commands.run("echo one; sleep 0.2; echo two", background=True)
    result = handle.wait(on_stdout=heard.append)
    assert result.stdout == "one\ntwo\n" and heard == ["one\n", "two\n"]
    error = raises(CommandExitException, sandbox.commands.run("echo bad >&2; exit 5", background=True).wait)
    assert error.exit_code == 5 and error.stderr == "bad\n"
    error = raises(CommandExitException, sandbox.commands.run("sleep 600", background=True, timeout=0.5).wait)
    assert error.exit_code == 124 and "timeout" in error.stderr, error.stderr
    error = raises(CommandExitException, sandbox.commands.connect(4000000).wait)
    assert error.stderr == "process not found"


@operation("commands.list")
def _():
    handle = sandbox.commands.run("sleep 612", background=True)
    mine = [p for p in sandbox.commands.list() if p.pid == handle.pid]
    assert len(mine) == 1 and mine[0].cmd == "sleep 612" and mine[0].is_pty is False
    handle.kill()
    until("the end", lambda: handle.pid not in [p.pid for p in sandbox.commands.list()])


@operation("commands.send_stdin")
def _():
    handle = sandbox.commands.run("head -n 2", background=True)
    sandbox.commands.send_stdin(handle.pid, "first é\n")
    sandbox.commands.send_stdin(handle.pid, "second\n")
    assert handle.wait().stdout == "first é\nsecond\n"


@operation("commands.kill")
def _():
    handle = sandbox.commands.run("sleep 600 & sleep 600", background=True)
    assert sandbox.commands.kill(handle.pid) is True
    assert raises(CommandExitException, handle.wait).exit_code == 137
    assert sandbox.commands.kill(4000000) is False


@operation("commands.connect")
def _():
    handle = sandbox.commands.run("sleep 0.3; echo there", background=True)
    assert sandbox.commands.connect(handle.pid).wait().stdout == "there\n"


class Heard:
    def __init__(self):
        self.data = b""

    def __call__(self, chunk):
        self.data += chunk

    def until(self, text):
        until(repr(text), lambda: text in self.data)


@operation("pty.create")
def _():
    heard = Heard()
    pty = sandbox.pty.create(on_data=heard, cwd="/tmp", envs={"MARK": "seen"})
    pty.send_stdin("echo $MARK-$TERM; pwd; exit 7\n")
    result = pty.wait()
    assert result.exit_code == 7 and b"seen-xterm-256color" in heard.data and b"/tmp" in heard.data, heard.data


@operation("pty.send_stdin, resize")
def _():
    heard = Heard()
    pty = sandbox.pty.create(on_data=heard)
    pty.send_stdin(b"stty size\n")
    heard.until(b"24 80")
    from declaw import PtySize

    pty.resize(PtySize(cols=132, rows=50))
    pty.send_stdin("stty size\n")
    heard.until(b"50 132")
    assert pty.kill()


@operation("pty.connect")
def _():
    pty = sandbox.pty.create()
    first, second = Heard(), Heard()
    one = sandbox.pty.connect(pty.pid, on_data=first)
    sandbox.pty.connect(pty.pid, on_data=second)
    one.send_stdin("echo bo$((1))th\n")
    first.until(b"bo1th")
    second.until(b"bo1th")
    assert pty.kill()


@operation("pty.kill")
def _():
    pty = sandbox.pty.create(on_data=lambda _: None)
    reader = sandbox.pty.connect(pty.pid)
    assert sandbox.pty.kill(pty.pid) is True
    for _ in reader:
        pass
    assert reader.exit_code == 137, reader.exit_code
    assert sandbox.pty.kill(pty.pid) is False


@operation("stdio.start")
def _():
    out, err = Heard(), Heard()
    process = sandbox.stdio.start("printf '\\000\\377'; echo err >&2; exit 3", on_stdout=out, on_stderr=err)
    assert process.wait() == 3 and (out.data, err.data) == (b"\x00\xff", b"err\n")


@operation("process.send_stdin, close_stdin")
def _():
    out = Heard()
    process = sandbox.stdio.start("cat; echo end", on_stdout=out)
    process.send_stdin(b"\x00\xffbytes\n")
    out.until(b"bytes\n")
    process.close_stdin()
    assert process.wait() == 0 and out.data == b"\x00\xffbytes\nend\n", out.data


@operation("process.stream, resumed")
def _():
    process = sandbox.stdio.start("read a; echo got $a; read b; echo got $b")
    process.send_stdin("one\n")
    for stream, chunk in process:
        assert (stream, chunk) == ("stdout", b"got one\n"), (stream, chunk)
        break  # the stream is left, and another one goes on where it was
    process.send_stdin("two\n")
    assert b"".join(chunk for _, chunk in process) == b"got two\n" and process.exit_code == 0
    from declaw.sandbox_sync.stdio import StdioProcess

    # After the end, all of it can be read again.
    again = StdioProcess(process.cmd_id, sandbox.sandbox_id, get_shared_client(ConnectionConfig()))
    assert b"".join(chunk for _, chunk in again) == b"got one\ngot two\n" and again.exit_code == 0


@operation("process.kill")
def _():
    process = sandbox.stdio.start("sleep 600")
    assert process.kill() is True


@operation("files.write, read")
def _():
    info = sandbox.files.write("/deep/er/hello.txt", "héllo\n")
    assert (info.path, info.size) == ("/deep/er/hello.txt", 7), info
    assert sandbox.files.read("/deep/er/hello.txt") == "héllo\n"
    sandbox.files.write("/deep/er/hello.txt", "")
    assert sandbox.files.read("/deep/er/hello.txt") == ""
    assert sandbox.commands.run("stat -c %U /deep /deep/er /deep/er/hello.txt").stdout == "user\n" * 3
    sandbox.files.write("/root-owned", "x", user="root")
    assert sandbox.commands.run("stat -c %U /root-owned").stdout == "root\n"
    raises(NotFoundError, lambda: sandbox.files.read("/nowhere"))
    raises(exceptions.InvalidArgumentError, lambda: sandbox.files.read("/etc"))
    raises(exceptions.InvalidArgumentError, lambda: sandbox.files.write("relative", "x"))


@operation("files.write, read bytes")
def _():
    content = bytes(range(256)) * 4096
    assert sandbox.files.write("/tmp/a b+c&d.bin", content).size == len(content)
    assert sandbox.files.read("/tmp/a b+c&d.bin", format="bytes") == content


@operation('files.read(format="stream")', "python")
def _():
    sandbox.files.write("/tmp/streamed", b"abc" * 1000)
    assert b"".join(sandbox.files.read("/tmp/streamed", format="stream")) == b"abc" * 1000


@operation("files.write_files")
def _():
    from declaw.sandbox.filesystem.models import WriteEntry

    infos = sandbox.files.write_files([WriteEntry("/batch/a.txt", "a"), WriteEntry("/batch/b.txt", "bb"), WriteEntry("/batch/c.bin", b"\x00c\xff")])
    assert [(i.path, i.size) for i in infos] == [("/batch/a.txt", 1), ("/batch/b.txt", 2), ("/batch/c.bin", 3)], infos


@operation("files.list")
def _():
    sandbox.commands.run("mkdir -p /tmp/l/sub/deeper && ln -s sub /tmp/l/link && ln -s nowhere /tmp/l/broken && echo 12345 >/tmp/l/file")
    entries = {e.name: (e.path, e.type.value, e.size) for e in sandbox.files.list("/tmp/l")}
    assert entries["file"] == ("/tmp/l/file", "file", 6) and entries["sub"] == ("/tmp/l/sub", "dir", 0), entries
    assert entries["link"][1] == "dir" and entries["broken"][1] == "file" and len(entries) == 4, entries
    assert "/tmp/l/sub/deeper" in [e.path for e in sandbox.files.list("/tmp/l", depth=2)]


@operation("files.exists, get_info")
def _():
    sandbox.files.write("/tmp/info.txt", "12345")
    assert sandbox.files.exists("/tmp/info.txt") and not sandbox.files.exists("/tmp/nothing")
    info = sandbox.files.get_info("/tmp/info.txt")
    assert (info.name, info.path, info.type.value, info.size) == ("info.txt", "/tmp/info.txt", "file", 5), info
    raises(NotFoundError, lambda: sandbox.files.get_info("/tmp/nothing"))


@operation("files.rename")
def _():
    sandbox.files.write("/tmp/old.txt", "moved")
    info = sandbox.files.rename("/tmp/old.txt", "/tmp/new/place/new.txt")
    assert info.path == "/tmp/new/place/new.txt" and sandbox.files.read(info.path) == "moved"
    raises(NotFoundError, lambda: sandbox.files.rename("/tmp/old.txt", "/tmp/x"))


@operation("files.remove")
def _():
    sandbox.files.write("/tmp/gone/a/b", "x")
    sandbox.files.remove("/tmp/gone")
    assert not sandbox.files.exists("/tmp/gone")
    sandbox.files.remove("/tmp/gone")


@operation("files.make_dir")
def _():
    assert sandbox.files.make_dir("/made/by/me") is True and sandbox.files.make_dir("/made/by/me") is False
    assert sandbox.commands.run("stat -c %U /made/by/me").stdout == "user\n"


@operation("files.watch_dir")
def _():
    sandbox.files.watch_dir("/tmp").stop()
    raises(NotFoundError, lambda: sandbox.files.watch_dir("/nowhere"))


@operation("download_url, upload_url")
def _():
    def path(url):
        assert url.startswith(URL), url
        return url.removeprefix(URL)

    status, body, _ = request(path(sandbox.upload_url("/tmp/up load.bin", user="root")), "PUT", b"\x00up\xff")
    assert status == 200 and b'"size":4' in body, body
    assert request(path(sandbox.download_url("/tmp/up load.bin")))[:2] == (200, b"\x00up\xff")
    assert request(path(sandbox.download_url("/tmp/up load.bin")), key=None)[0] == 401


@operation("get_host")
def _():
    sandbox.commands.run("mkdir -p /tmp/www/sub && echo served >'/tmp/www/sub/a b.txt'")
    sandbox.commands.run("cd /tmp/www && exec python3 -m http.server 8000 --bind 127.0.0.1", background=True, timeout=0)
    path = f"/sandboxes/{sandbox.sandbox_id}/ports/8000"
    until("the server", lambda: request(path + "/")[0] == 200)
    status, body, headers = request(path + "/sub/a%20b.txt?x=1")
    assert (status, body) == (200, b"served\n") and "Set-Cookie" not in headers
    assert request(path + "/", key=None)[0] == 401
    assert request(f"/sandboxes/{sandbox.sandbox_id}/ports/8001/")[0] == 502
    assert request(f"/sandboxes/{sandbox.sandbox_id}/ports/49983/")[0] == 403
    assert sandbox.get_host(8000) == URL + path


@operation("get_mcp_url")
def _():
    assert sandbox.get_mcp_url() == f"{URL}/sandboxes/{sandbox.sandbox_id}/ports/50005/mcp"


REACH = "python3 -c \"import urllib.request; print(urllib.request.urlopen('%s', timeout=5).read().decode())\""


def reaches(made, url):
    return made.commands.run(REACH % url).exit_code == 0


@operation("create(allow_internet_access)")
def _():
    made = make(allow_internet_access=False)
    assert not reaches(made, HELLO)
    made.kill()
    made = make()
    assert reaches(made, HELLO) and not reaches(made, "http://10.1.2.3:8080")
    made.kill()


@operation("create(network)")
def _():
    made = make(network=SandboxNetworkOpts(allow_out=["allowed.test"]))
    assert reaches(made, "http://allowed.test:8080") and not reaches(made, "http://other.test:8080") and not reaches(made, HELLO)
    made.kill()
    made = make(network={"allow_out": ["203.0.113.0/24", "*.wild.test"], "deny_out": [ALL_TRAFFIC]})  # allow goes before deny
    assert reaches(made, HELLO) and reaches(made, "http://a.wild.test:8080") and not reaches(made, "http://198.51.100.9:8080")
    made.kill()
    made = make(network={"deny_out": ["203.0.113.7"]})
    assert not reaches(made, HELLO) and reaches(made, "http://198.51.100.9:8080")
    made.kill()
    made = make(network={"allow_out": ["*"]})
    assert reaches(made, HELLO)
    made.kill()
    made = make(network={})
    assert reaches(made, HELLO)
    made.kill()


@operation("create(network, security.network)")
def _():
    from declaw import NetworkPolicy

    policy = SecurityPolicy(network=NetworkPolicy(allow_out=["198.51.100.9"]))
    made = make(security=policy)
    assert not reaches(made, HELLO) and reaches(made, "http://198.51.100.9:8080")
    made.kill()
    made = make(security=policy, network=SandboxNetworkOpts(allow_out=["203.0.113.7"]))  # it goes before the policy's
    assert reaches(made, HELLO) and not reaches(made, "http://198.51.100.9:8080")
    made.kill()


@operation("create(network) without sense")
def _():
    for network in ({"allow_out": ["not a name"]}, {"deny_out": ["~("]}, {"allow_out": [""]}):
        raises(exceptions.InvalidArgumentError, lambda network=network: make(network=network))


@operation("create(allow_public_traffic)")
def _():
    made = make(network=SandboxNetworkOpts(allow_public_traffic=False))
    status, body, _ = request(f"/sandboxes/{made.sandbox_id}/ports/8000/")
    assert status == 403 and b"closed" in body, (status, body)
    assert request(f"/v1/sandboxes/{made.sandbox_id}/ports/8000/")[0] == 403
    made.kill()


@operation("create(mask_request_host)")
def _():
    make(network=SandboxNetworkOpts(mask_request_host="example.com"))


@operation("create(security.pii)")
def _():
    make(security=SecurityPolicy(pii=PIIConfig(enabled=True)))


@operation("create(security.injection_defense)")
def _():
    make(security=SecurityPolicy(injection_defense=InjectionDefenseConfig(enabled=True)))


@operation("create(security.toxicity)")
def _():
    make(security=SecurityPolicy(toxicity=ToxicityConfig(enabled=True)))


@operation("create(security.code_security)")
def _():
    make(security=SecurityPolicy(code_security=CodeSecurityConfig(enabled=True)))


@operation("create(security.invisible_text)")
def _():
    make(security=SecurityPolicy(invisible_text=InvisibleTextConfig(enabled=True)))


@operation("create(security.content_gate)")
def _():
    make(security=SecurityPolicy(content_gate=ContentGateConfig(enabled=True)))


@operation("create(security.custom_policy)")
def _():
    make(security=SecurityPolicy(custom_policy=CustomPolicyConfig(enabled=True, policy_ref="baseline-hardening@v1")))


@operation("create(security.transformations)")
def _():
    make(security=SecurityPolicy(transformations=[TransformationRule(match="secret", replace="x")]))


@operation("create(volumes)")
def _():
    make(volumes=[{"volume_id": "vol-1", "mount_path": "/data"}])


@operation("create(vault_refs)")
def _():
    make(vault_refs={"TOKEN": "vault://team/prod/name"})


@operation("create(vault_refs) by name", "python-1.7.0")
def _():
    make(vault_refs={"TOKEN": "name"})


@operation("Volumes")
def _():
    from declaw import Volumes

    Volumes.list()


@operation("Vault", "python-1.7.0")
def _():
    from declaw import VaultClient

    VaultClient(domain=os.environ["DECLAW_DOMAIN"]).list_secrets()


@operation("Template.build")
def _():
    from declaw import Template, TemplateBase

    Template.build(TemplateBase().from_base_image("ubuntu:22.04"), alias="mine")


@operation("Governance")
def _():
    from declaw import GovernancePacks

    GovernancePacks.list()


main()
sandbox.kill()
Sandbox.kill_many(unsure[-900:], wait=True)
