// Does with the TypeScript SDK what the dialect's table lists.
import assert from "node:assert/strict"
import { setTimeout as sleep } from "node:timers/promises"
import {
	ALL_TRAFFIC,
	ApiClient,
	AuthenticationError,
	CommandExitError,
	ConflictError,
	ConnectionConfig,
	Governance,
	InvalidArgumentError,
	NotFoundError,
	Sandbox,
	SandboxError,
	SandboxPaginator,
	SnapshotPaginator,
	Template,
	TemplateBase,
	TimeoutError,
	Vault,
	Volumes,
	createAuditConfig,
	createCodeSecurityConfig,
	createContentGateConfig,
	createInjectionDefenseConfig,
	createInvisibleTextConfig,
	createNetworkPolicy,
	createPIIConfig,
	createSecurityPolicy,
	createToxicityConfig,
	createTransformationRule,
} from "@declaw/sdk"
import { main, operation } from "./harness.mjs"

const key = process.env.DECLAW_API_KEY
const url = `http://${process.env.DECLAW_DOMAIN}`
const hello = "http://203.0.113.7:8080"

const sandbox = await Sandbox.create({ timeout: 600 })
const api = new ApiClient(new ConnectionConfig({}))

const made = []
async function make(options) {
	const one = await Sandbox.create(options)
	made.push(one.sandboxId)
	return one
}

async function until(what, condition) {
	const end = Date.now() + 60_000
	while (!(await condition())) {
		assert.ok(Date.now() < end, `waited in vain for ${what}`)
		await sleep(50)
	}
}

async function raises(kind, call) {
	try {
		await call()
	} catch (error) {
		assert.equal(error?.constructor, kind, `${error?.constructor?.name}: ${error?.message}`)
		return error
	}
	assert.fail(`no ${kind.name} was raised`)
}

const text = (bytes) => Buffer.from(bytes).toString("latin1")
const left = (info) => (new Date(info.endAt).getTime() - Date.now()) / 1000
const states = async (query) => (await Sandbox.list({ query, limit: 1000 })).sandboxes.map((s) => [s.sandboxId, s.state])

operation("Sandbox.create", async () => {
	const one = await make()
	const info = await one.getInfo()
	assert.deepEqual([info.state, info.templateId, info.name, info.metadata], ["running", "tpl-base", "base", {}])
	assert.equal(one.sandboxDomain, process.env.DECLAW_DOMAIN)
	assert.ok(one.envdAccessToken && one.trafficAccessToken)
	assert.equal(await one.kill(), true)
})

operation("Sandbox.create(template)", async () => {
	const one = await make({ template: "code-interpreter" })
	assert.equal((await one.getInfo()).name, "code-interpreter")
	assert.equal((await one.commands.run("python3 -c 'import pandas; print(6 * 7)'")).stdout, "42\n")
	await one.kill()
	await raises(NotFoundError, () => make({ template: "web-dev" }))
})

operation("Sandbox.create(timeout)", async () => {
	const one = await make({ timeout: 120 })
	const seconds = left(await one.getInfo())
	assert.ok(seconds > 30 && seconds <= 121, `${seconds}`)
	await one.kill()
	const endless = await make({ timeout: 0 })
	assert.ok(!(await endless.getInfo()).endAt)
	await endless.kill()
	// It counts from the creation, and kills; a busy machine may take longer to start it.
	const short = await make({ timeout: 1 }).catch((error) => error)
	if (short instanceof Error) assert.match(short.message, /its life limit passed/)
	else await until("the timeout", async () => (await short.getInfo()).state === "killed")
})

operation("Sandbox.create(metadata, envs)", async () => {
	const one = await make({ metadata: { owner: "x", emoji: "é" }, envs: { GREETING: "hello", OVERRIDDEN: "no" } })
	assert.deepEqual((await one.getInfo()).metadata, { owner: "x", emoji: "é" })
	const told = await one.commands.run('echo "$GREETING $OVERRIDDEN $DECLAW_SANDBOX $DECLAW_SANDBOX_ID"', { envs: { OVERRIDDEN: "yes" } })
	assert.equal(told.stdout, `hello yes true ${one.sandboxId}\n`)
	await one.kill()
})

