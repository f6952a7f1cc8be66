import { type Bytes, concat } from "./bytes.js";
import type { Answer, Call, Client } from "./client.js";
import { FileNotFoundError, NotDirectoryError } from "./errors.js";
import {
  type FileEntry,
  type FileOptions,
  type FilePath,
  fileEntries,
  type ListOptions,
  modeDigits,
  pathField,
  pathText,
  type ReadOptions,
  type ReadTextOptions,
  type RemoveOptions,
  type WriteFileOptions,
  type WriteManyOptions,
  type WriteOptions,
} from "./file-options.js";
import { checkOptions, optionalBoolean, optionalInteger, optionalSignal, optionalString } from "./options.js";
import { saveStream } from "./platform/node.js";
import { Trees } from "./trees.js";
import { type FileData, openUpload } from "./upload.js";
import { type FileInfo, fileInfo, record } from "./wire.js";

type Given = Readonly<Record<string, unknown>>;

/**
 * The files of one sandbox. Besides what each method names, all of them reject with {@link FileNotFoundError},
 * {@link FilePermissionError}, {@link NotDirectoryError}, {@link InvalidArgumentError} for a path that is not
 * absolute, {@link SandboxEndedError}, {@link NotFoundError} for an unknown sandbox and
 * {@link APIConnectionError}; and with a TypeError for what is wrong before anything is sent.
 */
export class Files extends Trees {
  readonly #client: Client;
  readonly #path: string;

  /** @internal */
  constructor(client: Client, sandboxPath: string) {
    super(client, `${sandboxPath}/files`);
    this.#client = client;
    this.#path = `${sandboxPath}/files`;
  }

