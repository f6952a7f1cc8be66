import { type Bytes, decodeBase64, decodeUtf8, encodeBase64, encodeUtf8, Tail } from "./bytes.js";
import type { Answer, Call, Client } from "./client.js";
import { connectionError } from "./client.js";
import { type APIResponseError, badResponse, errorFromBody } from "./errors.js";
import {
  checkOptions,
  either,
  optionalFunction,
  optionalInteger,
  optionalSignal,
  optionalString,
  optionalStringMap,
  seconds,
} from "./options.js";
import { Process, type ProcessInfo, processInfo, Terminal } from "./process.js";
import { type CommandResult, commandResult } from "./result.js";
import { EventParser, type ServerSentEvent } from "./sse.js";
import { isRecord, record, type Wire } from "./wire.js";

/** The server's default deadline of a command, in seconds. */
const defaultTimeoutSeconds = 30;

/** The server's default limit of output, in bytes a stream. */
const defaultOutputLimitBytes = 10 * 1024 * 1024;

/** Longest deadline, in seconds, for which the answer is waited for in one piece; see {@link mustStream}. */
const longestBufferedSeconds = 240;

/** How long things are waited for. */
export interface Timing {
  /** Past a command's deadline, for its answer in one piece, in seconds: killing and sending take time. */
  graceSeconds: number;
  /** For the next byte of a stream, in milliseconds. By default four of the server's keep-alive comments. */
  silenceMs: number;
  /** For the end of a stream after its last event, in milliseconds. */
  lingerMs: number;
}

const defaultTiming: Timing = { graceSeconds: 30, silenceMs: 60_000, lingerMs: 1000 };

/** Gets output as it comes: whole characters as text, and the same as bytes. A promise is waited for. */
export type OutputCallback = (text: string, bytes: Uint8Array) => unknown;

/** Options of {@link Commands.run}. */
export interface RunOptions {
  /** Directory to start in. Default: the sandbox's. */
  cwd?: string | undefined;
  /** Environment variables on top of the sandbox's. */
  env?: Record<string, string> | undefined;
  /** The same as `env`. */
  envs?: Record<string, string> | undefined;
  /** Who runs the command. Default: the sandbox's user. */
  user?: string | undefined;
  /** Standard input, text or bytes. Default: empty. */
  stdin?: string | Uint8Array | undefined;
  /**
   * Deadline in seconds. Past it the command is killed with everything that it started, and the result
   * has exit code 124, reason `"deadline"` and what was written until then. Default 30; null or 0: none.
   */
  timeout?: number | null | undefined;
  /** The same as `timeout`. */
  timeoutSeconds?: number | null | undefined;
  /** The same in milliseconds. */
  timeoutMs?: number | null | undefined;
  /** Bytes that are kept of stdout and of stderr each: the last ones. 1 to 67108864, default 10485760. */
  outputLimitBytes?: number | undefined;
  /** Called with standard output as it comes. What it throws kills the command and rejects the call. */
  onStdout?: OutputCallback | undefined;
  /** Called with standard error as it comes. What it throws kills the command and rejects the call. */
  onStderr?: OutputCallback | undefined;
  /** A name for the process in {@link Commands.list}. */
  tag?: string | undefined;
  /** Aborts the call and so kills the command. The call rejects with the signal's reason. */
  signal?: AbortSignal | undefined;
}

/** Options of {@link Commands.start}. */
export interface StartOptions {
  /** Directory to start in. Default: the sandbox's. */
  cwd?: string | undefined;
  /** Environment variables on top of the sandbox's. */
  env?: Record<string, string> | undefined;
  /** The same as `env`. */
  envs?: Record<string, string> | undefined;
  /** Who runs the command. Default: the sandbox's user. */
  user?: string | undefined;
  /**
   * Text or bytes that it reads, and then an end of file; true: its standard input stays open for
   * {@link Process.sendStdin}. Default: an end of file at once.
   */
  stdin?: string | Uint8Array | boolean | undefined;
  /** Seconds until it is killed. Default null: never. */
  timeout?: number | null | undefined;
  /** The same as `timeout`. */
  timeoutSeconds?: number | null | undefined;
  /** The same in milliseconds. */
  timeoutMs?: number | null | undefined;
  /** A name for it in {@link Commands.list}; `connect("tag:NAME")` finds it. */
  tag?: string | undefined;
  /** Bytes of output that are kept, 65536 to 67108864; then the oldest go. Default 8388608. */
  logBytes?: number | undefined;
}

const startOptions = [
  "cwd",
  "env",
  "envs",
  "user",
  "stdin",
  "timeout",
  "timeoutSeconds",
  "timeoutMs",
  "tag",
  "logBytes",
] as const;

