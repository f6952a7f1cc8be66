/** What listens in a sandbox, what it uses, and what happens to it. */

import type { Client } from "./client.js";
import { APIConnectionError, badResponse, errorFromBody, UnavailableError } from "./errors.js";
import { checkOptions, optionalBoolean, optionalInteger } from "./options.js";
import { EventParser } from "./sse.js";
import { isRecord, record, type Wire } from "./wire.js";

/** How often, one after the other without an event, a stream of events that broke is joined again. */
const rejoins = 12;

/** A port of a sandbox on which something listens, or that was made public. */
export interface PortInfo {
  port: number;
  /** On which it listens inside, such as `"127.0.0.1"`; null where nothing listens now. */
  address: string | null;
  /** Whether it is reached without a key. */
  public: boolean;
  /** Whether that wakes the sandbox when it is paused. */
  wakes: boolean;
  /** The process that listens; null where that is not known. */
  pid: number | null;
  /** That process's name; null where that is not known. */
  command: string | null;
}

/** What a sandbox used at one instant. */
export interface Metrics {
  at: Date;
  /** Processor time since it was created. */
  cpuSeconds: number;
  /** Of one core, since the sample before. */
  cpuPercent: number;
  memoryBytes: number;
  memoryLimitBytes: number;
  diskBytes: number;
  diskLimitBytes: number;
  networkReceivedBytes: number;
  networkSentBytes: number;
  /** Flows and lookups that the network policy or a limit refused. */
  networkDenied: number;
  processes: number;
}

/** Something that happened to a sandbox. */
export interface SandboxEvent {
  /** Its place in the order; `events({after})` goes on behind it. */
  id: string;
  at: Date;
  /** `"created"`, `"started"`, `"process_started"`, …; `"gap"`: events were lost, and `data.reason` says why. */
  type: string;
  /** null for a gap. */
  sandboxId: string | null;
  /** What else there is to say, by the type. */
  data: Record<string, unknown>;
}

function portInfo(value: unknown): PortInfo {
  const wire = record(value, "a port");
  return {
    port: Number(wire["port"]),
    address: text(wire, "address"),
    public: wire["public"] === true,
    wakes: wire["wakes"] === true,
    pid: typeof wire["pid"] === "number" ? wire["pid"] : null,
    command: text(wire, "command"),
  };
}

/** @internal */
export function metrics(value: unknown): Metrics {
  const wire = record(value, "metrics");
  return {
    at: new Date(text(wire, "at") ?? ""),
    cpuSeconds: Number(wire["cpu_seconds"]),
    cpuPercent: Number(wire["cpu_percent"]),
    memoryBytes: Number(wire["memory_bytes"]),
    memoryLimitBytes: Number(wire["memory_limit_bytes"]),
    diskBytes: Number(wire["disk_bytes"]),
    diskLimitBytes: Number(wire["disk_limit_bytes"]),
    networkReceivedBytes: Number(wire["network_received_bytes"]),
    networkSentBytes: Number(wire["network_sent_bytes"]),
    networkDenied: Number(wire["network_denied"]),
    processes: Number(wire["processes"]),
  };
}

function text(wire: Wire, name: string): string | null {
  const value = wire[name];
  return typeof value === "string" && value !== "" ? value : null;
}

/** Reaches what listens in one sandbox. */
export class Ports {
  readonly #client: Client;
  readonly #owner: () => Client;
  readonly #path: string;

  /** @internal owner gives the client that may change who reaches a port; a sandbox's token may not. */
  constructor(client: Client, owner: () => Client, sandboxPath: string) {
    this.#client = client;
    this.#owner = owner;
    this.#path = sandboxPath;
  }

  /** Lists the ports on which something listens, and those that were made public. */
  async list(): Promise<PortInfo[]> {
    const answer = record(
      await this.#client.json({ method: "GET", path: `${this.#path}/ports`, idempotent: true }),
      "a list of ports",
    );
    return Array.isArray(answer["ports"]) ? answer["ports"].map(portInfo) : [];
  }

