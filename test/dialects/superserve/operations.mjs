// Does every operation of the Superserve dialect's table with the package @superserve/sdk.
import assert from "node:assert/strict"
import { inflateRawSync } from "node:zlib"
import { NotFoundError, Provider, Sandbox, Secret, Template } from "@superserve/sdk"
import { main, operation } from "./harness.mjs"

const made = {}
const mine = `me-${process.env.DIALECT_RUN}` // others do the same beside

async function sandbox(name = "main", options = {}) {
	made[name] ??= await Sandbox.create({ name, ...options })
	return made[name]
}

const status = async (s) => (await s.getInfo()).status
const wake = async (s) => {
	if ((await status(s)) === "paused") await s.resume()
	return s
}
const run = async (command, options) => (await sandbox()).commands.run(command, options)

async function until(what) {
	for (const end = Date.now() + 60_000; !(await what()); await new Promise((done) => setTimeout(done, 50)))
		assert(Date.now() < end, "it did not come to pass")
}

// The longest of them goes on beside the others.
const sleeper = (async () => {
	const s = await Sandbox.create({ name: "sleeper" })
	const result = await s.commands.run("echo begun; sleep 100")
	await s.kill()
	return result
})()
sleeper.catch(() => {}) // its operation says it

// Sandboxes

operation("Sandbox.create", async () => {
	const s = await sandbox()
	assert.deepEqual([s.name, s.status, s.metadata], ["main", "active", {}])
	assert.equal((await run("echo $((6 * 7))")).stdout, "42\n")
})
operation("Sandbox.create(from_template)", async () => {
	const s = await sandbox("code", { fromTemplate: "superserve/code-interpreter" })
	assert.equal((await s.commands.run("python -c 'import numpy; print(numpy.arange(3).sum())'", { timeoutMs: 60_000 })).stdout, "3\n")
	for (const fromTemplate of ["superserve/base", await (await Template.connect("superserve/base")).getInfo()])
		await (await Sandbox.create({ name: "t", fromTemplate })).kill()
})
operation("Sandbox.create(metadata, env_vars)", async () => {
	const s = await sandbox("tagged", { metadata: { owner: mine, ü: "ö" }, envVars: { GREETING: "hé" } })
	assert.deepEqual((await s.getInfo()).metadata, { owner: mine, ü: "ö" })
	assert.equal((await s.commands.run("echo $GREETING $HOME")).stdout, "hé /home/user\n")
})
operation("Sandbox.create(network)", async () => {
	const fetch = "curl -sS --max-time 20 http://api.known.test:8080/"
	const closed = await sandbox("closed", { network: { denyOut: ["0.0.0.0/0"] } })
	assert.notEqual((await closed.commands.run(fetch, { timeoutMs: 60_000 })).exitCode, 0)
	const some = await sandbox("some", { network: { allowOut: ["api.known.test"], denyOut: ["0.0.0.0/0"] } })
	assert.match((await some.commands.run(fetch, { timeoutMs: 60_000 })).stdout, /^api\.known\.test:8080 at/)
	assert.deepEqual((await some.getInfo()).network, { allowOut: ["api.known.test"], denyOut: ["0.0.0.0/0"] })
})
operation("Sandbox.create(timeout_seconds)", async () => {
	const s = await sandbox("capped", { timeoutSeconds: 1 })
	await until(async () => (await status(s)) === "paused")
	await s.resume() // another second
	await until(async () => (await status(s)) === "paused")
	await s.kill()
})
operation("Sandbox.create(auto_delete_seconds)", async () => {
	const s = await sandbox("passing", { autoDeleteSeconds: 0 })
	await s.pause()
	await until(() =>
		s.getInfo().then(
			() => false,
			(error) => error instanceof NotFoundError,
		),
	)
})
operation("Sandbox.create(secrets)", () => Sandbox.create({ name: "x", secrets: { ANTHROPIC_API_KEY: "anthropic" } }))
operation("Sandbox.connect", async () => {
	const s = await sandbox("tagged")
	await s.pause()
	const other = await Sandbox.connect(s.id)
	assert.deepEqual([other.id, other.status, other.metadata.owner], [s.id, "active", mine])
	assert.equal((await other.commands.run("echo $GREETING")).stdout, "hé\n")
})
operation("Sandbox.list", async () => {
	const found = await Sandbox.list()
	const info = found.find((each) => each.id === made.main.id)
	assert(info.vcpuCount > 0 && info.memoryMib > 0 && found.some((each) => each.id === made.tagged.id))
})
operation("Sandbox.list(metadata)", async () => {
	assert.deepEqual((await Sandbox.list({ metadata: { owner: mine, ü: "ö" } })).map((each) => each.id), [made.tagged.id])
	assert.deepEqual(await Sandbox.list({ metadata: { owner: "nobody" } }), [])
})
operation("Sandbox.get_info", async () => {
	const info = await made.tagged.getInfo()
	assert.deepEqual([info.name, info.status, info.autoDeleteAt], ["tagged", "active", undefined])
	assert(Math.abs(Date.now() - info.createdAt.getTime()) < 3600_000)
})
operation("Sandbox.pause", async () => {
	await run("echo kept > /tmp/kept; sleep 1000 >/dev/null 2>&1 & echo $! > /tmp/pid")
	await made.main.pause()
	assert.equal(await status(made.main), "paused")
})
operation("Sandbox.resume", async () => {
	await made.main.resume()
	assert.equal((await run("cat /tmp/kept; kill -0 $(cat /tmp/pid) && echo alive")).stdout, "kept\nalive\n")
})
operation("Sandbox.update(metadata)", async () => {
	await made.tagged.update({ metadata: { owner: "you" } })
	assert.deepEqual((await made.tagged.getInfo()).metadata, { owner: "you" })
})
operation("Sandbox.update(network)", async () => {
	await made.closed.update({ network: { allowOut: ["api.known.test"] } })
	assert.equal((await made.closed.commands.run("curl -sS --max-time 20 http://api.known.test:8080/", { timeoutMs: 60_000 })).exitCode, 0)
	assert.deepEqual((await made.closed.getInfo()).network, { allowOut: ["api.known.test"], denyOut: [] })
})
operation("Sandbox.update(timeout_seconds)", async () => {
	await made.tagged.update({ timeoutSeconds: 3600 })
	assert.equal((await made.tagged.getInfo()).timeoutSeconds, 3600)
	await made.tagged.update({ timeoutSeconds: null })
	assert.equal((await made.tagged.getInfo()).timeoutSeconds, undefined)
})
operation("Sandbox.update(auto_delete_seconds)", async () => {
	await made.tagged.pause()
	await made.tagged.update({ autoDeleteSeconds: 3000 })
	const info = await made.tagged.getInfo()
	const left = (info.autoDeleteAt.getTime() - Date.now()) / 1000
	assert(info.status === "paused" && info.autoDeleteSeconds === 3000 && left > 2000 && left <= 3000)
	await made.tagged.update({ autoDeleteSeconds: null })
	assert.equal((await made.tagged.getInfo()).autoDeleteAt, undefined)
	await made.tagged.resume()
})
operation("Sandbox.update_by_id", async () => {
	await Sandbox.updateById(made.tagged.id, { metadata: { by: "id" } })
	assert.deepEqual((await made.tagged.getInfo()).metadata, { by: "id" })
})
operation("Sandbox.get_network_log", async () => {
	const { events } = await made.some.getNetworkLog({ limit: 200 })
	assert(events.some((e) => e.host === "api.known.test" && e.verdict === "allowed" && e.dstPort === 8080 && e.kind === "connection"))
	await made.some.commands.run("for i in 1 2 3; do curl -s --max-time 20 http://198.51.100.9:8080/; done", { timeoutMs: 60_000 })
	assert((await made.some.getNetworkLog({ verdict: "blocked" })).events.some((e) => e.dstIp === "198.51.100.9"))
	const seen = []
	for (let page = { hasMore: true }; page.hasMore; ) {
		page = await made.some.getNetworkLog({ limit: 1, before: page.nextCursor })
		seen.push(...page.events.map((e) => e.id))
	}
	assert(seen.length >= 2)
	assert.deepEqual(seen, [...new Set(seen)].sort((a, b) => b - a))
})
operation("Sandbox.kill", async () => {
	const s = await sandbox("short")
	await s.kill()
	await s.kill()
	assert(!(await Sandbox.list()).some((each) => each.id === s.id))
})
operation("Sandbox.kill_by_id", async () => {
	const s = await sandbox("shorter")
	for (const id of [s.id, s.id, "not-one-of-ours"]) await Sandbox.killById(id)
})
operation("Sandbox.attach_secret", () => made.main.attachSecret("KEY", "anthropic"))
operation("Sandbox.detach_secret", () => made.main.detachSecret("KEY"))

