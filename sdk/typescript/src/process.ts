/** Processes that run beside their caller: background commands and terminals. */

import { type Bytes, decodeUtf8, Tail } from "./bytes.js";
import type { Call, Client } from "./client.js";
import { sleep } from "./client.js";
import { asyncDispose } from "./dispose.js";
import {
  APIConnectionError,
  APITimeoutError,
  badResponse,
  errorFromBody,
  FailedPreconditionError,
  ProcessNotFoundError,
  UnavailableError,
} from "./errors.js";
import { type Frame, FrameParser, frameJson, frameKind, frameNumber, streamType } from "./frames.js";
import {
  checkOptions,
  optionalBoolean,
  optionalFunction,
  optionalInteger,
  optionalSignal,
  seconds,
} from "./options.js";
import { type CommandResult, commandResult } from "./result.js";
import { type FileData, openUpload } from "./upload.js";
import { isRecord, record } from "./wire.js";

/** How often, one after the other without any progress, a stream that broke is joined again: about half a minute. */
const rejoins = 12;

const defaultOutputLimitBytes = 10 * 1024 * 1024;

/** How a process ended. */
export interface ProcessExit {
  /** 0 to 255: 124 its deadline passed, 128+n signal n ended it. */
  exitCode: number;
  /** null for an ordinary exit; `"deadline"`, `"oom"` or `"signal"`. */
  reason: string | null;
  signal: number | null;
  endedAt: Date | null;
}

/** A process that was started through Ringfence: a command, a background job or a terminal. */
export interface ProcessInfo {
  /** Unique in the sandbox. */
  id: string;
  /** As programs in the sandbox see it. */
  pid: number;
  /** What its starter called it; null when it has no name. */
  tag: string | null;
  /** The line that the shell runs, or the argument list, quoted for a shell. */
  command: string;
  /** The argument list; null where a shell runs a line. */
  args: string[] | null;
  cwd: string;
  user: string;
  /** Whether it has a terminal. */
  pty: boolean;
  /** Whether its standard input can still be written. */
  stdinOpen: boolean;
  startedAt: Date;
  /** When it is killed; null: never. */
  deadlineAt: Date | null;
  /** An ended one is kept for 10 minutes. */
  state: "running" | "ended" | (string & {});
  /** null while it runs. */
  exit: ProcessExit | null;
  /** Position of the first byte of output that its log still holds. */
  logStart: number;
  /** How many bytes it wrote so far, stdout and stderr together. */
  logEnd: number;
}

export function processInfo(value: unknown): ProcessInfo {
  const wire = record(value, "a process");
  const log = isRecord(wire["log"]) ? wire["log"] : {};
  const exit = wire["exit"];
  const text = (name: string) => (typeof wire[name] === "string" ? wire[name] : "");
  return {
    id: text("id"),
    pid: Number(wire["pid"]),
    tag: typeof wire["tag"] === "string" ? wire["tag"] : null,
    command: text("command"),
    args: Array.isArray(wire["args"]) ? wire["args"].map(String) : null,
    cwd: text("cwd"),
    user: text("user"),
    pty: wire["pty"] === true,
    stdinOpen: wire["stdin"] === true,
    startedAt: new Date(text("started_at")),
    deadlineAt: date(wire["deadline_at"]),
    state: text("state"),
    exit: isRecord(exit)
      ? {
          exitCode: Number(exit["exit_code"]),
          reason: typeof exit["reason"] === "string" ? exit["reason"] : null,
          signal: typeof exit["signal"] === "number" ? exit["signal"] : null,
          endedAt: date(exit["ended_at"]),
        }
      : null,
    logStart: Number(log["start"] ?? 0),
    logEnd: Number(log["end"] ?? 0),
  };
}

function date(value: unknown): Date | null {
  return typeof value === "string" ? new Date(value) : null;
}

/** A piece of a process's output. */
export interface Output {
  /** What a terminal shows is `"stdout"`. */
  stream: "stdout" | "stderr";
  bytes: Uint8Array;
  /** The bytes as text. A character that two pieces share is U+FFFD in both: join `bytes` to be exact. */
  text: string;
  /** Where the bytes begin in the process's output, stdout and stderr counted together. */
  position: number;
  /** How many bytes before this piece the log no longer held: 0 as a rule. */
  lost: number;
}