operation("Sandbox.create(secure, security)", async () => {
	const one = await make({ secure: false, security: createSecurityPolicy({ audit: createAuditConfig({ enabled: true }) }) })
	assert.ok(await one.isRunning())
	await one.kill()
})

operation("Sandbox.create(lifecycle)", async () => {
	const one = await make({ timeout: 300, lifecycle: { onTimeout: "pause", autoResume: true } })
	await one.setTimeout(1)
	await until("the pause", async () => (await one.getInfo()).state === "paused")
	await one.setTimeout(300)
	assert.equal((await one.commands.run("echo woken")).stdout, "woken\n")
	assert.ok(await one.isRunning())
	await one.kill()
})

operation("Sandbox.create, repeated", async () => {
	const send = (timeout) =>
		fetch(`${url}/sandboxes`, {
			method: "POST",
			headers: { "X-API-Key": key, "Content-Type": "application/json", "Idempotency-Key": `a key of ${sandbox.sandboxId}` },
			body: JSON.stringify({ template: "base", timeout }),
		})
	const [first, second] = await Promise.all([send(60), send(60)])
	const [one, two] = [await first.json(), await second.json()]
	made.push(one.sandbox_id)
	assert.deepEqual([first.status, second.status, one], [201, 201, two])
	const third = await send(61)
	assert.deepEqual([third.status, (await third.json()).code], [422, "idempotency_key_reused"])
	await Sandbox.kill(one.sandbox_id)
})

operation("Sandbox.connect", async () => {
	const again = await Sandbox.connect(sandbox.sandboxId)
	assert.equal((await again.commands.run("echo same")).stdout, "same\n")
})

operation("Sandbox.list", async () => {
	const found = await Sandbox.list({ limit: 1000 })
	assert.ok(found.sandboxes.some((s) => s.sandboxId === sandbox.sandboxId))
})

operation("Sandbox.list(state, metadata)", async () => {
	const one = await make()
	const killed = await make()
	await killed.kill()
	const running = await states({ state: "running" })
	assert.ok(running.some(([id]) => id === one.sandboxId) && !running.some(([id]) => id === killed.sandboxId))
	const all = await states({ state: "all" })
	assert.deepEqual(all.find(([id]) => id === killed.sandboxId), [killed.sandboxId, "killed"])
	await one.kill()
})

operation("SandboxPaginator", async () => {
	const mine = [await make(), await make(), await make()].map((one) => one.sandboxId)
	const seen = []
	for await (const page of new SandboxPaginator(api, { limit: 2 })) {
		assert.ok(page.length <= 2)
		seen.push(...page.map((one) => one.sandboxId))
	}
	assert.equal(new Set(seen).size, seen.length)
	assert.ok(mine.every((id) => seen.includes(id)))
	await Sandbox.killMany(mine)
})

operation("sandbox.get_info", async () => {
	const info = await sandbox.getInfo()
	assert.equal(info.sandboxId, sandbox.sandboxId)
	assert.ok(new Date(info.startedAt) < new Date(info.endAt))
})

operation("sandbox.is_running", async () => assert.equal(await sandbox.isRunning(), true))

operation("sandbox.set_timeout", async () => {
	const one = await make({ timeout: 60 })
	await one.setTimeout(1000)
	assert.ok(left(await one.getInfo()) > 500)
	await one.setTimeout(0)
	assert.ok(!(await one.getInfo()).endAt)
	await one.setTimeout(1)
	await until("the timeout", async () => !(await one.isRunning()))
})

