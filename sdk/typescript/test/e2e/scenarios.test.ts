/** Runs the cases of sdk/scenarios, which the Python SDK runs too, against a real server. */

import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { readdirSync, readFileSync } from "node:fs";
import { request as httpRequest } from "node:http";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { isDeepStrictEqual } from "node:util";
import {
  type CommandResult,
  type CreateOptions,
  type Output,
  type Process,
  RingfenceError,
  type RunOptions,
  Sandbox,
  type SnapshotInfo,
} from "../../src/index.js";
import { driver, needsServer, realServer, repository, sleep } from "./server.js";

type Json = Record<string, unknown>;

interface Case {
  name: string;
  description: string;
  drivers?: string[];
  create?: Json;
  own_sandbox?: boolean;
  steps: Json[];
}

const directory = join(repository, "sdk/scenarios");
const cases = readdirSync(directory)
  .filter((name) => name.endsWith(".json"))
  .sort()
  .map((name) => JSON.parse(readFileSync(join(directory, name), "utf8")) as Case);

const deadlines = "timeout_seconds on_timeout idle_timeout_seconds auto_delete_seconds auto_resume";

const optionsOfVerb: Record<string, string> = {
  run: "command args cwd env user stdin stdin_base64 timeout_seconds output_limit_bytes stream",
  write: "path text base64 repeat user owner mode",
  write_many: "files",
  read: "path user offset length",
  read_text: "path",
  stat: "path user",
  exists: "path",
  list: "path depth",
  make_dir: "path user owner mode",
  rename: "from to user",
  remove: "path recursive user",
  get_info: "",
  wait_for: "state",
  kill: "",
  create: `template snapshot name metadata network idempotency_key ${deadlines}`,
  pause: "",
  resume: "",
  update: `${deadlines} metadata`,
  fork: "count",
  snapshot: "name",
  list_snapshots: "",
  get_snapshot: "snapshot",
  delete_snapshot: "snapshot",
  restore: "snapshot",
  update_network: "allow_out deny_out allow_internet_access closed_ports",
  get_network: "",
  network_flows: "verdict",
  start: "command stdin terminal",
  send: "process text",
  follow: "process until",
  request: "method path query headers json auth",
};

const server = realServer();

test("there are cases and they are well formed", () => {
  assert.ok(cases.length >= 25);
  for (const { steps, ...rest } of cases) {
    assertKeys(rest, "name description drivers create own_sandbox", rest.name);
    for (const step of steps) {
      const verb = verbOf(step);
      assertKeys(step[verb] as Json, optionsOfVerb[verb] ?? "", `${rest.name}: ${verb}`);
      assert.ok(!("expect" in step && "error" in step));
      assert.ok(!("keep" in step) || ["create", "fork", "snapshot", "start"].includes(verb));
    }
  }
});

describe(`scenarios with the ${driver} driver`, needsServer, () => {
  let shared: Sandbox;
  before(async () => {
    shared = await Sandbox.create(server.options);
  });
  after(() => shared.kill());

  for (const scenario of cases) {
    if (!(scenario.drivers ?? ["gvisor", "fake"]).includes(driver)) continue; // the other run's
    test(`${scenario.name}: ${scenario.description}`, async () => {
      const own = scenario.create !== undefined || scenario.own_sandbox === true;
      const sandbox = own
        ? await Sandbox.create({ ...server.options, ...camelKeys(scenario.create ?? {}) })
        : shared;
      const dir = `/tmp/scenario-${scenario.name}-${randomBytes(4).toString("hex")}`;
      await sandbox.files.makeDir(dir);
      const kept: Kept = { names: { dir, id: sandbox.id }, sandboxes: {}, processes: {} };
      try {
        for (const [index, step] of scenario.steps.entries()) {
          try {
            const { on, ...rest } = step;
            const target = on === undefined ? sandbox : kept.sandboxes[String(on)];
            assert.ok(target, `nothing was kept as ${on}`);
            await new Step(target, kept).take(rest);
          } catch (error) {
            const text = JSON.stringify(step).slice(0, 500);
            throw new Error(`step ${index} of sdk/scenarios/${scenario.name}.json: ${text}`, {
              cause: error,
            });
          }
        }
      } finally {
        for (const made of Object.values(kept.sandboxes)) await made.kill();
        if (own) await sandbox.kill();
        else await sandbox.files.remove(dir, { recursive: true });
      }
    });
  }
});

