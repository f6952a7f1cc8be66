/**
 * Tar archives (POSIX.1-2001, "pax", and what GNU tar adds for long names), read and written in pieces. An archive that
 * comes out of a sandbox is hostile: what is read here is checked where it is used, in platform/directory.ts.
 */

import { type Bytes, concat, decodeUtf8, encodeUtf8 } from "./bytes.js";
import { ArchiveRefusedError } from "./errors.js";

const block = 512;

/** Names and links that an extended header may hold are short; what claims more is no name. */
const longestHeader = 1024 * 1024;

export type EntryType = "file" | "directory" | "symlink" | "other";

/** One entry of an archive. */
export interface TarEntry {
  name: string;
  type: EntryType;
  /** Permission bits. */
  mode: number;
  /** Bytes of content. */
  size: number;
  /** What a symlink points at. */
  target: string;
}

/** Reads an archive: gives each entry with its content, which has to be read before the next entry is asked for. */
export async function* readTar(
  source: AsyncIterable<Uint8Array>,
): AsyncGenerator<{ entry: TarEntry; content: AsyncIterable<Uint8Array> }, void, undefined> {
  const reader = new PieceReader(source);
  let extended: Map<string, string> = new Map();
  let longName: string | undefined;
  let longTarget: string | undefined;
  for (;;) {
    const header = await reader.exactly(block);
    if (header === undefined || header.every((byte) => byte === 0)) return; // two blocks of zeros, or the end
    if (checksum(header) !== number(header, 148, 8)) throw refused("it is no tar archive, or damaged");
    const type = String.fromCharCode(header[156] as number);
    const size = Number(extended.get("size") ?? number(header, 124, 12));
    if (!Number.isSafeInteger(size) || size < 0) throw refused("an entry has no valid size");
    if (type === "x" || type === "g" || type === "L" || type === "K") {
      if (size > longestHeader) throw refused("an extended header is too long");
      const data = (await reader.exactly(size)) ?? fail();
      await reader.skip(padding(size));
      if (type === "x") extended = paxRecords(data);
      else if (type === "L") longName = untilZero(data);
      else if (type === "K") longTarget = untilZero(data);
      continue;
    }
    const prefix = string(header, 345, 155);
    const short = string(header, 0, 100);
    const ustar = string(header, 257, 5) === "ustar";
    const sparse = type === "S" || [...extended.keys()].some((key) => key.startsWith("GNU.sparse"));
    const entry: TarEntry = {
      name: extended.get("path") ?? longName ?? (ustar && prefix !== "" ? `${prefix}/${short}` : short),
      type: sparse ? "other" : entryType(type),
      mode: number(header, 100, 8),
      size,
      target: extended.get("linkpath") ?? longTarget ?? string(header, 157, 100),
    };
    extended = new Map();
    longName = longTarget = undefined;
    const content = reader.part(size);
    yield { entry, content };
    for await (const _ of content); // what was not read
    await reader.skip(padding(size));
  }
}

function entryType(type: string): EntryType {
  if (type === "0" || type === "\0" || type === "7") return "file";
  if (type === "5") return "directory";
  return type === "2" ? "symlink" : "other";
}

/** Makes the header of an entry, with an extended one before it where a name does not fit. */
export function tarHeader(entry: TarEntry): Bytes {
  const records: [string, string][] = [];
  const name = encodeUtf8(entry.name);
  const target = encodeUtf8(entry.target);
  if (name.length > 100 || /[^\x20-\x7e]/.test(entry.name)) records.push(["path", entry.name]);
  if (target.length > 100 || /[^\x20-\x7e]/.test(entry.target)) records.push(["linkpath", entry.target]);
  if (entry.size >= 8 ** 11) records.push(["size", String(entry.size)]);
  const own = plainHeader(entry, name.subarray(0, 100), target.subarray(0, 100));
  if (records.length === 0) return own;
  const data = concat(records.map(([key, value]) => paxRecord(key, value)));
  const extended = { name: "pax", type: "other" as const, mode: 0o644, size: data.length, target: "" };
  return concat([
    plainHeader(extended, encodeUtf8("pax"), new Uint8Array(0), "x"),
    data,
    new Uint8Array(padding(data.length)),
    own,
  ]);
}

/** How many zeros follow content of a size. */
export function padding(size: number): number {
  return (block - (size % block)) % block;
}

/** The end of an archive. */
export const tarEnd: Bytes = new Uint8Array(2 * block);