// Commands

operation("commands.run", async () => {
	assert.deepEqual(await run("echo out; echo err >&2; exit 3"), { stdout: "out\n", stderr: "err\n", exitCode: 3 })
	assert.equal((await run("kill -TERM $$")).exitCode, 143)
	assert.equal((await run("cat")).stdout, "") // there is no input
	assert.equal((await run("no-such-program")).exitCode, 127)
})
operation("commands.run(cwd, env)", async () => {
	assert.equal((await run("pwd; echo $A", { cwd: "/tmp", env: { A: "é" } })).stdout, "/tmp\né\n")
	assert.equal((await run("pwd")).stdout, "/home/user\n")
})
operation("commands.run(timeout)", async () => {
	assert.deepEqual(await run("echo begun; sleep 100", { timeoutMs: 6000 }), { stdout: "begun\n", stderr: "", exitCode: 124 })
})
operation("commands.run in the background", async () => {
	assert.equal((await run("(sleep 2; echo later > /tmp/later) & echo now")).stdout, "now\n")
	await until(async () => (await run("cat /tmp/later")).stdout === "later\n")
})
operation("commands.run of bytes that are no text", async () => {
	assert.equal((await run(String.raw`printf 'a\377b\0c\302\205d'`)).stdout, "a\ufffdb\0c\x85d")
})
operation("commands.run with much output", async () => {
	// Each of these takes six bytes in JSON; the SDK takes no answer that is larger than 10 MiB.
	const result = await run("head -c 20000000 /dev/zero | tr '\\0' '\\1'; echo no >&2", { timeoutMs: 60_000 })
	assert(result.exitCode === 0 && /^\u0001+$/.test(result.stdout) && result.stdout.length > 1_700_000)
	assert.match(result.stderr, /^no\noutput was truncated/)
})
operation("commands.run(on_stdout, on_stderr)", async () => {
	const out = []
	const err = []
	const script = String.raw`printf 'h\303'; sleep 0.3; printf '\251\302\205\n'; echo err >&2; seq 20000; exit 4`
	const result = await run(script, { onStdout: (text) => out.push(text), onStderr: (text) => err.push(text) })
	const want = `hé\x85\n${Array.from({ length: 20000 }, (_, n) => `${n + 1}\n`).join("")}`
	assert.deepEqual([result, out.join(""), err.join("")], [{ stdout: want, stderr: "err\n", exitCode: 4 }, want, "err\n"])
	assert(out.length > 1)
})
operation("commands.run(on_stdout, timeout)", async () => {
	assert.deepEqual(await run("echo begun; sleep 100", { timeoutMs: 6000, onStdout: () => {} }), { stdout: "begun\n", stderr: "", exitCode: 124 })
})
operation("commands.run wakes a paused sandbox", async () => {
	await made.main.pause()
	assert.equal((await run("cat /tmp/kept")).stdout, "kept\n")
	await made.main.pause()
	assert.equal(await made.main.files.readText("/tmp/kept"), "kept\n")
})
operation("commands.spawn", async () => {
	let seen = ""
	const session = await made.main.commands.spawn("tr a-z A-Z; echo end >&2; exit 5", { onStdout: (text) => (seen += text) })
	session.stdin.write("hé\n".repeat(50000))
	session.stdin.write(new TextEncoder().encode("last\n"))
	session.stdin.close()
	const want = `${"Hé\n".repeat(50000)}LAST\n`
	assert.deepEqual([await session.wait(), seen], [{ stdout: want, stderr: "end\n", exitCode: 5 }, want])
})
operation("commands.spawn(cwd, env, timeout)", async () => {
	const session = await made.main.commands.spawn("pwd; echo $A; sleep 100", { cwd: "/tmp", env: { A: "b" }, timeoutMs: 6000 })
	assert.deepEqual(await session.wait(), { stdout: "/tmp\nb\n", stderr: "", exitCode: 124 })
})
operation("session.kill", async () => {
	let ready
	const begun = new Promise((done) => (ready = done))
	const script = "trap 'echo got it; exit 9' INT; echo ready; while :; do sleep 0.05; done"
	const session = await made.main.commands.spawn(script, { onStdout: ready })
	await begun
	session.kill("SIGINT")
	assert.deepEqual(await session.wait(), { stdout: "ready\ngot it\n", stderr: "", exitCode: 9 })
	const other = await made.main.commands.spawn("sleep 100")
	other.kill()
	assert.equal((await other.wait()).exitCode, 143)
})