operation("sandbox.get_metrics", async () => {
	const now = Date.now()
	const samples = await sandbox.getMetrics({ start: new Date(now - 3_600_000), end: new Date(now + 3_600_000) })
	assert.ok(samples.at(-1).memoryUsageMb > 1, JSON.stringify(samples.at(-1)))
	assert.deepEqual(await sandbox.getMetrics({ end: new Date(now - 3_600_000) }), [])
})

operation("sandbox.pause, resume", async () => {
	const one = await make({ timeout: 600 })
	const handle = await one.commands.run("sleep 1; echo slept", { background: true })
	await one.pause()
	assert.deepEqual([(await one.getInfo()).state, await one.isRunning()], ["paused", false])
	await raises(ConflictError, () => one.commands.run("true"))
	await one.resume()
	assert.equal((await handle.wait()).stdout, "slept\n")
	await one.kill()
})

operation("sandbox.kill", async () => {
	for (const wait of [false, true]) {
		const one = await make()
		assert.equal(await one.kill({ wait }), true)
		assert.equal((await one.getInfo()).state, "killed")
		assert.equal(await one.kill({ wait }), false)
	}
})

operation("Sandbox.kill_many", async () => {
	const [one, two] = [await make(), await make()]
	const results = await Sandbox.killMany([one.sandboxId, two.sandboxId, "00000000000000000000"])
	assert.deepEqual([results[one.sandboxId], results[two.sandboxId]], [{ queued: true }, { queued: true }])
	assert.ok(results["00000000000000000000"].error)
	const three = await make()
	assert.deepEqual(await Sandbox.killMany([three.sandboxId], { wait: true }), { [three.sandboxId]: { killed: true } })
})

operation("Sandbox.kill by id", async () => assert.equal(await Sandbox.kill((await make()).sandboxId), true))

operation("a killed sandbox", async () => {
	const one = await make()
	await one.kill()
	const info = await (await Sandbox.connect(one.sandboxId)).getInfo()
	assert.equal(info.state, "killed")
	assert.ok(info.endAt)
	for (const call of [() => one.commands.run("true"), () => one.commands.runStream("true"), () => one.files.read("/etc/hostname"), () => one.pause()]) {
		assert.match((await raises(SandboxError, call)).message, /HTTP 410/)
	}
})

operation("an unknown sandbox", () => raises(NotFoundError, () => Sandbox.connect("00000000000000000000")))

operation("a wrong API key", async () => {
	assert.match((await raises(AuthenticationError, () => Sandbox.list({ apiKey: "dcl_wrong" }))).message, /unauthorized/)
})

operation("sandbox.create_snapshot, snapshot", async () => {
	const one = await make({ timeout: 600 })
	const info = await one.createSnapshot()
	assert.ok(info.createdAt && info.sandboxId === one.sandboxId)
	const taken = await one.snapshot()
	assert.ok(taken.source === "manual" && taken.memSizeBytes > 0 && taken.snapshotId !== info.snapshotId)
	await one.kill()
})

operation("sandbox.list_snapshots", async () => {
	const one = await make({ timeout: 600 })
	const [first, second] = [await one.snapshot(), await one.snapshot()]
	assert.deepEqual((await one.listSnapshots()).map((s) => s.snapshotId), [second.snapshotId, first.snapshotId])
	await one.pause()
	const listed = await one.listSnapshots()
	assert.deepEqual(listed.map((s) => s.source), ["pause", "manual", "manual"])
	await raises(ConflictError, () => one.deleteSnapshot(listed[0].snapshotId))
	await one.kill()
})

operation("Sandbox.restore", async () => {
	const one = await make({ timeout: 600 })
	await one.files.write("/tmp/state", "before")
	const taken = await one.snapshot()
	await one.files.write("/tmp/state", "after")
	assert.equal(await (await Sandbox.restore(one.sandboxId, { snapshotId: taken.snapshotId })).files.read("/tmp/state"), "before")
	await one.files.write("/tmp/state", "again")
	assert.equal(await (await Sandbox.restore(one.sandboxId)).files.read("/tmp/state"), "before")
	await one.kill()
	await raises(NotFoundError, () => Sandbox.restore(sandbox.sandboxId))
})

