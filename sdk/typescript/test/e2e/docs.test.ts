/** Compiles and runs the blocks of docs/sdk-typescript.md as the one program that the page says they are. */

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdir, readFile, symlink, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { test } from "node:test";
import { promisify } from "node:util";
import { driver, needsServer, realServer, repository, scratch } from "./server.js";

const run = promisify(execFile);

const printed = `\
0 42
 
b
a

1
2
3
TimeoutError
"typed\\nend\\n"
0
true
true
Uint8Array(2) [ 0, 1 ]
text
ex
10000 false
[ '/home/user/data/in.csv' ]
{ reviewed: 'yes' }
64
1
true
true
[ 'packages.example.org' ]
true
true
created
text
got input

changed
changed
text
before the upgrade
true true null
text
true
running
`;

if (driver === "gvisor") {
  const server = realServer();
  test("the program in docs/sdk-typescript.md", needsServer, async (t) => {
    const page = await readFile(join(repository, "docs/sdk-typescript.md"), "utf8");
    const blocks = [...page.matchAll(/^```ts\n([\s\S]*?)^```$/gm)].map((match) => match[1]);
    assert.ok(blocks.length >= 6);
    const cwd = await scratch(t);
    const sdk = join(repository, "sdk/typescript");
    await run(process.execPath, [join(sdk, "scripts/prepare.mjs")]);
    await mkdir(join(cwd, "node_modules/@ringfence"), { recursive: true });
    await symlink(sdk, join(cwd, "node_modules/@ringfence/sdk"));
    await symlink(join(sdk, "node_modules/@types"), join(cwd, "node_modules/@types"));
    await writeFile(join(cwd, "package.json"), '{"type":"module"}');
    await writeFile(join(cwd, "page.ts"), blocks.join("\n"));
    const config = {
      compilerOptions: { target: "ES2022", module: "NodeNext", strict: true, types: ["node"] },
      files: ["page.ts"],
    };
    await writeFile(join(cwd, "tsconfig.json"), JSON.stringify(config));
    const tsc = join(sdk, "node_modules/typescript/bin/tsc");
    await run(process.execPath, [tsc, "-p", "."], { cwd }).catch((error) => assert.fail(error.stdout));
    const { stdout, stderr } = await run(process.execPath, ["page.js"], {
      cwd,
      env: server.environment,
      timeout: 200_000,
    });
    assert.equal(stderr, "");
    assert.equal(stdout, printed);
  });
}
