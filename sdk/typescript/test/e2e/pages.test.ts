/** Runs both pages' programs as they are, in real sandboxes, and compares what they print. */

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { existsSync } from "node:fs";
import { mkdir, readFile, symlink, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { before, describe, test } from "node:test";
import { promisify } from "node:util";
import { Sandbox } from "../../src/index.js";
import { driver, needsServer, type RealServer, realServer, repository, scratch } from "./server.js";

const run = promisify(execFile);
const examples = join(repository, "examples/typescript");

// console.log(exitCode, stdout, stderr) of the first cell, then console.log(stdout) of the second.
const superserve = `\
0               x         y
count  4.000000  4.000000
mean   2.500000  5.000000
std    1.290994  2.581989
min    1.000000  2.000000
25%    1.750000  3.500000
50%    2.500000  5.000000
75%    3.250000  6.500000
max    4.000000  8.000000
${" "}
540

`;

// The page prints 'NA': 180 among the sums too. No pandas does: read_csv takes the text NA for a missing value, and
// groupby leaves rows with a missing key out.
const declaw = `\
--- snippet 1 (exit=0) ---
solution: {x: 13/7, y: 11/7}
--- snippet 2 (exit=0) ---
{'APAC': 150, 'EU': 80}
--- snippet 3 (exit=0) ---
wrote /tmp/chart.png

chart.png exists: SIZE bytes
`;

async function live(server: RealServer): Promise<string[]> {
  const ids: string[] = [];
  for await (const { id } of Sandbox.list(server.options)) ids.push(id);
  return ids.sort();
}

if (driver === "gvisor") {
  const server = realServer();
  describe("both pages' programs", needsServer, () => {
    before(async () => {
      await run(join(examples, "prepare"), { timeout: 300_000 });
    });

    test("page 1", async (t) => {
      const cwd = await scratch(t);
      const liveBefore = await live(server);
      const { stdout, stderr } = await run(process.execPath, [join(examples, "dist/superserve_page.js")], {
        cwd,
        env: server.environment,
        timeout: 200_000,
      });
      assert.equal(stderr, "");
      assert.equal(stdout, superserve);
      const png = await readFile(join(cwd, "chart.png"));
      assert.equal(png.subarray(0, 8).toString("latin1"), "\x89PNG\r\n\x1a\n");
      assert.equal(png.subarray(-8).toString("latin1"), "IEND\xaeB`\x82");
      // 6.4 by 4.8 inches, matplotlib's default, at 150 dots an inch.
      assert.deepEqual([png.readUInt32BE(16), png.readUInt32BE(20)], [960, 720]);
      assert.deepEqual(await live(server), liveBefore);
    });

    test("page 2, with its settings in .env", async (t) => {
      const cwd = await scratch(t);
      const liveBefore = await live(server);
      await writeFile(
        join(cwd, ".env"),
        `RINGFENCE_API_KEY="${server.apiKey}"\nRINGFENCE_URL="${server.url}"\n`,
      );
      const environment = { ...server.environment };
      delete environment["RINGFENCE_API_KEY"];
      delete environment["RINGFENCE_URL"];
      const { stdout, stderr } = await run(process.execPath, [join(examples, "dist/declaw_page.js")], {
        cwd,
        env: environment,
        timeout: 200_000,
      });
      assert.equal(stderr, "");
      const size = /exists: (\d+) bytes/.exec(stdout)?.[1] ?? "";
      assert.ok(Number(size) > 10_000, stdout);
      assert.equal(stdout.replace(size, "SIZE"), declaw);
      assert.deepEqual(await live(server), liveBefore);
    });

    test("page 1's tool, which the page defines for a model to call", async (t) => {
      const cwd = await scratch(t);
      const program = await readFile(join(examples, "dist/superserve_page.js"), "utf8");
      const kill = "await sandbox.kill();\n";
      assert.ok(program.endsWith(kill));
      const check = `
      const answers = [];
      for (const code of ["print('é' * 3)", "1 / 0", "print('x' * 50_000)", "print(open('sales.csv').readline())"]) {
        answers.push(await runPython(code));
      }
      await writeFile("answers.json", JSON.stringify([runPythonTool.name, ...answers]));
    `;
      // Beside the examples' packages, so that its imports are found.
      await mkdir(join(cwd, "program"));
      await symlink(join(examples, "node_modules"), join(cwd, "program/node_modules"));
      await writeFile(join(cwd, "program/tool.mjs"), program.slice(0, -kill.length) + check + kill);
      await run(process.execPath, ["program/tool.mjs"], { cwd, env: server.environment, timeout: 200_000 });
      assert.ok(existsSync(join(cwd, "answers.json")));
      const [name, ...answers] = JSON.parse(await readFile(join(cwd, "answers.json"), "utf8"));
      assert.equal(name, "run_python");
      assert.deepEqual(answers[0], { exit_code: 0, stdout: "ééé\n", stderr: "" });
      assert.equal(answers[1].exit_code, 1);
      assert.match(answers[1].stderr, /^Traceback \(most recent call last\):[\s\S]*ZeroDivisionError/);
      assert.equal(answers[2].stdout.length, 10_000);
      assert.equal(answers[3].stdout, "month,revenue\n\n");
    });
  });
}
