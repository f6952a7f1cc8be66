// Does a dialect's operations in the order in which they are declared, and writes how each went.
import { appendFileSync } from "node:fs"

const run = process.env.DIALECT_RUN
const operations = []

/** Declares an operation. With `only`, it is done with these packages alone, as in the table. */
export function operation(name, body, ...only) {
	if (only.length === 0 || only.includes(run) || only.includes(run.split("-")[0])) operations.push([name, body])
}

/** Does them all; `last` cleans up. */
export async function main(last) {
	for (const [name, body] of operations) {
		const result = { operation: name }
		const began = performance.now()
		try {
			await body()
		} catch (error) {
			Object.assign(result, { error: error?.constructor?.name ?? "unknown", message: String(error?.message ?? error), trace: error?.stack ?? "" })
		}
		result.seconds = Math.round((performance.now() - began) / 100) / 10
		appendFileSync(process.env.DIALECT_RESULTS, `${JSON.stringify(result)}\n`)
	}
	await last?.()
	process.exit(0) // connections that are kept alive would hold it
}
