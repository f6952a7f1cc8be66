/** What the calls on files take: their options, paths, modes and lists. */

import { decodeUtf8, encodeBase64 } from "./bytes.js";
import type { FileData } from "./upload.js";

/**
 * An absolute path in a sandbox. A string is any legal name that is UTF-8; a Uint8Array holds the bytes of one
 * that need not be.
 */
export type FilePath = string | Uint8Array;

/** Options of every call on files. */
export interface FileOptions {
  /** Who acts: the call can do what this user may. Default: root. */
  user?: string | undefined;
  /** Aborts the call, which rejects with the signal's reason. */
  signal?: AbortSignal | undefined;
}

/** Options of {@link Files.read} and its kin. */
export interface ReadOptions extends FileOptions {
  /** First byte that is wanted, from 0. Default 0. One beyond the end: {@link RangeInvalidError}. */
  offset?: number | undefined;
  /** How many bytes are wanted at most, 1 or more. Default: all up to the end. */
  length?: number | undefined;
}

/** Options of {@link Files.readText}. */
export interface ReadTextOptions extends ReadOptions {
  /** A label that TextDecoder knows. Default `"utf-8"`. */
  encoding?: string | undefined;
}

/** Options of {@link Files.makeDir} and of every write. */
export interface WriteOptions extends FileOptions {
  /** Who will own what is made. Default: `user`, or without one the sandbox's user. */
  owner?: string | undefined;
  /** Permission bits: a number such as `0o644`, or octal digits such as `"0644"`. */
  mode?: number | string | undefined;
}

/** Options of {@link Files.write}. */
export interface WriteFileOptions extends WriteOptions {
  /** Write only if there is nothing of that name. Default false. */
  createOnly?: boolean | undefined;
  /** Write only if the file is still the one whose `etag` this is. */
  ifMatch?: string | undefined;
}

/** Options of {@link Files.writeMany}. */
export interface WriteManyOptions extends WriteOptions {
  /** How many files are sent at the same time, 1 or more. Default 8. */
  concurrency?: number | undefined;
}

/** One file of {@link Files.writeMany}. */
export interface FileEntry {
  path: FilePath;
  data: FileData;
}

/** Options of {@link Files.list}. */
export interface ListOptions extends FileOptions {
  /** How many levels below the path are listed, 1 to 64. Default 1: its own entries. */
  depth?: number | undefined;
}

/** Options of {@link Files.remove}. */
export interface RemoveOptions extends FileOptions {
  /** Removes a directory with everything in it. Default false. */
  recursive?: boolean | undefined;
}

/** Returns the field of a path: under its name, or under `name_base64` when it is given as bytes. */
export function pathField(where: string, name: string, path: unknown): Record<string, string> {
  if (path instanceof Uint8Array) return { [`${name}_base64`]: encodeBase64(path) };
  if (typeof path !== "string") throw new TypeError(`${where}: a path must be a string or a Uint8Array`);
  if (!isWellFormed(path)) {
    throw new TypeError(
      `${where}: a path holds half of a surrogate pair, which no file name can; pass its bytes`,
    );
  }
  return { [name]: path };
}

function isWellFormed(text: string): boolean {
  try {
    encodeURIComponent(text);
    return true;
  } catch {
    return false;
  }
}

export function pathText(path: FilePath): string {
  return typeof path === "string" ? path : decodeUtf8(path);
}

export function modeDigits(where: string, mode: unknown): string | undefined {
  if (mode === undefined || typeof mode === "string") return mode;
  if (typeof mode === "number" && mode > 0o777 && mode <= 777 && /^[0-7]{3}$/.test(String(mode))) {
    // As octal digits it is what people write; as a number, bits that nobody wants.
    throw new TypeError(`${where}: 'mode' ${mode} is decimal; write 0o${mode} or "0${mode}"`);
  }
  if (Number.isSafeInteger(mode) && (mode as number) >= 0)
    return (mode as number).toString(8).padStart(4, "0");
  throw new TypeError(`${where}: 'mode' must be an integer such as 0o644 or octal digits such as "0644"`);
}

export function fileEntries(where: string, entries: unknown): FileEntry[] {
  if (typeof entries !== "object" || entries === null) {
    throw new TypeError(`${where}: pass [{path, data}, …] or an object of data by path`);
  }
  if (!(Symbol.iterator in entries)) {
    return Object.entries(entries).map(([path, data]) => ({ path, data: data as FileData }));
  }
  return [...(entries as Iterable<unknown>)].map((entry) => {
    const { path, data, ...rest } = Object(entry) as Record<string, unknown>;
    const extra = Object.keys(rest)[0];
    if (path === undefined || data === undefined || extra !== undefined) {
      throw new TypeError(
        `${where}: an entry must be {path, data}${extra === undefined ? "" : `, without '${extra}'`}`,
      );
    }
    return { path, data } as FileEntry;
  });
}