// Files

const bytes = Uint8Array.from({ length: 256_000 }, (_, n) => n & 255)
operation("files.write", async () => {
	await made.main.files.write("/tmp/new/deep/text", "hé\n")
	await made.main.files.write("/tmp/new/bytes", bytes)
	await made.main.files.write("/tmp/new/blob", new Blob(["blob"]))
	assert.equal((await run("cd /tmp/new; stat -c '%a %s' deep/text bytes blob; rm blob")).stdout, "644 4\n644 256000\n644 4\n")
})
operation("files.write of a file that a command reads", async () => {
	await made.main.files.write("/home/user/ä b.sh", "echo from a file")
	assert.equal((await run("sh 'ä b.sh'")).stdout, "from a file\n")
})
operation("files.read", async () => {
	assert.deepEqual(await made.main.files.read("/tmp/new/bytes"), bytes)
	assert.match(await made.main.files.readText("/proc/version"), /^Linux version/)
})
operation("files.read_text", async () => assert.equal(await made.main.files.readText("/tmp/new/deep/text"), "hé\n"))
operation("files.download_dir", async () => {
	await run("mkdir -p /tmp/new/empty; ln -s /etc/passwd /tmp/new/link; ln -s deep /tmp/new/inside")
	const zip = Buffer.from(await made.main.files.downloadDir("/tmp/new"))
	const entries = {}
	const end = zip.lastIndexOf(Buffer.from("PK\x05\x06", "latin1"))
	for (let at = zip.readUInt32LE(end + 16), n = zip.readUInt16LE(end + 10); n > 0; n--) {
		const [method, packed, named, extra, note, local] = [10, 20, 28, 30, 32, 42].map((o) => (o === 20 || o === 42 ? zip.readUInt32LE(at + o) : zip.readUInt16LE(at + o)))
		const from = local + 30 + zip.readUInt16LE(local + 26) + zip.readUInt16LE(local + 28)
		const raw = zip.subarray(from, from + packed)
		entries[zip.toString("utf8", at + 46, at + 46 + named)] = method === 8 ? inflateRawSync(raw) : raw
		at += 46 + named + extra + note
	}
	assert.deepEqual(Object.keys(entries).sort(), ["new/", "new/bytes", "new/deep/", "new/deep/text", "new/empty/"])
	assert(entries["new/bytes"].equals(bytes))
})
operation("files.download_dir of a file", async () => {
	assert.equal(new TextDecoder().decode(await made.main.files.downloadDir("/tmp/new/deep/text")), "hé\n")
})
operation("files.read of a file that is missing", () => made.main.files.read("/tmp/missing"))
operation("files.read of a directory", () => made.main.files.read("/tmp"))
operation("files.write below /proc", () => made.main.files.write("/proc/x", "x"))

