/** Local directories, packed to be sent and made from archives. Node and its like only, and on the first call. */

import type { Bytes } from "../bytes.js";
import { ArchiveRefusedError } from "../errors.js";
import { padding, readTar, type TarEntry, tarEnd, tarHeader } from "../tar.js";

const maxEntries = 1_000_000;

/** What {@link Files.downloadDir} made. */
export interface Unpacked {
  /** Files and links. */
  files: number;
  directories: number;
  bytes: number;
  /** Names that were left out, where that was asked for rather than an error. */
  skipped: string[];
}

/** Packs what a local directory holds. Links are kept as links; owners are not kept. */
export async function* packDirectory(directory: string): AsyncGenerator<Uint8Array, void, undefined> {
  const [fs, { createReadStream }] = await Promise.all([import("node:fs/promises"), import("node:fs")]);
  const info = await fs.stat(directory);
  if (!info.isDirectory()) throw new TypeError(`${directory} is not a directory`);
  async function* walk(below: string): AsyncGenerator<Uint8Array, void, undefined> {
    const names = (await fs.readdir(`${directory}/${below}`)).sort();
    for (const name of names) {
      const path = below === "" ? name : `${below}/${name}`;
      const local = `${directory}/${path}`;
      const { mode, size, ...kind } = await describe(fs, local);
      const entry: TarEntry = { name: path, type: kind.type, mode: mode & 0o7777, size, target: kind.target };
      if (entry.type === "other") {
        throw new TypeError(`${path} is neither a file, a directory nor a link and cannot be sent`);
      }
      yield tarHeader(entry);
      if (entry.type === "file") {
        let sent = 0;
        if (size > 0) {
          for await (const piece of createReadStream(local, { end: size - 1, highWaterMark: 256 * 1024 })) {
            sent += (piece as Uint8Array).length;
            yield piece as Uint8Array;
          }
        }
        if (sent !== size) throw new Error(`${path} changed while it was sent`);
        yield new Uint8Array(padding(size)) as Bytes;
      } else if (entry.type === "directory") {
        yield* walk(path);
      }
    }
  }
  yield* walk("");
  yield tarEnd;
}

async function describe(
  fs: typeof import("node:fs/promises"),
  path: string,
): Promise<{ mode: number; size: number; type: TarEntry["type"]; target: string }> {
  const info = await fs.lstat(path);
  if (info.isFile()) return { mode: info.mode, size: info.size, type: "file", target: "" };
  if (info.isDirectory()) return { mode: info.mode, size: 0, type: "directory", target: "" };
  if (info.isSymbolicLink()) {
    return { mode: info.mode, size: 0, type: "symlink", target: await fs.readlink(path) };
  }
  return { mode: info.mode, size: 0, type: "other", target: "" };
}

/**
 * Unpacks a tar archive below a directory, which is made when it is missing. An entry whose name is absolute or has "..",
 * a link that leads out, a device, and what would be written through a link is refused: with skip it is left out and
 * named, otherwise it rejects and what was made until then stays. Existing files are replaced.
 */