operation("sandbox.delete_snapshot", async () => {
	const one = await make({ timeout: 600 })
	const taken = await one.snapshot()
	assert.equal(await one.deleteSnapshot(taken.snapshotId), true)
	assert.deepEqual(await one.listSnapshots(), [])
	assert.equal(await one.deleteSnapshot(taken.snapshotId), true)
	await one.kill()
})

operation("SnapshotPaginator", async () => {
	const one = await make({ timeout: 600 })
	const taken = [await one.snapshot(), await one.snapshot(), await one.snapshot()].map((s) => s.snapshotId)
	const sizes = []
	const seen = []
	for await (const page of new SnapshotPaginator(api, { sandboxId: one.sandboxId, limit: 2 })) {
		sizes.push(page.length)
		seen.push(...page.map((s) => s.snapshotId))
	}
	assert.deepEqual([sizes, seen.sort()], [[2, 1], taken.sort()])
	await one.kill()
})

operation("commands.run", async () => {
	assert.deepEqual(await sandbox.commands.run("echo out; echo err >&2; exit 3"), { stdout: "out\n", stderr: "err\n", exitCode: 3 })
	assert.equal((await sandbox.commands.run("cat; whoami; pwd")).stdout, "user\n/home/user\n")
	assert.equal((await sandbox.commands.run("head -c 3000000 /dev/zero | tr '\\0' x")).stdout, "x".repeat(3_000_000))
})

operation("commands.run(user, cwd, envs)", async () => {
	const result = await sandbox.commands.run('whoami; pwd; echo "$X"', { user: "root", cwd: "/tmp", envs: { X: "a b" } })
	assert.equal(result.stdout, "root\n/tmp\na b\n")
	await raises(InvalidArgumentError, () => sandbox.commands.run("true", { user: "nobody-here" }))
})

operation("commands.run(timeout)", async () => {
	assert.match((await raises(TimeoutError, () => sandbox.commands.run("echo $$ >/tmp/timed; sleep 600", { timeout: 0.5 }))).message, /HTTP 408/)
	assert.notEqual((await sandbox.commands.run("kill -0 $(cat /tmp/timed)")).exitCode, 0)
})

operation("commands.run(on_stdout, on_stderr)", async () => {
	const [out, err] = [[], []]
	await sandbox.commands.run("echo a; echo b; echo c >&2", { onStdout: (s) => out.push(s), onStderr: (s) => err.push(s) })
	assert.deepEqual([out.join("").replaceAll("\n", ""), err.join("").replaceAll("\n", "")], ["ab", "c"])
})

operation("commands.run_stream", async () => {
	const seen = []
	// It says more only when the first word has arrived here.
	const result = await sandbox.commands.runStream("rm -f /tmp/go; echo é; until [ -e /tmp/go ]; do sleep 0.1; done; echo two; echo err >&2; exit 4", {
		onStdout: (s) => {
			if (seen.push(s) === 1) void sandbox.files.write("/tmp/go", "x")
		},
	})
	assert.deepEqual([seen[0], result], ["é\n", { stdout: "é\ntwo\n", stderr: "err\n", exitCode: 4 }])
	const late = await sandbox.commands.runStream("sleep 600", { timeout: 1 })
	assert.equal(late.exitCode, 124)
	assert.match(late.stderr, /timeout/)
})

operation("commands.run_stream, refused", async () => {
	const one = await make()
	await one.kill()
	assert.match((await raises(SandboxError, () => one.commands.runStream("true"))).message, /has ended/)
})

operation("commands.run(background)", async () => {
	const handle = await sandbox.commands.run("echo started; sleep 600", { background: true })
	assert.ok(handle.pid > 0)
	assert.equal(await handle.kill(), true)
})

