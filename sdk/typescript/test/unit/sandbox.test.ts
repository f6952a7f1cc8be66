import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer } from "node:net";
import { describe, test } from "node:test";
import { inspect } from "node:util";
import {
  APIConnectionError,
  APIResponseError,
  APITimeoutError,
  AuthenticationError,
  type CreateOptions,
  NotFoundError,
  NotYetSupportedError,
  PermissionDeniedError,
  RingfenceError,
  Sandbox,
  SandboxEndedError,
  TemplateNotFoundError,
  VERSION,
} from "../../src/index.js";
import { API_KEY, sendError } from "./server.js";
import { createSandbox, world } from "./world.js";

const { server, options } = world();

describe("Sandbox.create", () => {
  test("sends what is given under the server's names", async () => {
    const sandbox = await Sandbox.create({
      ...options(),
      name: "code-interpreter",
      fromTemplate: "superserve/code-interpreter",
      timeout: 180,
      env: { A: "1" },
      metadata: { job: "42" },
      user: "user",
      vcpu: 1,
      memoryMib: 512,
      diskMib: 1024,
      network: { denyOut: ["0.0.0.0/0"], allowInternetAccess: false, closedPorts: true },
    });
    assert.deepEqual(server().last().json, {
      name: "code-interpreter",
      template: "superserve/code-interpreter",
      timeout_seconds: 180,
      env: { A: "1" },
      metadata: { job: "42" },
      user: "user",
      vcpu: 1,
      memory_mib: 512,
      disk_mib: 1024,
      network: { deny_out: ["0.0.0.0/0"], allow_internet_access: false, closed_ports: true },
    });
    assert.match(sandbox.id, /^[a-z0-9]{20}$/);
    assert.equal(sandbox.sandboxId, sandbox.id);
    assert.equal(sandbox.name, "code-interpreter");
    const { headers } = server().last();
    assert.equal(headers.authorization, `Bearer ${API_KEY}`);
    assert.match(
      String(headers["user-agent"]),
      new RegExp(`^ringfence-sdk-typescript/${VERSION} \\(node/v?\\d`),
    );
  });

  test("sends nothing that is not given: defaults are the server's", async () => {
    await createSandbox(options());
    assert.deepEqual(server().last().json, {});
    await Sandbox.create({ ...options(), timeout: undefined, name: undefined });
    assert.deepEqual(server().last().json, {});
  });

  for (const [spelling, sent] of [
    [{ timeout: 90 }, 90],
    [{ timeoutSeconds: 90.5 }, 90.5],
    [{ timeoutMs: 1500 }, 1.5],
    [{ timeout: null }, null],
    [{ timeoutMs: null }, null],
  ] as const) {
    test(`${JSON.stringify(spelling)} is ${sent} seconds`, async () => {
      await Sandbox.create({ ...options(), ...spelling });
      assert.equal(server().last().json["timeout_seconds"], sent);
    });
  }

  const mistakes: Array<[name: string, options: unknown, message: RegExp]> = [
    ["an unknown option", { timout: 3 }, /unknown option 'timout'; known are .*timeout/],
    [
      "both spellings of the template",
      { template: "a", fromTemplate: "b" },
      /'template' and 'fromTemplate' are one/,
    ],
    ["both spellings of the timeout", { timeout: 1, timeoutMs: 1000 }, /'timeout' and 'timeoutMs' are one/],
    ["both spellings of env", { env: {}, envs: {} }, /'env' and 'envs' are one/],
    [
      "NaN, which JSON makes null, no limit",
      { timeout: Number.NaN },
      /'timeout' must be a finite number or null/,
    ],
    ["Infinity", { timeoutMs: Number.POSITIVE_INFINITY }, /'timeoutMs' must be a finite number or null/],
    ["a number as text", { timeoutSeconds: "30" }, /'timeoutSeconds' must be a finite number or null/],
    ["env that is no object", { env: "A=1" }, /'env' must be an object with string values/],
    ["env that is a Map", { env: new Map([["A", "1"]]) }, /'env' must be an object with string values/],
    ["metadata that is a Date", { metadata: new Date() }, /'metadata' must be an object with string values/],
    [
      "a network that is a Map",
      { network: new Map([["denyOut", []]]) },
      /network: options must be an object/,
    ],
    ["an env value that is no string", { env: { A: 1 } }, /'env.A' must be a string/],
    ["an unknown network option", { network: { deny_out: [] } }, /network: unknown option 'deny_out'/],
    [
      "a network list that is none",
      { network: { denyOut: "0.0.0.0/0" } },
      /'denyOut' must be a list of strings/,
    ],
    ["a template that is no string", { template: { name: "a" } }, /'template' must be a string/],
    ["memory that is no integer", { memoryMib: 0.5 }, /'memoryMib' must be an integer/],
    ["options that are no object", "code-interpreter", /options must be an object/],
    ["a signal that is none", { signal: {} }, /'signal' must be an AbortSignal/],
    ["a URL that is none", { baseUrl: "127.0.0.1:7070" }, /baseUrl/],
    ["a URL of another kind", { baseUrl: "ftp://127.0.0.1" }, /must start with http/],
  ];
  for (const [name, wrong, message] of mistakes) {
    test(`refuses ${name} before anything is sent`, async () => {
      const merged = typeof wrong === "object" ? { ...options(), ...wrong } : wrong;
      await assert.rejects(Sandbox.create(merged as CreateOptions), (error: Error) => {
        assert.ok(error instanceof TypeError, String(error));
        assert.match(error.message, message);
        assert.match(error.message, /^Sandbox\.create/);
        return true;
      });
      assert.equal(server().seen.length, 0);
    });
  }

  test("an unknown template names near ones in the hint", async () => {
    await assert.rejects(Sandbox.create({ ...options(), template: "code" }), (error: unknown) => {
      assert.ok(error instanceof TemplateNotFoundError);
      assert.equal(error.code, "template_not_found");
      assert.equal(error.status, 404);
      assert.match(error.hint ?? "", /code-interpreter/);
      assert.match(error.requestId ?? "", /^[0-9a-f]{16}$/);
      assert.equal(
        `${error}`,
        `TemplateNotFoundError: no template 'code'; ${error.hint} (request ${error.requestId})`,
      );
      return true;
    });
  });

  test("what waits for a later server is refused by it, by name", async () => {
    const field = "idle_timeout_seconds";
    server().intercept = (_, response) => {
      sendError(response, 400, "not_yet_supported", `${field} is not supported yet`, { field });
      return true;
    };
    await assert.rejects(Sandbox.create({ ...options(), idleTimeoutSeconds: 60 }), (error: unknown) => {
      assert.ok(error instanceof NotYetSupportedError);
      assert.equal(error.field, field);
      return true;
    });
  });

  test("is never sent twice", async () => {
    let requests = 0;
    server().intercept = (request) => {
      requests++;
      request.socket.destroy();
      return true;
    };
    await assert.rejects(createSandbox(options()), (error: unknown) => {
      assert.ok(error instanceof APIConnectionError);
      assert.match(error.message, /whether a sandbox was made is unknown/);
      return true;
    });
    assert.equal(requests, 1);
    server().intercept = (_, response) => {
      requests++;
      sendError(response, 503, "unavailable", "not now");
      return true;
    };
    await assert.rejects(createSandbox(options()), { name: "UnavailableError", status: 503 });
    assert.equal(requests, 2);
  });
});

