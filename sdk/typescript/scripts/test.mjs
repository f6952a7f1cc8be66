// Runs one directory of built tests with Node's test runner and prints what failed and a last line of counts.
// Usage: node scripts/test.mjs unit|package|e2e
import { readdirSync } from "node:fs";
import { run } from "node:test";
import { fileURLToPath } from "node:url";
import { inspect } from "node:util";

const directory = fileURLToPath(new URL(`../build/test/${process.argv[2]}`, import.meta.url));
const files = readdirSync(directory)
  .filter((name) => name.endsWith(".test.js"))
  .map((name) => `${directory}/${name}`);
const counts = { passed: 0, failed: 0, skipped: 0 };
const write = (text) => process.stdout.write(`${text}\n`);

// One file at a time: those of the end-to-end tests each have a server of their own.
const tests = run({ files, concurrency: process.argv[2] === "unit", timeout: 900_000 });
const path = [];
tests.on("test:start", ({ name, nesting }) => {
  path.length = nesting;
  path[nesting] = name;
});
tests.on("test:pass", ({ name, details, skip }) => {
  if (details.type === "suite" && skip === undefined) return;
  if (files.includes(name)) return; // a file without tests for this driver counts as none
  if (skip === undefined) counts.passed++;
  else {
    counts.skipped++;
    write(`skipped: ${name}: ${skip}`);
  }
});
tests.on("test:fail", ({ name, nesting, details }) => {
  if (details.error?.failureType === "subtestsFailed") return; // said by the test within
  counts.failed++;
  write(
    `FAILED: ${[...path.slice(0, nesting), name].join(" > ")}\n${inspect(details.error?.cause ?? details.error, { depth: 6 })}`,
  );
});
tests.on("test:diagnostic", ({ message }) => {
  // What went wrong after its test had ended; the file fails for it.
  if (!/^(tests|suites|pass|fail|cancelled|skipped|todo|duration_ms) /.test(message)) write(message);
});
tests.on("test:stderr", ({ message }) => process.stderr.write(message));
tests.on("end", () => {
  write(`${counts.passed} passed, ${counts.failed} failed, ${counts.skipped} skipped`);
  process.exitCode = counts.failed === 0 && counts.passed > 0 ? 0 : 1;
});
tests.resume();