// Ports

operation("Sandbox.get_preview_url", async () => {
	await run("mkdir -p /tmp/web && cd /tmp/web && echo hello > index.html && python3 -m http.server 8000 >/dev/null 2>&1 &")
	await until(async () => (await run("curl -s localhost:8000")).stdout === "hello\n")
	const url = made.main.getPreviewUrl(8000)
	assert.equal(url, `https://8000-${made.main.id}.sandbox.superserve.ai`)
	for (const each of [`${url}/`, new URL("/index.html?a=b", url), new Request(url)]) {
		const response = await fetch(each)
		assert.deepEqual([response.status, await response.text()], [200, "hello\n"])
	}
	await assert.rejects(fetch("https://api.superserve.ai/sandboxes"), /may not be called from here/)
})

// Templates

operation("Template.list", async () => {
	const names = (await Template.list()).map((each) => each.name)
	assert(names.includes("superserve/base") && names.includes("superserve/code-interpreter"))
	assert.deepEqual((await Template.list({ namePrefix: "superserve/code" })).map((each) => each.name), ["superserve/code-interpreter"])
})
operation("Template.connect", async () => {
	assert.equal((await Template.connect("superserve/code-interpreter")).name, "superserve/code-interpreter")
})
const base = () => Template.connect("superserve/base")
operation("Template.get_info", async () => {
	const info = await (await base()).getInfo()
	assert(info.status === "ready" && info.vcpu > 0 && info.diskMib > 0 && info.builtAt instanceof Date)
})
operation("Template.list_builds", async () => assert.deepEqual(await (await base()).listBuilds({ limit: 5 }), []))
operation("Template.create", () => Template.create({ name: "mine", from: "debian:12", steps: [{ run: "true" }] }))
operation("Template.rebuild", async () => (await base()).rebuild())
operation("Template.delete", async () => (await base()).delete())
operation("Template.get_build", async () => (await base()).getBuild("b1"))

