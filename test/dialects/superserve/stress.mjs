// What the package @superserve/sdk makes of sandboxes that end or pause under it, and of many clients at once.
import assert from "node:assert/strict"
import { ConflictError, NotFoundError, Sandbox, SandboxError } from "@superserve/sdk"

async function until(what) {
	for (const end = Date.now() + 60_000; ; await new Promise((done) => setTimeout(done, 50))) {
		try {
			return await what()
		} catch (error) {
			if (Date.now() > end) throw error
		}
	}
}

const outcome = (promise) => promise.catch((error) => error)

// Runs a command in each way, ends them all at once, and returns what came of each.
async function under(end) {
	const s = await Sandbox.create({ name: "under" })
	const script = (name) => `echo x >> /tmp/count; touch /tmp/${name}; echo out; sleep 100`
	const run = outcome(s.commands.run(script("run"), { timeoutMs: 90_000 }))
	const stream = outcome(s.commands.run(script("stream"), { timeoutMs: 90_000, onStdout: () => {} }))
	const session = await s.commands.spawn(script("spawn"))
	for (const name of ["run", "stream", "spawn"]) await until(() => s.files.read(`/tmp/${name}`))
	await end(s)
	return [s, await run, await stream, await outcome(session.wait())]
}

{
	const [s, run, stream, spawn] = await under((s) => Sandbox.killById(s.id))
	assert(run instanceof NotFoundError, run)
	for (const result of [stream, spawn]) {
		assert.deepEqual([result.exitCode, result.stdout], [137, "out\n"])
		assert.match(result.stderr, /has ended/)
	}
	for (const call of [() => s.commands.run("true"), () => s.files.read("/tmp/run"), () => s.getInfo(), () => Sandbox.connect(s.id)])
		await assert.rejects(call, NotFoundError)
}
{
	const [s, run, stream, spawn] = await under((s) => s.pause())
	assert(run instanceof ConflictError, run)
	assert.equal(stream.constructor, SandboxError)
	assert.equal(spawn.constructor, SandboxError)
	assert.match(spawn.message, /pause/)
	// All three go on, and none was started twice.
	assert.deepEqual((await s.commands.run("wc -l < /tmp/count; pgrep -c sleep")).stdout.split(/\s+/, 2), ["3", "3"])
	await s.kill()
}
{
	// A client that goes away ends its command.
	const s = await Sandbox.create({ name: "left" })
	const leave = new AbortController()
	const run = outcome(s.commands.run("touch /tmp/begun; sleep 1234", { signal: leave.signal }))
	await until(() => s.files.read("/tmp/begun"))
	leave.abort()
	assert((await run) instanceof SandboxError)
	await until(async () => assert.equal((await s.commands.run("pgrep -f 'sleep 123[4]'")).exitCode, 1))
	await s.kill()
}
{
	const boxes = []
	for (let n = 0; n < 3; n++) boxes.push(await Sandbox.create({ name: `crowd ${n}` }))
	await Promise.all(
		Array.from({ length: 50 }, async (_, n) => {
			const s = await Sandbox.connect(boxes[n % 3].id)
			const text = String(n).repeat(1000)
			await s.files.write(`/tmp/${n}`, text)
			assert.deepEqual(await s.commands.run(`cat /tmp/${n}; echo ${n} >&2`, { timeoutMs: 60_000 }), { stdout: text, stderr: `${n}\n`, exitCode: 0 })
			const session = await s.commands.spawn("cat")
			session.stdin.write(text)
			session.stdin.close()
			assert.equal((await session.wait()).stdout, text)
		}),
	)
	for (const s of boxes) await s.kill()
}
console.log("ok")
process.exit(0)
