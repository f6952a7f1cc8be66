/** What the calls about a sandbox's life and network send, and what they make of the answers. */

import assert from "node:assert/strict";
import { test } from "node:test";
import {
  APIConnectionError,
  type CreateOptions,
  FailedPreconditionError,
  Sandbox,
  SandboxPausedError,
} from "../../src/index.js";
import { sendJson } from "./server.js";
import { createSandbox, world } from "./world.js";

const { server, options } = world();

type Json = Record<string, unknown>;

/** A request that was made: `POST /v1/…?a=b`, its body and its headers. */
interface Asked {
  call: string;
  json: unknown;
  headers: Record<string, unknown>;
}

/** Lets the server give these answers, one after the other; null breaks the connection. Returns what was asked. */
function answers(...list: Array<[status: number, body: unknown] | null>): Asked[] {
  const asked: Asked[] = [];
  server().intercept = (request, response) => {
    const chunks: Buffer[] = [];
    request.on("data", (chunk) => chunks.push(chunk));
    request.on("end", () => {
      const body = Buffer.concat(chunks).toString();
      asked.push({
        call: `${request.method} ${request.url}`,
        json: body === "" ? undefined : JSON.parse(body),
        headers: request.headers,
      });
      const next = list.shift();
      if (next === undefined || next === null) request.socket.destroy();
      else if (next[0] === 204) response.writeHead(204).end();
      else sendJson(response, ...next);
    });
    return true;
  };
  return asked;
}

const refused = (code: string): Json => ({ error: { code, message: "no", request_id: "00112233445566aa" } });

async function sandboxAndWire(): Promise<[Sandbox, Json]> {
  const sandbox = await createSandbox(options());
  const answer = await fetch(`${options().baseUrl}/v1/sandboxes/${sandbox.id}`, {
    headers: { Authorization: `Bearer ${options().apiKey}` },
  });
  return [sandbox, (await answer.json()) as Json];
}

const snapshotWire = {
  id: `snap_${"a".repeat(20)}`,
  name: "before",
  sandbox_id: "b".repeat(20),
  template: "code-interpreter",
  vcpu: 2,
  memory_mib: 2048,
  disk_mib: 8192,
  bytes: 4194304,
  created_at: "2026-11-30T20:05:00.000000Z",
};

const snapshotInfo = {
  id: snapshotWire.id,
  name: "before",
  sandboxId: "b".repeat(20),
  template: "code-interpreter",
  vcpu: 2,
  memoryMib: 2048,
  diskMib: 8192,
  bytes: 4194304,
  createdAt: new Date("2026-11-30T20:05:00Z"),
};

test("create with deadlines, and from a snapshot", async () => {
  await Sandbox.create({
    ...options(),
    snapshot: snapshotWire.id,
    timeout: 90,
    onTimeout: "pause",
    idleTimeoutSeconds: 5,
    autoDeleteSeconds: 0,
    autoResume: false,
  });
  assert.deepEqual(server().last().json, {
    snapshot: snapshotWire.id,
    timeout_seconds: 90,
    on_timeout: "pause",
    idle_timeout_seconds: 5,
    auto_delete_seconds: 0,
    auto_resume: false,
  });
  assert.ok(!("idempotency-key" in server().last().headers));
  await Sandbox.create({ ...options(), fromSnapshot: snapshotInfo });
  assert.deepEqual(server().last().json, { snapshot: snapshotWire.id });
});

test("a create with a key is sent again, and one without is not", async () => {
  const [sandbox, wire] = await sandboxAndWire();
  const made = { ...wire, access_token: "f".repeat(64) };
  let asked = answers(null, [201, made]);
  assert.equal((await Sandbox.create({ ...options(), idempotencyKey: "job 42" })).id, sandbox.id);
  assert.deepEqual(
    asked.map(({ headers }) => headers["idempotency-key"]),
    ["job 42", "job 42"],
  );
  asked = answers(null, [201, made]);
  await assert.rejects(Sandbox.create(options()), APIConnectionError);
  assert.equal(asked.length, 1);
});

for (const [wrong, message] of [
  [{ snapshot: "" }, /snapshot must be its id/],
  [{ snapshot: 7 }, /snapshot must be its id/],
  [{ snapshot: "a", fromSnapshot: "b" }, /'snapshot' and 'fromSnapshot' are one option/],
  [{ idleTimeoutSeconds: "5" }, /'idleTimeoutSeconds' must be a finite number/],
  [{ autoDeleteSeconds: Number.NaN }, /'autoDeleteSeconds' must be a finite number/],
  [{ autoResume: 1 }, /'autoResume' must be true or false/],
  [{ onTimeout: true }, /'onTimeout' must be a string/],
  [{ idempotencyKey: "a\nb" }, /'idempotencyKey' must be printable/],
  [{ idempotencyKey: "" }, /'idempotencyKey' must be printable/],
] as const) {
  test(`create refuses ${JSON.stringify(wrong)} before anything is sent`, async () => {
    await assert.rejects(Sandbox.create({ ...options(), ...wrong } as CreateOptions), {
      name: "TypeError",
      message,
    });
    assert.equal(server().seen.length, 0);
  });
}

