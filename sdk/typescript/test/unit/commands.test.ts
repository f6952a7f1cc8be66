import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { inspect } from "node:util";
import { Client } from "../../src/client.js";
import { Commands, mustStream, type Timing } from "../../src/commands.js";
import { resolveConnection } from "../../src/config.js";
import {
  APIConnectionError,
  APIResponseError,
  APITimeoutError,
  CommandExitError,
  InvalidArgumentError,
  type RunOptions,
  SandboxEndedError,
} from "../../src/index.js";
import { type Script, sendEvent } from "./server.js";
import { createSandbox, eventually, world } from "./world.js";

const { server, options } = world();
const both = (): RunOptions & { out: string[]; err: string[] } => {
  const out: string[] = [];
  const err: string[] = [];
  return { out, err, onStdout: (text) => out.push(text), onStderr: (text) => err.push(text) };
};

/** Commands of a new sandbox that wait less long than they do for callers. */
async function impatient(timing: Partial<Timing>): Promise<Commands> {
  const { id } = await createSandbox(options());
  const connection = resolveConnection("test", options());
  const client = new Client(connection, connection.apiKey);
  return new Commands(client, `/v1/sandboxes/${id}`, {
    graceSeconds: 30,
    silenceMs: 60_000,
    lingerMs: 1000,
    ...timing,
  });
}

describe("commands.run", () => {
  test("sends what is given under the server's names", async () => {
    const sandbox = await createSandbox(options());
    await sandbox.commands.run("python cell.py", {
      cwd: "/tmp",
      envs: { A: "1" },
      user: "user",
      stdin: "hi",
      timeoutMs: 60_000,
      outputLimitBytes: 1000,
    });
    assert.deepEqual(server().last().json, {
      command: "python cell.py",
      cwd: "/tmp",
      env: { A: "1" },
      user: "user",
      stdin: "hi",
      timeout_seconds: 60,
      output_limit_bytes: 1000,
    });
    assert.equal(server().last().headers.accept, "application/json");
    await sandbox.commands.run(["printf", "%s", "a b"], { stdin: Uint8Array.of(0, 255) });
    assert.deepEqual(server().last().json, { args: ["printf", "%s", "a b"], stdin_base64: "AP8=" });
  });

  test("returns exit code, output and the rest", async () => {
    const sandbox = await createSandbox(options());
    server().script = () => ({
      output: [
        ["stdout", "out é\n"],
        ["stderr", "err\n"],
      ],
      exitCode: 124,
      reason: "deadline",
    });
    const result = await sandbox.commands.run("x");
    assert.deepEqual(
      { ...result },
      {
        id: "1",
        exitCode: 124,
        stdout: "out é\n",
        stderr: "err\n",
        reason: "deadline",
        signal: null,
        truncated: false,
        stdoutTruncated: false,
        stderrTruncated: false,
        durationMs: 12,
        startedAt: new Date("2026-11-30T20:00:00.123Z"),
      },
    );
    assert.equal(Buffer.from(result.stdoutBytes).toString(), "out é\n");
    assert.equal(Buffer.from(result.stderrBytes).toString(), "err\n");
  });

  const wrong: Array<[name: string, command: unknown, options: unknown, message: RegExp]> = [
    ["an unknown option", "x", { timeoutSecs: 1 }, /unknown option 'timeoutSecs'/],
    ["two spellings", "x", { timeout: 1, timeoutSeconds: 1 }, /are one option/],
    ["NaN", "x", { timeoutMs: Number.NaN }, /finite/],
    ["a command that is none", undefined, {}, /the command must be/],
    ["arguments that are no strings", ["sleep", 1], {}, /the command must be/],
    ["stdin that is none", "x", { stdin: 3 }, /'stdin' must be/],
    ["a callback that is none", "x", { onStdout: console }, /'onStdout' must be a function/],
    [
      "an output limit that is no integer",
      "x",
      { outputLimitBytes: Number.NaN },
      /'outputLimitBytes' must be an integer/,
    ],
  ];
  for (const [name, command, given, message] of wrong) {
    test(`refuses ${name} before anything is sent`, async () => {
      const sandbox = await createSandbox(options());
      const requests = server().seen.length;
      await assert.rejects(sandbox.commands.run(command as string, given as RunOptions), (error: Error) => {
        assert.ok(error instanceof TypeError);
        assert.match(error.message, message);
        return true;
      });
      assert.equal(server().seen.length, requests);
    });
  }

  test("what is out of range is the server's to refuse", async () => {
    const sandbox = await createSandbox(options());
    await assert.rejects(sandbox.commands.run("true", { timeout: 0 }), (error: unknown) => {
      assert.ok(error instanceof InvalidArgumentError);
      assert.equal(error.field, "timeout_seconds");
      return true;
    });
  });

  test("check throws for an exit code other than 0, and only check does", async () => {
    const sandbox = await createSandbox(options());
    assert.equal((await sandbox.commands.run("true")).check().exitCode, 0);
    server().script = () => ({ output: [["stderr", "Traceback\nValueError: \u001b[31mbad\n"]], exitCode: 1 });
    const result = await sandbox.commands.run("x");
    assert.throws(
      () => result.check(),
      (error: unknown) => {
        assert.ok(error instanceof CommandExitError);
        assert.equal(error.code, "command_exit");
        assert.equal(error.result, result);
        assert.equal(error.exitCode, 1);
        assert.equal(error.message, "the command ended with exit code 1: ValueError: \ufffd[31mbad");
        assert.equal(error.name, "CommandExitError");
        return true;
      },
    );
  });

  test("a command is never sent twice", async () => {
    const sandbox = await createSandbox(options());
    for (const given of [{}, both()]) {
      let requests = 0;
      server().intercept = (request) => {
        requests++;
        request.socket.destroy();
        return true;
      };
      const { onStdout, onStderr } = given as RunOptions;
      await assert.rejects(sandbox.commands.run("x", { onStdout, onStderr }), (error: unknown) => {
        assert.ok(error instanceof APIConnectionError);
        assert.match(error.message, /how the command ended is unknown/);
        return true;
      });
      assert.equal(requests, 1);
    }
  });

  test("an answer without an exit code is no success", async () => {
    const sandbox = await createSandbox(options());
    server().intercept = (_, response) => {
      response.writeHead(200, { "Content-Type": "application/json" }).end('{"stdout":"","stderr":""}');
      return true;
    };
    await assert.rejects(sandbox.commands.run("x"), APIResponseError);
  });
});

