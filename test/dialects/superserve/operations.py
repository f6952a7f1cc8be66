"""Does every operation of the Superserve dialect's table with the package superserve."""

import asyncio
import io
import os
import threading
import time
import urllib.error
import urllib.request
import zipfile
from datetime import datetime, timezone

import superserve
from harness import RUN, main, operation
from superserve import AsyncSandbox, NetworkConfig, Provider, Sandbox, Secret, Template

made = {}
MINE = "me-" + RUN  # others do the same beside


def sandbox(name="main", **options):
    if name not in made:
        made[name] = Sandbox.create(name=name, **options)
    return made[name]


def active(s):
    """Wakes a sandbox that an operation has left paused."""
    if s.get_info().status.value == "paused":
        s.resume()
    return s


def until(what, seconds=60.0):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.05)


# The longest of them goes on beside the others.
alone = {}


def sleeper():
    s = Sandbox.create(name="sleeper")
    alone["result"] = s.commands.run("echo begun; sleep 100")
    s.kill()


thread = threading.Thread(target=sleeper)
thread.start()

# Sandboxes


@operation("Sandbox.create")
def _():
    s = sandbox()
    assert s.id and s.name == "main" and s.status.value == "active" and s.metadata == {}
    assert s.commands.run("echo $((6 * 7))").stdout == "42\n"


@operation("Sandbox.create(from_template)")
def _():
    for name in ("superserve/base", "base", "superserve/code-interpreter"):
        s = Sandbox.create(name="t", from_template=name)
        made[name] = s
    s = made["superserve/code-interpreter"]
    assert s.commands.run("python -c 'import numpy; print(numpy.arange(3).sum())'", timeout_seconds=60).stdout == "3\n"
    s = Sandbox.create(name="t", from_template=Template.connect("superserve/base"))
    s.kill()


@operation("Sandbox.create(metadata, env_vars)")
def _():
    s = sandbox("tagged", metadata={"owner": MINE, "ü": "ö"}, env_vars={"GREETING": "hé"})
    assert s.metadata == {"owner": MINE, "ü": "ö"} == s.get_info().metadata
    assert s.commands.run("echo $GREETING $HOME").stdout == "hé /home/user\n"


@operation("Sandbox.create(network)")
def _():
    s = sandbox("closed", network=NetworkConfig(deny_out=["0.0.0.0/0"]))
    fetch = "curl -sS --max-time 20 http://api.known.test:8080/"
    assert s.commands.run(fetch, timeout_seconds=60).exit_code != 0
    assert s.get_info().network.deny_out == ["0.0.0.0/0"]
    some = sandbox("some", network=NetworkConfig(allow_out=["api.known.test", "198.51.100.7"]))
    result = some.commands.run(fetch, timeout_seconds=60)
    assert result.stdout.startswith("api.known.test:8080 at"), result
    assert some.get_info().network.allow_out == ["api.known.test", "198.51.100.7/32"]
    assert some.commands.run("curl -sS --max-time 20 http://other.known.test:8080/", timeout_seconds=60).exit_code != 0


@operation("Sandbox.create(timeout_seconds)")
def _():
    s = sandbox("capped", timeout_seconds=1)
    assert s.get_info().timeout_seconds == 1
    until(lambda: s.get_info().status.value == "paused")
    s.resume()  # another second
    until(lambda: s.get_info().status.value == "paused")
    s.kill()


@operation("Sandbox.create(auto_delete_seconds)")
def _():
    s = sandbox("passing", auto_delete_seconds=0)
    assert s.get_info().auto_delete_seconds == 0
    s.pause()

    def gone():
        try:
            s.get_info()
        except superserve.NotFoundError:
            return True

    until(gone)


@operation("Sandbox.create(secrets)")
def _():
    Sandbox.create(name="x", secrets={"ANTHROPIC_API_KEY": "anthropic"})