describe("connection", () => {
  test("RINGFENCE_URL and RINGFENCE_API_KEY are read when a call is made; options win", async (t) => {
    process.env["RINGFENCE_URL"] = `${server().url}/`;
    process.env["RINGFENCE_API_KEY"] = `${API_KEY}\n`;
    t.after(() => {
      delete process.env["RINGFENCE_URL"];
      delete process.env["RINGFENCE_API_KEY"];
    });
    await Sandbox.create();
    assert.equal(server().last().path, "/v1/sandboxes");
    await assert.rejects(Sandbox.create({ apiKey: "rf_wrong" }), AuthenticationError);
    await assert.rejects(Sandbox.create({ apiKey: "" }), /no API key/);
    await assert.rejects(Sandbox.create({ baseUrl: "http://127.0.0.1:1" }), APIConnectionError);
  });

  test("no API key names the variable and how to get one", async () => {
    for (const apiKey of [undefined, "", "  "]) {
      await assert.rejects(Sandbox.create({ baseUrl: server().url, apiKey }), (error: unknown) => {
        assert.ok(error instanceof AuthenticationError);
        assert.match(error.message, /RINGFENCE_API_KEY/);
        assert.match(error.hint ?? "", /ringfence key create/);
        return true;
      });
    }
    assert.equal(server().seen.length, 0);
  });

  test("a key that no header can carry is refused without being shown", async () => {
    await assert.rejects(Sandbox.create({ ...options(), apiKey: "rf_secret\nX: y" }), (error: unknown) => {
      assert.ok(error instanceof AuthenticationError);
      assert.doesNotMatch(inspect(error), /rf_secret/);
      return true;
    });
  });

  test("a password in the URL is refused without being shown", async () => {
    await assert.rejects(
      Sandbox.create({ ...options(), baseUrl: "http://me:hunter2@127.0.0.1" }),
      (error: unknown) => {
        assert.ok(error instanceof TypeError);
        assert.doesNotMatch(inspect(error), /hunter2/);
        return true;
      },
    );
  });

  test("nothing listens: the error names the URL and what to start", async () => {
    const listener = createServer().listen(0, "127.0.0.1");
    await once(listener, "listening");
    const { port } = listener.address() as { port: number };
    listener.close();
    for (const host of ["127.0.0.1", "localhost"]) {
      await assert.rejects(
        Sandbox.create({ apiKey: API_KEY, baseUrl: `http://${host}:${port}` }),
        (error: unknown) => {
          assert.ok(error instanceof APIConnectionError);
          assert.equal(error.code, "connection");
          assert.match(error.message, new RegExp(`http://${host}:${port}.*ECONNREFUSED`));
          assert.match(error.hint ?? "", /is `ringfence serve` running\?/);
          return true;
        },
      );
    }
  });

  test("a server that does not answer in time", async () => {
    server().intercept = () => true;
    await assert.rejects(Sandbox.create({ ...options(), requestTimeoutMs: 50 }), (error: unknown) => {
      assert.ok(error instanceof APITimeoutError && error instanceof APIConnectionError);
      assert.match(
        error.message,
        /POST \/v1\/sandboxes within 0.05 s; whether a sandbox was made is unknown/,
      );
      return true;
    });
  });

  test("a server that stops in the middle of its answer", async () => {
    server().intercept = (_, response) => {
      response.writeHead(201, { "Content-Type": "application/json" });
      response.write('{"id":');
      return true;
    };
    await assert.rejects(Sandbox.create({ ...options(), requestTimeoutMs: 50 }), APITimeoutError);
  });

  test("an answer of something else than Ringfence", async () => {
    for (const [status, body] of [
      [200, "<html>"],
      [200, "[]"],
      [502, "Bad Gateway"],
      [404, '{"error":"no"}'],
      [301, ""],
    ] as const) {
      server().intercept = (_, response) => {
        response.writeHead(status, status === 301 ? { Location: "https://example.com/" } : {}).end(body);
        return true;
      };
      await assert.rejects(createSandbox(options()), (error: unknown) => {
        assert.ok(error instanceof APIResponseError, inspect(error));
        assert.equal(error.code, "bad_response");
        assert.match(error.hint ?? "", /RINGFENCE_URL/);
        return true;
      });
    }
  });

  test("a code that this version does not know keeps its name", async () => {
    server().intercept = (_, response) => {
      response.setHeader("Retry-After", "7");
      sendError(response, 418, "teapot", "short and stout");
      return true;
    };
    await assert.rejects(createSandbox(options()), {
      name: "InternalError",
      code: "teapot",
      status: 418,
      message: "short and stout",
      retryAfterSeconds: 7,
    });
  });

  test("a signal aborts with its reason", async () => {
    server().intercept = () => true;
    const controller = new AbortController();
    const reason = new Error("enough");
    setTimeout(() => controller.abort(reason), 20);
    await assert.rejects(Sandbox.create({ ...options(), signal: controller.signal }), reason);
    await assert.rejects(Sandbox.create({ ...options(), signal: AbortSignal.abort(reason) }), reason);
  });

  test("fetch can be replaced", async () => {
    const urls: string[] = [];
    const sandbox = await Sandbox.create({
      ...options(),
      fetch: (input, init) => {
        urls.push(String(input));
        return fetch(input, init);
      },
    });
    await sandbox.kill();
    assert.deepEqual(urls, [`${server().url}/v1/sandboxes`, `${server().url}/v1/sandboxes/${sandbox.id}`]);
  });

  test("a path in the base URL is kept", async () => {
    await assert.rejects(Sandbox.create({ ...options(), baseUrl: `${server().url}/ringfence/` }), {
      code: "route_not_found",
    });
    assert.equal(server().last().path, "/ringfence/v1/sandboxes");
  });
});