/** Gets output as it comes: whole characters as text, and the bytes. A promise is waited for. */
type OutputCallback = (text: string, bytes: Uint8Array) => unknown;

/** Options of {@link Process.wait}. */
export interface WaitOptions {
  /** Seconds to wait. Default null: for ever. The process goes on when it passes. */
  timeout?: number | null | undefined;
  /** The same as `timeout`. */
  timeoutSeconds?: number | null | undefined;
  /** The same in milliseconds. */
  timeoutMs?: number | null | undefined;
  /** Bytes that are kept of stdout and of stderr each: the last ones. 1 to 67108864, default 10485760. */
  outputLimitBytes?: number | undefined;
  /** Called with standard output as it comes. */
  onStdout?: OutputCallback | undefined;
  /** Called with standard error as it comes. */
  onStderr?: OutputCallback | undefined;
  /** Aborts the wait, which rejects with the signal's reason; the process goes on. */
  signal?: AbortSignal | undefined;
}

/**
 * A process that goes on by itself: a background command.
 *
 * Iterate over it for its output, `for await (const piece of process)`, from the beginning on, as far as its log
 * holds it; or {@link Process.wait} for its end. Any number of handles may follow one process, from any position, at
 * the same time and also after it ended, for 10 minutes. A connection that breaks, because the server was restarted
 * for one, is made again where it was.
 */
export class Process implements AsyncDisposable, AsyncIterable<Output> {
  /** Its id. */
  readonly id: string;
  /** As programs in the sandbox see it. */
  readonly pid: number;
  /** What its starter called it; null when it has no name. */
  readonly tag: string | null;
  readonly #client: Client;
  readonly #path: string;
  #info: ProcessInfo;
  #position: number;
  #lost = 0;
  #result: CommandResult | undefined;

  /** @internal Use {@link Commands.start} or {@link Commands.connect}. */
  constructor(client: Client, sandboxPath: string, info: ProcessInfo, position = 0) {
    this.id = info.id;
    this.pid = info.pid;
    this.tag = info.tag;
    this.#client = client;
    this.#path = `${sandboxPath}/processes/${encodeURIComponent(info.id)}`;
    this.#info = info;
    this.#position = position;
  }

  /** What the server last said of it; {@link Process.getInfo} asks again. */
  get info(): ProcessInfo {
    return this.#info;
  }

  /** The position after the last piece of output that was iterated over. */
  get position(): number {
    return this.#position;
  }

  /** How many bytes of output the log no longer held when this handle asked for them. */
  get lost(): number {
    return this.#lost;
  }

  /** How it ended, without output, once an iteration has come to its end; undefined before. */
  get result(): CommandResult | undefined {
    return this.#result;
  }

  /**
   * Asks the server for the process as it is now.
   *
   * @throws {@link ProcessNotFoundError} when it ended more than 10 minutes ago
   */
  async getInfo(): Promise<ProcessInfo> {
    this.#info = processInfo(await this.#client.json({ method: "GET", path: this.#path, idempotent: true }));
    return this.#info;
  }

  /**
   * Gives the output from {@link Process.position} on, until the process has ended.
   *
   * @throws {@link SandboxEndedError} when the sandbox ended, and the process with it
   * @throws {@link SandboxPausedError} when the sandbox was paused, and the process with it; iterate again to go on after
   * the resume
   * @throws {@link APIConnectionError} when the connection broke and could not be made again for half a minute
   */
  [Symbol.asyncIterator](): AsyncGenerator<Output, void, undefined> {
    return this.#follow(undefined);
  }