@operation("Sandbox.create(preview_access=public)", "python")
def _():
    s = sandbox("public", preview_access="public")
    assert s.preview_access.value == "public"
    s.kill()


@operation("Sandbox.create(preview_access=private)", "python")
def _():
    Sandbox.create(name="x", preview_access="private")


@operation("Sandbox.connect")
def _():
    s = sandbox("tagged")
    s.pause()
    other = Sandbox.connect(s.id)
    assert other.id == s.id and other.status.value == "active" and other.metadata["owner"] == MINE
    assert other.commands.run("echo $GREETING").stdout == "hé\n"


@operation("Sandbox.list")
def _():
    found = {info.id: info for info in Sandbox.list()}
    assert sandbox().id in found and sandbox("tagged").id in found
    info = found[sandbox().id]
    assert info.vcpu_count > 0 and info.memory_mib > 0 and info.network.allow_out == []


@operation("Sandbox.list(metadata)")
def _():
    assert [info.id for info in Sandbox.list(metadata={"owner": MINE, "ü": "ö"})] == [sandbox("tagged").id]
    assert Sandbox.list(metadata={"owner": "nobody"}) == []


@operation("Sandbox.list(status, limit, offset)", "python")
def _():
    for n in range(2):
        sandbox(f"paged {n}", metadata={"paged": MINE})
    sandbox().update(metadata={"paged": MINE})
    all_of_them = [info.id for info in Sandbox.list(metadata={"paged": MINE})]
    pages, offset = [], 0
    while page := Sandbox.list(metadata={"paged": MINE}, limit=2, offset=offset):
        assert len(page) <= 2
        pages += [info.id for info in page]
        offset += 2
    assert pages == all_of_them and len(pages) == 3
    s = sandbox("tagged")
    s.pause()
    assert s.id in [info.id for info in Sandbox.list(status="paused")]
    assert s.id not in [info.id for info in Sandbox.list(status="active")]
    assert Sandbox.list(status="failed") == []
    s.resume()


@operation("Sandbox.get_info")
def _():
    info = sandbox("tagged").get_info()
    assert info.name == "tagged" and info.status.value == "active" and info.auto_delete_at is None
    assert abs((datetime.now(timezone.utc) - info.created_at).total_seconds()) < 3600


@operation("Sandbox.pause")
def _():
    s = sandbox()
    s.commands.run("echo kept > /tmp/kept; sleep 1000 >/dev/null 2>&1 & echo $! > /tmp/pid")
    s.pause()
    assert s.get_info().status.value == "paused"


@operation("Sandbox.pause(wait)", "python-0.11.4")
def _():
    s = sandbox("tagged")
    s.pause(wait=True)
    assert s.get_info().status.value == "paused"
    s.resume()


@operation("Sandbox.resume")
def _():
    s = sandbox()
    s.resume()
    assert s.get_info().status.value == "active"
    assert s.commands.run("cat /tmp/kept; kill -0 $(cat /tmp/pid) && echo alive").stdout == "kept\nalive\n"


@operation("Sandbox.update(metadata)")
def _():
    s = sandbox("tagged")
    s.update(metadata={"owner": "you"})
    assert s.get_info().metadata == {"owner": "you"}


@operation("Sandbox.update(network)")
def _():
    s = sandbox("closed")
    s.update(network=NetworkConfig(allow_out=["api.known.test"]))
    result = s.commands.run("curl -sS --max-time 20 http://api.known.test:8080/", timeout_seconds=60)
    assert result.exit_code == 0, result
    assert s.get_info().network.deny_out == []


@operation("Sandbox.update(timeout_seconds)")
def _():
    s = sandbox("tagged")
    s.update(timeout_seconds=3600)
    assert s.get_info().timeout_seconds == 3600
    s.update(timeout_seconds=None)
    assert s.get_info().timeout_seconds is None