describe("idempotent calls are tried again", () => {
  test("after a broken connection, twice at most", async () => {
    const sandbox = await createSandbox(options());
    let requests = 0;
    let toBreak = 2;
    server().intercept = (request) => {
      requests++;
      if (toBreak-- <= 0) return false;
      request.socket.destroy();
      return true;
    };
    assert.equal((await sandbox.getInfo()).state, "running");
    assert.equal(requests, 3);
    toBreak = 9;
    await assert.rejects(sandbox.getInfo(), APIConnectionError);
    assert.equal(requests, 6);
  });

  test("after a 503, with the server's pause", async () => {
    const sandbox = await createSandbox(options());
    let requests = 0;
    server().intercept = (_, response) => {
      if (requests++ > 0) return false;
      response.setHeader("Retry-After", "1");
      sendError(response, 503, "unavailable", "not now");
      return true;
    };
    const began = Date.now();
    await sandbox.kill();
    assert.equal(requests, 2);
    assert.ok(Date.now() - began >= 990);
  });

  test("not after any other answer", async () => {
    let requests = 0;
    server().intercept = (_, response) => {
      requests++;
      sendError(response, 500, "internal", "a fault");
      return true;
    };
    await assert.rejects(Sandbox.getInfo("a".repeat(20), options()), { name: "InternalError" });
    assert.equal(requests, 1);
  });

  test("a signal ends the pause", async () => {
    server().intercept = (_, response) => {
      response.setHeader("Retry-After", "5");
      sendError(response, 503, "unavailable", "not now");
      return true;
    };
    const began = Date.now();
    const signal = AbortSignal.timeout(50);
    await assert.rejects(Sandbox.getInfo("a".repeat(20), { ...options(), signal }), { name: "TimeoutError" });
    assert.ok(Date.now() - began < 2000);
  });
});

