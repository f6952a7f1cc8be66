/** The SDK against the real server: what the scenarios cannot say. */

import assert from "node:assert/strict";
import { createHash, randomBytes } from "node:crypto";
import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import {
  APIConnectionError,
  AuthenticationError,
  DiskFullError,
  InvalidArgumentError,
  IsDirectoryError,
  localFile,
  NotFoundError,
  Sandbox,
  SandboxEndedError,
  TemplateNotFoundError,
} from "../../src/index.js";
import { driver, needsServer, RealServer, realServer, scratch, sleep } from "./server.js";

const server = realServer();
const mark = () => randomBytes(4).toString("hex");

describe(`with the ${driver} driver`, needsServer, () => {
  let sandbox: Sandbox;
  before(async () => {
    sandbox = await Sandbox.create({ ...server.options, name: "shared" });
  });
  after(() => sandbox.kill());

  test("await using ends the sandbox", async () => {
    let id = "";
    {
      await using mine = await Sandbox.create({ ...server.options, template: "base" });
      id = mine.id;
      assert.match(id, /^[a-z0-9]{20}$/);
      assert.match(mine.accessToken ?? "", /^[0-9a-f]{64}$/);
      assert.equal((await mine.commands.run("echo hi")).stdout, "hi\n");
      assert.equal((await mine.getInfo()).state, "running");
    }
    const info = await Sandbox.getInfo(id, server.options);
    assert.deepEqual([info.state, info.reason], ["deleted", "killed"]);
    assert.ok(info.endedAt instanceof Date && info.endedAt >= info.createdAt);
    await assert.rejects(Sandbox.connect(id, server.options), SandboxEndedError);
  });

  test("list by metadata and state, in pages", async () => {
    const label = mark();
    const made: Sandbox[] = [];
    for (const n of ["0", "1", "2"]) {
      made.push(
        await Sandbox.create({ ...server.options, template: "base", name: `s${n}`, metadata: { label, n } }),
      );
    }
    await made[0]?.kill();
    const names = async (given: object) => {
      const found: string[] = [];
      for await (const info of Sandbox.list({ ...server.options, metadata: { label }, ...given }))
        found.push(info.name);
      return found;
    };
    assert.deepEqual(await names({}), ["s2", "s1"]);
    assert.deepEqual(await names({ pageSize: 1 }), ["s2", "s1"]);
    assert.deepEqual(await names({ state: ["running", "deleted"], pageSize: 2 }), ["s2", "s1", "s0"]);
    assert.deepEqual(await names({ state: "deleted" }), ["s0"]);
    assert.deepEqual(await names({ metadata: { label, n: "1" } }), ["s1"]);
    await Promise.all(made.map((one) => one.kill()));
  });

  test("an access token opens this sandbox and nothing else", async () => {
    const { accessToken } = sandbox;
    const byToken = await Sandbox.connect(sandbox.id, { baseUrl: server.url, accessToken });
    assert.equal((await byToken.commands.run("echo hi")).stdout, "hi\n");
    await byToken.files.write("/tmp/by-token", "x");
    const control = { baseUrl: server.url, apiKey: accessToken };
    await assert.rejects(Sandbox.getInfo(sandbox.id, control), {
      name: "PermissionDeniedError",
      status: 403,
    });
    await assert.rejects(Sandbox.kill(sandbox.id, control), { name: "PermissionDeniedError", status: 403 });
    const other = await Sandbox.connect("abcdefghij0123456789", { baseUrl: server.url, accessToken });
    await assert.rejects(other.commands.run("true"), NotFoundError);
  });

  test("refusals", async () => {
    const refused = (given: object) => Sandbox.create({ ...server.options, ...given });
    await assert.rejects(refused({ apiKey: `rf_${"0".repeat(64)}` }), (error: AuthenticationError) => {
      assert.ok(error instanceof AuthenticationError);
      assert.ok(error.hint && error.requestId);
      return true;
    });
    await assert.rejects(refused({ template: "code-interpeter" }), (error: TemplateNotFoundError) => {
      assert.ok(error instanceof TemplateNotFoundError);
      assert.match(error.hint ?? "", /code-interpreter/);
      return true;
    });
    await assert.rejects(refused({ idleTimeoutSeconds: -1 }), {
      name: "InvalidArgumentError",
      field: "idle_timeout_seconds",
    });
    await assert.rejects(refused({ autoDeleteSeconds: -1 }), {
      name: "InvalidArgumentError",
      field: "auto_delete_seconds",
    });
    await assert.rejects(refused({ network: { allowOut: ["https://example.com"] } }), InvalidArgumentError);
    await assert.rejects(refused({ network: { denyOut: ["1.2.3.999/32"] } }), InvalidArgumentError);
    await assert.rejects(refused({ network: { allowOut: ["no name"] } }), { field: "network.allow_out[0]" });
    await assert.rejects(refused({ memoryMib: 1 }), { name: "InvalidArgumentError", field: "memory_mib" });
    await assert.rejects(refused({ timeout: 0 }), { name: "InvalidArgumentError", field: "timeout_seconds" });
    await assert.rejects(Sandbox.connect("abcdefghij0123456789", server.options), NotFoundError);
  });

  test("the life limit, in each of its spellings", async () => {
    for (const given of [{ timeout: 200 }, { timeoutSeconds: 200 }, { timeoutMs: 200_000 }]) {
      await using mine = await Sandbox.create({ ...server.options, template: "base", ...given });
      const { createdAt, expiresAt } = await mine.getInfo();
      assert.equal(Math.round((Number(expiresAt) - Number(createdAt)) / 1000), 200);
    }
    const mine = await Sandbox.create({ ...server.options, template: "base", timeoutMs: 8000 });
    await assert.rejects(mine.commands.run("sleep 60", { onStdout: () => {} }), SandboxEndedError);
    assert.equal((await mine.getInfo()).reason, "expired");
  });

  test("output arrives while the command runs", async () => {
    const heard: Array<[number, string]> = [];
    const result = await sandbox.commands.run("echo one; sleep 1; echo two", {
      onStdout: (text) => heard.push([performance.now(), text]),
    });
    assert.deepEqual(
      heard.map(([, text]) => text),
      ["one\n", "two\n"],
    );
    assert.ok((heard[1]?.[0] ?? 0) - (heard[0]?.[0] ?? 0) > 700);
    assert.ok(result.durationMs >= 1000);
  });

  test("no deadline, which is read as a stream under the hood", async () => {
    const result = await sandbox.commands.run("echo out; echo err >&2; printf 'a\\377'; exit 3", {
      timeout: null,
    });
    assert.deepEqual([result.exitCode, result.stdout, result.stderr], [3, "out\na\ufffd", "err\n"]);
    assert.deepEqual(Buffer.from(result.stdoutBytes), Buffer.from("out\na\xff", "latin1"));
  });

  test("a signal that aborts kills the command, as does a callback that throws", async () => {
    const path = `/tmp/${mark()}`;
    for (const [n, given] of [{}, { timeout: null }, { onStdout: () => {} }].entries()) {
      const controller = new AbortController();
      const reason = new Error("no longer wanted");
      const command = `touch ${path}-${n}-begun; sleep 2; touch ${path}-${n}-survived`;
      const rejection = assert.rejects(
        sandbox.commands.run(command, { ...given, signal: controller.signal }),
        reason,
      );
      while (!(await sandbox.files.exists(`${path}-${n}-begun`))) await sleep(20);
      controller.abort(reason);
      await rejection;
    }
    const thrown = new RangeError("mine");
    const callback = () => {
      throw thrown;
    };
    await assert.rejects(
      sandbox.commands.run(`echo x; sleep 2; touch ${path}-3-survived`, { onStdout: callback }),
      (error) => error === thrown,
    );
    await sleep(3000);
    for (const n of [0, 1, 2, 3])
      assert.equal(await sandbox.files.exists(`${path}-${n}-survived`), false, String(n));
  });

  test("files of any size, through local files and streams", async (t) => {
    const directory = await scratch(t);
    const bytes = Buffer.concat(Array.from({ length: 20 }, (_, i) => Buffer.alloc(1 << 20, `${i}.`)));
    await writeFile(join(directory, "up"), bytes);
    const info = await sandbox.files.write("/tmp/large", localFile(join(directory, "up")));
    assert.equal(info.size, bytes.length);
    assert.equal(await sandbox.files.readTo("/tmp/large", join(directory, "down")), bytes.length);
    assert.ok(bytes.equals(await readFile(join(directory, "down"))));
    assert.ok(bytes.equals(await sandbox.files.read("/tmp/large")));
    const part = await sandbox.files.read("/tmp/large", { offset: (5 << 20) + 3, length: 5 });
    assert.ok(bytes.subarray((5 << 20) + 3, (5 << 20) + 8).equals(part));
    await sandbox.files.write("/tmp/large2", await sandbox.files.readStream("/tmp/large"));
    assert.ok(bytes.equals(await sandbox.files.read("/tmp/large2")));
    await sandbox.files.write("/tmp/large2", bytes);
    assert.equal((await sandbox.files.getInfo("/tmp/large2")).size, bytes.length);
    await sandbox.files.remove("/tmp/large");
    await sandbox.files.remove("/tmp/large2");
  });

  test("memory is flat, up and down and in a command's output", async () => {
    const mebibytes = driver === "gvisor" ? 512 : 64;
    const expected = createHash("sha256");
    const piece = (i: number) => Buffer.alloc(1 << 20, i % 251);
    for (let i = 0; i < mebibytes; i++) expected.update(piece(i));
    async function* source(count: number) {
      for (let i = 0; i < count; i++) yield piece(i);
    }
    const read = async () => {
      const digest = createHash("sha256");
      for await (const chunk of (await sandbox.files.readStream(
        "/tmp/flat",
      )) as unknown as AsyncIterable<Uint8Array>) {
        digest.update(chunk);
      }
      return digest.digest("hex");
    };
    await sandbox.files.write("/tmp/flat", source(8));
    await read();
    let most = 0;
    const before = process.memoryUsage.rss();
    const watch = setInterval(() => {
      most = Math.max(most, process.memoryUsage.rss());
    }, 20);
    const info = await sandbox.files.write("/tmp/flat", source(mebibytes));
    assert.equal(info.size, mebibytes << 20);
    assert.equal(await read(), expected.digest("hex"));
    await sandbox.files.remove("/tmp/flat");
    let heard = 0;
    const result = await sandbox.commands.run("yes 0123456789abcde | head -c 67108864", {
      outputLimitBytes: 1000,
      onStdout: (_, chunk) => {
        heard += chunk.length;
      },
      timeout: 120,
    });
    clearInterval(watch);
    assert.deepEqual(
      [result.exitCode, heard, result.stdoutBytes.length, result.truncated],
      [0, 1 << 26, 1000, true],
    );
    assert.ok(most - before < 150e6, `${Math.round((most - before) / 1e6)} MB more at the peak`);
  });

  test("an upload that breaks off leaves the older file", async () => {
    await sandbox.files.write("/tmp/older", "older");
    const thrown = new Error("the source broke");
    async function* failing() {
      yield Buffer.alloc(1 << 20);
      throw thrown;
    }
    await assert.rejects(sandbox.files.write("/tmp/older", failing()), (error) => error === thrown);
    await sleep(200);
    assert.equal(await sandbox.files.readText("/tmp/older"), "older");
  });

  test("an upload that is refused early says why", async () => {
    async function* endless() {
      for (let i = 0; i < 2000; i++) yield Buffer.alloc(1 << 20);
    }
    await assert.rejects(sandbox.files.write("/tmp", endless()), IsDirectoryError);
    await assert.rejects(sandbox.files.write("relative", endless()), {
      name: "InvalidArgumentError",
      field: "path",
    });
  });

  test("names that are not UTF-8", async () => {
    const directory = `/tmp/${mark()}`;
    const name = Buffer.concat([Buffer.from(`${directory}/`), Buffer.from([0xff, 0xfe, 0x0a, 0x2d])]);
    await sandbox.files.write(name, "content");
    const [info] = await sandbox.files.list(directory);
    assert.ok(info?.pathBytes !== undefined && name.equals(info.pathBytes));
    assert.equal(await sandbox.files.readText(info.pathBytes), "content");
    const renamed = await sandbox.files.rename(info.pathBytes, Buffer.concat([name, Buffer.from([0xfd])]));
    assert.ok(renamed.pathBytes !== undefined);
    await sandbox.files.makeDir(Buffer.concat([Buffer.from(`${directory}/`), Buffer.from([0xf0])]));
    assert.equal((await sandbox.files.list(directory)).length, 2);
    await sandbox.files.remove(renamed.pathBytes);
    await sandbox.files.remove(directory, { recursive: true });
    assert.equal(await sandbox.files.exists(directory), false);
  });

  test("many files and many commands at once", async () => {
    const directory = `/tmp/${mark()}`;
    const files = Object.fromEntries(
      Array.from({ length: 60 }, (_, i) => [`${directory}/${i % 7}/${i}`, `${i}`.repeat(99)]),
    );
    const written = await sandbox.files.writeMany(files);
    assert.deepEqual(
      written.map((info) => info.path),
      Object.keys(files),
    );
    for (const [path, text] of Object.entries(files).slice(0, 9))
      assert.equal(await sandbox.files.readText(path), text);
    await sandbox.files.remove(directory, { recursive: true });
    const results = await Promise.all(
      Array.from({ length: 60 }, (_, i) =>
        sandbox.commands.run(["echo", `${i}`], i % 2 ? {} : { onStdout: () => {} }),
      ),
    );
    assert.deepEqual(
      results.map((result) => result.stdout),
      results.map((_, i) => `${i}\n`),
    );
  });
});

