// Holds the dialect to what it promises under stress, with the TypeScript SDK.
import assert from "node:assert/strict"
import { setTimeout as sleep } from "node:timers/promises"
import { NotFoundError, Sandbox, SandboxError } from "@declaw/sdk"

const mark = "/tmp/started"
const command = `echo x >${mark}; sleep 600`

/** Kills a sandbox under what `run` does with it, and returns what that threw or returned. */
async function killUnder(run) {
	const sandbox = await Sandbox.create({ timeout: 300 })
	const outcome = run(sandbox).catch((error) => error)
	const end = Date.now() + 60_000
	while (!(await sandbox.files.exists(mark))) {
		assert.ok(Date.now() < end, "waited in vain for the command")
		await sleep(20)
	}
	await sandbox.kill({ wait: true })
	const got = await Promise.race([outcome, sleep(60_000, new Error("it hangs"), { ref: false })])
	const later = await sandbox.commands.run("true").catch((error) => error)
	assert.ok(later.constructor === SandboxError && later.message.includes("HTTP 410"), `${later}`)
	return got
}

let error = await killUnder((s) => s.commands.run(command, { timeout: 0 }))
assert.ok(error.constructor === NotFoundError && error.message.includes("it was killed"), `${error}`)
error = await killUnder(async (s) => (await s.commands.run(command, { background: true, timeout: 0 })).wait())
assert.ok((error.constructor === NotFoundError && error.message.includes("it was killed")) || error.message.includes("HTTP 410"), `${error}`)
let result = await killUnder((s) => s.commands.runStream(command, { timeout: 0 }))
assert.equal(result.exitCode, 137)
assert.match(result.stderr, /it was killed/)
result = await killUnder(async (s) => (await s.stdio.start(command)).wait())
assert.equal(result.exitCode, 137)
result = await killUnder(async (s) => {
	const pty = await s.pty.create({ onData: () => {} })
	await pty.sendInput(`${command}\n`)
	return pty.wait()
})
assert.equal(result.exitCode, 137)

// Many clients at once, in one sandbox: each command runs once.
const sandbox = await Sandbox.create({ timeout: 300 })
await Promise.all(
	Array.from({ length: 50 }, async (_, n) => {
		const client = await Sandbox.connect(sandbox.sandboxId)
		assert.equal((await client.commands.run(`echo x >>/tmp/runs; echo ${n}`, { timeout: 120 })).stdout, `${n}\n`)
		await client.files.write(`/tmp/file-${n}`, `text ${n}`)
		assert.equal(await client.files.read(`/tmp/file-${n}`), `text ${n}`)
	}),
)
assert.equal((await sandbox.commands.run("wc -l </tmp/runs")).stdout.trim(), "50")
await sandbox.kill()
console.log("done")
process.exit(0)