describe("how the answer is read", () => {
  const table: Array<[timeout: number | null | undefined, callbacks: boolean, stream: boolean]> = [
    [undefined, false, false],
    [undefined, true, true],
    [30, false, false],
    [240, false, false],
    [240.5, false, true],
    [3600, false, true],
    [null, false, true],
    [1, true, true],
  ];
  for (const [timeout, callbacks, stream] of table) {
    test(`timeout ${timeout}, ${callbacks ? "with" : "without"} callbacks: ${stream ? "stream" : "one piece"}`, async () => {
      assert.equal(mustStream(timeout, callbacks), stream);
      const sandbox = await createSandbox(options());
      server().script = () => ({
        output: [
          ["stdout", "out"],
          ["stderr", "err"],
        ],
        exitCode: 3,
      });
      const given = both();
      const result = await sandbox.commands.run("x", {
        timeout,
        ...(callbacks ? { onStdout: given.onStdout, onStderr: given.onStderr } : {}),
      });
      assert.equal(server().last().headers.accept, stream ? "text/event-stream" : "application/json");
      assert.deepEqual([result.exitCode, result.stdout, result.stderr], [3, "out", "err"]);
      assert.deepEqual([given.out, given.err], callbacks ? [["out"], ["err"]] : [[], []]);
    });
  }

  test("an answer in one piece is waited for until some time after the deadline", async () => {
    const commands = await impatient({ graceSeconds: 0.1 });
    server().intercept = () => true;
    await assert.rejects(commands.run("x", { timeout: 0.2 }), (error: unknown) => {
      assert.ok(error instanceof APITimeoutError);
      assert.match(error.message, /within 0.3 s; how the command ended is unknown/);
      return true;
    });
  });
});

