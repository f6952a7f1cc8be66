/**
 * A server for unit tests that answers as the API says, strictly: it refuses what it does not know, keeps files in
 * memory, and lets a test script its commands and break its connections.
 */

import { randomBytes } from "node:crypto";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo, Socket } from "node:net";

export const API_KEY = `rf_${"ab".repeat(32)}`;

/** A request as a test looks at it. */
export interface Seen {
  method: string;
  path: string;
  query: Record<string, string>;
  headers: IncomingMessage["headers"];
  json: Record<string, unknown>;
}

/** What a scripted command does. */
export interface Script {
  /** Output in the order in which it is written. */
  output?: Array<["stdout" | "stderr", string | Buffer]>;
  exitCode?: number;
  reason?: string | null;
  signal?: number | null;
  /** Sent instead of the end: an error event or, without a stream, an error answer. */
  error?: { status: number; code: string; message: string; hint?: string; field?: string };
  /** Called instead of all that, once the headers of a stream are out. */
  raw?: (response: ServerResponse) => void;
}

interface FakeSandbox {
  id: string;
  token: string;
  wire: Record<string, unknown>;
  files: Map<string, { bytes: Buffer; mode: string; owner: string }>;
}

class Refusal extends Error {
  readonly status: number;
  readonly code: string;
  readonly extra: Record<string, string>;

  constructor(status: number, code: string, message: string, extra: Record<string, string> = {}) {
    super(message);
    this.status = status;
    this.code = code;
    this.extra = extra;
  }
}

export class FakeServer {
  readonly seen: Seen[] = [];
  /** What commands do; default: exit 0 without output. */
  script: (request: Seen) => Script | Promise<Script> = () => ({});
  /** Looks at every request first; one that it returns true for is dealt with. */
  intercept: (request: IncomingMessage, response: ServerResponse) => boolean = () => false;
  url = "";
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();
  readonly #sandboxes = new Map<string, FakeSandbox>();