/** What a case has for its later steps. */
interface Kept {
  /** What names in braces stand for. */
  names: Record<string, string>;
  sandboxes: Record<string, Sandbox>;
  processes: Record<string, { process: Process; output: AsyncGenerator<Output, void, undefined> }>;
}

class Step {
  readonly #sandbox: Sandbox;
  readonly #kept: Kept;
  #keep: string[] = [];

  constructor(sandbox: Sandbox, kept: Kept) {
    this.#sandbox = sandbox;
    this.#kept = kept;
  }

  async take(raw: Json): Promise<void> {
    const step = this.#fill(raw) as Json;
    const verb = verbOf(step);
    this.#keep = [step["keep"] ?? []].flat().map(String);
    const expect = (step["expect"] ?? {}) as Json;
    const wanted = step["error"] as Json | undefined;
    if (wanted === undefined) return this.#do(verb, step[verb] as Json, expect);
    await assert.rejects(this.#do(verb, step[verb] as Json, {}), (error: unknown) => {
      assert.ok(error instanceof RingfenceError, String(error));
      if (wanted["class"] !== undefined) assert.equal(error.name, wanted["class"]);
      assert.equal(error.code, wanted["code"]);
      if (wanted["field"] !== undefined) assert.equal(error.field, wanted["field"]);
      for (const words of (wanted["message_contains"] ?? []) as string[])
        assert.ok(error.message.includes(words));
      assert.notEqual(error.message, "");
      assert.match(error.requestId ?? "", /^[0-9a-f]{16}$/);
      return true;
    });
  }

  /** Puts the directory and the ids in their places. */
  #fill(value: unknown): unknown {
    if (typeof value === "string")
      return value.replaceAll(/\{(\w+)\}/g, (whole, name) => this.#kept.names[name] ?? whole);
    if (Array.isArray(value)) return value.map((item) => this.#fill(item));
    if (typeof value !== "object" || value === null) return value;
    return Object.fromEntries(
      Object.entries(value).map(([key, item]) => [this.#fill(key), this.#fill(item)]),
    );
  }

  async #do(verb: string, given: Json, expect: Json): Promise<void> {
    const { path, ...options } = given as { path: string } & Json;
    const { files } = this.#sandbox;
    switch (verb) {
      case "run":
        return this.#run(given, expect);
      case "write": {
        const { text, base64: _, repeat: __, ...rest } = options;
        return compare(
          await files.write(path, typeof text === "string" ? text : content(given), rest),
          expect,
        );
      }
      case "write_many": {
        const entries = (given["files"] as Json[]).map((file) => ({
          path: String(file["path"]),
          data: content(file),
        }));
        const written = await files.writeMany(entries);
        assert.deepEqual(
          written.map((info) => info.path),
          entries.map((entry) => entry.path),
        );
        assert.equal(written.length, expect["count"] ?? written.length);
        return;
      }
      case "read": {
        const bytes = await files.read(path, options);
        for (const [key, wanted] of Object.entries(expect)) {
          if (key === "size") assert.equal(bytes.length, wanted);
          else
            assert.ok(content({ [key]: wanted }).equals(bytes), `${bytes.length} bytes differ from ${key}`);
        }
        return;
      }
      case "read_text":
        assert.equal(await files.readText(path, options), expect["text"]);
        return;
      case "stat":
        compare(await files.stat(path, options), expect);
        return compare(await files.getInfo(path, options), expect);
      case "exists":
        assert.equal(await files.exists(path, options), expect["value"]);
        return;
      case "list": {
        const found = new Map((await files.list(path, options)).map((info) => [info.path, info.type]));
        // By code point, which the order of UTF-8 bytes is and that of JavaScript's strings is not.
        const paths = [...found.keys()].sort((a, b) => Buffer.compare(Buffer.from(a), Buffer.from(b)));
        assert.deepEqual(paths, expect["paths"] ?? paths);
        for (const [at, type] of Object.entries((expect["types"] ?? {}) as Json))
          assert.equal(found.get(at), type);
        return;
      }
      case "make_dir":
        return compare(await files.makeDir(path, options), expect);
      case "rename": {
        const { from, to, ...rest } = given as { from: string; to: string } & Json;
        return compare(await files.rename(from, to, rest), expect);
      }
      case "remove":
        return files.remove(path, options);
      case "get_info":
        return compare(await this.#sandbox.getInfo(), expect);
      case "wait_for": {
        for (const end = Date.now() + 60_000; ; await sleep(50)) {
          const info = await this.#sandbox.getInfo();
          if (info.state === given["state"]) return compare(info, expect);
          assert.ok(Date.now() < end, `it is ${info.state}`);
        }
      }
      case "kill":
        return this.#sandbox.kill();
      case "create": {
        const made = await Sandbox.create({ ...server.options, ...camelKeys(given) } as CreateOptions);
        this.#keepAll([made]);
        return compare(await made.getInfo(), expect);
      }
      case "pause":
        return compare(await this.#sandbox.pause(), expect);
      case "resume":
        return compare(await this.#sandbox.resume(), expect);
      case "update":
        return compare(await this.#sandbox.update(camelKeys(given)), expect);
      case "fork": {
        const forks = await this.#sandbox.fork(given["count"] as number | undefined);
        this.#keepAll(forks);
        const ids = new Set([this.#sandbox.id, ...forks.map((fork) => fork.id)]);
        assert.equal(ids.size, Number(given["count"] ?? 1) + 1);
        for (const fork of forks) compare(await fork.getInfo(), expect);
        return;
      }
      case "snapshot": {
        const taken = await this.#sandbox.snapshot(given["name"] as string | undefined);
        this.#keepAll([taken]);
        return compare(taken, expect);
      }
      case "list_snapshots": {
        const names: string[] = [];
        for await (const { name } of this.#sandbox.listSnapshots()) names.push(name);
        assert.deepEqual(names, expect["names"]);
        return;
      }
      case "get_snapshot":
        return compare(await Sandbox.getSnapshot(String(given["snapshot"]), server.options), expect);
      case "delete_snapshot":
        return Sandbox.deleteSnapshot(String(given["snapshot"]), server.options);
      case "restore":
        return compare(await this.#sandbox.restore(String(given["snapshot"])), expect);
      case "update_network":
        return this.#sandbox.updateNetwork(camelKeys(given));
      case "get_network":
        return compare(await this.#sandbox.getNetwork(), expect);
      case "network_flows": {
        const end = Date.now() + 60_000;
        for (const wanted of (expect["has"] ?? [{}]) as Json[]) {
          for (let found = false; !found; await sleep(found ? 0 : 50)) {
            const flows: object[] = [];
            for await (const flow of this.#sandbox.networkFlows(options)) flows.push(flow);
            found = flows.some((flow) =>
              Object.entries(camelKeys(wanted)).every(([key, value]) => (flow as Json)[key] === value),
            );
            assert.ok(Date.now() < end, `${JSON.stringify(wanted)} is not in ${JSON.stringify(flows)}`);
          }
        }
        return;
      }
      case "start": {
        const command = String(given["command"]);
        const process = given["terminal"]
          ? await this.#sandbox.pty.create({ command })
          : await this.#sandbox.commands.start(command, { stdin: given["stdin"] === true });
        const [name] = this.#keep;
        if (name !== undefined)
          this.#kept.processes[name] = { process, output: process[Symbol.asyncIterator]() };
        return;
      }
      case "send":
        await this.#kept.processes[String(given["process"])]?.process.sendStdin(String(given["text"]));
        return;
      case "follow":
        return this.#follow(given, expect);
      case "request":
        return this.#request(given, expect);
      default:
        throw new Error(`unknown verb ${verb}`);
    }
  }

  /** Lets later steps name sandboxes and snapshots. */
  #keepAll(made: Array<Sandbox | SnapshotInfo>): void {
    if (this.#keep.length > 0) assert.equal(made.length, this.#keep.length);
    for (const [index, name] of this.#keep.entries()) {
      const one = made[index];
      if (one === undefined) continue;
      this.#kept.names[name] = one.id;
      if (one instanceof Sandbox) this.#kept.sandboxes[name] = one;
    }
  }

  async #follow(given: Json, expect: Json): Promise<void> {
    const kept = this.#kept.processes[String(given["process"])];
    assert.ok(kept, "nothing was kept under this name");
    const until = given["until"] as string | undefined;
    let text = "";
    try {
      // Not with for await, which would end the iteration that the next step goes on with.
      for (let next = await kept.output.next(); !next.done; next = await kept.output.next()) {
        text += next.value.text;
        if (until !== undefined && text.includes(until)) break;
      }
    } catch (error) {
      kept.output = kept.process[Symbol.asyncIterator](); // another look goes on where this one was
      throw error;
    }
    if (until !== undefined) assert.ok(text.includes(until), text);
    if ("text" in expect) assert.equal(text, expect["text"]);
    if ("exit_code" in expect) assert.equal(kept.process.result?.exitCode, expect["exit_code"]);
  }

  async #run(given: Json, expect: Json): Promise<void> {
    const { command, args, stream, stdin_base64, ...rest } = given;
    const options = camelKeys(rest) as RunOptions;
    if (typeof stdin_base64 === "string") options.stdin = Buffer.from(stdin_base64, "base64");
    const heard = { stdout: "", stderr: "" };
    if (stream === true) {
      options.onStdout = (text) => (heard.stdout += text);
      options.onStderr = (text) => (heard.stderr += text);
    }
    const began = performance.now();
    const result = await this.#sandbox.commands.run((command ?? args) as string | string[], options);
    const took = performance.now() - began;
    if (stream === true && !result.stdoutTruncated) assert.equal(heard.stdout, result.stdout);
    if (stream === true && !result.stderrTruncated) assert.equal(heard.stderr, result.stderr);
    const bytes = (name: string) =>
      Buffer.from(name.startsWith("stdout") ? result.stdoutBytes : result.stderrBytes);
    for (const [key, wanted] of Object.entries(expect)) {
      if (key.endsWith("_base64")) assert.equal(bytes(key).toString("base64"), wanted, key);
      else if (key === "stdout_size") assert.equal(bytes(key).length, wanted);
      else if (key.endsWith("_contains")) {
        const text = result[key.slice(0, -"_contains".length) as "stdout" | "stderr"];
        for (const words of wanted as string[])
          assert.ok(text.includes(words), `${JSON.stringify(text)} has no ${words}`);
      } else if (key === "max_ms") assert.ok(took <= Number(wanted), `${took} ms`);
      else if (key === "min_ms") assert.ok(took >= Number(wanted), `${took} ms`);
      else {
        const name = camel(key) as keyof CommandResult;
        assert.ok(name in result, `unknown expectation ${key}`);
        assert.deepEqual(result[name], wanted, `${key} of ${JSON.stringify(result).slice(0, 2000)}`);
      }
    }
  }

  async #request(given: Json, expect: Json): Promise<void> {
    const auth = String(given["auth"] ?? "key");
    const credentials: Record<string, string | undefined> = {
      key: server.apiKey,
      token: this.#sandbox.accessToken,
      wrong: `rf_${"0".repeat(64)}`,
    };
    const headers: Record<string, string> = { "Content-Type": "application/json" };
    if (auth !== "none") headers["Authorization"] = `Bearer ${credentials[auth]}`;
    const url = new URL(server.url + given["path"]);
    for (const [key, value] of Object.entries((given["query"] ?? {}) as Json))
      url.searchParams.set(key, String(value));
    const body = given["json"] === undefined ? undefined : JSON.stringify(given["json"]);
    const answer = await send(
      url,
      String(given["method"]),
      { ...headers, ...(given["headers"] as Json) },
      body,
    );
    assert.equal(answer.status, expect["status"] ?? answer.status, answer.body);
    assert.match(answer.requestId, /^[0-9a-f]{16}$/);
    const json = JSON.parse(answer.body);
    if (answer.status >= 400) assert.equal(json.error.request_id, answer.requestId);
    contains(json, expect["json"] ?? {});
    for (const words of (expect["message_contains"] ?? []) as string[])
      assert.ok(json.error.message.includes(words));
  }
}

/** Sends one raw request; unlike fetch, with any Host header. */
function send(
  url: URL,
  method: string,
  headers: Json,
  body: string | undefined,
): Promise<{ status: number; requestId: string; body: string }> {
  return new Promise((resolve, reject) => {
    const request = httpRequest(
      url,
      { method, headers: headers as Record<string, string>, agent: false },
      (response) => {
        const chunks: Buffer[] = [];
        response.on("data", (chunk) => chunks.push(chunk));
        response.on("error", reject);
        response.on("end", () =>
          resolve({
            status: response.statusCode ?? 0,
            requestId: String(response.headers["x-request-id"]),
            body: Buffer.concat(chunks).toString(),
          }),
        );
      },
    );
    request.on("error", reject);
    request.end(body);
  });
}

function verbOf(step: Json): string {
  const verbs = Object.keys(step).filter((key) => !["expect", "error", "on", "keep"].includes(key));
  const verb = verbs[0] ?? "";
  assert.ok(verbs.length === 1 && verb in optionsOfVerb, `unknown verb in ${JSON.stringify(step)}`);
  return verb;
}

function assertKeys(value: Json, known: string, where: string): void {
  for (const key of Object.keys(value))
    assert.ok(known.split(" ").includes(key), `${where}: unknown '${key}'`);
}

/** The bytes that text, base64 or repeat stand for. */
function content(options: Json): Buffer {
  if (typeof options["base64"] === "string") return Buffer.from(options["base64"], "base64");
  if (options["repeat"] !== undefined) {
    const { text, times } = options["repeat"] as { text: string; times: number };
    return Buffer.alloc(Buffer.byteLength(text) * times, text);
  }
  assert.equal(typeof options["text"], "string", `unknown content in ${Object.keys(options)}`);
  return Buffer.from(String(options["text"]));
}

function camel(name: string): string {
  return name.replace(/_([a-z])/g, (_, letter: string) => letter.toUpperCase());
}

/** Translates the names of options; the keys of env and metadata are the caller's own. */
function camelKeys(options: Json): Json {
  return Object.fromEntries(
    Object.entries(options).map(([key, value]) => [
      camel(key),
      key === "network" ? camelKeys(value as Json) : value,
    ]),
  );
}

function compare(info: object, expect: Json): void {
  for (const [key, value] of Object.entries(camelKeys(expect))) {
    if (key === "set") {
      for (const name of value as string[])
        assert.ok((info as Json)[camel(name)] != null, `${name} is not set`);
      continue;
    }
    assert.ok(key in info, `unknown expectation ${key}`);
    const found = (info as Json)[key];
    assert.ok(
      isDeepStrictEqual(found, value),
      `${key} is ${JSON.stringify(found)}, not ${JSON.stringify(value)}`,
    );
  }
}

/** Checks that all keys of wanted are in the answer, in depth. */
function contains(answer: unknown, wanted: unknown): void {
  if (typeof wanted !== "object" || wanted === null || Array.isArray(wanted)) {
    assert.deepEqual(answer, wanted);
    return;
  }
  for (const [key, value] of Object.entries(wanted)) contains((answer as Json)[key], value);
}