describe("a stream", () => {
  test("calls back in order, counts bytes exactly, keeps the tail", async () => {
    const sandbox = await createSandbox(options());
    const invalid = Buffer.from([0x61, 0xff, 0x62]);
    server().script = () => ({
      output: [
        ["stdout", "0123456789"],
        ["stderr", "e"],
        ["stdout", "é☃😀"],
        ["stdout", invalid],
      ],
    });
    const order: string[] = [];
    const sizes: number[] = [];
    const result = await sandbox.commands.run("x", {
      outputLimitBytes: 10,
      onStdout: async (text, bytes) => {
        await new Promise((resolve) => setTimeout(resolve, 5)); // a slow callback is waited for
        order.push(`out:${text}`);
        sizes.push(bytes.length);
      },
      onStderr: (text) => order.push(`err:${text}`),
    });
    assert.deepEqual(order, ["out:0123456789", "err:e", "out:é☃😀", "out:a\ufffdb"]);
    assert.deepEqual(sizes, [10, 9, 3]);
    const all = Buffer.concat([Buffer.from("0123456789é☃😀"), invalid]);
    assert.deepEqual(Buffer.from(result.stdoutBytes), all.subarray(-10));
    assert.equal(result.stdout, all.subarray(-10).toString());
    assert.deepEqual([result.truncated, result.stdoutTruncated, result.stderrTruncated], [true, true, false]);
  });

  test("arrives whatever way it is cut", async () => {
    const sandbox = await createSandbox(options());
    server().script = () => ({
      raw: async (response) => {
        const exit = '{"id":"1","exit_code":0,"reason":null}';
        const all = Buffer.from(
          `: keep-alive\n\nevent: stdout\ndata: {"position":0,"text":"é😀"}\n\nevent: news\ndata: 1\n\nevent: exit\ndata: ${exit}\n\n`,
        );
        for (const byte of all) {
          response.write(Uint8Array.of(byte));
          await new Promise((resolve) => setImmediate(resolve));
        }
        response.end();
      },
    });
    assert.equal((await sandbox.commands.run("x", { timeout: null })).stdout, "é😀");
  });

  const broken: Array<
    [name: string, script: Script, error: new (...args: never[]) => Error, message: RegExp]
  > = [
    [
      "ends without an exit",
      { raw: (r) => r.end() },
      APIConnectionError,
      /ended early.*how the command ended is unknown/,
    ],
    [
      "ends in the middle of the exit",
      { raw: (r) => r.end('event: exit\ndata: {"exit_code":0}\n') },
      APIConnectionError,
      /ended early/,
    ],
    [
      "loses its connection",
      {
        raw: (r) => {
          sendEvent(r, "stdout", { text: "x" });
          setTimeout(() => r.destroy(), 20);
        },
      },
      APIConnectionError,
      /broke.*how the command ended is unknown/,
    ],
    [
      "has an exit that is not JSON",
      { raw: (r) => r.end("event: exit\ndata: {\n\n") },
      APIResponseError,
      /not JSON/,
    ],
    [
      "has an exit without a code",
      { raw: (r) => r.end("event: exit\ndata: {}\n\n") },
      APIResponseError,
      /no exit code/,
    ],
    [
      "has an exit with a code that is none",
      { raw: (r) => r.end('event: exit\ndata: {"exit_code":null}\n\n') },
      APIResponseError,
      /no exit code/,
    ],
    [
      "has output that cannot be read",
      { raw: (r) => r.end('event: stdout\ndata: {"position":0}\n\n') },
      APIResponseError,
      /output that cannot be read/,
    ],
    [
      "has an error that cannot be read",
      { raw: (r) => r.end("event: error\ndata: {}\n\n") },
      APIResponseError,
      /error that cannot be read/,
    ],
    [
      "ends with an error",
      { error: { status: 410, code: "sandbox_ended", message: "the sandbox ended: oom" } },
      SandboxEndedError,
      /oom/,
    ],
  ];
  for (const [name, script, errorClass, message] of broken) {
    test(`that ${name} is an error and never a success`, async () => {
      const sandbox = await createSandbox(options());
      server().script = () => script;
      for (const given of [{ timeout: null }, { onStdout: () => {} }]) {
        await assert.rejects(sandbox.commands.run("x", given), (error: Error) => {
          assert.ok(error instanceof errorClass, inspect(error));
          assert.match(error.message, message);
          return true;
        });
      }
    });
  }

  test("an error event carries the request's id", async () => {
    const sandbox = await createSandbox(options());
    server().script = () => ({
      error: { status: 410, code: "sandbox_ended", message: "ended", hint: "make another" },
    });
    await assert.rejects(sandbox.commands.run("x", { timeout: null }), (error: SandboxEndedError) => {
      assert.match(error.requestId ?? "", /^[0-9a-f]{16}$/);
      assert.equal(error.hint, "make another");
      return true;
    });
  });

  test("an answer that is no stream is an error", async () => {
    const sandbox = await createSandbox(options());
    server().intercept = (_, response) => {
      response.writeHead(200, { "Content-Type": "application/json" }).end('{"exit_code":0,"stdout":""}');
      return true;
    };
    await assert.rejects(sandbox.commands.run("x", { timeout: null }), APIResponseError);
  });

  test("a silence that is too long is a broken connection; keep-alives break it", async () => {
    const commands = await impatient({ silenceMs: 1000 });
    let keepAlives = 0;
    server().script = () => ({
      raw: (response) => {
        sendEvent(response, "started", { id: "1", pid: 1 });
        const timer = setInterval(() => {
          response.write(": keep-alive\n\n");
          if (++keepAlives === 10) clearInterval(timer);
        }, 300);
      },
    });
    const began = performance.now();
    await assert.rejects(commands.run("x", { timeout: null }), (error: unknown) => {
      assert.ok(error instanceof APIConnectionError);
      assert.match(error.message, /nothing came for 1 s\); how the command ended is unknown/);
      return true;
    });
    assert.equal(keepAlives, 10);
    assert.ok(performance.now() - began >= 4000);
  });

  test("that stays open after its exit does not hold the result up", async () => {
    const commands = await impatient({ lingerMs: 50 });
    server().script = () => ({
      raw: (response) => sendEvent(response, "exit", { id: "1", exit_code: 0 }),
    });
    assert.equal((await commands.run("x", { timeout: null })).exitCode, 0);
  });
});