  constructor() {
    this.#server = createServer((request, response) => void this.#handle(request, response));
    // By default 5 s, in which a busy machine loses requests to connections that close under them.
    this.#server.keepAliveTimeout = 120_000;
    this.#server.on("connection", (socket) => {
      this.#sockets.add(socket);
      socket.on("close", () => this.#sockets.delete(socket));
    });
  }

  async start(): Promise<void> {
    await new Promise<void>((resolve) => this.#server.listen(0, "127.0.0.1", resolve));
    this.url = `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  async stop(): Promise<void> {
    for (const socket of this.#sockets) socket.destroy();
    await new Promise((resolve) => this.#server.close(resolve));
  }

  /** The last request. */
  last(): Seen {
    const seen = this.seen.at(-1);
    if (seen === undefined) throw new Error("no request was made");
    return seen;
  }

  file(id: string, path: string): Buffer | undefined {
    return this.#sandboxes.get(id)?.files.get(path)?.bytes;
  }

  async #handle(request: IncomingMessage, response: ServerResponse): Promise<void> {
    response.setHeader("X-Request-Id", randomBytes(8).toString("hex"));
    if (this.intercept(request, response)) return;
    try {
      await this.#route(request, response);
    } catch (error) {
      if (request.destroyed && !request.complete) return; // the client went away
      const refusal = error instanceof Refusal ? error : new Refusal(500, "internal", String(error));
      sendError(response, refusal.status, refusal.code, refusal.message, refusal.extra);
    }
  }

  async #route(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const url = new URL(request.url ?? "/", this.url);
    const isUpload = request.method === "PUT";
    const body = await readAll(request);
    const seen: Seen = {
      method: request.method ?? "",
      path: url.pathname,
      query: Object.fromEntries(url.searchParams),
      headers: request.headers,
      json: !isUpload && body.length > 0 ? JSON.parse(body.toString()) : {},
    };
    this.seen.push(seen);
    const credential = /^Bearer (.+)$/.exec(request.headers.authorization ?? "")?.[1];
    if (credential === undefined)
      throw new Refusal(401, "unauthenticated", "no credential", { hint: "send a key" });
    const [, v1, kind, id, plane, verb] = url.pathname.split("/").map(decodeURIComponent);
    if (v1 !== "v1" || kind !== "sandboxes")
      throw new Refusal(404, "route_not_found", `no route ${url.pathname}`);
    const sandbox = this.#sandboxes.get(id ?? "");
    const isKey = credential === API_KEY;
    if (!isKey && ![...this.#sandboxes.values()].some((other) => other.token === credential)) {
      throw new Refusal(401, "unauthenticated", "wrong credential");
    }
    if (id === undefined || plane === undefined) {
      if (!isKey)
        throw new Refusal(403, "permission_denied", "an access token opens commands and files only");
      return this.#control(seen, response, id, sandbox);
    }
    if (sandbox === undefined || (!isKey && sandbox.token !== credential)) {
      throw new Refusal(404, "not_found", `no sandbox ${id}`);
    }
    if (sandbox.wire["state"] === "deleted")
      throw new Refusal(410, "sandbox_ended", "the sandbox ended: killed");
    if (plane === "commands") return this.#command(seen, response);
    if (plane === "files") return this.#files(seen, response, sandbox, verb, body);
    throw new Refusal(404, "route_not_found", `no route ${url.pathname}`);
  }

  #control(
    seen: Seen,
    response: ServerResponse,
    id: string | undefined,
    sandbox: FakeSandbox | undefined,
  ): void {
    if (id === undefined) {
      if (seen.method === "POST") return this.#create(seen, response);
      return this.#list(seen, response);
    }
    if (sandbox === undefined) throw new Refusal(404, "not_found", `no sandbox ${id}`);
    if (seen.method === "DELETE") {
      if (sandbox.wire["state"] !== "deleted") {
        Object.assign(sandbox.wire, {
          state: "deleted",
          reason: "killed",
          ended_at: "2026-11-30T20:00:01.000000Z",
        });
      }
      response.writeHead(204).end();
      return;
    }
    sendJson(response, 200, sandbox.wire);
  }

  #create(seen: Seen, response: ServerResponse): void {
    const known =
      "name template snapshot vcpu memory_mib disk_mib env metadata user network timeout_seconds on_timeout idle_timeout_seconds auto_delete_seconds auto_resume";
    refuseUnknown(seen.json, known);
    const template = (seen.json["template"] as string | undefined) ?? "code-interpreter";
    if (!/^(superserve\/)?code-interpreter$/.test(template)) {
      throw new Refusal(404, "template_not_found", `no template '${template}'`, {
        hint: "near: code-interpreter",
      });
    }
    const network = (seen.json["network"] ?? {}) as Record<string, unknown>;
    refuseUnknown(network, "allow_out deny_out allow_internet_access closed_ports");
    const id = randomBytes(10).toString("hex");
    const token = randomBytes(32).toString("hex");
    const wire = {
      id,
      name: seen.json["name"] ?? `sandbox-${id}`,
      template: "code-interpreter",
      state: "running",
      reason: null,
      detail: null,
      vcpu: 2,
      memory_mib: 2048,
      disk_mib: 8192,
      metadata: seen.json["metadata"] ?? {},
      user: "root",
      work_dir: "/home/user",
      network: { allow_out: [], deny_out: network["deny_out"] ?? [], allow_internet_access: null },
      created_at: "2026-11-30T20:00:00.123456Z",
      started_at: "2026-11-30T20:00:00.200000Z",
      ended_at: null,
      expires_at: null,
      paused_at: null,
      idle_at: null,
      delete_at: null,
      timeout_seconds: seen.json["timeout_seconds"] ?? null,
      on_timeout: seen.json["on_timeout"] ?? "kill",
      idle_timeout_seconds: seen.json["idle_timeout_seconds"] ?? null,
      auto_delete_seconds: seen.json["auto_delete_seconds"] ?? null,
      auto_resume: seen.json["auto_resume"] ?? true,
    };
    this.#sandboxes.set(id, { id, token, wire, files: new Map() });
    sendJson(response, 201, { ...wire, access_token: token });
  }

  #list(seen: Seen, response: ServerResponse): void {
    const wanted = Object.entries(seen.query).filter(([name]) => name.startsWith("metadata."));
    const states = seen.query["state"]?.split(",") ?? ["running"];
    const all = [...this.#sandboxes.values()].reverse().filter(({ wire }) => {
      const metadata = wire["metadata"] as Record<string, string>;
      return (
        states.includes(String(wire["state"])) &&
        wanted.every(([name, value]) => metadata[name.slice(9)] === value)
      );
    });
    const start = Number(seen.query["cursor"] ?? 0);
    const end = start + Number(seen.query["limit"] ?? 100);
    const next_cursor = end < all.length ? String(end) : null;
    sendJson(response, 200, { sandboxes: all.slice(start, end).map(({ wire }) => wire), next_cursor });
  }

  async #command(seen: Seen, response: ServerResponse): Promise<void> {
    refuseUnknown(
      seen.json,
      "command args cwd env user stdin stdin_base64 timeout_seconds output_limit_bytes tag",
    );
    if ("command" in seen.json === "args" in seen.json) {
      throw new Refusal(400, "invalid_argument", "exactly one of command and args", { field: "command" });
    }
    if (seen.json["timeout_seconds"] === 0) {
      throw new Refusal(400, "invalid_argument", "timeout_seconds must be above 0", {
        field: "timeout_seconds",
      });
    }
    const script = await this.script(seen);
    const output = script.output ?? [];
    const end = {
      id: "1",
      exit_code: script.exitCode ?? 0,
      reason: script.reason ?? null,
      signal: script.signal ?? null,
      stdout_truncated: false,
      stderr_truncated: false,
      truncated: false,
      duration_ms: 12,
      started_at: "2026-11-30T20:00:00.123456Z",
    };
    if (seen.headers.accept === "text/event-stream") {
      response.writeHead(200, { "Content-Type": "text/event-stream" });
      if (script.raw !== undefined) return script.raw(response);
      sendEvent(response, "started", { id: "1", pid: 7 });
      let position = 0;
      for (const [stream, data] of output) {
        const bytes = Buffer.from(data as string);
        sendEvent(response, stream, { position, ...textOrBase64(bytes) });
        position += bytes.length;
      }
      if (script.error === undefined) sendEvent(response, "exit", end);
      else
        sendEvent(response, "error", {
          error: { ...script.error, request_id: response.getHeader("X-Request-Id") },
        });
      response.end();
      return;
    }
    if (script.error !== undefined) {
      const { status, code, message, ...extra } = script.error;
      throw new Refusal(status, code, message, extra as Record<string, string>);
    }
    sendJson(response, 200, { ...end, ...buffered("stdout", output), ...buffered("stderr", output) });
  }

  #files(
    seen: Seen,
    response: ServerResponse,
    sandbox: FakeSandbox,
    verb: string | undefined,
    body: Buffer,
  ): void {
    const known = "path path_base64 user owner mode recursive depth";
    refuseUnknown(seen.query, known);
    if (verb === "mkdir") refuseUnknown(seen.json, "path path_base64 user owner mode");
    if (verb === "rename") refuseUnknown(seen.json, "from from_base64 to to_base64 user");
    const source = verb === "mkdir" ? seen.json : seen.query;
    const path = pathOf(source, "path") ?? pathOf(seen.json, "from") ?? "";
    if (!path.startsWith("/")) {
      throw new Refusal(400, "invalid_argument", `path '${path}' is not absolute`, { field: "path" });
    }
    const file = sandbox.files.get(path);
    if (seen.method === "PUT") {
      const mode = seen.query["mode"] ?? "0644";
      sandbox.files.set(path, {
        bytes: body,
        mode,
        owner: seen.query["owner"] ?? seen.query["user"] ?? "root",
      });
      return sendJson(response, 200, describe(path, sandbox));
    }
    if (verb === "mkdir") return sendJson(response, 200, { ...describe(path, sandbox), type: "directory" });
    if (verb === "list") {
      const entries = [...sandbox.files.keys()].filter((name) => name.startsWith(`${path}/`));
      return sendJson(response, 200, { entries: entries.map((name) => describe(name, sandbox)) });
    }
    if (file === undefined)
      throw new Refusal(404, "file_not_found", `no file ${path}`, { hint: "list its directory" });
    if (verb === "rename") {
      const to = pathOf(seen.json, "to") ?? "";
      sandbox.files.set(to, file);
      sandbox.files.delete(path);
      return sendJson(response, 200, describe(to, sandbox));
    }
    if (verb === "stat") return sendJson(response, 200, describe(path, sandbox));
    if (seen.method === "DELETE") {
      sandbox.files.delete(path);
      response.writeHead(204).end();
      return;
    }
    const range = /^bytes=(\d+)-(\d*)$/.exec(seen.headers.range ?? "");
    const from = Number(range?.[1] ?? 0);
    const to = range?.[2] ? Math.min(Number(range[2]) + 1, file.bytes.length) : file.bytes.length;
    if (from > file.bytes.length) throw new Refusal(416, "range_invalid", "the range is beyond the end");
    const bytes = file.bytes.subarray(from, to);
    response.writeHead(range ? 206 : 200, {
      "Content-Type": "application/octet-stream",
      "Content-Length": bytes.length,
    });
    response.end(bytes);
  }
}

export function sendEvent(response: ServerResponse, event: string, data: unknown): void {
  response.write(`event: ${event}\ndata: ${JSON.stringify(data)}\n\n`);
}

export function sendJson(response: ServerResponse, status: number, value: unknown): void {
  response.writeHead(status, { "Content-Type": "application/json" }).end(JSON.stringify(value));
}

export function sendError(
  response: ServerResponse,
  status: number,
  code: string,
  message: string,
  extra: Record<string, string> = {},
): void {
  const request_id = response.getHeader("X-Request-Id");
  sendJson(response, status, { error: { code, message, ...extra, request_id } });
}

async function readAll(request: IncomingMessage): Promise<Buffer> {
  const chunks: Buffer[] = [];
  for await (const chunk of request) chunks.push(chunk);
  return Buffer.concat(chunks);
}

function refuseUnknown(fields: Record<string, unknown>, known: string): void {
  for (const name of Object.keys(fields)) {
    if (!known.split(" ").includes(name)) {
      throw new Refusal(400, "invalid_argument", `unknown field '${name}'`, { field: name });
    }
  }
}

function pathOf(fields: Record<string, unknown>, name: string): string | undefined {
  const bytes = fields[`${name}_base64`];
  if (typeof bytes === "string") return Buffer.from(bytes, "base64").toString("latin1");
  return fields[name] as string | undefined;
}

function describe(path: string, sandbox: FakeSandbox): Record<string, unknown> {
  const file = sandbox.files.get(path);
  return {
    path,
    name: path.split("/").at(-1),
    type: "file",
    size: file?.bytes.length ?? 0,
    mode: file?.mode ?? "0755",
    uid: 0,
    gid: 0,
    owner: file?.owner ?? "root",
    group: "root",
    modified_at: "2026-11-30T20:00:00.123456Z",
    target: null,
  };
}

function textOrBase64(bytes: Buffer): { text: string } | { base64: string } {
  const text = bytes.toString();
  return Buffer.from(text).equals(bytes) ? { text } : { base64: bytes.toString("base64") };
}

function buffered(stream: string, output: NonNullable<Script["output"]>): Record<string, unknown> {
  const bytes = Buffer.concat(
    output.filter(([name]) => name === stream).map(([, data]) => Buffer.from(data as string)),
  );
  const fields: Record<string, unknown> = { [stream]: bytes.toString() };
  if (!Buffer.from(bytes.toString()).equals(bytes)) fields[`${stream}_base64`] = bytes.toString("base64");
  return fields;
}