describe("a sandbox's life", () => {
  test("getInfo, of the class and of the object", async () => {
    const sandbox = await createSandbox(options());
    const info = await sandbox.getInfo();
    assert.deepEqual(await Sandbox.getInfo(sandbox.id, options()), info);
    assert.deepEqual(info, {
      id: sandbox.id,
      name: `sandbox-${sandbox.id}`,
      template: "code-interpreter",
      state: "running",
      reason: null,
      detail: null,
      vcpu: 2,
      memoryMib: 2048,
      diskMib: 8192,
      metadata: {},
      user: "root",
      workDir: "/home/user",
      network: { allowOut: [], denyOut: [], allowInternetAccess: null, closedPorts: false },
      createdAt: new Date("2026-11-30T20:00:00.123Z"),
      startedAt: new Date("2026-11-30T20:00:00.200Z"),
      endedAt: null,
      expiresAt: null,
      pausedAt: null,
      idleAt: null,
      deleteAt: null,
      timeoutSeconds: null,
      onTimeout: "kill",
      idleTimeoutSeconds: null,
      autoDeleteSeconds: null,
      autoResume: true,
    });
  });

  test("kill, twice, and of the class", async () => {
    const sandbox = await createSandbox(options());
    await sandbox.kill();
    await sandbox.kill();
    await Sandbox.kill(sandbox.id, options());
    assert.equal((await sandbox.getInfo()).reason, "killed");
    await assert.rejects(sandbox.commands.run("true"), SandboxEndedError);
    await assert.rejects(Sandbox.connect(sandbox.id, options()), SandboxEndedError);
  });

  test("ids that would change the path are refused", async () => {
    for (const id of ["", "..", "a/b", "a?b", undefined]) {
      for (const call of [Sandbox.kill, Sandbox.getInfo, Sandbox.connect]) {
        await assert.rejects(call(id as string, options()), TypeError);
      }
    }
    assert.equal(server().seen.length, 0);
    await assert.rejects(Sandbox.kill("a".repeat(20), options()), NotFoundError);
  });

  test("connect asks for it, and works without an access token", async () => {
    const created = await createSandbox(options());
    const sandbox = await Sandbox.connect(created.id, options());
    assert.equal(sandbox.name, created.name);
    assert.equal(sandbox.accessToken, undefined);
    await sandbox.commands.run("true");
    assert.equal(server().last().headers.authorization, `Bearer ${API_KEY}`);
    await assert.rejects(Sandbox.connect("a".repeat(20), options()), NotFoundError);
  });

  test("an access token opens commands and files, and is what they are called with", async () => {
    const created = await createSandbox(options());
    await created.commands.run("true");
    assert.equal(server().last().headers.authorization, `Bearer ${created.accessToken}`);
    const requests = server().seen.length;
    const sandbox = await Sandbox.connect(created.id, {
      baseUrl: server().url,
      accessToken: created.accessToken,
    });
    assert.equal(server().seen.length, requests);
    await sandbox.files.write("/a", "x");
    await assert.rejects(sandbox.kill(), AuthenticationError);
    await assert.rejects(
      Sandbox.getInfo(created.id, { baseUrl: server().url, apiKey: created.accessToken }),
      PermissionDeniedError,
    );
  });

  test("list asks for pages as they are needed", async () => {
    const metadata = { list: "a b/ü&=" };
    const ids: string[] = [];
    for (let i = 0; i < 5; i++) ids.unshift((await Sandbox.create({ ...options(), metadata })).id);
    await Sandbox.create(options());
    server().seen.length = 0;
    const found: string[] = [];
    for await (const info of Sandbox.list({ ...options(), metadata, pageSize: 2 })) found.push(info.id);
    assert.deepEqual(found, ids);
    assert.equal(server().seen.length, 3);
    for await (const _ of Sandbox.list({ ...options(), metadata, pageSize: 2 })) break;
    assert.equal(server().seen.length, 4);
    await Sandbox.kill(ids[0] as string, options());
    const ended: string[] = [];
    for await (const info of Sandbox.list({ ...options(), metadata, state: ["deleted", "failed"] }))
      ended.push(info.id);
    assert.deepEqual(ended, [ids[0]]);
    assert.equal(server().last().query["state"], "deleted,failed");
    assert.throws(() => Sandbox.list({ ...options(), states: [] } as object), TypeError);
  });

  test("await using kills, also when the block throws", async () => {
    const ids: string[] = [];
    {
      await using sandbox = await createSandbox(options());
      ids.push(sandbox.id);
    }
    await assert.rejects(async () => {
      await using sandbox = await createSandbox(options());
      ids.push(sandbox.id);
      throw new Error("from the block");
    }, /^Error: from the block$/);
    for (const id of ids) assert.equal((await Sandbox.getInfo(id, options())).state, "deleted");
  });

  test("await using: a failed kill hides nothing", async () => {
    await assert.rejects(
      async () => {
        await using _sandbox = await createSandbox(options());
        server().intercept = (_, response) => {
          sendError(response, 500, "internal", "cannot kill");
          return true;
        };
        throw new Error("from the block");
      },
      (error: Error & { error: Error; suppressed: Error }) => {
        assert.equal(error.suppressed.message, "from the block");
        assert.equal(error.error.message, "cannot kill");
        return true;
      },
    );
  });

  test("the constructor is not for callers", () => {
    assert.throws(() => new Sandbox(Symbol("x"), {} as never), TypeError);
  });
});

test("no secret is in what is logged, inspected or made JSON", async () => {
  const sandbox = await createSandbox(options());
  const secrets = new RegExp(`${sandbox.accessToken}|${API_KEY}`);
  const shown = (value: unknown) =>
    [
      inspect(value, { depth: 20, showHidden: true, getters: false }),
      String(value),
      JSON.stringify(value),
      JSON.stringify({ ...(value as object) }),
    ].join("\n");
  assert.match(String(sandbox.accessToken), /^[0-9a-f]{64}$/);
  assert.doesNotMatch(shown(sandbox), secrets);
  assert.doesNotMatch(shown(sandbox.commands), secrets);
  assert.doesNotMatch(shown(sandbox.files), secrets);
  assert.match(inspect(sandbox), new RegExp(sandbox.id));
  assert.deepEqual(JSON.parse(JSON.stringify(sandbox)), { id: sandbox.id, name: sandbox.name });
  server().intercept = (request) => {
    request.socket.destroy();
    return true;
  };
  const error = await sandbox.commands.run("true").catch((e: unknown) => e);
  assert.ok(error instanceof RingfenceError);
  assert.doesNotMatch(shown(error), secrets);
});
