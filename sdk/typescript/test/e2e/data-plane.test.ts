/** Background processes, terminals, directories, ports, metrics and events in real sandboxes. */

import assert from "node:assert/strict";
import { createHash, randomBytes } from "node:crypto";
import * as fs from "node:fs/promises";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import {
  APITimeoutError,
  ArchiveRefusedError,
  FailedPreconditionError,
  InvalidArgumentError,
  IsDirectoryError,
  PreconditionFailedError,
  ProcessNotFoundError,
  Sandbox,
  type Terminal,
} from "../../src/index.js";
import { driver, needsServer, realServer, scratch, sleep } from "./server.js";

if (driver === "gvisor") {
  const server = realServer();
  const mark = () => randomBytes(4).toString("hex");

  describe("the data plane", needsServer, () => {
    let sandbox: Sandbox;
    before(async () => {
      sandbox = await Sandbox.create({ ...server.options, name: "data plane" });
    });
    after(() => sandbox.kill());

    test("a background command is followed to its end", async () => {
      const process = await sandbox.commands.run("echo out; echo err >&2; sleep 0.2; echo more; exit 5", {
        background: true,
      });
      const seen = { stdout: "", stderr: "" };
      let end = 0;
      for await (const piece of process) {
        assert.equal(piece.position, end);
        end += piece.bytes.length;
        seen[piece.stream] += piece.text;
      }
      assert.deepEqual(seen, { stdout: "out\nmore\n", stderr: "err\n" });
      assert.deepEqual([process.result?.exitCode, process.lost, process.position], [5, 0, end]);
    });

    test("anybody joins again from any position, also after the end", async () => {
      const tag = mark();
      const started = await sandbox.commands.start("printf 0123456789; exit 3", { tag });
      assert.equal((await started.wait()).stdout, "0123456789");
      const other = await Sandbox.connect(sandbox.id, server.options);
      for (const reference of [started.id, started.pid, `tag:${tag}`]) {
        const again = await other.commands.connect(reference);
        assert.equal(again.id, started.id);
        assert.equal((await again.wait()).stdout, "0123456789");
      }
      const late = await other.commands.connect(started.id, { fromPosition: 7 });
      assert.equal((await late.wait()).stdout, "789");
      const [info] = await other.commands.list({ tag });
      assert.deepEqual([info?.state, info?.exit?.exitCode, info?.logEnd], ["ended", 3, 10]);
      await assert.rejects(sandbox.commands.connect("nothing"), ProcessNotFoundError);
    });

    test("stdin stays open until it is closed", async () => {
      const process = await sandbox.commands.start("cat; echo end", { stdin: true });
      const bytes = Uint8Array.from({ length: 256 }, (_, i) => i);
      assert.equal(await process.sendStdin("t\u00ebxt\n"), 6);
      await process.sendStdin(bytes);
      await process.closeStdin();
      const result = await process.wait();
      const wanted = Buffer.concat([Buffer.from("t\u00ebxt\n"), bytes, Buffer.from("end\n")]);
      assert.deepEqual(Buffer.from(result.stdoutBytes), wanted);
      await assert.rejects(process.sendStdin("more"), FailedPreconditionError);
      const large = randomBytes(4 << 20);
      const sum = await (await sandbox.commands.start("sha256sum", { stdin: large })).wait();
      assert.equal(sum.stdout.split(" ")[0], createHash("sha256").update(large).digest("hex"));
    });

    test("signals, kill, deadlines and waiting with an end", async () => {
      // bash: dash loses a signal that comes while it starts a command.
      const trap = await sandbox.commands.start([
        "bash",
        "-c",
        "trap 'exit 9' INT; echo ready; while :; do sleep 0.05; done",
      ]);
      for await (const piece of trap) {
        assert.equal(piece.text, "ready\n");
        break;
      }
      assert.equal(await trap.signal("SIGINT"), true);
      assert.equal((await trap.wait()).exitCode, 9);
      assert.equal(await trap.kill(), false);
      const slow = await sandbox.commands.start("echo before; sleep 2; echo after");
      await assert.rejects(slow.wait({ timeoutMs: 500 }), APITimeoutError);
      assert.equal((await slow.wait()).stdout, "after\n");
      const late = await (await sandbox.commands.start("sleep 60", { timeout: 0.3 })).wait();
      assert.deepEqual([late.exitCode, late.reason], [124, "deadline"]);
      await assert.rejects(sandbox.commands.start("true", { cwd: "/nowhere" }), InvalidArgumentError);
    });

    test("a terminal is typed into and resized", async () => {
      const terminal = await sandbox.pty.create({ cols: 100, rows: 30, env: { PS1: "$ " } });
      const until = async (from: Terminal, marker: string): Promise<string> => {
        let seen = "";
        for await (const piece of from) {
          seen += piece.text;
          if (seen.includes(marker)) return seen;
        }
        throw new Error(`not seen: ${marker} in ${seen}`);
      };
      await terminal.send("stty size; echo do''ne\n");
      assert.match(await until(terminal, "done\r\n"), /30 100/);
      await terminal.resize(132, 50);
      await terminal.send("tput cols; echo a''gain\n");
      assert.match(await until(terminal, "again\r\n"), /132/);
      assert.match(await until(await sandbox.pty.connect(terminal.id), "done\r\n"), /30 100/);
      await terminal.send("\x04");
      assert.equal((await terminal.wait({ timeout: 20 })).exitCode, 0);
      const plain = await sandbox.commands.start("true");
      await assert.rejects(sandbox.pty.connect(plain.id), TypeError);
    });

    test("conditional writes, copies, modes, checksums and metadata", async () => {
      const place = `/tmp/${mark()}`;
      const first = await sandbox.files.write(`${place}/f`, "one", { createOnly: true });
      await assert.rejects(
        sandbox.files.write(`${place}/f`, "two", { createOnly: true }),
        PreconditionFailedError,
      );
      const second = await sandbox.files.write(`${place}/f`, "two", { ifMatch: first.etag ?? "" });
      await assert.rejects(
        sandbox.files.write(`${place}/f`, "three", { ifMatch: first.etag ?? "" }),
        PreconditionFailedError,
      );
      assert.notEqual(second.etag, first.etag);
      await assert.rejects(sandbox.files.copy(place, `${place}-2`), IsDirectoryError);
      await sandbox.files.copy(place, `${place}-2`, { recursive: true });
      assert.equal(await sandbox.files.readText(`${place}-2/f`), "two");
      const changed = await sandbox.files.chmod(`${place}/f`, { mode: 0o600, owner: "user" });
      assert.deepEqual([changed.mode, changed.owner], ["0600", "user"]);
      assert.equal(
        await sandbox.files.checksum(`${place}/f`),
        createHash("sha256").update("two").digest("hex"),
      );
      await sandbox.files.setMetadata(`${place}/f`, { set: { a: "1", b: "2" } });
      await sandbox.files.setMetadata(`${place}/f`, { remove: ["a"] });
      assert.deepEqual((await sandbox.files.getInfo(`${place}/f`)).metadata, { b: "2" });
      const found = await sandbox.files.search(place, { content: "t.o", regex: true });
      assert.deepEqual(
        found.matches.map(({ path, line, text }) => [path, line, text]),
        [[`${place}/f`, 1, "two"]],
      );
    });

    test("directories go in and come out, hostile ones too", async (t) => {
      const place = `/tmp/${mark()}`;
      const local = await scratch(t);
      await fs.mkdir(join(local, "in/deep"), { recursive: true });
      await fs.writeFile(join(local, "in/deep/blob"), randomBytes(100_000));
      await fs.writeFile(join(local, "in/run.sh"), "#!/bin/sh\necho ran\n", { mode: 0o755 });
      await sandbox.files.uploadDir(join(local, "in"), place, { owner: "user" });
      assert.equal((await sandbox.commands.run(["./run.sh"], { cwd: place })).stdout, "ran\n");
      await sandbox.files.downloadDir(place, join(local, "out"));
      assert.deepEqual(
        await fs.readFile(join(local, "out/deep/blob")),
        await fs.readFile(join(local, "in/deep/blob")),
      );
      await sandbox.commands.run("ln -s /etc/passwd absolute", { cwd: place });
      await assert.rejects(sandbox.files.downloadDir(place, join(local, "strict")), ArchiveRefusedError);
      const result = await sandbox.files.downloadDir(place, join(local, "loose"), { skipRefused: true });
      assert.ok(result.skipped.some((name) => name.endsWith("absolute")));
    });

    test("a watch sees what happens below", async () => {
      const place = `/tmp/${mark()}`;
      await sandbox.files.makeDir(place);
      const watch = await sandbox.files.watch(place, { recursive: true });
      await sandbox.commands.run("mkdir new && echo x > new/f && mv new/f new/g && rm new/g", { cwd: place });
      const seen: string[] = [];
      for await (const change of watch) {
        seen.push(`${change.type} ${change.path.slice(place.length)}`);
        if (seen.at(-1) === "remove /new/g") break;
      }
      await watch.close();
      for (const wanted of ["create /new", "create /new/f", "rename_from /new/f", "rename_to /new/g"]) {
        assert.ok(seen.includes(wanted), `${wanted} in ${seen}`);
      }
    });

    test("signed URLs, ports and links", async () => {
      const place = `/tmp/${mark()}`;
      const up = await sandbox.files.uploadUrl(`${place}/index.html`, { expiresIn: 60 });
      assert.equal((await fetch(up, { method: "PUT", body: "<h1>hi</h1>" })).status, 200);
      const down = await fetch(await sandbox.files.downloadUrl(`${place}/index.html`));
      assert.match(down.headers.get("content-disposition") ?? "", /^attachment/);
      assert.equal(await down.text(), "<h1>hi</h1>");
      await using web = await sandbox.commands.start(
        ["python3", "-m", "http.server", "8124", "--bind", "127.0.0.1"],
        { cwd: place },
      );
      for (let i = 0; !(await sandbox.ports.list()).some(({ port }) => port === 8124); i++) {
        assert.ok(i < 200);
        await sleep(100);
      }
      const url = sandbox.ports.url(8124, "/index.html");
      assert.equal((await fetch(url)).status, 401);
      assert.equal((await sandbox.ports.publish(8124, { wakes: true })).wakes, true);
      const { public: open, wakes } = await sandbox.ports.publish(8124);
      assert.deepEqual([open, wakes], [true, false]);
      assert.equal(await (await fetch(url)).text(), "<h1>hi</h1>");
      assert.equal((await sandbox.ports.unpublish(8124)).public, false);
      assert.equal((await fetch(url)).status, 401);
      assert.match(await sandbox.ports.link(8124, { path: "/index.html" }), /rf_signature=/);
      assert.equal((await web.getInfo()).state, "running");
    });

    test("metrics and events", async () => {
      const now = await sandbox.metrics();
      assert.ok(now.memoryBytes > 0 && now.memoryLimitBytes > now.memoryBytes && now.processes >= 0);
      const tag = mark();
      const { id: process } = await sandbox.commands.run("true", { tag });
      let last = "";
      for await (const event of sandbox.events()) {
        last = event.id;
        if (event.type === "process_ended" && event.data["process"] === process) break;
      }
      await sandbox.files.write("/tmp/seen", "x");
      for await (const event of sandbox.events({ after: last })) {
        assert.deepEqual([event.type, event.sandboxId], ["file_written", sandbox.id]);
        break;
      }
    });
  });
}