@operation("Sandbox.update(auto_delete_seconds)")
def _():
    s = sandbox("tagged")
    s.pause()
    s.update(auto_delete_seconds=3000)
    info = s.get_info()
    left = (info.auto_delete_at - datetime.now(timezone.utc)).total_seconds()
    assert info.status.value == "paused" and info.auto_delete_seconds == 3000 and 2000 < left <= 3000
    s.update(auto_delete_seconds=None)
    assert s.get_info().auto_delete_at is None
    s.resume()


@operation("Sandbox.update_by_id")
def _():
    s = sandbox("tagged")
    Sandbox.update_by_id(s.id, metadata={"by": "id"})
    assert s.get_info().metadata == {"by": "id"}


@operation("Sandbox.get_network_log")
def _():
    s = sandbox("some")
    page = s.get_network_log(limit=200)
    hosts = {(event.host, event.verdict.value, event.dst_port) for event in page.events}
    assert ("api.known.test", "allowed", 8080) in hosts, hosts
    assert all(event.kind == "connection" for event in page.events)
    s.commands.run("for i in 1 2 3; do curl -s --max-time 20 http://198.51.100.9:8080/; done", timeout_seconds=60)
    blocked = s.get_network_log(verdict="blocked")
    assert any(event.dst_ip == "198.51.100.9" for event in blocked.events), blocked
    seen, before = [], None
    while True:
        page = s.get_network_log(limit=1, before=before)
        seen += [event.id for event in page.events]
        if not page.has_more:
            break
        before = page.next_cursor
    assert seen == sorted(seen, reverse=True) and len(seen) == len(set(seen)) >= 2
    assert s.get_network_log(since=datetime.now(timezone.utc).isoformat()).events == []


@operation("Sandbox.kill")
def _():
    s = sandbox("short")
    s.kill()
    s.kill()
    assert s.id not in [info.id for info in Sandbox.list()]


@operation("Sandbox.kill_by_id")
def _():
    s = sandbox("shorter")
    Sandbox.kill_by_id(s.id)
    Sandbox.kill_by_id(s.id)
    Sandbox.kill_by_id("not-one-of-ours")


@operation("Sandbox.attach_secret")
def _():
    sandbox().attach_secret("KEY", "anthropic")


@operation("Sandbox.detach_secret")
def _():
    sandbox().detach_secret("KEY")


# Commands


@operation("commands.run")
def _():
    result = sandbox().commands.run("echo out; echo err >&2; exit 3")
    assert (result.stdout, result.stderr, result.exit_code) == ("out\n", "err\n", 3)
    assert sandbox().commands.run("kill -TERM $$").exit_code == 143
    assert sandbox().commands.run("cat").stdout == ""  # there is no input
    assert sandbox().commands.run("no-such-program").exit_code == 127


@operation("commands.run(cwd, env)")
def _():
    result = sandbox().commands.run("pwd; echo $A", cwd="/tmp", env={"A": "é"})
    assert result.stdout == "/tmp\né\n"
    assert sandbox().commands.run("pwd").stdout == "/home/user\n"


@operation("commands.run(timeout)")
def _():
    result = sandbox().commands.run("echo begun; sleep 100", timeout_seconds=6)
    assert (result.stdout, result.exit_code) == ("begun\n", 124)


@operation("commands.run in the background")
def _():
    s = sandbox()
    assert s.commands.run("(sleep 2; echo later > /tmp/later) & echo now").stdout == "now\n"
    until(lambda: s.commands.run("cat /tmp/later").stdout == "later\n")


@operation("commands.run of bytes that are no text")
def _():
    assert sandbox().commands.run(r"printf 'a\377b\0c\302\205d'").stdout == "a\ufffdb\x00c\x85d"


@operation("commands.run with much output")
def _():
    result = sandbox().commands.run("head -c 20000000 /dev/zero | tr '\\0' x; echo no >&2", timeout_seconds=60)
    assert result.exit_code == 0 and set(result.stdout) == {"x"} and 9 << 20 < len(result.stdout) < 10 << 20
    assert result.truncated and result.stderr.startswith("no\noutput was truncated"), result.stderr


