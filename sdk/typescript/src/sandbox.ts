import { Client } from "./client.js";
import { Commands } from "./commands.js";
import { type ConnectionOptions, checkCredential, connectionOptions, resolveConnection } from "./config.js";
import { asyncDispose } from "./dispose.js";
import { AuthenticationError, NotFoundError, SandboxEndedError } from "./errors.js";
import { Files } from "./files.js";
import {
  type Deadlines,
  deadlineFields,
  deadlineOptions,
  type SnapshotInfo,
  snapshotId,
  snapshotInfo,
  snapshotPath,
} from "./lifecycle.js";
import { type NetworkFlow, type NetworkLog, networkLog } from "./network.js";
import {
  checkOptions,
  either,
  optionalBoolean,
  optionalInteger,
  optionalSignal,
  optionalString,
  optionalStringMap,
  optionalStrings,
  seconds,
} from "./options.js";
import { events, type Metrics, metrics, Ports, type SandboxEvent } from "./ports.js";
import { Terminals } from "./terminals.js";
import { type NetworkInfo, networkInfo, record, type SandboxInfo, sandboxInfo, string } from "./wire.js";

/**
 * What may leave a sandbox. Without any entry the public internet can be reached. An entry is an address, a network,
 * a name, `*.suffix`, or `~` and an RE2 expression for a whole name, each with an optional `:port`.
 */
export interface NetworkConfig {
  /** What may be reached, whatever `denyOut` says; when it is not empty, nothing else may. */
  allowOut?: string[] | undefined;
  /** What may not be reached; `"0.0.0.0/0"` is everything. */
  denyOut?: string[] | undefined;
  /** `false`: nothing may be reached but what `allowOut` names. */
  allowInternetAccess?: boolean | undefined;
  /** `true`: nothing outside reaches a port of the sandbox, with an API key neither. Default false. */
  closedPorts?: boolean | undefined;
}

/** Options of {@link Sandbox.create}. */
export interface CreateOptions extends ConnectionOptions, Deadlines {
  /** Name of the template. Default `"code-interpreter"`. */
  template?: string | undefined;
  /** The same as `template`. */
  fromTemplate?: string | undefined;
  /** A name to recognise it by, up to 128 bytes; need not be unique. Default: made by the server. */
  name?: string | undefined;
  /** A snapshot to start from, or its id, in place of a template. The size is the snapshot's. */
  snapshot?: string | SnapshotInfo | undefined;
  /** The same as `snapshot`. */
  fromSnapshot?: string | SnapshotInfo | undefined;
  /** Environment variables of every command. */
  env?: Record<string, string> | undefined;
  /** The same as `env`. */
  envs?: Record<string, string> | undefined;
  /** Labels to find it by in {@link Sandbox.list}. */
  metadata?: Record<string, string> | undefined;
  /** Who runs commands unless a call says otherwise. Default: the template's user. On files root acts. */
  user?: string | undefined;
  /** Cores, 1 or more. Default 2; the operator sets the most. */
  vcpu?: number | undefined;
  /** Memory in MiB, 128 or more. Default 2048; the operator sets the most. */
  memoryMib?: number | undefined;
  /** Disk in MiB that can be written, 16 or more. Default 8192; the operator sets the most. */
  diskMib?: number | undefined;
  /** What may leave the sandbox. Default: what goes to the public internet. */
  network?: NetworkConfig | undefined;
  /**
   * A name for this call, at most 255 printable characters of ASCII. Another create of the same name and options makes
   * nothing and gives the sandbox of the first one; so the call is sent again by itself when the connection breaks.
   */
  idempotencyKey?: string | undefined;
}

const createOptions = [
  "template",
  "fromTemplate",
  "snapshot",
  "fromSnapshot",
  "name",
  ...deadlineOptions,
  "env",
  "envs",
  "metadata",
  "user",
  "vcpu",
  "memoryMib",
  "diskMib",
  "network",
  "idempotencyKey",
  ...connectionOptions,
] as const;

