/** Packs the package, installs it into projects of its users, and runs them: what npm makes of it has to work. */

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { cp, mkdir, mkdtemp, readdir, readFile, realpath, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { API_KEY, FakeServer } from "../unit/server.js";

const run = promisify(execFile);
const root = fileURLToPath(new URL("../../../", import.meta.url)); // from build/test/package
const consumer = join(root, "test/package/consumer");
const tsc = join(root, "node_modules/typescript/bin/tsc");

const server = new FakeServer();
let directory = "";
let tarball = "";

before(async () => {
  await server.start();
  server.script = (seen) => ({ output: [["stdout", `ran ${seen.json["command"] ?? seen.json["args"]}`]] });
  directory = await realpath(await mkdtemp(join(tmpdir(), "ringfence-package-")));
});
after(async () => {
  await server.stop();
  await rm(directory, { recursive: true, force: true });
});

function environment(): NodeJS.ProcessEnv {
  // Settings of the npm that runs these tests are about this package and not about the projects made here.
  const own = Object.entries(process.env).filter(
    ([name]) => !/^npm_(config_(local_prefix|prefix|global)|package|lifecycle)/.test(name),
  );
  return { ...Object.fromEntries(own), RINGFENCE_URL: server.url, RINGFENCE_API_KEY: API_KEY };
}

async function project(name: string, dependency: string, ...flags: string[]): Promise<string> {
  const at = join(directory, name);
  await mkdir(at);
  await writeFile(join(at, "package.json"), JSON.stringify({ name, private: true, type: "module" }));
  await run("npm", ["install", "--no-audit", "--no-fund", ...flags, dependency], {
    cwd: at,
    env: environment(),
  });
  return at;
}

async function runsPlainJavaScript(at: string): Promise<void> {
  await cp(join(consumer, "program.mjs"), join(at, "program.mjs"));
  const { stdout } = await run(process.execPath, ["program.mjs"], { cwd: at, env: environment() });
  assert.match(stdout, /^ran cat a.txt\n\d+ exports\n$/);
}

describe("the packed package", () => {
  let at = "";

  before(async () => {
    const { stdout } = await run("npm", ["pack", "--json", "--pack-destination", directory], {
      cwd: root,
      env: environment(),
    });
    // A list of packages, or in newer versions of npm an object of them by name.
    const packed = Object.values(JSON.parse(stdout))[0] as {
      filename: string;
      files: Array<{ path: string }>;
    };
    tarball = join(directory, packed.filename);
    const paths = packed.files.map((file) => file.path).sort();
    const modules = [
      ...(await readdir(join(root, "src"))),
      ...(await readdir(join(root, "src/platform"))).map((f) => `platform/${f}`),
    ]
      .filter((name) => name.endsWith(".ts"))
      .flatMap((name) => [`dist/${name.replace(/\.ts$/, ".d.ts")}`, `dist/${name.replace(/\.ts$/, ".js")}`]);
    assert.deepEqual(paths, ["LICENSE", "README.md", "package.json", ...modules].sort());
  });

  test("installs without anything else", async () => {
    at = await project("consumer", tarball, "--offline", "--ignore-scripts");
    assert.deepEqual(await readdir(join(at, "node_modules")), [".package-lock.json", "@ringfence"]);
  });

  test("runs in a plain JavaScript project", async () => {
    await runsPlainJavaScript(at);
    const inner = run(process.execPath, ["-e", 'import("@ringfence/sdk/dist/client.js")'], { cwd: at });
    await assert.rejects(inner, /ERR_PACKAGE_PATH_NOT_EXPORTED/);
  });

  const settings: Array<[name: string, compilerOptions: object]> = [
    ["with the types of the browser", { lib: ["ES2022", "DOM"], types: [] }],
    ["with the types of Node", { lib: ["ES2022"], types: ["node"] }],
    ["for a bundler", { lib: ["ES2022", "DOM"], types: [], module: "ESNext", moduleResolution: "Bundler" }],
  ];
  for (const [name, compilerOptions] of settings) {
    test(`type-checks and runs in a strict TypeScript project ${name}`, async () => {
      await cp(join(consumer, "program.ts"), join(at, "program.ts"));
      for (const types of ["@types", "undici-types"]) {
        await rm(join(at, "node_modules", types), { force: true });
        await symlink(join(root, "node_modules", types), join(at, "node_modules", types));
      }
      const config = {
        compilerOptions: {
          target: "ES2022",
          module: "NodeNext",
          strict: true,
          exactOptionalPropertyTypes: true,
          skipLibCheck: false,
          ...compilerOptions,
        },
        files: ["program.ts"],
      };
      await writeFile(join(at, "tsconfig.json"), JSON.stringify(config));
      await run(process.execPath, [tsc, "-p", "."], { cwd: at }).catch((error) => assert.fail(error.stdout));
      const { stdout } = await run(process.execPath, ["program.js"], { cwd: at, env: environment() });
      assert.equal(stdout, "from TypeScript\n");
    });
  }
});

test("npm install of the directory of a checkout builds it", async () => {
  // As a checkout has it: without what a build or an install made.
  const checkout = join(directory, "checkout");
  const made = new Set(["node_modules", "dist", "build"].map((name) => join(root, name)));
  await cp(root, checkout, { recursive: true, filter: (source) => !made.has(source) });
  // NODE_ENV=production leaves development packages out, also those that the build needs, unless it says otherwise.
  process.env["NODE_ENV"] = "production";
  try {
    const at = await project("from-checkout", "../checkout");
    await runsPlainJavaScript(at);
    const installed = JSON.parse(await readFile(join(at, "package.json"), "utf8"));
    assert.deepEqual(installed.dependencies, { "@ringfence/sdk": "file:../checkout" });
  } finally {
    delete process.env["NODE_ENV"];
  }
});