@operation("commands.run(on_stdout, on_stderr)")
def _():
    out, err = [], []
    script = r"printf 'h\303'; sleep 0.3; printf '\251\302\205\n'; echo err >&2; seq 20000; exit 4"
    result = sandbox().commands.run(script, on_stdout=out.append, on_stderr=err.append)
    want = "hé\x85\n" + "".join(f"{n}\n" for n in range(1, 20001))
    assert result.stdout == "".join(out) == want and len(out) > 1
    assert result.stderr == "".join(err) == "err\n" and result.exit_code == 4


@operation("commands.run(on_stdout, timeout)")
def _():
    result = sandbox().commands.run("echo begun; sleep 100", on_stdout=lambda text: None, timeout_seconds=6)
    assert (result.stdout, result.exit_code) == ("begun\n", 124)


@operation("commands.run wakes a paused sandbox")
def _():
    s = sandbox()
    s.pause()
    assert s.commands.run("cat /tmp/kept").stdout == "kept\n"
    s.pause()
    assert s.files.read_text("/tmp/kept") == "kept\n"


@operation("commands.spawn")
async def _():
    s = await AsyncSandbox.connect(sandbox().id)
    seen = []
    async with await s.commands.spawn("tr a-z A-Z; echo end >&2; exit 5", on_stdout=seen.append) as session:
        await session.stdin.write("hé\n" * 50000)
        await session.stdin.write(b"last\n")
        await session.stdin.close()
        result = await session.wait()
    assert result.stdout == "Hé\n" * 50000 + "LAST\n" == "".join(seen), result.stdout[:100]
    assert result.stderr == "end\n" and result.exit_code == 5


@operation("commands.spawn(cwd, env, timeout)")
async def _():
    s = await AsyncSandbox.connect(sandbox().id)
    session = await s.commands.spawn("pwd; echo $A; sleep 100", cwd="/tmp", env={"A": "b"}, timeout_seconds=6)
    result = await session.wait()
    assert result.stdout == "/tmp\nb\n" and result.exit_code == 124, result


@operation("session.kill")
async def _():
    s = await AsyncSandbox.connect(sandbox().id)
    ready = asyncio.Event()
    script = "trap 'echo got it; exit 9' INT; echo ready; while :; do sleep 0.05; done"
    session = await s.commands.spawn(script, on_stdout=lambda text: ready.set())
    await asyncio.wait_for(ready.wait(), 60)
    await session.kill("SIGINT")
    result = await session.wait()
    assert result.exit_code == 9 and result.stdout == "ready\ngot it\n", result
    session = await s.commands.spawn("sleep 100")
    await session.kill()
    assert (await session.wait()).exit_code == 143


# Files


@operation("files.write")
def _():
    files = sandbox().files
    files.write("/tmp/new/deep/text", "hé\n")
    files.write("/tmp/new/bytes", bytes(range(256)) * 1000)
    assert sandbox().commands.run("stat -c '%a %s' /tmp/new/deep/text /tmp/new/bytes").stdout == "644 4\n644 256000\n"


@operation("files.write of a file that a command reads")
def _():
    sandbox().files.write("/home/user/ä b.sh", "echo from a file")
    assert sandbox().commands.run("sh 'ä b.sh'").stdout == "from a file\n"


@operation("files.read")
def _():
    assert sandbox().files.read("/tmp/new/bytes") == bytes(range(256)) * 1000
    assert sandbox().files.read("/proc/version").startswith(b"Linux version")


@operation("files.read_text")
def _():
    assert sandbox().files.read_text("/tmp/new/deep/text") == "hé\n"