for (const what of ["pause", "resume"] as const) {
  test(`${what} is sent again after a broken connection`, async () => {
    const [sandbox, wire] = await sandboxAndWire();
    const paused = {
      ...wire,
      state: "paused",
      paused_at: "2026-11-30T20:05:00.001000Z",
      delete_at: "2026-11-30T20:06:00.000000Z",
      auto_delete_seconds: 60,
      on_timeout: "pause",
      auto_resume: false,
    };
    const asked = answers(null, [200, paused]);
    const info = await sandbox[what]();
    assert.deepEqual(
      asked.map(({ call, json }) => [call, json]),
      [
        [`POST /v1/sandboxes/${sandbox.id}/${what}`, {}],
        [`POST /v1/sandboxes/${sandbox.id}/${what}`, {}],
      ],
    );
    assert.equal(info.state, "paused");
    assert.deepEqual(info.pausedAt, new Date("2026-11-30T20:05:00.001Z"));
    assert.deepEqual(info.deleteAt, new Date("2026-11-30T20:06:00Z"));
    assert.deepEqual(
      [info.autoDeleteSeconds, info.timeoutSeconds, info.onTimeout, info.autoResume],
      [60, null, "pause", false],
    );
  });
}

test("fork gives handles with tokens of their own", async () => {
  const [sandbox, wire] = await sandboxAndWire();
  const sandboxes = ["a", "b"].map((x) => ({ ...wire, id: x.repeat(20), access_token: x.repeat(64) }));
  const asked = answers([201, { sandboxes }], [200, { path: "/f" }], [204, null]);
  const [first, second] = await sandbox.fork(2);
  assert.deepEqual(asked[0]?.json, { count: 2 });
  assert.equal(asked[0]?.call, `POST /v1/sandboxes/${sandbox.id}/fork`);
  assert.deepEqual([first?.id, first?.accessToken], ["a".repeat(20), "a".repeat(64)]);
  await second?.files.stat("/f");
  assert.equal(asked[1]?.headers["authorization"], `Bearer ${"b".repeat(64)}`);
  await second?.kill();
  assert.equal(asked[2]?.headers["authorization"], `Bearer ${options().apiKey}`);
  await assert.rejects(sandbox.fork("2" as unknown as number), TypeError);
});

test("snapshots", async () => {
  const [sandbox] = await sandboxAndWire();
  let asked = answers(
    [201, snapshotWire],
    [201, { ...snapshotWire, name: "" }],
    [200, { snapshots: [snapshotWire], next_cursor: "c/1" }],
    [200, { snapshots: [{ ...snapshotWire, id: "snap_2" }], next_cursor: null }],
  );
  assert.deepEqual(await sandbox.snapshot("before"), snapshotInfo);
  assert.equal((await sandbox.createSnapshot()).name, "");
  const found: string[] = [];
  for await (const { id } of sandbox.listSnapshots()) found.push(id);
  assert.deepEqual(found, [snapshotWire.id, "snap_2"]);
  assert.deepEqual(
    asked.map(({ call, json }) => [call, json]),
    [
      [`POST /v1/sandboxes/${sandbox.id}/snapshots`, { name: "before" }],
      [`POST /v1/sandboxes/${sandbox.id}/snapshots`, {}],
      [`GET /v1/snapshots?sandbox_id=${sandbox.id}`, undefined],
      [`GET /v1/snapshots?sandbox_id=${sandbox.id}&cursor=c%2F1`, undefined],
    ],
  );

  asked = answers([200, { snapshots: [], next_cursor: null }], [200, snapshotWire], [204, null], null);
  for await (const _ of Sandbox.listSnapshots(options())) assert.fail("there is none");
  assert.deepEqual(await Sandbox.getSnapshot(snapshotWire.id, options()), snapshotInfo);
  await Sandbox.deleteSnapshot(snapshotInfo, options());
  // A second try would say that there is none.
  await assert.rejects(Sandbox.deleteSnapshot(snapshotWire.id, options()), APIConnectionError);
  assert.deepEqual(
    asked.map(({ call }) => call),
    [
      "GET /v1/snapshots",
      `GET /v1/snapshots/${snapshotWire.id}`,
      `DELETE /v1/snapshots/${snapshotWire.id}`,
      `DELETE /v1/snapshots/${snapshotWire.id}`,
    ],
  );
});

