import type { Client } from "./client.js";
import { Commands } from "./commands.js";
import {
  checkOptions,
  either,
  optionalInteger,
  optionalString,
  optionalStringMap,
  seconds,
} from "./options.js";
import { processInfo, Terminal } from "./process.js";

/** A login shell: the best that the template has. */
const loginShell = "[ -x /bin/bash ] && exec /bin/bash -l; exec /bin/sh -l";

/** Options of {@link Terminals.create}. */
export interface TerminalOptions {
  /** A string for the shell, or a program and its arguments. Default: a login shell. */
  command?: string | readonly string[] | undefined;
  /** Width in characters, 1 to 1000. Default 80. */
  cols?: number | undefined;
  /** Height in characters, 1 to 1000. Default 24. */
  rows?: number | undefined;
  /** What TERM says. Default `"xterm-256color"`. */
  term?: string | undefined;
  /** Directory to start in. Default: the sandbox's. */
  cwd?: string | undefined;
  /** Environment variables on top of the sandbox's. */
  env?: Record<string, string> | undefined;
  /** The same as `env`. */
  envs?: Record<string, string> | undefined;
  /** Who types. Default: the sandbox's user. */
  user?: string | undefined;
  /** Seconds until it is killed. Default null: never. */
  timeout?: number | null | undefined;
  /** The same as `timeout`. */
  timeoutSeconds?: number | null | undefined;
  /** The same in milliseconds. */
  timeoutMs?: number | null | undefined;
  /** A name for it in {@link Commands.list}. */
  tag?: string | undefined;
  /** Bytes of output that are kept, 65536 to 67108864; then the oldest go. Default 8388608. */
  logBytes?: number | undefined;
}

const terminalOptions = [
  "command",
  "cols",
  "rows",
  "term",
  "cwd",
  "env",
  "envs",
  "user",
  "timeout",
  "timeoutSeconds",
  "timeoutMs",
  "tag",
  "logBytes",
] as const;

/** Opens terminals in one sandbox. */
export class Terminals {
  readonly #client: Client;
  readonly #sandboxPath: string;

  /** @internal */
  constructor(client: Client, sandboxPath: string) {
    this.#client = client;
    this.#sandboxPath = sandboxPath;
  }

  /** Opens a terminal with a shell, or another program, in it. */
  async create(options?: TerminalOptions): Promise<Terminal> {
    const where = "pty.create";
    const given = checkOptions(where, options, terminalOptions);
    const command = given["command"] ?? loginShell;
    if (
      typeof command !== "string" &&
      !(Array.isArray(command) && command.every((p) => typeof p === "string"))
    ) {
      throw new TypeError(`${where}: the command must be a string for the shell or a list of strings`);
    }
    const wire = await this.#client.json({
      method: "POST",
      path: `${this.#sandboxPath}/processes`,
      json: {
        ...(typeof command === "string" ? { command } : { args: command }),
        pty: {
          cols: optionalInteger(where, given, "cols") ?? 80,
          rows: optionalInteger(where, given, "rows") ?? 24,
          term: optionalString(where, given, "term"),
        },
        cwd: optionalString(where, given, "cwd"),
        env: optionalStringMap(where, "env", either(where, given, ["env", "envs"])),
        user: optionalString(where, given, "user"),
        timeout_seconds: seconds(where, given, "timeout") ?? null,
        tag: optionalString(where, given, "tag"),
        log_bytes: optionalInteger(where, given, "logBytes"),
      },
      idempotent: false,
      unknownOutcome: "whether the terminal was opened is unknown",
    });
    return new Terminal(this.#client, this.#sandboxPath, processInfo(wire));
  }

  /**
   * Gives a handle of a terminal that was opened before; its screen so far comes first.
   *
   * @param process its id, its pid, or `"tag:NAME"` where exactly one has that tag
   * @throws {@link ProcessNotFoundError} when there is none
   * @throws TypeError when that process has no terminal
   */
  async connect(
    process: string | number,
    options?: { fromPosition?: number | undefined },
  ): Promise<Terminal> {
    const found = await new Commands(this.#client, this.#sandboxPath).connect(process, options);
    if (found instanceof Terminal) return found;
    throw new TypeError(`pty.connect: process ${found.id} has no terminal; use commands.connect`);
  }
}