// Secrets

operation("Secret.create", () => Secret.create({ name: "anthropic", value: "sk-ant", provider: "anthropic" }))
operation("Secret.get", () => Secret.get("anthropic"))
operation("Secret.list", async () => assert.deepEqual(await Secret.list(), []))
operation("Secret.delete_by_name", () => Secret.deleteByName("anthropic"))
operation("Provider.list", async () => assert.deepEqual(await Provider.list(), []))

// Errors

operation("a call without a valid API key", () => Sandbox.list({ apiKey: "ss_live_not_a_key" }))
operation("a call on an unknown sandbox", () => Sandbox.connect("aaaaaaaaaaaaaaaaaaaa"))
operation("a command in a sandbox that was killed", async () => {
	const s = await Sandbox.create({ name: "killed" })
	await Sandbox.killById(s.id)
	for (const call of [() => s.files.read("/etc/passwd"), () => s.files.write("/tmp/x", "x"), () => s.getInfo(), () => s.pause(), () => s.resume(), () => s.commands.spawn("true")])
		await assert.rejects(call, NotFoundError)
	await s.commands.run("true")
})
operation("a template that is not there", () => Sandbox.create({ name: "x", fromTemplate: "superserve/openclaw" }))
operation("a network rule that is none", () => Sandbox.create({ name: "x", network: { denyOut: ["example.com"] } }))
operation("pause of a sandbox that is paused", async () => {
	await made.main.pause()
	await made.main.pause()
})
operation("resume of a sandbox that is active", async () => (await wake(made.main)).resume())
operation("update(network) of a sandbox that is paused", async () => {
	await (await wake(made.main)).pause()
	try {
		await made.main.update({ network: { denyOut: ["0.0.0.0/0"] } })
	} finally {
		await made.main.resume()
	}
})
operation("commands.run without a timeout", async () => {
	assert.deepEqual(await sleeper, { stdout: "begun\n", stderr: "", exitCode: 124 })
})

await main()
