/**
 * Starts the real server, bin/ringfence, for the end-to-end tests.
 *
 * RINGFENCE_TEST_DRIVER says what isolates its sandboxes: `fake` (the default, needs nothing) or `gvisor` (needs root
 * and a built code-interpreter template in RINGFENCE_TEMPLATE_DIR).
 */

import { type ChildProcess, spawn } from "node:child_process";
import { randomBytes } from "node:crypto";
import { existsSync, openSync } from "node:fs";
import { mkdir, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, type TestContext } from "node:test";
import { fileURLToPath } from "node:url";
import { Sandbox } from "../../src/index.js";

export const repository = fileURLToPath(new URL("../../../../../", import.meta.url)); // from build/test/e2e
export const driver = process.env["RINGFENCE_TEST_DRIVER"] || "fake";
const binary = process.env["RINGFENCE_TEST_BINARY"] || join(repository, "bin/ringfence");
const templateDirectory = process.env["RINGFENCE_TEMPLATE_DIR"] || "/var/lib/ringfence/templates";

if (driver !== "fake" && driver !== "gvisor") throw new Error(`RINGFENCE_TEST_DRIVER is '${driver}'`);

/** What is missing for the end-to-end tests; undefined when nothing is. */
export const missing = !existsSync(binary)
  ? `${binary}; run \`make build\``
  : driver === "fake"
    ? undefined
    : process.getuid?.() !== 0
      ? "root, which real sandboxes need"
      : !existsSync(join(templateDirectory, "code-interpreter.json"))
        ? `the code-interpreter template in ${templateDirectory}; run \`make template\``
        : undefined;

// Nothing is skipped where everything has to run.
if (missing !== undefined && process.env["RINGFENCE_TEST_REQUIRE_ALL"] === "1")
  throw new Error(`missing: ${missing}`);

/** Options of a test that the server is needed for. */
export const needsServer = { skip: missing === undefined ? false : `missing: ${missing}` };

export class RealServer {
  readonly apiKey = `rf_${randomBytes(32).toString("hex")}`;
  url = "";
  #directory = "";
  #process: ChildProcess | undefined;
  #command: string[] = [];

  /** Options that lead an SDK call here. */
  get options(): { apiKey: string; baseUrl: string } {
    return { apiKey: this.apiKey, baseUrl: this.url };
  }

  /** What a program needs in its environment to find this server. */
  get environment(): Record<string, string | undefined> {
    return { ...process.env, RINGFENCE_URL: this.url, RINGFENCE_API_KEY: this.apiKey };
  }

  async start(): Promise<void> {
    if (this.#directory === "") {
      this.#directory = await mkdtemp(join(tmpdir(), "ringfence-ts-"));
      const templates = driver === "fake" ? await this.#fakeTemplates() : templateDirectory;
      const address = `127.0.0.1:${await freePort()}`;
      this.url = `http://${address}`;
      const data = join(this.#directory, "data");
      this.#command = [
        "serve",
        "--listen",
        address,
        "--driver",
        driver,
        "--data-dir",
        data,
        "--template-dir",
        templates,
      ];
    }
    const log = openSync(join(this.#directory, "server.log"), "a");
    const inherited = Object.entries(process.env).filter(([name]) => !name.startsWith("RINGFENCE_"));
    const child = spawn(binary, this.#command, {
      env: { ...Object.fromEntries(inherited), RINGFENCE_API_KEY: this.apiKey },
      stdio: ["ignore", log, log],
    });
    this.#process = child;
    process.once("exit", () => child.kill("SIGKILL")); // of a test run that breaks down
    for (const end = Date.now() + 60_000; ; ) {
      if (child.exitCode !== null)
        throw new Error(`the server ended with ${child.exitCode}:\n${await this.log()}`);
      const answer = await fetch(`${this.url}/health`).catch(() => undefined);
      if (answer?.ok) return;
      if (Date.now() > end) {
        await this.#end("SIGKILL");
        throw new Error(`the server does not answer:\n${await this.log()}`);
      }
      await sleep(50);
    }
  }

  /** Ends the server as a power cut would. */
  async kill(): Promise<void> {
    await this.#end("SIGKILL");
  }

  /** Ends the sandboxes, then the server, and removes its data. */
  async stop(): Promise<void> {
    if (this.#process !== undefined) {
      try {
        for await (const { id } of Sandbox.list(this.options)) await Sandbox.kill(id, this.options);
      } finally {
        await this.#end("SIGTERM");
      }
    }
    await rm(this.#directory, { recursive: true, force: true });
  }

  async log(): Promise<string> {
    return (await readFile(join(this.#directory, "server.log"), "utf8")).slice(-8000);
  }

  async #end(signal: NodeJS.Signals): Promise<void> {
    const child = this.#process;
    this.#process = undefined;
    if (child === undefined || child.exitCode !== null || child.signalCode !== null) return;
    const ended = new Promise((resolve) => child.once("exit", resolve));
    child.kill(signal);
    const patience = setTimeout(() => child.kill("SIGKILL"), 30_000);
    await ended;
    clearTimeout(patience);
  }

  /** Writes records of templates whose images the fake driver never opens. */
  async #fakeTemplates(): Promise<string> {
    const directory = join(this.#directory, "templates");
    await mkdir(join(directory, "images"), { recursive: true });
    for (const name of ["base", "code-interpreter"]) {
      const image = randomBytes(32).toString("hex");
      await writeFile(join(directory, "images", `${image}.erofs`), "");
      const record = {
        name,
        aliases: name === "base" ? [] : ["superserve/code-interpreter", "code-interpreter-v1"],
        summary: "of the fake driver",
        image,
        recipe: randomBytes(32).toString("hex"),
        user: "root",
        work_dir: "/home/user",
        env: { PATH: "/usr/local/bin:/usr/bin:/bin" },
        vcpu: 1,
        memory_mib: 256,
        disk_mib: 1024,
        built_at: "2026-11-30T20:00:00.000000Z",
      };
      await writeFile(join(directory, `${name}.json`), JSON.stringify(record));
    }
    return directory;
  }
}

/** The real server for the tests of one file. */
export function realServer(): RealServer {
  const server = new RealServer();
  before(() => (missing === undefined ? server.start() : undefined));
  after(() => (missing === undefined ? server.stop() : undefined));
  return server;
}

/** A directory that is removed after the test. */
export async function scratch(t: TestContext): Promise<string> {
  const directory = await mkdtemp(join(tmpdir(), "ringfence-ts-"));
  t.after(() => rm(directory, { recursive: true, force: true }));
  return directory;
}

export function sleep(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

async function freePort(): Promise<number> {
  const server = createServer();
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address() as { port: number };
  await new Promise((resolve) => server.close(resolve));
  return port;
}