@operation("files.download_dir")
def _():
    sandbox().commands.run("mkdir -p /tmp/new/empty; ln -s /etc/passwd /tmp/new/link; ln -s deep /tmp/new/inside")
    with zipfile.ZipFile(io.BytesIO(sandbox().files.download_dir("/tmp/new"))) as archive:
        assert sorted(archive.namelist()) == ["new/", "new/bytes", "new/deep/", "new/deep/text", "new/empty/"], archive.namelist()
        assert archive.read("new/bytes") == bytes(range(256)) * 1000


@operation("files.download_dir of a file")
def _():
    assert sandbox().files.download_dir("/tmp/new/deep/text") == "hé\n".encode()


@operation("files.read of a file that is missing")
def _():
    sandbox().files.read("/tmp/missing")


@operation("files.read of a directory")
def _():
    sandbox().files.read("/tmp")


@operation("files.write below /proc")
def _():
    sandbox().files.write("/proc/x", "x")


# Ports


def serve(s):
    s.commands.run("mkdir -p /tmp/web && cd /tmp/web && echo hello > index.html && python3 -m http.server 8000 >/dev/null 2>&1 &")
    until(lambda: s.commands.run("curl -s localhost:8000").stdout == "hello\n")


def get(url, **headers):
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=30) as response:
        return response.read().decode()


def status(url):
    try:
        get(url)
    except urllib.error.HTTPError as error:
        return error.code
    return 200


@operation("Sandbox.get_preview_url")
def _():
    s = sandbox()
    serve(s)
    url = s.get_preview_url(8000)
    assert url == f"https://8000-{s.id}.sandbox.superserve.ai"
    assert get(url, **{"X-API-Key": os.environ["SUPERSERVE_API_KEY"]}) == "hello\n"
    assert status(url) == 401


@operation("Sandbox.publish_preview_port", "python")
def _():
    s = sandbox()
    port = s.publish_preview_port(8000)
    assert port.port == 8000 and port.access == "public"
    assert get(s.get_preview_url(8000)) == "hello\n"


@operation("Sandbox.list_preview_ports", "python")
def _():
    ports = sandbox().list_preview_ports()
    assert ports.preview_access.value == "public" and [p.port for p in ports.ports] == [8000]


@operation("Sandbox.unpublish_preview_port", "python")
def _():
    s = sandbox()
    s.unpublish_preview_port(8000)
    s.unpublish_preview_port(8000)
    assert s.list_preview_ports().ports == [] and status(s.get_preview_url(8000)) == 401


@operation("Sandbox.publish_preview_port(access=private)", "python")
def _():
    s = sandbox()
    assert s.publish_preview_port(8000, access="private").access == "private"
    assert status(s.get_preview_url(8000)) == 401


@operation("Sandbox.get_preview_token", "python")
def _():
    s = sandbox()
    token = s.get_preview_token(8000, expires_in_seconds=600)
    assert get(s.get_preview_url(8000) + "/index.html?a=b", **{token.header: token.token}) == "hello\n"
    assert token.access == "private" and token.expires_at > datetime.now(timezone.utc)


@operation("Sandbox.get_signed_preview_url", "python")
def _():
    url = sandbox().get_signed_preview_url(8000)
    assert get(url) == "hello\n"
    assert status(url[:-1] + ("0" if url[-1] != "0" else "1")) == 401


@operation("Sandbox.rotate_preview_token", "python")
def _():
    sandbox().rotate_preview_token(8000)


# Snapshots


@operation("Sandbox.snapshot", "python-0.11.4")
def _():
    s = sandbox()
    s.commands.run("echo in the snapshot > /tmp/snap")
    made["snapshot"] = snap = s.snapshot(name="before")
    assert snap.name == "before" and snap.status.value == "ready" and snap.sandbox_id == s.id
    assert s.commands.run("echo on").stdout == "on\n"


@operation("Sandbox.create(from_snapshot)", "python-0.11.4")
def _():
    fork = Sandbox.create(name="fork", from_snapshot=made["snapshot"], env_vars={"A": "b"})
    assert fork.commands.run("cat /tmp/snap; echo $A $HOME").stdout == "in the snapshot\nb /home/user\n"
    fork.kill()