test("restore", async () => {
  const [sandbox, wire] = await sandboxAndWire();
  const asked = answers([200, wire], [409, refused("failed_precondition")]);
  assert.equal((await sandbox.restore(snapshotWire.id)).state, "running");
  await assert.rejects(sandbox.restore(snapshotInfo), FailedPreconditionError);
  for (const { call, json } of asked) {
    assert.equal(call, `POST /v1/sandboxes/${sandbox.id}/restore`);
    assert.deepEqual(json, { snapshot: snapshotWire.id });
  }
});

test("update sends what was said, and null as null", async () => {
  const [sandbox, wire] = await sandboxAndWire();
  const asked = answers(...[1, 2, 3, 4, 5].map((): [number, unknown] => [200, wire]));
  await sandbox.update({ timeout: null, onTimeout: "pause", idleTimeoutSeconds: 1.5 });
  await sandbox.update({ timeoutMs: 9000, idleTimeoutSeconds: null, autoDeleteSeconds: 0, autoResume: true });
  await sandbox.setTimeout(60);
  await sandbox.setTimeout(null);
  await sandbox.update({ metadata: { k: "w" } });
  assert.deepEqual(
    asked.map(({ json }) => json),
    [
      { timeout_seconds: null, on_timeout: "pause", idle_timeout_seconds: 1.5 },
      { timeout_seconds: 9, idle_timeout_seconds: null, auto_delete_seconds: 0, auto_resume: true },
      { timeout_seconds: 60 },
      { timeout_seconds: null },
      { metadata: { k: "w" } },
    ],
  );
  assert.equal(asked[0]?.call, `PATCH /v1/sandboxes/${sandbox.id}`);
  await assert.rejects(sandbox.update({ timout: 1 } as object), /unknown option 'timout'/);
});

test("what is done to a sandbox as a whole has a limit of its own", async () => {
  const [sandbox] = await sandboxAndWire();
  server().intercept = () => true; // never answers
  await assert.rejects(sandbox.pause({ requestTimeoutMs: 50 }), { name: "APITimeoutError" });
  await assert.rejects(sandbox.fork(1, { signal: AbortSignal.timeout(50) }), { name: "TimeoutError" });
});

test("an access token opens none of it", async () => {
  const sandbox = await Sandbox.connect("a".repeat(20), {
    accessToken: "f".repeat(64),
    baseUrl: options().baseUrl,
  });
  for (const call of [
    () => sandbox.pause(),
    () => sandbox.fork(),
    () => sandbox.update({}),
    () => sandbox.snapshot(),
  ])
    await assert.rejects(call, { name: "AuthenticationError" });
});

test("a paused sandbox has an error of its own", async () => {
  const [sandbox] = await sandboxAndWire();
  answers([409, refused("sandbox_paused")]);
  await assert.rejects(sandbox.commands.run("true"), SandboxPausedError);
});

test("another access token", async () => {
  const [sandbox] = await sandboxAndWire();
  const asked = answers([200, { access_token: "e".repeat(64) }]);
  assert.equal(await sandbox.getAccessToken(), "e".repeat(64));
  assert.equal(asked[0]?.call, `POST /v1/sandboxes/${sandbox.id}/token`);
});

test("the network policy is read", async () => {
  const [sandbox] = await sandboxAndWire();
  const asked = answers([
    200,
    { allow_out: ["a.example"], deny_out: [], allow_internet_access: false, closed_ports: true },
  ]);
  assert.deepEqual(await sandbox.getNetwork(), {
    allowOut: ["a.example"],
    denyOut: [],
    allowInternetAccess: false,
    closedPorts: true,
  });
  assert.equal(asked[0]?.call, `GET /v1/sandboxes/${sandbox.id}/network`);
});

test("the network log is iterated over", async () => {
  const [sandbox] = await sandboxAndWire();
  const flow = { id: 1, at: "2026-11-30T20:00:00.123456Z", verdict: "denied", count: 1 };
  let asked = answers(
    [200, { flows: [flow, { ...flow, id: 2 }], next_cursor: "2" }],
    [200, { flows: [{ ...flow, id: 3 }], next_cursor: "3" }],
    [200, { flows: [], next_cursor: "3" }],
  );
  const found: number[] = [];
  for await (const { id } of sandbox.networkFlows({ verdict: "denied", cursor: "0" })) found.push(id);
  assert.deepEqual(found, [1, 2, 3]);
  assert.match(asked[2]?.call ?? "", /log\?verdict=denied&cursor=3&limit=1000$/);

  asked = answers([200, { flows: [], next_cursor: "3" }], [200, { flows: [flow], next_cursor: "4" }]);
  for await (const { id } of sandbox.networkFlows({ follow: true })) {
    assert.equal(id, 1);
    break;
  }
  assert.match(asked[1]?.call ?? "", /log\?cursor=3&limit=1000&wait_seconds=30$/);
  assert.throws(() => sandbox.networkFlows({ folow: true } as object), /unknown option 'folow'/);
});