/** How long pausing and the like may take, which write all of a sandbox's memory. */
const operationTimeoutMs = 300_000;

/** Options of what works on a sandbox as a whole. */
export interface OperationOptions {
  /** Seconds in which the server has to answer. Default 300; null means no limit. */
  requestTimeout?: number | null | undefined;
  /** The same as `requestTimeout`. */
  requestTimeoutSeconds?: number | null | undefined;
  /** The same in milliseconds. */
  requestTimeoutMs?: number | null | undefined;
  /** Aborts this call. It rejects with the signal's reason; whether it had its effect is then not known. */
  signal?: AbortSignal | undefined;
}

const operationOptions = ["requestTimeout", "requestTimeoutSeconds", "requestTimeoutMs", "signal"] as const;

/** Options of {@link Sandbox.connect}. */
export interface ConnectOptions extends ConnectionOptions {
  /**
   * The sandbox's own access token, as {@link Sandbox.accessToken} gave it. With it no API key is needed and no
   * request is made here; it opens commands and files of this sandbox and nothing else.
   */
  accessToken?: string | undefined;
}

/** Options of {@link Sandbox.list}. */
export interface ListSandboxesOptions extends ConnectionOptions {
  /** Only those that have all of these labels. */
  metadata?: Record<string, string> | undefined;
  /** Only those in this state, or in one of these. Default: all that have not ended. */
  state?: string | string[] | undefined;
  /** How many are asked for at a time, 1 to 1000. Default 100. It does not limit how many come. */
  pageSize?: number | undefined;
}

/** Options of {@link Sandbox.listSnapshots}. */
export interface ListSnapshotsOptions extends ConnectionOptions {
  /** Only those of this sandbox, which may have ended. */
  sandboxId?: string | undefined;
}

// Passed by connect and create alone: the constructor is not for callers.
const internal = Symbol("ringfence internal");

interface Parts {
  id: string;
  name: string | undefined;
  control: Client | undefined;
  data: Client;
  accessToken: string | undefined;
}

/**
 * One isolated machine on a Ringfence server.
 *
 * ```ts
 * await using sandbox = await Sandbox.create({ template: "code-interpreter" });
 * const result = await sandbox.commands.run("python -c 'print(6 * 7)'");
 * console.log(result.stdout); // 42
 * // leaving the block kills the sandbox
 * ```
 */
export class Sandbox implements AsyncDisposable {
  /** 20 letters and digits. */
  readonly id: string;
  /** Its name at the time it was created or connected to; undefined after connecting with an access token. */
  readonly name: string | undefined;
  /** Runs commands in it. */
  readonly commands: Commands;
  /** Its files. */
  readonly files: Files;
  /** Opens terminals in it. */
  readonly pty: Terminals;
  /** Reaches what listens in it. */
  readonly ports: Ports;
  readonly #data: Client;
  readonly #control: Client | undefined;
  readonly #accessToken: string | undefined;