  /**
   * Waits for the end, and returns it with the output from {@link Process.position} on.
   *
   * @throws {@link APITimeoutError} when the time passed; the process goes on, and nothing is lost: a later call goes on
   * where this one was
   * @throws {@link SandboxEndedError} when the sandbox ended, and the process with it
   * @throws {@link SandboxPausedError} when the sandbox was paused, and the process with it; nothing is lost then either
   */
  async wait(options?: WaitOptions): Promise<CommandResult> {
    const where = "process.wait";
    const names = [
      "timeout",
      "timeoutSeconds",
      "timeoutMs",
      "outputLimitBytes",
      "onStdout",
      "onStderr",
      "signal",
    ];
    const given = checkOptions(where, options, names);
    const time = seconds(where, given, "timeout");
    const limit = optionalInteger(where, given, "outputLimitBytes", 1) ?? defaultOutputLimitBytes;
    const onStdout = optionalFunction<OutputCallback>(where, given, "onStdout");
    const onStderr = optionalFunction<OutputCallback>(where, given, "onStderr");
    const caller = optionalSignal(where, given);
    const controller = new AbortController();
    const follow = () => controller.abort(caller?.reason);
    if (caller?.aborted) follow();
    caller?.addEventListener("abort", follow, { once: true });
    const timer =
      time === undefined || time === null || time * 1000 > 0x7fff_ffff
        ? undefined
        : setTimeout(() => controller.abort(waitedEnough(time)), time * 1000);
    const stdout = new Collector(limit, onStdout);
    const stderr = new Collector(limit, onStderr);
    const lost = this.#lost;
    try {
      for await (const piece of this.#follow(controller.signal)) {
        await (piece.stream === "stdout" ? stdout : stderr).add(piece.bytes);
      }
    } finally {
      clearTimeout(timer);
      caller?.removeEventListener("abort", follow);
    }
    await stdout.end();
    await stderr.end();
    const end = this.#result;
    if (end === undefined) throw badResponse("the stream ended without the process's exit");
    const cut = this.#lost > lost;
    return end.withOutput(
      stdout.tail.bytes(),
      stderr.tail.bytes(),
      cut || stdout.tail.truncated,
      cut || stderr.tail.truncated,
    );
  }

  /** Kills it with all that it started. @returns false when it had ended */
  async kill(): Promise<boolean> {
    return this.signal("SIGKILL", { tree: true });
  }

  /**
   * Sends a signal.
   *
   * @param signal a name, `"SIGINT"` or `"INT"`, or a number
   * @param options tree: send it to all that the process started too. Default: to it alone
   * @returns false when it had ended
   */
  async signal(signal: string | number, options?: { tree?: boolean | undefined }): Promise<boolean> {
    const where = "process.signal";
    const given = checkOptions(where, options, ["tree"]);
    if (typeof signal !== "string" && !Number.isSafeInteger(signal)) {
      throw new TypeError(`${where}: the signal must be a name or a number`);
    }
    const json = { signal, tree: optionalBoolean(where, given, "tree") ?? false };
    try {
      await this.#client.json({ method: "POST", path: `${this.#path}/signal`, json, idempotent: false });
    } catch (error) {
      if (error instanceof ProcessNotFoundError || error instanceof FailedPreconditionError) return false;
      throw error;
    }
    return true;
  }