operation("handle.wait", async () => {
	assert.equal((await (await sandbox.commands.run("echo one; sleep 0.2; echo two", { background: true })).wait()).stdout, "one\ntwo\n")
	const failed = await sandbox.commands.run("echo bad >&2; exit 5", { background: true })
	const error = await raises(CommandExitError, () => failed.wait())
	assert.deepEqual([error.exitCode, error.stderr], [5, "bad\n"])
	const slow = await sandbox.commands.run("sleep 600", { background: true, timeout: 0.5 })
	assert.equal((await raises(CommandExitError, () => slow.wait())).exitCode, 124)
	const none = await sandbox.commands.connect(4_000_000)
	assert.equal((await raises(CommandExitError, () => none.wait())).stderr, "process not found")
})

operation("commands.list", async () => {
	const handle = await sandbox.commands.run("sleep 612", { background: true })
	const mine = (await sandbox.commands.list()).filter((p) => p.pid === handle.pid)
	assert.deepEqual(mine.map((p) => [p.cmd, p.isPty]), [["sleep 612", false]])
	await handle.kill()
	await until("the end", async () => !(await sandbox.commands.list()).some((p) => p.pid === handle.pid))
})

operation("commands.send_stdin", async () => {
	const handle = await sandbox.commands.run("head -n 2", { background: true })
	await sandbox.commands.sendStdin(handle.pid, "first é\n")
	await sandbox.commands.sendStdin(handle.pid, "second\n")
	assert.equal((await handle.wait()).stdout, "first é\nsecond\n")
})

operation("commands.kill", async () => {
	const handle = await sandbox.commands.run("sleep 600 & sleep 600", { background: true })
	assert.equal(await sandbox.commands.kill(handle.pid), true)
	assert.equal((await raises(CommandExitError, () => handle.wait())).exitCode, 137)
	assert.equal(await sandbox.commands.kill(4_000_000), false)
})

operation("commands.connect", async () => {
	const handle = await sandbox.commands.run("sleep 0.3; echo there", { background: true })
	assert.equal((await (await sandbox.commands.connect(handle.pid)).wait()).stdout, "there\n")
})

function listener() {
	const heard = { data: "", until: (part) => until(part, () => heard.data.includes(part)) }
	return [heard, (chunk) => (heard.data += text(chunk))]
}

operation("pty.create", async () => {
	const [heard, onData] = listener()
	const pty = await sandbox.pty.create({ onData, cwd: "/tmp", envs: { MARK: "seen" } })
	await pty.sendInput("echo $MARK-$TERM; pwd; exit 7\n")
	assert.equal((await pty.wait()).exitCode, 7)
	assert.ok(heard.data.includes("seen-xterm-256color") && heard.data.includes("/tmp"), heard.data)
})

operation("pty.send_stdin, resize", async () => {
	const [heard, onData] = listener()
	const pty = await sandbox.pty.create({ onData })
	await sandbox.pty.sendStdin(pty.pid, "stty size\n")
	await heard.until("24 80")
	await sandbox.pty.resize(pty.pid, { cols: 132, rows: 50 })
	await pty.sendInput("stty size\n")
	await heard.until("50 132")
	assert.equal(await pty.kill(), true)
})

operation("pty.connect", async () => {
	const pty = await sandbox.pty.create()
	const [[first, onFirst], [second, onSecond]] = [listener(), listener()]
	const one = await sandbox.pty.connect(pty.pid, { onData: onFirst })
	await sandbox.pty.connect(pty.pid, { onData: onSecond })
	await one.sendInput("echo bo$((1))th\n")
	await first.until("bo1th")
	await second.until("bo1th")
	assert.equal(await pty.kill(), true)
})