  /** @internal Use {@link Sandbox.create} or {@link Sandbox.connect}. */
  constructor(key: symbol, parts: Parts) {
    if (key !== internal) throw new TypeError("use Sandbox.create or Sandbox.connect");
    this.id = parts.id;
    this.name = parts.name;
    this.#control = parts.control;
    this.#accessToken = parts.accessToken;
    this.commands = new Commands(parts.data, sandboxPath(parts.id));
    this.files = new Files(parts.data, sandboxPath(parts.id));
    this.pty = new Terminals(parts.data, sandboxPath(parts.id));
    this.ports = new Ports(parts.data, () => this.#controlClient(), sandboxPath(parts.id));
    this.#data = parts.data;
    for (const part of ["commands", "files", "pty", "ports"])
      Object.defineProperty(this, part, { enumerable: false });
  }

  /** The same as `id`. */
  get sandboxId(): string {
    return this.id;
  }

  /**
   * The sandbox's own access token, 64 hex digits, for handing commands and files of this sandbox alone to someone
   * else; undefined after connecting with the API key. A secret: it is left out of what is logged or made JSON.
   */
  get accessToken(): string | undefined {
    return this.#accessToken;
  }

  /**
   * Asks for a token that opens commands and files of this sandbox alone; it needs an API key. It is the same each time,
   * and ends with the sandbox. It is another one than {@link Sandbox.accessToken}, and worth the same.
   */
  async getAccessToken(): Promise<string> {
    const path = `${sandboxPath(this.id)}/token`;
    const answer = await this.#controlClient().json({ method: "POST", path, json: {}, idempotent: true });
    return string(record(answer, "an access token")["access_token"]);
  }

  /**
   * Creates a sandbox and waits until it runs.
   *
   * @throws TypeError when an option is unknown, said twice or of the wrong type; nothing was sent then
   * @throws {@link AuthenticationError} when there is no API key or a wrong one
   * @throws {@link TemplateNotFoundError} when there is no such template
   * @throws {@link NotFoundError} when there is no such snapshot
   * @throws {@link FailedPreconditionError} when the snapshot cannot be used on this host, or `idempotencyKey` named other
   * options
   * @throws {@link InvalidArgumentError} when a value is out of range
   * @throws {@link NotYetSupportedError} when a policy asks for a network, or an option waits for a later version
   * @throws {@link ResourceExhaustedError} when the host has no room
   * @throws {@link APIConnectionError} when no server answers; a sandbox may have been made if the connection broke
   */
  static async create(options?: CreateOptions): Promise<Sandbox> {
    const where = "Sandbox.create";
    const given = checkOptions(where, options, createOptions);
    const template = either(where, given, ["template", "fromTemplate"]);
    if (template !== undefined && typeof template !== "string") {
      throw new TypeError(`${where}: 'template' must be a string`);
    }
    const start = either(where, given, ["snapshot", "fromSnapshot"]);
    const json = {
      template,
      name: optionalString(where, given, "name"),
      ...deadlineFields(where, given),
      snapshot: start === undefined ? undefined : snapshotId(where, start),
      env: optionalStringMap(where, "env", either(where, given, ["env", "envs"])),
      metadata: optionalStringMap(where, "metadata", given["metadata"]),
      user: optionalString(where, given, "user"),
      vcpu: optionalInteger(where, given, "vcpu"),
      memory_mib: optionalInteger(where, given, "memoryMib"),
      disk_mib: optionalInteger(where, given, "diskMib"),
      network: networkField(where, given["network"]),
    };
    const key = optionalString(where, given, "idempotencyKey");
    if (key !== undefined && !/^[\x20-\x7e]+$/.test(key)) {
      throw new TypeError(`${where}: 'idempotencyKey' must be printable characters of ASCII`);
    }
    const connection = resolveConnection(where, given);
    const control = new Client(connection, connection.apiKey);
    const wire = record(
      await control.json({
        method: "POST",
        path: "/v1/sandboxes",
        json,
        headers: key === undefined ? undefined : { "Idempotency-Key": key },
        idempotent: key !== undefined,
        signal: connection.signal,
        unknownOutcome: "whether a sandbox was made is unknown",
      }),
      "a sandbox",
    );
    return made(where, control, wire);
  }

  /**
   * Connects to a sandbox that exists. It is asked for, so that an unknown id rejects here; with an access token
   * nothing is sent. A paused one is not woken by this.
   *
   * @throws {@link NotFoundError} when there is no such sandbox
   * @throws {@link SandboxEndedError} when it has ended
   */
  static async connect(id: string, options?: ConnectOptions): Promise<Sandbox> {
    const where = "Sandbox.connect";
    const given = checkOptions(where, options, ["accessToken", ...connectionOptions]);
    checkId(where, id);
    const token = optionalString(where, given, "accessToken");
    if (token !== undefined) {
      const accessToken = checkCredential("the access token", token.trim());
      const connection = resolveConnection(where, given, false);
      const control = connection.apiKey === undefined ? undefined : new Client(connection, connection.apiKey);
      return new Sandbox(internal, {
        id,
        name: undefined,
        control,
        data: new Client(connection, accessToken),
        accessToken,
      });
    }
    const connection = resolveConnection(where, given);
    const client = new Client(connection, connection.apiKey);
    const { name, endedAt, detail, reason, state } = await getInfo(client, id, connection.signal);
    if (endedAt !== null) {
      throw new SandboxEndedError(`sandbox ${id} has ended: ${detail ?? reason ?? state}`, {
        code: "sandbox_ended",
        hint: "create another one",
      });
    }
    return new Sandbox(internal, { id, name, control: client, data: client, accessToken: undefined });
  }

  /**
   * Lists sandboxes, newest first. Pages are asked for as they are needed.
   *
   * ```ts
   * for await (const info of Sandbox.list({ metadata: { job: "42" } })) console.log(info.id, info.state);
   * ```
   */
  static list(options?: ListSandboxesOptions): AsyncIterableIterator<SandboxInfo> {
    const where = "Sandbox.list";
    const given = checkOptions(where, options, ["metadata", "state", "pageSize", ...connectionOptions]);
    const query = new URLSearchParams();
    const metadata = optionalStringMap(where, "metadata", given["metadata"]) ?? {};
    for (const [key, value] of Object.entries(metadata)) query.set(`metadata.${key}`, value);
    const state = given["state"];
    const states = typeof state === "string" ? [state] : optionalStrings(where, given, "state");
    if (states !== undefined) query.set("state", states.join(","));
    const pageSize = optionalInteger(where, given, "pageSize");
    if (pageSize !== undefined) query.set("limit", String(pageSize));
    const connection = resolveConnection(where, given);
    const client = new Client(connection, connection.apiKey);
    return pages(client, "/v1/sandboxes", "sandboxes", query, sandboxInfo, connection.signal);
  }

  /**
   * Describes a sandbox, also one that ended in the last 7 days.
   *
   * @throws {@link NotFoundError} when there is no such sandbox
   */
  static async getInfo(id: string, options?: ConnectionOptions): Promise<SandboxInfo> {
    const where = "Sandbox.getInfo";
    const connection = resolveConnection(where, checkOptions(where, options, connectionOptions));
    return getInfo(new Client(connection, connection.apiKey), checkId(where, id), connection.signal);
  }

  /**
   * Ends a sandbox and deletes what is in it. One that ended before is a success as well.
   *
   * @throws {@link NotFoundError} when there is no such sandbox
   */
  static async kill(id: string, options?: ConnectionOptions): Promise<void> {
    const where = "Sandbox.kill";
    const connection = resolveConnection(where, checkOptions(where, options, connectionOptions));
    await kill(new Client(connection, connection.apiKey), checkId(where, id), connection.signal);
  }

  /** Lists snapshots, newest first. Pages are asked for as they are needed. */
  static listSnapshots(options?: ListSnapshotsOptions): AsyncIterableIterator<SnapshotInfo> {
    const where = "Sandbox.listSnapshots";
    const given = checkOptions(where, options, ["sandboxId", ...connectionOptions]);
    const id = optionalString(where, given, "sandboxId");
    const connection = resolveConnection(where, given);
    return snapshots(new Client(connection, connection.apiKey), id, connection.signal);
  }

  /**
   * Describes a snapshot.
   *
   * @throws {@link NotFoundError} when there is no such snapshot
   */
  static async getSnapshot(snapshot: string, options?: ConnectionOptions): Promise<SnapshotInfo> {
    const where = "Sandbox.getSnapshot";
    const path = snapshotPath(where, snapshot);
    const connection = resolveConnection(where, checkOptions(where, options, connectionOptions));
    const client = new Client(connection, connection.apiKey);
    return snapshotInfo(
      await client.json({ method: "GET", path, idempotent: true, signal: connection.signal }),
    );
  }

  /**
   * Deletes a snapshot. Sandboxes that started from it go on.
   *
   * @throws {@link NotFoundError} when there is no such snapshot
   */
  static async deleteSnapshot(snapshot: string | SnapshotInfo, options?: ConnectionOptions): Promise<void> {
    const where = "Sandbox.deleteSnapshot";
    const path = snapshotPath(where, snapshot);
    const connection = resolveConnection(where, checkOptions(where, options, connectionOptions));
    // Not sent again by itself: the second one would not find what the first one deleted.
    await new Client(connection, connection.apiKey).json({
      method: "DELETE",
      path,
      idempotent: false,
      signal: connection.signal,
    });
  }

  /** Describes this sandbox as it is now, also after its end. */
  async getInfo(): Promise<SandboxInfo> {
    return getInfo(this.#controlClient(), this.id, undefined);
  }

  /**
   * Saves its memory and written disk and takes it off the host. One that is paused is a success as well.
   *
   * What runs in it goes on after {@link Sandbox.resume}. Whoever follows a command gets {@link SandboxPausedError}, and
   * can go on reading where that was: iterate over the same process again, or `commands.connect` to it. With `autoResume`
   * the next command, file call or port request wakes the sandbox by itself.
   *
   * @throws {@link ResourceExhaustedError} when there is no room for what is saved; the sandbox runs on
   */
  async pause(options?: OperationOptions): Promise<SandboxInfo> {
    return sandboxInfo(await this.#operate("pause", {}, options, true));
  }

  /**
   * Brings a paused sandbox back as it was, with its id and token. One that runs is a success as well.
   *
   * @throws {@link ResourceExhaustedError} when the host has no room; it is still paused
   * @throws {@link FailedPreconditionError} when what was saved cannot be used on this host; the hint says what to do
   */
  async resume(options?: OperationOptions): Promise<SandboxInfo> {
    return sandboxInfo(await this.#operate("resume", {}, options, true));
  }

  /**
   * Makes it what it was in a snapshot of the same template and size; what it was until now is lost. It keeps its id,
   * token, name and environment.
   *
   * @throws {@link NotFoundError} when there is no such snapshot
   * @throws {@link FailedPreconditionError} when it cannot be used for this sandbox or on this host
   */
  async restore(snapshot: string | SnapshotInfo, options?: OperationOptions): Promise<SandboxInfo> {
    const id = snapshotId("sandbox.restore", snapshot);
    return sandboxInfo(await this.#operate("restore", { snapshot: id }, options, false));
  }

  /**
   * Copies it, with what runs in it; it goes on itself. The copies have its memory, files, environment, metadata and
   * deadlines, and ids and tokens of their own. All or none are made. They do not end with this one.
   *
   * @param count how many copies, 1 to 100
   * @throws {@link ResourceExhaustedError} when the host has no room for all of them
   */
  async fork(count = 1, options?: OperationOptions): Promise<Sandbox[]> {
    const where = "sandbox.fork";
    if (!Number.isSafeInteger(count)) throw new TypeError(`${where}: the count must be an integer`);
    const answer = record(await this.#operate("fork", { count }, options, false), "a list of sandboxes");
    const list = Array.isArray(answer["sandboxes"]) ? answer["sandboxes"] : [];
    return list.map((wire) => made(where, this.#controlClient(), wire));
  }

  /**
   * Keeps its memory and written disk of this instant. It goes on; a paused one is not woken.
   *
   * The snapshot outlives the sandbox. Any number of sandboxes can start from it, and this one can go back to it with
   * {@link Sandbox.restore}. What starts from it gets none of this sandbox's `env`, but all that is in the memory and the
   * files of its programs.
   *
   * @param name what it is for, at most 128 bytes; need not be unique
   * @throws {@link ResourceExhaustedError} when there is no room for it; the sandbox runs on
   */
  async snapshot(name?: string, options?: OperationOptions): Promise<SnapshotInfo> {
    const where = "sandbox.snapshot";
    return snapshotInfo(
      await this.#operate("snapshot", { name: optionalString(where, { name }, "name") }, options, false),
    );
  }

  /** The same as {@link Sandbox.snapshot}. */
  async createSnapshot(name?: string, options?: OperationOptions): Promise<SnapshotInfo> {
    return this.snapshot(name, options);
  }

  /** Lists this sandbox's snapshots, newest first. */
  listSnapshots(): AsyncIterableIterator<SnapshotInfo> {
    return snapshots(this.#controlClient(), this.id, undefined);
  }

  /**
   * Changes its deadlines and its metadata, in whatever state it is. What is left out stays; a new `timeout` counts from
   * now.
   *
   * @param changes the deadlines; metadata: labels, in place of all that there are
   * @returns the sandbox as it is now: `expiresAt`, `idleAt` and `deleteAt` are the instants that these lead to
   * @throws {@link InvalidArgumentError} when a value is out of range
   */
  async update(changes: Deadlines & { metadata?: Record<string, string> | undefined }): Promise<SandboxInfo> {
    const where = "sandbox.update";
    const given = checkOptions(where, changes, [...deadlineOptions, "metadata"]);
    const metadata = optionalStringMap(where, "metadata", given["metadata"]);
    const json = { ...deadlineFields(where, given), metadata };
    const path = sandboxPath(this.id);
    return sandboxInfo(await this.#controlClient().json({ method: "PATCH", path, json, idempotent: true }));
  }

  /** Lets it run for so many seconds from now, more or less than before; null: no limit. The same as `update({ timeout })`. */
  async setTimeout(timeout: number | null): Promise<SandboxInfo> {
    return this.update({ timeout });
  }

  async #operate(
    what: "pause" | "resume" | "restore" | "fork" | "snapshot",
    json: Record<string, unknown>,
    options: OperationOptions | undefined,
    idempotent: boolean,
  ): Promise<unknown> {
    const where = `sandbox.${what}`;
    const given = checkOptions(where, options, operationOptions);
    const limit = seconds(where, given, "requestTimeout");
    return this.#controlClient().json({
      method: "POST",
      path: `${sandboxPath(this.id)}/${what === "snapshot" ? "snapshots" : what}`,
      json,
      idempotent,
      signal: optionalSignal(where, given),
      timeoutMs: limit === undefined ? operationTimeoutMs : limit === null ? null : limit * 1000,
    });
  }

  /** Gives the network policy that is in force. */
  async getNetwork(): Promise<NetworkInfo> {
    const path = `${sandboxPath(this.id)}/network`;
    return networkInfo(record(await this.#data.json({ method: "GET", path, idempotent: true }), "a policy"));
  }

  /**
   * Puts another network policy in place of the whole present one. It holds for new connections at once, and open ones
   * that it denies are cut. It needs an API key.
   *
   * @throws {@link InvalidArgumentError} for a bad entry, which its field names
   */
  async updateNetwork(network: NetworkConfig): Promise<void> {
    const body = networkField("sandbox.updateNetwork", network) ?? {};
    const path = `${sandboxPath(this.id)}/network`;
    await this.#controlClient().json({ method: "PUT", path, json: body, idempotent: true });
  }

  /**
   * Gives rows of the network log: where the sandbox connected, and where it may not. The oldest change comes first: a
   * connection when it begins and again, under the same id, when it has ended. The newest 1000 rows are kept.
   *
   * @param options verdict: `"allowed"`, `"denied"` or `"failed"`; cursor: `nextCursor` of the page before; limit: 1 to
   *   1000, 100 by default; wait: whole seconds to wait for the first row, at most 60, not at all by default
   */
  async getNetworkLog(options?: {
    verdict?: string | undefined;
    cursor?: string | undefined;
    limit?: number | undefined;
    wait?: number | undefined;
  }): Promise<NetworkLog> {
    const where = "sandbox.getNetworkLog";
    return this.#networkLog(where, checkOptions(where, options, ["verdict", "cursor", "limit", "wait"]));
  }

  async #networkLog(
    where: string,
    given: Readonly<Record<string, unknown>>,
    signal?: AbortSignal,
  ): Promise<NetworkLog> {
    const query = new URLSearchParams();
    for (const name of ["verdict", "cursor"]) {
      const value = optionalString(where, given, name);
      if (value !== undefined) query.set(name, value);
    }
    const limit = optionalInteger(where, given, "limit");
    if (limit !== undefined) query.set("limit", String(limit));
    const wait = optionalInteger(where, given, "wait");
    if (wait !== undefined) query.set("wait_seconds", String(wait));
    const path = `${sandboxPath(this.id)}/network/log`;
    const timeoutMs = wait === undefined ? undefined : 60_000 + wait * 1000;
    return networkLog(
      await this.#data.json({ method: "GET", path, query, idempotent: true, signal, timeoutMs }),
    );
  }

  /**
   * Gives the rows of the network log one after the other, as {@link Sandbox.getNetworkLog} does page by page.
   *
   * @param options verdict, cursor: the same; follow: wait for more at the end, for as long as it is iterated over;
   *   signal: ends the iteration, which rejects with the signal's reason
   */
  networkFlows(options?: {
    verdict?: string | undefined;
    cursor?: string | undefined;
    follow?: boolean | undefined;
    signal?: AbortSignal | undefined;
  }): AsyncGenerator<NetworkFlow, void, undefined> {
    const where = "sandbox.networkFlows";
    const given = checkOptions(where, options, ["verdict", "cursor", "follow", "signal"]);
    const follow = optionalBoolean(where, given, "follow") ?? false;
    const signal = optionalSignal(where, given);
    const page: Record<string, unknown> = { verdict: given["verdict"], cursor: given["cursor"], limit: 1000 };
    if (follow) page["wait"] = 30;
    return this.#flows(where, page, follow, signal);
  }

  async *#flows(
    where: string,
    page: Record<string, unknown>,
    follow: boolean,
    signal: AbortSignal | undefined,
  ): AsyncGenerator<NetworkFlow, void, undefined> {
    for (;;) {
      const { flows, nextCursor } = await this.#networkLog(where, page, signal);
      yield* flows;
      if (flows.length === 0 && !follow) return;
      page["cursor"] = nextCursor;
    }
  }

  /** Gives what the sandbox uses now: processor, memory, disk, network. */
  async metrics(): Promise<Metrics> {
    const path = `${sandboxPath(this.id)}/metrics`;
    return metrics(
      record(await this.#data.json({ method: "GET", path, idempotent: true }), "metrics")["now"],
    );
  }

  /**
   * Gives what the sandbox used, a sample every 5 seconds, of the last 24 hours, as far as the server has run.
   *
   * @param options since, until: instants. Default: all
   */
  async metricsHistory(options?: { since?: Date | undefined; until?: Date | undefined }): Promise<Metrics[]> {
    const where = "sandbox.metricsHistory";
    const given = checkOptions(where, options, ["since", "until"]);
    const query = new URLSearchParams();
    for (const [name, field] of [
      ["since", "from"],
      ["until", "to"],
    ] as const) {
      const value = given[name];
      if (value === undefined) continue;
      if (!(value instanceof Date)) throw new TypeError(`${where}: '${name}' must be a Date`);
      query.set(field, value.toISOString().replace("Z", "000Z"));
    }
    const path = `${sandboxPath(this.id)}/metrics`;
    const answer = record(await this.#data.json({ method: "GET", path, query, idempotent: true }), "metrics");
    return Array.isArray(answer["samples"]) ? answer["samples"].map(metrics) : [];
  }

  /**
   * Gives what happens to the sandbox, for as long as it is iterated over. A connection that breaks is made again; what
   * could not be kept meanwhile shows as an event `"gap"`.
   *
   * @param options after: the id of an event, to go on behind it. Default: with all that the server still has
   */
  events(options?: {
    after?: string | undefined;
    signal?: AbortSignal | undefined;
  }): AsyncGenerator<SandboxEvent, void, undefined> {
    const where = "sandbox.events";
    const given = checkOptions(where, options, ["after", "signal"]);
    const path = `${sandboxPath(this.id)}/events`;
    return events(this.#data, path, optionalString(where, given, "after"), optionalSignal(where, given));
  }

  /** Ends this sandbox and deletes what is in it. One that ended before is a success as well. */
  async kill(): Promise<void> {
    await kill(this.#controlClient(), this.id, undefined);
  }

  /**
   * Kills the sandbox at the end of an `await using` block. If the block threw and killing fails as well, JavaScript
   * throws a SuppressedError that holds both.
   */
  async [asyncDispose](): Promise<void> {
    try {
      await this.kill();
    } catch (error) {
      if (!(error instanceof NotFoundError)) throw error; // gone is what was wanted
    }
  }

  #controlClient(): Client {
    if (this.#control !== undefined) return this.#control;
    throw new AuthenticationError(
      "this sandbox was connected to with its access token, which opens commands, files and ports alone",
      {
        code: "unauthenticated",
        hint: "set RINGFENCE_API_KEY or pass apiKey to Sandbox.connect",
      },
    );
  }
}

function sandboxPath(id: string): string {
  return `/v1/sandboxes/${encodeURIComponent(id)}`;
}

/** Refuses what would change the path of a URL; whether the sandbox exists is the server's to say. */
function checkId(where: string, id: unknown): string {
  if (typeof id === "string" && /^[A-Za-z0-9_-]+$/.test(id)) return id;
  throw new TypeError(`${where}: a sandbox id must be a string of letters and digits`);
}

async function getInfo(client: Client, id: string, signal: AbortSignal | undefined): Promise<SandboxInfo> {
  return sandboxInfo(await client.json({ method: "GET", path: sandboxPath(id), idempotent: true, signal }));
}

async function kill(client: Client, id: string, signal: AbortSignal | undefined): Promise<void> {
  await client.json({ method: "DELETE", path: sandboxPath(id), idempotent: true, signal });
}

/** Makes a handle of a sandbox that the server made, which its own token opens. */
function made(where: string, control: Client, value: unknown): Sandbox {
  const wire = record(value, "a sandbox");
  const { id, name } = sandboxInfo(wire);
  const accessToken = typeof wire["access_token"] === "string" ? wire["access_token"] : undefined;
  const data = accessToken === undefined ? control : control.as(accessToken);
  return new Sandbox(internal, { id: checkId(where, id), name, control, data, accessToken });
}

function snapshots(
  client: Client,
  sandboxId: string | undefined,
  signal: AbortSignal | undefined,
): AsyncGenerator<SnapshotInfo, void, undefined> {
  const query = new URLSearchParams(sandboxId === undefined ? {} : { sandbox_id: sandboxId });
  return pages(client, "/v1/snapshots", "snapshots", query, snapshotInfo, signal);
}

/** Yields what a list holds under a name, page after page. */
async function* pages<T>(
  client: Client,
  path: string,
  name: string,
  query: URLSearchParams,
  read: (wire: unknown) => T,
  signal: AbortSignal | undefined,
): AsyncGenerator<T, void, undefined> {
  for (;;) {
    const page = record(
      await client.json({ method: "GET", path, query, idempotent: true, signal }),
      `a list of ${name}`,
    );
    for (const wire of Array.isArray(page[name]) ? page[name] : []) yield read(wire);
    const cursor = page["next_cursor"];
    if (typeof cursor !== "string" || cursor === "") return;
    query.set("cursor", cursor);
  }
}

function networkField(where: string, network: unknown): Record<string, unknown> | undefined {
  if (network === undefined) return undefined;
  const at = `${where}: network`;
  const given = checkOptions(at, network, ["allowOut", "denyOut", "allowInternetAccess", "closedPorts"]);
  return {
    allow_out: optionalStrings(at, given, "allowOut"),
    deny_out: optionalStrings(at, given, "denyOut"),
    allow_internet_access: optionalBoolean(at, given, "allowInternetAccess"),
    closed_ports: optionalBoolean(at, given, "closedPorts"),
  };
}