@operation("Sandbox.snapshots", "python-0.11.4")
def _():
    assert [info.id for info in sandbox().snapshots()] == [made["snapshot"].id]
    assert sandbox().snapshots(limit=1, offset=1) == []


@operation("Snapshot.get", "python-0.11.4")
def _():
    snap = superserve.Snapshot.get(made["snapshot"].id)
    assert snap.name == "before" and snap.resources.memory_mib > 0


@operation("Snapshot.delete", "python-0.11.4")
def _():
    made["snapshot"].delete()
    assert sandbox().snapshots() == []


# Templates


@operation("Template.list")
def _():
    names = [t.name for t in Template.list()]
    assert {"superserve/base", "superserve/code-interpreter"} <= set(names)
    assert [t.name for t in Template.list(name_prefix="superserve/code")] == ["superserve/code-interpreter"]


@operation("Template.connect")
def _():
    assert Template.connect("superserve/code-interpreter").name == "superserve/code-interpreter"


@operation("Template.get_info")
def _():
    info = Template.connect("base").get_info()
    assert info.status.value == "ready" and info.vcpu > 0 and info.disk_mib > 0 and info.built_at is not None


@operation("Template.list_builds")
def _():
    assert Template.connect("superserve/base").list_builds(limit=5) == []


@operation("Template.create")
def _():
    Template.create(name="mine", from_="debian:12", steps=[superserve.RunStep(run="true")])


@operation("Template.rebuild")
def _():
    Template.connect("superserve/base").rebuild()


@operation("Template.delete")
def _():
    Template.connect("superserve/base").delete()


@operation("Template.get_build")
def _():
    Template.connect("superserve/base").get_build("b1")


# Secrets


@operation("Secret.create")
def _():
    Secret.create(name="anthropic", value="sk-ant", provider="anthropic")


@operation("Secret.get")
def _():
    Secret.get("anthropic")


@operation("Secret.list")
def _():
    assert Secret.list() == []


@operation("Secret.delete_by_name")
def _():
    Secret.delete_by_name("anthropic")


@operation("Provider.list")
def _():
    assert Provider.list() == []


@operation("desktop.screenshot", "python-0.11.4")
def _():
    sandbox().desktop.screenshot()


# Errors


@operation("a call without a valid API key")
def _():
    Sandbox.list(api_key="ss_live_not_a_key")


@operation("a call on an unknown sandbox")
def _():
    Sandbox.connect("aaaaaaaaaaaaaaaaaaaa")


@operation("a command in a sandbox that was killed")
def _():
    s = Sandbox.create(name="killed")
    Sandbox.kill_by_id(s.id)
    for call in (lambda: s.files.read("/etc/passwd"), lambda: s.files.write("/tmp/x", "x"), s.get_info, s.pause, s.resume):
        try:
            call()
        except superserve.NotFoundError:
            continue
        raise AssertionError("it was done")
    s.commands.run("true")


@operation("a template that is not there")
def _():
    Sandbox.create(name="x", from_template="superserve/openclaw")


@operation("a network rule that is none")
def _():
    Sandbox.create(name="x", network=NetworkConfig(deny_out=["example.com"]))


@operation("pause of a sandbox that is paused")
def _():
    s = sandbox()
    s.pause()
    s.pause()


@operation("resume of a sandbox that is active")
def _():
    active(sandbox()).resume()


@operation("update(network) of a sandbox that is paused")
def _():
    s = active(sandbox())
    s.pause()
    try:
        s.update(network=NetworkConfig(deny_out=["0.0.0.0/0"]))
    finally:
        s.resume()


@operation("commands.run without a timeout")
def _():
    thread.join()
    result = alone["result"]
    assert (result.stdout, result.exit_code) == ("begun\n", 124)


main()