operation("pty.kill", async () => {
	const pty = await sandbox.pty.create()
	const reader = await sandbox.pty.connect(pty.pid, { onData: () => {} })
	assert.equal(await sandbox.pty.kill(pty.pid), true)
	assert.equal((await reader.wait()).exitCode, 137)
	assert.equal(await sandbox.pty.kill(pty.pid), false)
})

operation("stdio.start", async () => {
	const [[out, onStdout], [err, onStderr]] = [listener(), listener()]
	const process = await sandbox.stdio.start("printf '\\000\\377'; echo err >&2; exit 3", { onStdout, onStderr })
	assert.equal((await process.wait()).exitCode, 3)
	assert.deepEqual([out.data, err.data], ["\x00\xff", "err\n"])
})

operation("process.send_stdin, close_stdin", async () => {
	const [out, onStdout] = listener()
	const process = await sandbox.stdio.start("cat; echo end", { onStdout })
	await process.sendStdin(new Uint8Array([0, 255, 65, 10]))
	await out.until("A\n")
	await process.closeStdin()
	assert.equal((await process.wait()).exitCode, 0)
	assert.equal(out.data, "\x00\xffA\nend\n")
})

operation("process.stream, resumed", async () => {
	const process = await sandbox.stdio.start("read a; echo got $a; read b; echo got $b")
	await process.sendStdin("one\n")
	// The stream is left after its first entry, and another one goes on where it was.
	const abandoned = new AbortController()
	const response = await fetch(`${url}/sandboxes/${sandbox.sandboxId}/stdio/${process.cmdId}/stream`, {
		headers: { "X-API-Key": key },
		signal: abandoned.signal,
	})
	const reader = response.body.getReader()
	const decoder = new TextDecoder()
	let frames = ""
	while (!/entry_id":\d+}\n\n/.test(frames)) frames += decoder.decode((await reader.read()).value, { stream: true })
	abandoned.abort()
	process.lastEntryId = Number(/entry_id":(\d+)/.exec(frames)[1])
	await process.sendStdin("two\n")
	const [out, onStdout] = listener()
	assert.equal((await process.stream({ onStdout })).exitCode, 0)
	assert.equal(out.data, "got two\n")
	const [again, onAgain] = listener()
	process.lastEntryId = 0 // after the end, all of it can be read again
	assert.equal((await process.stream({ onStdout: onAgain })).exitCode, 0)
	assert.equal(again.data, "got one\ngot two\n")
})

operation("process.kill", async () => assert.equal(await (await sandbox.stdio.start("sleep 600")).kill(), true))

operation("files.write, read", async () => {
	assert.deepEqual(await sandbox.files.write("/deep/er/hello.txt", "héllo\n"), { path: "/deep/er/hello.txt", size: 7 })
	assert.equal(await sandbox.files.read("/deep/er/hello.txt"), "héllo\n")
	assert.equal((await sandbox.commands.run("stat -c %U /deep /deep/er /deep/er/hello.txt")).stdout, "user\n".repeat(3))
	await raises(NotFoundError, () => sandbox.files.read("/nowhere"))
	await raises(InvalidArgumentError, () => sandbox.files.read("/etc"))
})

operation("files.write, read bytes", async () => {
	const content = new Uint8Array(1 << 20).map((_, i) => i * 7)
	assert.equal((await sandbox.files.write("/tmp/a b+c&d.bin", content)).size, content.length)
	assert.deepEqual(Buffer.from(await sandbox.files.read("/tmp/a b+c&d.bin", { format: "bytes" })), Buffer.from(content))
})

operation("files.write_files", async () => {
	const infos = await sandbox.files.writeFiles([
		{ path: "/batch/a.txt", data: "a" },
		{ path: "/batch/b.txt", data: "bb" },
	])
	assert.deepEqual(infos, [
		{ path: "/batch/a.txt", size: 1 },
		{ path: "/batch/b.txt", size: 2 },
	])
})

operation("files.list", async () => {
	await sandbox.commands.run("mkdir -p /tmp/l/sub/deeper && ln -s sub /tmp/l/link && ln -s nowhere /tmp/l/broken && echo 12345 >/tmp/l/file")
	const entries = Object.fromEntries((await sandbox.files.list("/tmp/l")).map((e) => [e.name, [e.path, e.type, e.size]]))
	assert.deepEqual([entries.file, entries.sub], [["/tmp/l/file", "file", 6], ["/tmp/l/sub", "dir", 0]])
	assert.deepEqual([entries.link[1], entries.broken[1], Object.keys(entries).length], ["dir", "file", 4])
	assert.ok((await sandbox.files.list("/tmp/l", { depth: 2 })).some((e) => e.path === "/tmp/l/sub/deeper"))
})

operation("files.exists, get_info", async () => {
	await sandbox.files.write("/tmp/info.txt", "12345")
	assert.deepEqual([await sandbox.files.exists("/tmp/info.txt"), await sandbox.files.exists("/tmp/nothing")], [true, false])
	assert.deepEqual(await sandbox.files.getInfo("/tmp/info.txt"), { name: "info.txt", path: "/tmp/info.txt", type: "file", size: 5 })
	await raises(NotFoundError, () => sandbox.files.getInfo("/tmp/nothing"))
})

operation("files.rename", async () => {
	await sandbox.files.write("/tmp/old.txt", "moved")
	const info = await sandbox.files.rename("/tmp/old.txt", "/tmp/new/place/new.txt")
	assert.equal(await sandbox.files.read(info.path), "moved")
	await raises(NotFoundError, () => sandbox.files.rename("/tmp/old.txt", "/tmp/x"))
})

operation("files.remove", async () => {
	await sandbox.files.write("/tmp/gone/a/b", "x")
	await sandbox.files.remove("/tmp/gone")
	assert.equal(await sandbox.files.exists("/tmp/gone"), false)
	await sandbox.files.remove("/tmp/gone")
})

operation("files.make_dir", async () => {
	assert.deepEqual([await sandbox.files.makeDir("/made/by/me"), await sandbox.files.makeDir("/made/by/me")], [true, false])
})

operation("files.watch_dir", async () => {
	await (await sandbox.files.watchDir("/tmp")).stop()
	await raises(NotFoundError, () => sandbox.files.watchDir("/nowhere"))
})

operation("download_url, upload_url", async () => {
	const put = await fetch(sandbox.uploadUrl("/tmp/up load.bin", "root"), { method: "PUT", headers: { "X-API-Key": key }, body: new Uint8Array([0, 1, 255]) })
	assert.deepEqual([put.status, (await put.json()).size], [200, 3])
	const got = await fetch(sandbox.downloadUrl("/tmp/up load.bin"), { headers: { "X-API-Key": key } })
	assert.deepEqual([...new Uint8Array(await got.arrayBuffer())], [0, 1, 255])
	assert.equal((await fetch(sandbox.downloadUrl("/tmp/up load.bin"))).status, 401)
})

operation("get_host", async () => {
	await sandbox.commands.run("mkdir -p /tmp/www && echo served >/tmp/www/file.txt")
	await sandbox.commands.run("cd /tmp/www && exec python3 -m http.server 8000 --bind 127.0.0.1", { background: true, timeout: 0 })
	const get = (path) => fetch(`${sandbox.getHost(8000)}${path}`, { headers: { Authorization: `Bearer ${key}` } })
	await until("the server", async () => (await get("/")).status === 200)
	assert.equal(await (await get("/file.txt")).text(), "served\n")
	assert.equal((await fetch(`${sandbox.getHost(8000)}/`)).status, 401)
})

operation("get_mcp_url", () => assert.equal(sandbox.getMcpUrl(), `${url}/sandboxes/${sandbox.sandboxId}/ports/50005/mcp`))

async function reaches(one, address) {
	const program = `import urllib.request; print(urllib.request.urlopen('${address}', timeout=5).read().decode())`
	return (await one.commands.run(`python3 -c "${program}"`)).exitCode === 0
}

operation("create(allow_internet_access)", async () => {
	const closed = await make({ allowInternetAccess: false })
	assert.equal(await reaches(closed, hello), false)
	await closed.kill()
})

async function policy(options, open, shut) {
	const one = await make(options)
	for (const address of open) assert.ok(await reaches(one, address), `${address} cannot be reached`)
	for (const address of shut) assert.ok(!(await reaches(one, address)), `${address} can be reached`)
	await one.kill()
}

const other = "http://198.51.100.9:8080"

operation("create(network)", async () => {
	await policy({ network: createNetworkPolicy({ allowOut: ["allowed.test"] }) }, ["http://allowed.test:8080"], ["http://other.test:8080", hello])
	await policy({ network: { allowOut: ["203.0.113.0/24"], denyOut: [ALL_TRAFFIC] } }, [hello], [other]) // allow goes before deny
	await policy({ network: { denyOut: ["203.0.113.7"] } }, [other], [hello])
})

operation("create(network, security.network)", async () => {
	const security = createSecurityPolicy({ network: createNetworkPolicy({ allowOut: ["198.51.100.9"] }) })
	await policy({ security }, [other], [hello])
	await policy({ security, network: { allowOut: ["203.0.113.7"] } }, [hello], [other]) // it goes before the policy's
})

operation("create(network) without sense", () => raises(InvalidArgumentError, () => make({ network: { denyOut: ["~("] } })))

operation("create(allow_public_traffic)", async () => {
	const one = await make({ network: { allowPublicTraffic: false } })
	assert.equal((await fetch(`${one.getHost(8000)}/`, { headers: { "X-API-Key": key } })).status, 403)
	await one.kill()
})
operation("create(mask_request_host)", () => make({ network: { maskRequestHost: "example.com" } }))
operation("create(security.pii)", () => make({ security: createSecurityPolicy({ pii: createPIIConfig({ enabled: true }) }) }))
operation("create(security.injection_defense)", () => make({ security: createSecurityPolicy({ injectionDefense: createInjectionDefenseConfig({ enabled: true }) }) }))
operation("create(security.toxicity)", () => make({ security: createSecurityPolicy({ toxicity: createToxicityConfig({ enabled: true }) }) }))
operation("create(security.code_security)", () => make({ security: createSecurityPolicy({ codeSecurity: createCodeSecurityConfig({ enabled: true }) }) }))
operation("create(security.invisible_text)", () => make({ security: createSecurityPolicy({ invisibleText: createInvisibleTextConfig({ enabled: true }) }) }))
operation("create(security.content_gate)", () => make({ security: createSecurityPolicy({ contentGate: createContentGateConfig({ enabled: true }) }) }))
operation("create(security.custom_policy)", () =>
	make({ security: createSecurityPolicy({ customPolicy: { enabled: true, policyRef: "baseline-hardening@v1", defaultDeny: false } }) }),
)
operation("create(security.transformations)", () =>
	make({ security: createSecurityPolicy({ transformations: [createTransformationRule({ match: "secret", replace: "x" })] }) }),
)
operation("create(volumes)", () => make({ volumes: [{ volumeId: "vol-1", mountPath: "/data" }] }))
operation("create(vault_refs)", () => make({ vaultRefs: { TOKEN: "vault://team/prod/name" } }))
operation("create(vault_refs) by name", () => make({ vaultRefs: { TOKEN: "name" } }))
operation("Volumes", () => Volumes.list())
operation("Vault", () => Vault.listSecrets())
operation("Template.build", () => Template.build(new TemplateBase().fromBaseImage("ubuntu:22.04"), "mine"))
operation("Governance", () => Governance.listPacks())

await main(async () => {
	await sandbox.kill()
	await Sandbox.killMany(made.slice(-900), { wait: true })
})
