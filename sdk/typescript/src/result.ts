import { type Bytes, decodeBase64, decodeUtf8, encodeUtf8 } from "./bytes.js";
import { badResponse, RingfenceError } from "./errors.js";
import { isRecord, type Wire } from "./wire.js";

/** Why a command ended other than by itself. */
export type CommandEndReason = "deadline" | "oom" | "signal";

/** The fields of {@link CommandResult} but for its methods. */
export interface CommandResultFields {
  id: string;
  exitCode: number;
  stdout: string;
  stderr: string;
  stdoutBytes?: Bytes | undefined;
  stderrBytes?: Bytes | undefined;
  stdoutTruncated: boolean;
  stderrTruncated: boolean;
  reason: CommandEndReason | null;
  signal: number | null;
  durationMs: number;
  startedAt: Date | null;
}

/** How a command ended and what it wrote. An exit code other than 0 is a result like any other. */
export class CommandResult {
  /** Id of the command in its sandbox. */
  readonly id: string;
  /** 0 to 255: 124 its deadline passed, 128+n signal n ended it, 137 with reason `"oom"` its memory. */
  readonly exitCode: number;
  /** Standard output as text; bytes that are not UTF-8 are U+FFFD in it. */
  readonly stdout: string;
  /** Standard error as text; bytes that are not UTF-8 are U+FFFD in it. */
  readonly stderr: string;
  /** Why it ended other than by itself; null when it did. */
  readonly reason: CommandEndReason | null;
  /** The signal that ended it; null when none did. */
  readonly signal: number | null;
  /** Whether the head of stdout or of stderr was dropped, since it was over the output limit. */
  readonly truncated: boolean;
  /** Whether only the tail of stdout is here. */
  readonly stdoutTruncated: boolean;
  /** Whether only the tail of stderr is here. */
  readonly stderrTruncated: boolean;
  /** From start to end, in milliseconds. */
  readonly durationMs: number;
  /** When it started, to the millisecond. */
  readonly startedAt: Date | null;
  readonly #stdoutBytes: Bytes | undefined;
  readonly #stderrBytes: Bytes | undefined;

  /** @internal */
  constructor(fields: CommandResultFields) {
    this.id = fields.id;
    this.exitCode = fields.exitCode;
    this.stdout = fields.stdout;
    this.stderr = fields.stderr;
    this.reason = fields.reason;
    this.signal = fields.signal;
    this.truncated = fields.stdoutTruncated || fields.stderrTruncated;
    this.stdoutTruncated = fields.stdoutTruncated;
    this.stderrTruncated = fields.stderrTruncated;
    this.durationMs = fields.durationMs;
    this.startedAt = fields.startedAt;
    this.#stdoutBytes = fields.stdoutBytes;
    this.#stderrBytes = fields.stderrBytes;
  }

  /** Standard output, byte for byte. */
  get stdoutBytes(): Bytes {
    return this.#stdoutBytes ?? encodeUtf8(this.stdout);
  }

  /** Standard error, byte for byte. */
  get stderrBytes(): Bytes {
    return this.#stderrBytes ?? encodeUtf8(this.stderr);
  }

  /** @internal Returns the same end with the output that a reader gathered. */
  withOutput(
    stdoutBytes: Bytes,
    stderrBytes: Bytes,
    stdoutTruncated: boolean,
    stderrTruncated: boolean,
  ): CommandResult {
    return new CommandResult({
      id: this.id,
      exitCode: this.exitCode,
      reason: this.reason,
      signal: this.signal,
      durationMs: this.durationMs,
      startedAt: this.startedAt,
      stdout: decodeUtf8(stdoutBytes),
      stderr: decodeUtf8(stderrBytes),
      stdoutBytes,
      stderrBytes,
      stdoutTruncated,
      stderrTruncated,
    });
  }

  /**
   * Returns this result if the command succeeded.
   *
   * @throws {@link CommandExitError} when the exit code is not 0
   */
  check(): this {
    if (this.exitCode !== 0) throw new CommandExitError(this);
    return this;
  }
}

/** Thrown by {@link CommandResult.check} alone: the command's exit code is not 0. */
export class CommandExitError extends RingfenceError {
  /** The whole result. */
  readonly result: CommandResult;

  /** @internal */
  constructor(result: CommandResult) {
    const why = result.reason === null || result.reason === "signal" ? "" : ` (${result.reason})`;
    const last = printable(result.stderr.trimEnd().split("\n").at(-1) ?? "");
    super(`the command ended with exit code ${result.exitCode}${why}${last && `: ${last}`}`, {
      code: "command_exit",
    });
    this.result = result;
    // The result may hold megabytes, which nobody wants in a log line.
    Object.defineProperty(this, "result", { enumerable: false });
  }

  get exitCode(): number {
    return this.result.exitCode;
  }

  get stdout(): string {
    return this.result.stdout;
  }

  get stderr(): string {
    return this.result.stderr;
  }
}
CommandExitError.prototype.name = "CommandExitError";

/** Cuts a line of a guest's output short and takes from it what a terminal would act on. */
function printable(line: string): string {
  return line.slice(0, 200).replace(/\p{C}/gu, "\ufffd");
}

/** Reads a CommandResult off the wire; output overrides what the answer holds of it. */
export function commandResult(wire: unknown, output?: Partial<CommandResultFields>): CommandResult {
  if (!isRecord(wire) || !Number.isInteger(wire["exit_code"])) {
    throw badResponse("the server's answer has no exit code; how the command ended is unknown");
  }
  const started = wire["started_at"];
  return new CommandResult({
    id: String(wire["id"] ?? ""),
    exitCode: wire["exit_code"] as number,
    stdout: text(wire, "stdout"),
    stderr: text(wire, "stderr"),
    stdoutBytes: base64(wire, "stdout_base64"),
    stderrBytes: base64(wire, "stderr_base64"),
    stdoutTruncated: wire["stdout_truncated"] === true,
    stderrTruncated: wire["stderr_truncated"] === true,
    reason: (wire["reason"] as CommandEndReason | undefined) ?? null,
    signal: typeof wire["signal"] === "number" ? wire["signal"] : null,
    durationMs: Number(wire["duration_ms"] ?? 0),
    startedAt: typeof started === "string" ? new Date(started) : null,
    ...output,
  });
}

function text(wire: Wire, name: string): string {
  const value = wire[name];
  return typeof value === "string" ? value : "";
}

function base64(wire: Wire, name: string): Bytes | undefined {
  const value = wire[name];
  return typeof value === "string" ? decodeBase64(value) : undefined;
}