if (driver === "fake") {
  test("a server that dies during a command is an error", needsServer, async () => {
    for (const given of [{}, { timeout: null }, { onStdout: () => {} }]) {
      const mine = new RealServer();
      await mine.start();
      try {
        const sandbox = await Sandbox.create({ ...mine.options, template: "base" });
        setTimeout(() => void mine.kill(), 500);
        await assert.rejects(sandbox.commands.run("echo x; sleep 20", given), (error: Error) => {
          assert.ok(error instanceof APIConnectionError);
          assert.match(error.message, /how the command ended is unknown/);
          return true;
        });
        await assert.rejects(sandbox.getInfo(), (error: APIConnectionError) => {
          assert.ok(error instanceof APIConnectionError);
          assert.match(error.hint ?? "", /ringfence serve/);
          return true;
        });
      } finally {
        await mine.stop();
      }
    }
  });
} else {
  test("a sandbox and its object outlive the server", needsServer, async () => {
    const mine = new RealServer();
    await mine.start();
    try {
      const sandbox = await Sandbox.create({ ...mine.options, template: "base" });
      await sandbox.files.write("/tmp/kept", "kept");
      await mine.kill();
      await mine.start();
      assert.equal(await sandbox.files.readText("/tmp/kept"), "kept");
      assert.equal((await sandbox.commands.run("echo alive")).stdout, "alive\n");
      await sandbox.kill();
    } finally {
      await mine.stop();
    }
  });

  test("a full disk is an error that says so, and no older file is lost", needsServer, async () => {
    await using sandbox = await Sandbox.create({ ...server.options, template: "base", diskMib: 64 });
    await sandbox.files.write("/home/user/x", "older");
    async function* large() {
      for (let i = 0; i < 200; i++) yield randomBytes(1 << 20);
    }
    await assert.rejects(sandbox.files.write("/home/user/x", large()), DiskFullError);
    await assert.rejects(sandbox.files.write("/home/user/x", randomBytes(200 << 20)), DiskFullError);
    assert.equal(await sandbox.files.readText("/home/user/x"), "older");
  });
}
