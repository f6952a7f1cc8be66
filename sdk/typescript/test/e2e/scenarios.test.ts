/** Runs the cases of sdk/scenarios, which the Python SDK runs too, against a real server. */

import assert from "node:assert/strict";
import { randomBytes } from "node:crypto";
import { readdirSync, readFileSync } from "node:fs";
import { request as httpRequest } from "node:http";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { isDeepStrictEqual } from "node:util";
import { type CommandResult, RingfenceError, type RunOptions, Sandbox } from "../../src/index.js";
import { driver, needsServer, realServer, repository } from "./server.js";

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
  kill: "",
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
      try {
        for (const [index, step] of scenario.steps.entries()) {
          try {
            await new Step(sandbox, dir).take(step);
          } catch (error) {
            const text = JSON.stringify(step).slice(0, 500);
            throw new Error(`step ${index} of sdk/scenarios/${scenario.name}.json: ${text}`, {
              cause: error,
            });
          }
        }
      } finally {
        if (own) await sandbox.kill();
        else await sandbox.files.remove(dir, { recursive: true });
      }
    });
  }
});

class Step {
  readonly #sandbox: Sandbox;
  readonly #dir: string;

  constructor(sandbox: Sandbox, dir: string) {
    this.#sandbox = sandbox;
    this.#dir = dir;
  }

  async take(raw: Json): Promise<void> {
    const step = this.#fill(raw) as Json;
    const verb = verbOf(step);
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

  /** Puts the directory and the id in their places. */
  #fill(value: unknown): unknown {
    if (typeof value === "string")
      return value.replaceAll("{dir}", this.#dir).replaceAll("{id}", this.#sandbox.id);
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
      case "kill":
        return this.#sandbox.kill();
      case "request":
        return this.#request(given, expect);
      default:
        throw new Error(`unknown verb ${verb}`);
    }
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
  const verbs = Object.keys(step).filter((key) => key !== "expect" && key !== "error");
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