describe("a command is killed by hanging up", () => {
  test("when its signal aborts, with and without a stream", async () => {
    const sandbox = await createSandbox(options());
    for (const given of [{}, { timeout: null }, { onStdout: () => {} }]) {
      let open = 0;
      let closed = 0;
      server().intercept = (request, response) => {
        open++;
        request.resume();
        response.on("close", () => closed++);
        if (request.headers.accept === "text/event-stream") {
          response.writeHead(200, { "Content-Type": "text/event-stream" });
          sendEvent(response, "started", { id: "1", pid: 1 });
        }
        return true;
      };
      const controller = new AbortController();
      const run = sandbox.commands.run("sleep 60", { ...given, signal: controller.signal });
      const reason = new Error("no longer wanted");
      const rejection = assert.rejects(run, reason);
      await eventually("the request arrived", () => open === 1);
      await new Promise((resolve) => setTimeout(resolve, 20));
      controller.abort(reason);
      await rejection;
      await eventually("the connection closed", () => closed === 1);
    }
  });

  test("when a callback throws, which rejects with what it threw", async () => {
    const sandbox = await createSandbox(options());
    let closed = false;
    server().script = () => ({
      raw: (response) => {
        response.on("close", () => {
          closed = true;
        });
        sendEvent(response, "stdout", { text: "x" });
      },
    });
    for (const thrown of [new Error("mine"), new TypeError("mine as well")]) {
      closed = false;
      await assert.rejects(
        sandbox.commands.run("x", {
          onStdout: () => {
            throw thrown;
          },
        }),
        (error) => error === thrown,
      );
      await eventually("the connection closed", () => closed);
    }
  });

  test("a signal that is not aborted keeps no listener", async () => {
    const sandbox = await createSandbox(options());
    const controller = new AbortController();
    let listeners = 0;
    const { addEventListener, removeEventListener } = controller.signal;
    controller.signal.addEventListener = function (
      this: AbortSignal,
      ...args: Parameters<typeof addEventListener>
    ) {
      listeners++;
      return addEventListener.apply(this, args);
    } as typeof addEventListener;
    controller.signal.removeEventListener = function (
      this: AbortSignal,
      ...args: Parameters<typeof removeEventListener>
    ) {
      listeners--;
      return removeEventListener.apply(this, args);
    } as typeof removeEventListener;
    await sandbox.commands.run("x", { signal: controller.signal });
    await sandbox.commands.run("x", { signal: controller.signal, timeout: null });
    assert.equal(listeners, 0);
  });
});

test("connections are used again after a stream", async () => {
  const sandbox = await createSandbox(options());
  const ports = new Set<number | undefined>();
  server().intercept = (request) => {
    ports.add(request.socket.remotePort);
    return false;
  };
  for (let i = 0; i < 10; i++) await sandbox.commands.run("x", { onStdout: () => {} });
  assert.ok(ports.size <= 2, `${ports.size} connections`); // Node's fetch alternates between two
});