const runOptions = [
  "cwd",
  "env",
  "envs",
  "user",
  "stdin",
  "timeout",
  "timeoutSeconds",
  "timeoutMs",
  "outputLimitBytes",
  "onStdout",
  "onStderr",
  "tag",
  "background",
  "signal",
] as const;

/**
 * Decides whether a command's answer is read as a stream of events rather than in one piece. It must be when
 * somebody wants the output as it comes; and when the command may take long, since Node's fetch gives up on an
 * answer after 300 s without a byte, while a stream has a keep-alive every 15 s.
 */
export function mustStream(timeoutSeconds: number | null | undefined, hasCallbacks: boolean): boolean {
  if (hasCallbacks || timeoutSeconds === null) return true;
  return (timeoutSeconds ?? defaultTimeoutSeconds) > longestBufferedSeconds;
}

/** Runs commands in one sandbox. */
export class Commands {
  readonly #client: Client;
  readonly #sandboxPath: string;
  readonly #path: string;
  readonly #timing: Timing;

  /** @internal */
  constructor(client: Client, sandboxPath: string, timing: Timing = defaultTiming) {
    this.#client = client;
    this.#sandboxPath = sandboxPath;
    this.#path = `${sandboxPath}/commands`;
    this.#timing = timing;
  }

  /**
   * Runs a command to its end. An exit code other than 0 is a result and not an error;
   * {@link CommandResult.check} makes it one.
   *
   * @param command a string for the shell, or a program and its arguments, which no shell sees
   * @throws TypeError when an option is unknown, said twice or of the wrong type; nothing was sent then
   * @throws {@link InvalidArgumentError} when the directory or the user does not exist, or a value is out of range
   * @throws {@link SandboxEndedError} when the sandbox ended before or during the command
   * @throws {@link SandboxPausedError} when it was paused during the command, or is paused and not to be woken; the command
   * goes on after the resume, {@link Commands.list} has it, and {@link Commands.connect} joins it, by its tag for one
   * @throws {@link NotFoundError} when there is no such sandbox
   * @throws {@link APIConnectionError} when the connection broke: the command is killed then, and what it did
   * until then is unknown
   * @throws {@link APITimeoutError} when the server did not answer within 30 s after the deadline
   */
  async run(command: string | readonly string[], options?: RunOptions): Promise<CommandResult>;
  /** Starts it in the background, as {@link Commands.start} does. */
  async run(
    command: string | readonly string[],
    options: StartOptions & { background: true },
  ): Promise<Process>;
  async run(
    command: string | readonly string[],
    options?: RunOptions | (StartOptions & { background: true }),
  ): Promise<CommandResult | Process> {
    const where = "commands.run";
    const { background, ...rest } = (options ?? {}) as Record<string, unknown>;
    if (background === true) return this.start(command, rest);
    const given = checkOptions(where, options, runOptions);
    if (background !== undefined && background !== false) {
      throw new TypeError(`${where}: 'background' must be true or false`);
    }
    const timeoutSeconds = seconds(where, given, "timeout");
    const outputLimit = optionalInteger(where, given, "outputLimitBytes");
    const onStdout = optionalFunction<OutputCallback>(where, given, "onStdout");
    const onStderr = optionalFunction<OutputCallback>(where, given, "onStderr");
    const call: Call = {
      method: "POST",
      path: this.#path,
      json: {
        ...commandField(where, command),
        cwd: optionalString(where, given, "cwd"),
        env: optionalStringMap(where, "env", either(where, given, ["env", "envs"])),
        user: optionalString(where, given, "user"),
        ...stdinField(where, given["stdin"]),
        timeout_seconds: timeoutSeconds,
        output_limit_bytes: outputLimit,
        tag: optionalString(where, given, "tag"),
      },
      idempotent: false,
      signal: optionalSignal(where, given),
      unknownOutcome: "how the command ended is unknown",
    };
    if (mustStream(timeoutSeconds, onStdout !== undefined || onStderr !== undefined)) {
      // The deadline is the server's. Only the time until the stream begins is limited here.
      call.headers = { Accept: "text/event-stream" };
      const answer = await this.#client.stream(call);
      return new OutputReader(
        this.#client,
        call,
        answer,
        this.#timing,
        outputLimit,
        onStdout,
        onStderr,
      ).read();
    }
    call.timeoutMs = ((timeoutSeconds ?? defaultTimeoutSeconds) + this.#timing.graceSeconds) * 1000;
    call.lateHint = "the server is overloaded or stuck; look at its log";
    return commandResult(await this.#client.json(call));
  }

  /**
   * Starts a command in the background and resolves once it runs. It goes on when this program ends.
   *
   * @param command a string for the shell, or a program and its arguments, which no shell sees
   */
  async start(command: string | readonly string[], options?: StartOptions): Promise<Process> {
    const where = "commands.start";
    const given = checkOptions(where, options, startOptions);
    const stdin = given["stdin"];
    const open = stdin !== undefined && stdin !== false;
    if (open && stdin !== true) stdinField(where, stdin);
    const wire = await this.#client.json({
      method: "POST",
      path: `${this.#sandboxPath}/processes`,
      json: {
        ...commandField(where, command),
        cwd: optionalString(where, given, "cwd"),
        env: optionalStringMap(where, "env", either(where, given, ["env", "envs"])),
        user: optionalString(where, given, "user"),
        stdin: open,
        timeout_seconds: seconds(where, given, "timeout") ?? null,
        tag: optionalString(where, given, "tag"),
        log_bytes: optionalInteger(where, given, "logBytes"),
      },
      idempotent: false,
      unknownOutcome: "whether the command was started is unknown",
    });
    const process = new Process(this.#client, this.#sandboxPath, processInfo(wire));
    if (open && stdin !== true) await process.sendStdin(stdin as string | Uint8Array, { close: true });
    return process;
  }

  /**
   * Lists the processes that were started through Ringfence, the oldest first.
   *
   * @param options tag: only those of that name; state: `"running"` or `"ended"` only
   */
  async list(options?: { tag?: string | undefined; state?: string | undefined }): Promise<ProcessInfo[]> {
    const where = "commands.list";
    const given = checkOptions(where, options, ["tag", "state"]);
    const query = new URLSearchParams();
    for (const name of ["tag", "state"]) {
      const value = optionalString(where, given, name);
      if (value !== undefined) query.set(name, value);
    }
    const path = `${this.#sandboxPath}/processes`;
    const answer = record(
      await this.#client.json({ method: "GET", path, query, idempotent: true }),
      "a list",
    );
    return Array.isArray(answer["processes"]) ? answer["processes"].map(processInfo) : [];
  }

  /**
   * Describes one process.
   *
   * @param process its id, its pid, or `"tag:NAME"` where exactly one has that tag
   * @throws {@link ProcessNotFoundError} when there is none, or it ended more than 10 minutes ago
   */
  async get(process: string | number): Promise<ProcessInfo> {
    return this.#get("commands.get", process);
  }

  /**
   * Gives a handle of a process that was started before, here or elsewhere, also after it ended.
   *
   * @param process its id, its pid, or `"tag:NAME"` where exactly one has that tag
   * @param options fromPosition: where in its output to begin. Default 0: with all that its log still holds
   * @returns a {@link Terminal} where the process has one
   * @throws {@link ProcessNotFoundError} when there is none, or it ended more than 10 minutes ago
   */
  async connect(process: string | number, options?: { fromPosition?: number | undefined }): Promise<Process> {
    const where = "commands.connect";
    const given = checkOptions(where, options, ["fromPosition"]);
    const from = optionalInteger(where, given, "fromPosition", 0) ?? 0;
    const info = await this.#get(where, process);
    return new (info.pty ? Terminal : Process)(this.#client, this.#sandboxPath, info, from);
  }

  /** Kills a process with all that it started. @returns false when it had ended */
  async kill(process: string | number): Promise<boolean> {
    return (await this.connect(process)).kill();
  }

  async #get(where: string, process: unknown): Promise<ProcessInfo> {
    const name = Number.isSafeInteger(process) ? String(process) : process;
    if (typeof name !== "string" || name === "") {
      throw new TypeError(`${where}: name the process by its id, its pid or "tag:NAME"`);
    }
    const path = `${this.#sandboxPath}/processes/${encodeURIComponent(name)}`;
    return processInfo(await this.#client.json({ method: "GET", path, idempotent: true }));
  }
}

function commandField(where: string, command: unknown): { command: string } | { args: readonly string[] } {
  if (typeof command === "string") return { command };
  if (Array.isArray(command) && command.every((part) => typeof part === "string")) return { args: command };
  throw new TypeError(`${where}: the command must be a string for the shell or a list of strings`);
}

function stdinField(where: string, stdin: unknown): { stdin?: string; stdin_base64?: string } {
  if (stdin === undefined) return {};
  if (typeof stdin === "string") return { stdin };
  if (stdin instanceof Uint8Array) return { stdin_base64: encodeBase64(stdin) };
  throw new TypeError(`${where}: 'stdin' must be a string or a Uint8Array`);
}

/** Reads the stream of events of one command. It ends well only with the event that says how the command ended. */
class OutputReader {
  readonly #client: Client;
  readonly #call: Call;
  readonly #answer: Answer;
  readonly #timing: Timing;
  readonly #stdout: Tail;
  readonly #stderr: Tail;
  readonly #onStdout: OutputCallback | undefined;
  readonly #onStderr: OutputCallback | undefined;

  constructor(
    client: Client,
    call: Call,
    answer: Answer,
    timing: Timing,
    outputLimit = defaultOutputLimitBytes,
    onStdout?: OutputCallback,
    onStderr?: OutputCallback,
  ) {
    this.#client = client;
    this.#call = call;
    this.#answer = answer;
    this.#timing = timing;
    this.#stdout = new Tail(outputLimit);
    this.#stderr = new Tail(outputLimit);
    this.#onStdout = onStdout;
    this.#onStderr = onStderr;
  }

  async read(): Promise<CommandResult> {
    const { response, abort, release } = this.#answer;
    const { silenceMs, lingerMs } = this.#timing;
    try {
      const type = response.headers.get("content-type") ?? "";
      if (response.body === null || !type.startsWith("text/event-stream")) {
        throw this.#bad(`answered a request for a stream of events with '${type}'`);
      }
      const reader = response.body.getReader();
      const parser = new EventParser();
      for (;;) {
        const chunk = await this.#next(reader, silenceMs, `nothing came for ${silenceMs / 1000} s`);
        if (chunk === undefined)
          throw connectionError(
            this.#client.baseUrl,
            new TypeError("the stream ended early"),
            this.#call.unknownOutcome,
          );
        for (const event of parser.push(chunk)) {
          const result = await this.#take(event);
          if (result === undefined) continue;
          // Reading to the end lets the connection serve the next request.
          await this.#next(reader, lingerMs, "").catch(() => {});
          return result;
        }
      }
    } catch (error) {
      abort(error); // the server kills the command of a client that went away
      throw error;
    } finally {
      release();
    }
  }

  /** Returns the next bytes, undefined at the end. A silence that is too long breaks the connection. */
  async #next(
    reader: ReadableStreamDefaultReader<Uint8Array>,
    silenceMs: number,
    reason: string,
  ): Promise<Uint8Array | undefined> {
    const silent = setTimeout(() => {
      this.#answer.abort(
        connectionError(this.#client.baseUrl, new TypeError(reason), this.#call.unknownOutcome),
      );
    }, silenceMs);
    try {
      const { done, value } = await reader.read();
      return done ? undefined : value;
    } catch (error) {
      throw this.#client.translate(error, this.#call);
    } finally {
      clearTimeout(silent);
    }
  }

  /** Handles one event; returns the result if it is the last one. Events of unknown types are left out. */
  async #take(event: ServerSentEvent): Promise<CommandResult | undefined> {
    switch (event.event) {
      case "stdout":
        await this.#output(this.#parse(event), this.#stdout, this.#onStdout);
        return undefined;
      case "stderr":
        await this.#output(this.#parse(event), this.#stderr, this.#onStderr);
        return undefined;
      case "exit":
        return this.#result(this.#parse(event));
      case "error": {
        const requestId = this.#requestId();
        throw (
          errorFromBody(this.#parse(event), { requestId }) ?? this.#bad("sent an error that cannot be read")
        );
      }
      default:
        return undefined;
    }
  }

  async #output(wire: Wire, tail: Tail, callback: OutputCallback | undefined): Promise<void> {
    let text: string;
    let bytes: Bytes;
    if (typeof wire["text"] === "string") {
      text = wire["text"];
      bytes = encodeUtf8(text);
    } else if (typeof wire["base64"] === "string") {
      bytes = decodeBase64(wire["base64"]);
      text = decodeUtf8(bytes);
    } else {
      throw this.#bad("sent output that cannot be read");
    }
    tail.push(bytes);
    await callback?.(text, bytes);
  }

  #result(wire: Wire): CommandResult {
    const stdoutBytes = this.#stdout.bytes();
    const stderrBytes = this.#stderr.bytes();
    return commandResult(wire, {
      stdout: decodeUtf8(stdoutBytes),
      stderr: decodeUtf8(stderrBytes),
      stdoutBytes,
      stderrBytes,
      stdoutTruncated: this.#stdout.truncated,
      stderrTruncated: this.#stderr.truncated,
    });
  }

  #parse(event: ServerSentEvent): Wire {
    let value: unknown;
    try {
      value = JSON.parse(event.data);
    } catch {
      // Said below.
    }
    if (isRecord(value)) return value;
    throw this.#bad(`sent an event '${event.event}' that is not JSON`);
  }

  #requestId(): string | undefined {
    return this.#answer.response.headers.get("x-request-id") ?? undefined;
  }

  #bad(what: string): APIResponseError {
    return badResponse(`${this.#client.baseUrl} ${what}; ${this.#call.unknownOutcome}`, {
      requestId: this.#requestId(),
    });
  }
}