export async function unpackDirectory(
  source: AsyncIterable<Uint8Array>,
  directory: string,
  options: { skip: boolean; maxBytes: number },
): Promise<Unpacked> {
  const fs = await import("node:fs/promises");
  await fs.mkdir(directory, { recursive: true });
  const done: Unpacked = { files: 0, directories: 0, bytes: 0, skipped: [] };
  const links: { parts: string[]; target: string }[] = [];
  let count = 0;
  const attempt = async (name: string, make: () => Promise<void>) => {
    try {
      await make();
    } catch (error) {
      if (!options.skip || !(error instanceof ArchiveRefusedError)) throw error;
      done.skipped.push(name);
    }
  };
  for await (const { entry, content } of readTar(source)) {
    if (++count > maxEntries) throw refuse(`the archive has more than ${maxEntries} entries`);
    done.bytes += entry.type === "file" ? entry.size : 0;
    if (done.bytes > options.maxBytes) {
      throw refuse(`the archive holds more than ${options.maxBytes} bytes; maxBytes allows more`);
    }
    await attempt(entry.name, async () => {
      const parts = checkedParts(entry);
      if (entry.type === "symlink") {
        links.push({ parts, target: checkedTarget(entry, parts) });
      } else if (parts.length > 0 && entry.type === "directory") {
        const path = await parentOf(fs, directory, [...parts, "."]);
        await fs.chmod(path, (entry.mode & 0o777) | 0o700);
        done.directories++;
      } else if (parts.length > 0) {
        const path = await placeFor(fs, directory, parts);
        const file = await fs.open(path, "wx", entry.mode & 0o777);
        try {
          for await (const piece of content) {
            for (let at = 0; at < piece.length; ) {
              at += (await file.write(piece, at, piece.length - at)).bytesWritten;
            }
          }
          await file.chmod(entry.mode & 0o777);
        } finally {
          await file.close();
        }
        done.files++;
      }
    });
  }
  // Links come last: nothing of this archive can be written through one.
  for (const { parts, target } of links) {
    await attempt(parts.join("/"), async () => {
      await fs.symlink(target, await placeFor(fs, directory, parts));
      done.files++;
    });
  }
  return done;
}

function refuse(message: string): ArchiveRefusedError {
  return new ArchiveRefusedError(message, { code: "archive_refused" });
}

const windows = () => (globalThis as { process?: { platform?: string } }).process?.platform === "win32";

function checkedParts(entry: TarEntry): string[] {
  const { name } = entry;
  if (/^[/\\]/.test(name) || name.includes("\0") || (windows() && /[:\\]/.test(name))) {
    throw refuse(`'${name}' is not a path below the directory`);
  }
  const parts = name.split("/").filter((part) => part !== "" && part !== ".");
  if (parts.includes("..")) throw refuse(`'${name}' leads out of the directory`);
  if (entry.type === "other") throw refuse(`'${name}' is neither a file, a directory nor a symbolic link`);
  return parts;
}

/**
 * A link may begin with as many ".." as it lies deep and have none after that: what it goes down through may be other links
 * of the archive, and ".." goes up from where those lead.
 */
function checkedTarget(entry: TarEntry, parts: string[]): string {
  const { target } = entry;
  let depth = parts.length - 1;
  let down = false;
  const out = () => refuse(`'${entry.name}' is a link to '${target}', which is not below the directory`);
  if (parts.length === 0 || target === "" || /^[/\\]/.test(target) || target.includes("\0") || windows())
    throw out();
  for (const part of target.split("/")) {
    if (part === "..") depth--;
    else if (part !== "" && part !== ".") down = true;
    if (depth < 0 || (down && part === "..")) throw out();
  }
  return target;
}

type Promises = typeof import("node:fs/promises");

/** Returns the directory that holds the last of parts; missing ones are made, links are refused. */
async function parentOf(fs: Promises, directory: string, parts: string[]): Promise<string> {
  let path = directory;
  for (const part of parts.slice(0, -1)) {
    path = `${path}/${part}`;
    const there = await fs.lstat(path).catch(() => undefined);
    if (there === undefined) await fs.mkdir(path, 0o755);
    else if (!there.isDirectory()) throw refuse(`'${parts.join("/")}' would be written through '${part}'`);
  }
  return path;
}

/** Returns a path at which there is nothing any more; a directory is not removed. */
async function placeFor(fs: Promises, directory: string, parts: string[]): Promise<string> {
  const path = `${await parentOf(fs, directory, parts)}/${parts.at(-1)}`;
  const there = await fs.lstat(path).catch(() => undefined);
  if (there?.isDirectory())
    throw refuse(`'${parts.join("/")}' is a file, and there is a directory of that name`);
  if (there !== undefined) await fs.unlink(path);
  return path;
}