function plainHeader(entry: TarEntry, name: Uint8Array, target: Uint8Array, flag?: string): Bytes {
  const header = new Uint8Array(block);
  header.set(name, 0);
  const octal = (value: number, at: number, width: number) =>
    header.set(encodeUtf8(value.toString(8).padStart(width - 1, "0")), at);
  octal(entry.mode & 0o7777, 100, 8);
  octal(0, 108, 8);
  octal(0, 116, 8);
  octal(entry.size < 8 ** 11 ? entry.size : 0, 124, 12);
  octal(0, 136, 12);
  header.set(encodeUtf8(flag ?? { file: "0", directory: "5", symlink: "2", other: "0" }[entry.type]), 156);
  header.set(target, 157);
  header.set(encodeUtf8("ustar\0" + "00"), 257);
  octal(checksum(header), 148, 7);
  header[155] = 0x20;
  return header;
}

function checksum(header: Uint8Array): number {
  let sum = 0;
  for (let i = 0; i < block; i++) sum += i >= 148 && i < 156 ? 0x20 : (header[i] as number);
  return sum;
}

function string(header: Uint8Array, at: number, length: number): string {
  return untilZero(header.subarray(at, at + length));
}

function untilZero(bytes: Uint8Array): string {
  const end = bytes.indexOf(0);
  return decodeUtf8(end < 0 ? bytes : bytes.subarray(0, end));
}

function number(header: Uint8Array, at: number, length: number): number {
  const field = header.subarray(at, at + length);
  if ((field[0] as number) & 0x80) {
    // GNU's base 256 for what octal digits cannot hold.
    let value = 0;
    for (let i = 1; i < length; i++) value = value * 256 + (field[i] as number);
    return value;
  }
  const digits = untilZero(field).trim();
  return digits === "" ? 0 : /^[0-7]+$/.test(digits) ? Number.parseInt(digits, 8) : Number.NaN;
}

function paxRecords(data: Uint8Array): Map<string, string> {
  const records = new Map<string, string>();
  for (let at = 0; at < data.length; ) {
    const space = data.indexOf(0x20, at);
    const length = Number(decodeUtf8(data.subarray(at, space < 0 ? at : space)));
    const line = data.subarray(space + 1, at + length - 1);
    const equals = line.indexOf(0x3d);
    if (space < 0 || !Number.isSafeInteger(length) || length < 5 || at + length > data.length || equals < 0) {
      throw refused("an extended header cannot be read");
    }
    records.set(decodeUtf8(line.subarray(0, equals)), decodeUtf8(line.subarray(equals + 1)));
    at += length;
  }
  return records;
}

function paxRecord(key: string, value: string): Bytes {
  const rest = encodeUtf8(` ${key}=${value}\n`);
  let length = rest.length + 1;
  while (String(length).length + rest.length !== length) length = String(length).length + rest.length;
  return concat([encodeUtf8(String(length)), rest]);
}

function refused(why: string): ArchiveRefusedError {
  return new ArchiveRefusedError(`the archive cannot be unpacked: ${why}`, { code: "archive_refused" });
}

function fail(): never {
  throw refused("it ends early");
}

/** Gives the bytes of a stream in the portions that are asked for. */
class PieceReader {
  readonly #source: AsyncIterator<Uint8Array>;
  #piece: Uint8Array = new Uint8Array(0);

  constructor(source: AsyncIterable<Uint8Array>) {
    this.#source = source[Symbol.asyncIterator]();
  }

  /** Returns up to count bytes; undefined at the end. */
  async #some(count: number): Promise<Uint8Array | undefined> {
    while (this.#piece.length === 0) {
      const { done, value } = await this.#source.next();
      if (done) return undefined;
      this.#piece = value;
    }
    const taken = this.#piece.subarray(0, count);
    this.#piece = this.#piece.subarray(taken.length);
    return taken;
  }

  /** Returns exactly count bytes; undefined when the stream ended before the first. */
  async exactly(count: number): Promise<Bytes | undefined> {
    const bytes = new Uint8Array(count);
    for (let at = 0; at < count; ) {
      const some = await this.#some(count - at);
      if (some === undefined) return at === 0 && count === block ? undefined : fail();
      bytes.set(some, at);
      at += some.length;
    }
    return bytes;
  }

  async skip(count: number): Promise<void> {
    for (let left = count; left > 0; ) left -= ((await this.#some(left)) ?? fail()).length;
  }

  /** Gives the next count bytes once, in pieces. */
  part(count: number): AsyncIterable<Uint8Array> {
    let left = count;
    const next = async (): Promise<IteratorResult<Uint8Array>> => {
      if (left === 0) return { done: true, value: undefined };
      const value = (await this.#some(left)) ?? fail();
      left -= value.length;
      return { done: false, value };
    };
    return { [Symbol.asyncIterator]: () => ({ next }) };
  }
}