  /**
   * Writes to its standard input, which has to be open: it was started with `stdin: true` or has a terminal. Resolves
   * when the process, or the pipe to it, has taken all.
   *
   * @param options close: close the standard input afterwards
   * @returns how many bytes were written
   * @throws {@link FailedPreconditionError} when its standard input is closed, or it has ended
   */
  async sendStdin(data: FileData, options?: { close?: boolean | undefined }): Promise<number> {
    const where = "process.sendStdin";
    const given = checkOptions(where, options, ["close"]);
    const query = new URLSearchParams();
    if (optionalBoolean(where, given, "close")) query.set("close", "true");
    const upload = await openUpload(where, data);
    try {
      const answer = await this.#client.json({
        method: "POST",
        path: `${this.#path}/stdin`,
        query,
        body: upload.body,
        headers: { "Content-Type": "application/octet-stream" },
        idempotent: false,
        timeoutMs: null,
        unknownOutcome: "how much the process has read is unknown",
      });
      return Number(record(answer, "a count of bytes")["written"] ?? 0);
    } catch (error) {
      const failure = upload.failure();
      throw failure === undefined ? error : failure.error;
    } finally {
      upload.stop();
    }
  }

  /** Closes its standard input: it reads an end of file. */
  async closeStdin(): Promise<void> {
    await this.sendStdin("", { close: true });
  }

  /** Kills it at the end of an `await using` block. */
  async [asyncDispose](): Promise<void> {
    await this.kill();
  }

  /** @internal Tells a terminal its size. */
  protected async setSize(cols: number, rows: number): Promise<void> {
    const json = { cols, rows };
    await this.#client.json({ method: "POST", path: `${this.#path}/resize`, json, idempotent: false });
  }

  /** Yields the output until the process has ended, joining again where a connection broke. */
  async *#follow(signal: AbortSignal | undefined): AsyncGenerator<Output, void, undefined> {
    for (let failures = 0; ; ) {
      const before = this.#position;
      try {
        yield* this.#joined(signal);
        return;
      } catch (error) {
        signal?.throwIfAborted();
        const again = error instanceof APIConnectionError || error instanceof UnavailableError;
        if (!again || error instanceof APITimeoutError) throw error;
        failures = this.#position > before ? 0 : failures + 1;
        if (failures > rejoins) throw error;
        await sleep(Math.min(5000, 200 * 4 ** Math.min(failures, 3)), signal);
      }
    }
  }

  /** Joins the output once, and returns when the process has ended. */
  async *#joined(signal: AbortSignal | undefined): AsyncGenerator<Output, void, undefined> {
    const call: Call = {
      method: "GET",
      path: `${this.#path}/output`,
      query: new URLSearchParams({ from: String(this.#position) }),
      headers: { Accept: streamType },
      idempotent: false, // it is repeated by #follow, from where it was
      signal,
      unknownOutcome: "the process may go on",
    };
    const answer = await this.#client.stream(call);
    const requestId = answer.response.headers.get("x-request-id") ?? undefined;
    const parser = new FrameParser();
    let lost = 0;
    for await (const chunk of this.#client.chunks(call, answer, "the stream ended early")) {
      for (const frame of parser.push(chunk)) {
        switch (frame.kind) {
          case frameKind.position:
            this.#position = frameNumber(frame);
            break;
          case frameKind.lost:
            lost += frameNumber(frame);
            this.#lost += frameNumber(frame);
            break;
          case frameKind.stdout:
          case frameKind.stderr: {
            const piece = this.#piece(frame, lost);
            lost = 0;
            yield piece;
            break;
          }
          case frameKind.exit:
            this.#result = commandResult(frameJson(frame), { stdout: "", stderr: "" });
            return;
          case frameKind.error:
            throw (
              errorFromBody(frameJson(frame), { requestId }) ??
              badResponse("the server sent an error that cannot be read")
            );
        }
      }
    }
  }

  #piece(frame: Frame, lost: number): Output {
    const bytes = frame.data;
    const position = this.#position;
    this.#position += bytes.length;
    const stream = frame.kind === frameKind.stdout ? "stdout" : "stderr";
    return { stream, bytes, text: decodeUtf8(bytes), position, lost };
  }
}

/**
 * A process with a terminal of its own (PTY): a shell that a person or an agent types into. Its output is one stream,
 * `"stdout"`, as a screen would get it.
 */
export class Terminal extends Process {
  /** Types: text or bytes; `"\n"` is Enter, `"\x03"` Ctrl-C, `"\x04"` Ctrl-D, `"\x1a"` Ctrl-Z. */
  async send(data: string | Uint8Array): Promise<void> {
    await this.sendStdin(data);
  }

  /** Tells the programs in the terminal its new size, in characters: 1 to 1000 each. */
  async resize(cols: number, rows: number): Promise<void> {
    for (const [name, value] of Object.entries({ cols, rows })) {
      if (!Number.isSafeInteger(value)) throw new TypeError(`terminal.resize: '${name}' must be an integer`);
    }
    await this.setSize(cols, rows);
  }
}

/** Keeps the tail of a stream and hands it on as whole characters. */
class Collector {
  readonly tail: Tail;
  readonly #callback: OutputCallback | undefined;
  readonly #decoder = new TextDecoder("utf-8", { ignoreBOM: true });

  constructor(limit: number, callback: OutputCallback | undefined) {
    this.tail = new Tail(limit);
    this.#callback = callback;
  }

  async add(bytes: Uint8Array): Promise<void> {
    this.tail.push(bytes);
    if (this.#callback === undefined) return;
    const text = this.#decoder.decode(bytes, { stream: true });
    if (text !== "") await this.#callback(text, bytes);
  }

  async end(): Promise<void> {
    const rest = this.#decoder.decode();
    if (rest !== "") await this.#callback?.(rest, new Uint8Array(0) as Bytes);
  }
}

function waitedEnough(time: number): APITimeoutError {
  return new APITimeoutError(`the process has not ended within ${time} s`, {
    code: "timeout",
    hint: "it goes on; wait again, or end it with process.kill()",
  });
}