  /**
   * Lets anybody who can reach the server reach this port, without a key. Needs the API key.
   *
   * @param options wakes: whether they wake the sandbox when it is paused, 3 times in a row and then every 30 seconds; by
   *   default they get an error then
   */
  async publish(port: number, options?: { wakes?: boolean | undefined }): Promise<PortInfo> {
    const where = "ports.publish";
    const wakes = optionalBoolean(where, checkOptions(where, options, ["wakes"]), "wakes");
    return this.#set(where, port, wakes === true ? { public: true, wakes } : { public: true });
  }

  /** Asks for a key again, or for a link. Needs the API key. */
  async unpublish(port: number): Promise<PortInfo> {
    return this.#set("ports.unpublish", port, { public: false });
  }

  /** Gives the URL of a port; it is opened with an API key, or the sandbox's token, as every other call. */
  url(port: number, path = "/"): string {
    const rest = path.startsWith("/") ? path.slice(1) : path;
    return `${this.#client.baseUrl}${this.#path}/ports/${checkPort("ports.url", port)}/${rest}`;
  }

  /**
   * Makes a URL that opens a port in a browser without a key, until it expires.
   *
   * @param options path: the page that it opens, default `"/"`; expiresIn: seconds, default 3600
   */
  async link(
    port: number,
    options?: { path?: string | undefined; expiresIn?: number | undefined },
  ): Promise<string> {
    const where = "ports.link";
    const given = checkOptions(where, options, ["path", "expiresIn"]);
    const path = given["path"] ?? "/";
    if (typeof path !== "string") throw new TypeError(`${where}: 'path' must be a string`);
    const answer = await this.#client.json({
      method: "POST",
      path: `${this.#path}/links`,
      json: {
        port: checkPort(where, port),
        path,
        expires_in_seconds: optionalInteger(where, given, "expiresIn"),
      },
      idempotent: false,
    });
    return text(record(answer, "a link"), "url") ?? "";
  }

  async #set(where: string, port: number, json: Record<string, boolean>): Promise<PortInfo> {
    const path = `${this.#path}/ports/${checkPort(where, port)}`;
    return portInfo(await this.#owner().json({ method: "PUT", path, json, idempotent: true }));
  }
}

function checkPort(where: string, port: unknown): number {
  if (Number.isSafeInteger(port) && (port as number) >= 1 && (port as number) <= 65535) return port as number;
  throw new TypeError(`${where}: the port must be 1 to 65535`);
}

/** @internal Yields events as they happen, joining again where a connection broke. */
export async function* events(
  client: Client,
  path: string,
  after: string | undefined,
  signal: AbortSignal | undefined,
): AsyncGenerator<SandboxEvent, void, undefined> {
  let last = after;
  for (let failures = 0; ; ) {
    try {
      for await (const event of joined(client, path, last, signal)) {
        last = event.id;
        failures = 0;
        yield event;
      }
    } catch (error) {
      signal?.throwIfAborted();
      if (!(error instanceof APIConnectionError || error instanceof UnavailableError)) throw error;
      if (++failures > rejoins) throw error;
      await new Promise((resolve) => setTimeout(resolve, Math.min(5000, 200 * 4 ** Math.min(failures, 3))));
    }
  }
}

async function* joined(
  client: Client,
  path: string,
  after: string | undefined,
  signal: AbortSignal | undefined,
): AsyncGenerator<SandboxEvent, void, undefined> {
  const headers: Record<string, string> = { Accept: "text/event-stream" };
  if (after !== undefined) headers["Last-Event-ID"] = after;
  const call = { method: "GET" as const, path, headers, idempotent: false, signal, unknownOutcome: "" };
  const answer = await client.stream(call);
  const parser = new EventParser();
  for await (const chunk of client.chunks(call, answer, "the stream of events ended")) {
    for (const event of parser.push(chunk)) {
      let wire: unknown;
      try {
        wire = JSON.parse(event.data);
      } catch {
        // Said below.
      }
      if (!isRecord(wire)) throw badResponse("the server sent an event that is not JSON");
      if (event.event === "error")
        throw errorFromBody(wire) ?? badResponse("the server sent an unreadable error");
      yield {
        id: text(wire, "id") ?? "",
        at: new Date(text(wire, "at") ?? ""),
        type: text(wire, "type") ?? "",
        sandboxId: text(wire, "sandbox_id"),
        data: isRecord(wire["data"]) ? wire["data"] : {},
      };
    }
  }
}