  /**
   * Reads a file into memory.
   *
   * @throws {@link IsDirectoryError} when the path is a directory
   * @throws {@link RangeInvalidError} when `offset` is beyond the end
   */
  async read(path: FilePath, options?: ReadOptions): Promise<Bytes> {
    return this.#read(
      "files.read",
      path,
      checkOptions("files.read", options, ["user", "signal", "offset", "length"]),
    );
  }

  /**
   * Reads a text file into memory. A byte order mark is kept: it is part of the file.
   *
   * @throws TypeError when the bytes are no text in that encoding; {@link Files.read} returns any bytes
   */
  async readText(path: FilePath, options?: ReadTextOptions): Promise<string> {
    const where = "files.readText";
    const given = checkOptions(where, options, ["user", "signal", "offset", "length", "encoding"]);
    const encoding = optionalString(where, given, "encoding") ?? "utf-8";
    let decoder: TextDecoder;
    try {
      decoder = new TextDecoder(encoding, { fatal: true, ignoreBOM: true });
    } catch {
      throw new TypeError(`${where}: unknown encoding '${encoding}'`);
    }
    const bytes = await this.#read(where, path, given);
    try {
      return decoder.decode(bytes);
    } catch (error) {
      throw new TypeError(
        `${where}: ${pathText(path)} is not ${encoding} text; files.read returns its bytes`,
        {
          cause: error,
        },
      );
    }
  }

  /**
   * Reads a file of any size as a stream. A stream that ends early is an error of the stream. One that is not
   * read to its end must be cancelled, so that its connection is freed.
   *
   * @throws {@link IsDirectoryError} when the path is a directory
   * @throws {@link RangeInvalidError} when `offset` is beyond the end
   */
  async readStream(path: FilePath, options?: ReadOptions): Promise<ReadableStream<Bytes>> {
    return this.#readStream(
      "files.readStream",
      path,
      checkOptions("files.readStream", options, ["user", "signal", "offset", "length"]),
    );
  }

  /**
   * Reads a file of any size into a local file, which takes its name when it is whole. Node and its like only.
   *
   * @param localPath path of the local file, relative to the current directory, or a `file:` URL
   * @returns the number of bytes written
   */
  async readTo(path: FilePath, localPath: string | URL, options?: ReadOptions): Promise<number> {
    const given = checkOptions("files.readTo", options, ["user", "signal", "offset", "length"]);
    return saveStream(await this.#readStream("files.readTo", path, given), localPath);
  }

  /**
   * Writes a file of any size. The directories above it are made, and an older file is replaced in one step, when
   * all bytes are there. What the source of the data throws is rejected with, and the older file stays.
   *
   * @throws {@link PreconditionFailedError} when `createOnly` or `ifMatch` does not hold; nothing was written
   * @throws {@link DiskFullError} when the sandbox's disk is full
   * @throws {@link IsDirectoryError} when the path is a directory
   */
  async write(path: FilePath, data: FileData, options?: WriteFileOptions): Promise<FileInfo> {
    const given = checkOptions("files.write", options, [
      "user",
      "signal",
      "owner",
      "mode",
      "createOnly",
      "ifMatch",
    ]);
    return this.#write("files.write", path, data, given);
  }

  /**
   * Writes several files, a few at a time. The first failure is rejected with when the files that were under way
   * are done; those that were not begun are not written, and those that were written stay.
   *
   * @param entries `[{path, data}, …]`, or an object of data by path
   * @returns what was written, in the order of the entries
   */
  async writeMany(
    entries: Iterable<FileEntry> | Readonly<Record<string, FileData>>,
    options?: WriteManyOptions,
  ): Promise<FileInfo[]> {
    const where = "files.writeMany";
    const given = checkOptions(where, options, ["user", "signal", "owner", "mode", "concurrency"]);
    const list = fileEntries(where, entries);
    const concurrency = optionalInteger(where, given, "concurrency", 1) ?? 8;
    const written: FileInfo[] = new Array(list.length);
    const failures: unknown[] = [];
    let next = 0;
    const worker = async () => {
      while (failures.length === 0 && next < list.length) {
        const at = next++;
        const entry = list[at] as FileEntry;
        try {
          written[at] = await this.#write(where, entry.path, entry.data, given);
        } catch (error) {
          failures.push(error);
        }
      }
    };
    await Promise.all(Array.from({ length: Math.min(concurrency, list.length) }, worker));
    if (failures.length > 0) throw failures[0];
    return written;
  }

  /**
   * Lists a directory, each entry with its absolute path. Symlinks are not followed.
   *
   * @throws {@link NotDirectoryError} when the path is no directory
   * @throws {@link InvalidArgumentError} when there are more than 100000 entries
   */
  async list(path: FilePath, options?: ListOptions): Promise<FileInfo[]> {
    const where = "files.list";
    const given = checkOptions(where, options, ["user", "signal", "depth"]);
    const depth = optionalInteger(where, given, "depth");
    const query = this.#query(where, path, given);
    if (depth !== undefined) query.set("depth", String(depth));
    const signal = optionalSignal(where, given);
    const found: FileInfo[] = [];
    for (;;) {
      const answer = record(
        await this.#client.json({
          method: "GET",
          path: `${this.#path}/list`,
          query,
          idempotent: true,
          signal,
        }),
        "a list of files",
      );
      const entries = answer["entries"];
      if (Array.isArray(entries)) found.push(...entries.map(fileInfo));
      const cursor = answer["next_cursor"];
      if (typeof cursor !== "string" || cursor === "") return found;
      query.set("cursor", cursor);
    }
  }

  /** Describes a file, directory or other entry. A symlink is described itself and not followed. */
  async getInfo(path: FilePath, options?: FileOptions): Promise<FileInfo> {
    const where = "files.getInfo";
    return this.#stat(where, path, checkOptions(where, options, ["user", "signal"]));
  }

  /** The same as {@link Files.getInfo}. */
  async stat(path: FilePath, options?: FileOptions): Promise<FileInfo> {
    const where = "files.stat";
    return this.#stat(where, path, checkOptions(where, options, ["user", "signal"]));
  }

  /** Reports whether there is anything at the path. What stops the answer, such as a lack of rights, rejects. */
  async exists(path: FilePath, options?: FileOptions): Promise<boolean> {
    const where = "files.exists";
    const given = checkOptions(where, options, ["user", "signal"]);
    try {
      await this.#stat(where, path, given);
      return true;
    } catch (error) {
      if (error instanceof FileNotFoundError || error instanceof NotDirectoryError) return false;
      throw error;
    }
  }

  /**
   * Makes a directory and those above it. One that is there already is left as it is.
   *
   * @throws {@link FileExistsError} or {@link NotDirectoryError} when something else is there
   */
  async makeDir(path: FilePath, options?: WriteOptions): Promise<FileInfo> {
    const where = "files.makeDir";
    const given = checkOptions(where, options, ["user", "signal", "owner", "mode"]);
    return fileInfo(
      await this.#client.json({
        method: "POST",
        path: `${this.#path}/mkdir`,
        json: {
          ...pathField(where, "path", path),
          user: optionalString(where, given, "user"),
          owner: optionalString(where, given, "owner"),
          mode: modeDigits(where, given["mode"]),
        },
        idempotent: false,
        signal: optionalSignal(where, given),
      }),
    );
  }

  /** Renames or moves a file or directory within the sandbox. A file at the new path is replaced. */
  async rename(from: FilePath, to: FilePath, options?: FileOptions): Promise<FileInfo> {
    const where = "files.rename";
    const given = checkOptions(where, options, ["user", "signal"]);
    return fileInfo(
      await this.#client.json({
        method: "POST",
        path: `${this.#path}/rename`,
        json: {
          ...pathField(where, "from", from),
          ...pathField(where, "to", to),
          user: optionalString(where, given, "user"),
        },
        idempotent: false,
        signal: optionalSignal(where, given),
      }),
    );
  }

  /**
   * Removes a file, an empty directory, or with `recursive` a directory and everything in it.
   *
   * @throws {@link DirectoryNotEmptyError} when the directory has entries and `recursive` is not set
   */
  async remove(path: FilePath, options?: RemoveOptions): Promise<void> {
    const where = "files.remove";
    const given = checkOptions(where, options, ["user", "signal", "recursive"]);
    const query = this.#query(where, path, given);
    if (optionalBoolean(where, given, "recursive")) query.set("recursive", "true");
    let attempts = 0;
    try {
      await this.#client.json({
        method: "DELETE",
        path: this.#path,
        query,
        idempotent: true,
        signal: optionalSignal(where, given),
        onAttempt: () => attempts++,
      });
    } catch (error) {
      // The first try did it, and its answer was lost.
      if (attempts > 1 && error instanceof FileNotFoundError) return;
      throw error;
    }
  }

  async #stat(where: string, path: FilePath, given: Given): Promise<FileInfo> {
    return fileInfo(
      await this.#client.json({
        method: "GET",
        path: `${this.#path}/stat`,
        query: this.#query(where, path, given),
        idempotent: true,
        signal: optionalSignal(where, given),
      }),
    );
  }

  async #read(where: string, path: FilePath, given: Given): Promise<Bytes> {
    const { call, answer, skip, limit } = await this.#open(where, path, given);
    try {
      const bytes = await readAll(answer.response);
      return skip === 0 && bytes.length <= limit ? bytes : bytes.slice(skip, skip + limit);
    } catch (error) {
      throw this.#client.translate(error, call);
    } finally {
      answer.release();
    }
  }

  async #readStream(where: string, path: FilePath, given: Given): Promise<ReadableStream<Bytes>> {
    const { call, answer, skip, limit } = await this.#open(where, path, given);
    const reader = answer.response.body?.getReader();
    let toSkip = skip;
    let left = limit;
    return new ReadableStream<Bytes>(
      {
        pull: async (controller) => {
          try {
            for (;;) {
              const { done, value } = (await reader?.read()) ?? { done: true, value: undefined };
              if (done || left === 0) {
                answer.release();
                if (!done) await reader?.cancel();
                return controller.close();
              }
              const skipped = Math.min(toSkip, value.length);
              toSkip -= skipped;
              const chunk = value.subarray(skipped, skipped + left) as Bytes;
              left -= chunk.length;
              if (chunk.length > 0) return controller.enqueue(chunk);
            }
          } catch (error) {
            answer.release();
            controller.error(this.#client.translate(error, call));
          }
        },
        cancel: async (reason) => {
          answer.release();
          await reader?.cancel(reason);
        },
      },
      { highWaterMark: 0 },
    );
  }

  /** Asks for a file's bytes. skip and limit say what is to be taken of an answer that holds the whole file. */
  async #open(
    where: string,
    path: FilePath,
    given: Given,
  ): Promise<{ call: Call; answer: Answer; skip: number; limit: number }> {
    const offset = optionalInteger(where, given, "offset", 0) ?? 0;
    const length = optionalInteger(where, given, "length", 1);
    const call: Call = {
      method: "GET",
      path: this.#path,
      query: this.#query(where, path, given),
      headers: { Accept: "application/octet-stream" },
      idempotent: true,
      signal: optionalSignal(where, given),
    };
    const ranged = offset > 0 || length !== undefined;
    if (ranged) {
      const last = length === undefined ? "" : offset + length - 1;
      call.headers = { ...call.headers, Range: `bytes=${offset}-${last}` };
    }
    const answer = await this.#client.stream(call);
    // A proxy may drop the range, and an empty file has none to give.
    const whole = ranged && answer.response.status === 200;
    return { call, answer, skip: whole ? offset : 0, limit: length ?? Number.POSITIVE_INFINITY };
  }

  async #write(where: string, path: FilePath, data: FileData, given: Given): Promise<FileInfo> {
    const query = this.#query(where, path, given);
    const owner = optionalString(where, given, "owner");
    if (owner !== undefined) query.set("owner", owner);
    const mode = modeDigits(where, given["mode"]);
    if (mode !== undefined) query.set("mode", mode);
    const signal = optionalSignal(where, given);
    const upload = await openUpload(where, data);
    try {
      return fileInfo(
        await this.#client.json({
          method: "PUT",
          path: this.#path,
          query,
          body: upload.body,
          headers: { "Content-Type": "application/octet-stream", ...conditions(where, given) },
          idempotent: false,
          signal,
          timeoutMs: null, // any size: only the network's own limits of silence apply
          unknownOutcome: "whether the file was written is unknown",
        }),
      );
    } catch (error) {
      const failure = upload.failure();
      throw failure === undefined ? error : failure.error;
    } finally {
      upload.stop();
    }
  }

  #query(where: string, path: FilePath, given: Given): URLSearchParams {
    const query = new URLSearchParams(pathField(where, "path", path));
    const user = optionalString(where, given, "user");
    if (user !== undefined) query.set("user", user);
    return query;
  }
}

/** Returns the headers of a conditional write. */
function conditions(where: string, given: Given): Record<string, string> {
  const headers: Record<string, string> = {};
  if (optionalBoolean(where, given, "createOnly")) headers["If-None-Match"] = "*";
  const etag = optionalString(where, given, "ifMatch");
  if (etag !== undefined) headers["If-Match"] = etag;
  return headers;
}

/** Reads a body into memory, straight into its place when its length is known: Response.arrayBuffer is slower. */
async function readAll(response: Response): Promise<Bytes> {
  const length = Number(response.headers.get("content-length") ?? Number.NaN);
  const encoded = response.headers.has("content-encoding"); // then the length is not that of the bytes
  const known = Number.isSafeInteger(length) && length >= 0 && !encoded;
  const bytes = new Uint8Array(known ? length : 0);
  const chunks: Uint8Array[] = [];
  let at = 0;
  const reader = response.body?.getReader();
  for (;;) {
    const { done, value } = (await reader?.read()) ?? { done: true, value: undefined };
    if (done) return known ? bytes.subarray(0, at) : concat(chunks);
    if (known) bytes.set(value, at);
    else chunks.push(value);
    at += value.length;
  }
}
