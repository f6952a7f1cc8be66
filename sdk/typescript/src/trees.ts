/** What can be done with files beyond reading and writing them one by one. */

import type { Client } from "./client.js";
import { asyncDispose } from "./dispose.js";
import { badResponse, errorFromBody } from "./errors.js";
import { type FileOptions, type FilePath, modeDigits, pathField, pathText } from "./file-options.js";
import {
  checkOptions,
  optionalBoolean,
  optionalInteger,
  optionalSignal,
  optionalString,
  optionalStringMap,
  optionalStrings,
} from "./options.js";
import { packDirectory, type Unpacked, unpackDirectory } from "./platform/directory.js";
import { EventParser } from "./sse.js";
import { type FileData, openUpload } from "./upload.js";
import { type FileInfo, fileInfo, isRecord, record } from "./wire.js";

type Given = Readonly<Record<string, unknown>>;

/** How much {@link Files.downloadDir} writes unless it is told otherwise. */
const defaultMaxBytes = 16 * 1024 ** 3;

/** Something that happened to a watched file or directory. */
export interface FileChange {
  /**
   * `"rename_from"` and `"rename_to"` are the two names of one move; `"overflow"`: more happened than could be told, look
   * again; `"gone"`: what is watched was itself removed, and the watch ends.
   */
  type:
    | "create"
    | "modify"
    | "remove"
    | "rename_from"
    | "rename_to"
    | "attrib"
    | "overflow"
    | "gone"
    | (string & {});
  path: string;
  isDir: boolean;
  /** The same number in the two changes of one move; 0 otherwise. */
  cookie: number;
}

/** A file that a search found, or a line in it. */
export interface FileMatch {
  path: string;
  type: string;
  /** The line's number from 1, where content was searched; else null. */
  line: number | null;
  /** The byte in the line, from 1, at which the match begins; else null. */
  column: number | null;
  /** The line, without its end; else null. */
  text: string | null;
}

/** Options of {@link Files.search}. */
export interface SearchOptions extends FileOptions {
  /** A pattern of the file's name: `"*.py"`. */
  name?: string | undefined;
  /** Text that a line holds. */
  content?: string | undefined;
  /** Whether `content` is a regular expression, in RE2's syntax. */
  regex?: boolean | undefined;
  /** Whether capital and small letters are the same in `content`. */
  ignoreCase?: boolean | undefined;
  /** How many levels below the path. Default: all. */
  depth?: number | undefined;
  /** How many matches at most. Default 1000. */
  limit?: number | undefined;
}

/** A format of archives. */
export type ArchiveFormat = "tar" | "tar.gz" | "zip";

/** A watch that is in force. Iterate over it; leave it with `close` or at the end of an `await using` block. */
export interface Watch extends AsyncIterable<FileChange>, AsyncDisposable {
  close(): Promise<void>;
}

/** The part of {@link Files} that works on whole directories, searches, watches and signs. */
export class Trees {
  /** @internal */
  protected readonly client: Client;
  /** @internal */
  protected readonly path: string;

  /** @internal */
  constructor(client: Client, path: string) {
    this.client = client;
    this.path = path;
  }

  /**
   * Copies a file, or with `recursive` a directory, within the sandbox. A link is copied as a link; missing parents of the
   * new path are made.
   *
   * @throws {@link IsDirectoryError} when it is a directory and `recursive` is not set
   */
  async copy(
    from: FilePath,
    to: FilePath,
    options?: FileOptions & { recursive?: boolean | undefined; owner?: string | undefined },
  ): Promise<FileInfo> {
    const where = "files.copy";
    const given = checkOptions(where, options, ["user", "signal", "recursive", "owner"]);
    return fileInfo(
      await this.#post(where, "/copy", given, {
        ...pathField(where, "from", from),
        ...pathField(where, "to", to),
        recursive: optionalBoolean(where, given, "recursive"),
        owner: optionalString(where, given, "owner"),
      }),
    );
  }

  /** Changes a file's mode, owner or group, with `recursive` also of all that is in a directory; the rest stays. */
  async chmod(
    path: FilePath,
    options: FileOptions & {
      mode?: number | string | undefined;
      owner?: string | undefined;
      group?: string | undefined;
      recursive?: boolean | undefined;
    },
  ): Promise<FileInfo> {
    const where = "files.chmod";
    const given = checkOptions(where, options, ["user", "signal", "mode", "owner", "group", "recursive"]);
    return fileInfo(
      await this.#post(where, "/mode", given, {
        ...pathField(where, "path", path),
        mode: modeDigits(where, given["mode"]),
        owner: optionalString(where, given, "owner"),
        group: optionalString(where, given, "group"),
        recursive: optionalBoolean(where, given, "recursive"),
      }),
    );
  }

  /**
   * Sets and removes a file's metadata (extended attributes of the namespace "user"); the rest stays.
   * {@link Files.getInfo} reads it.
   */
  async setMetadata(
    path: FilePath,
    options: FileOptions & { set?: Record<string, string> | undefined; remove?: string[] | undefined },
  ): Promise<FileInfo> {
    const where = "files.setMetadata";
    const given = checkOptions(where, options, ["user", "signal", "set", "remove"]);
    return fileInfo(
      await this.#post(where, "/metadata", given, {
        ...pathField(where, "path", path),
        set: optionalStringMap(where, "set", given["set"]) ?? {},
        remove: optionalStrings(where, given, "remove") ?? [],
      }),
    );
  }

  /**
   * Gives a file's checksum in hex, without moving its bytes.
   *
   * @param algorithm `"sha256"`, `"sha512"`, `"sha1"`, `"md5"` or `"crc32c"`
   */
  async checksum(path: FilePath, algorithm = "sha256", options?: FileOptions): Promise<string> {
    const where = "files.checksum";
    const given = checkOptions(where, options, ["user", "signal"]);
    const query = this.#pathQuery(where, path, given);
    query.set("algorithm", algorithm);
    return String(record(await this.#get(where, "/checksum", query, given), "a checksum")["checksum"]);
  }

  /** Finds files by name, lines by content, or lines in files of some names. Links are not followed. */
  async search(
    path: FilePath,
    options: SearchOptions,
  ): Promise<{ matches: FileMatch[]; truncated: boolean }> {
    const where = "files.search";
    const names = ["user", "signal", "name", "content", "regex", "ignoreCase", "depth", "limit"];
    const given = checkOptions(where, options, names);
    const query = this.#pathQuery(where, path, given);
    for (const name of ["name", "content"]) {
      const value = optionalString(where, given, name);
      if (value !== undefined) query.set(name, value);
    }
    if (optionalBoolean(where, given, "regex")) query.set("regex", "true");
    if (optionalBoolean(where, given, "ignoreCase")) query.set("ignore_case", "true");
    for (const name of ["depth", "limit"]) {
      const value = optionalInteger(where, given, name);
      if (value !== undefined) query.set(name, String(value));
    }
    const answer = record(await this.#get(where, "/search", query, given), "a list of matches");
    const matches = Array.isArray(answer["matches"]) ? answer["matches"].map(fileMatch) : [];
    return { matches, truncated: answer["truncated"] === true };
  }

  /**
   * Reads an archive of a directory, or of one file, as a stream; names are relative to the directory. Whatever unpacks it
   * has to treat it as hostile, as {@link Files.downloadDir} does.
   */
  async readArchive(
    path: FilePath,
    format: ArchiveFormat = "tar",
    options?: FileOptions,
  ): Promise<ReadableStream<Uint8Array>> {
    const where = "files.readArchive";
    const given = checkOptions(where, options, ["user", "signal"]);
    const query = this.#pathQuery(where, path, given);
    query.set("format", format);
    const signal = optionalSignal(where, given);
    const call = { method: "GET" as const, path: `${this.path}/archive`, query, idempotent: true, signal };
    const answer = await this.client.stream(call);
    const reader = answer.response.body?.getReader();
    return new ReadableStream<Uint8Array>(
      {
        pull: async (controller) => {
          try {
            const { done, value } = (await reader?.read()) ?? { done: true, value: undefined };
            if (!done) return controller.enqueue(value);
            answer.release();
            controller.close();
          } catch (error) {
            answer.release();
            controller.error(this.client.translate(error, call));
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

  /**
   * Unpacks an archive into a directory of the sandbox, which is made when it is missing.
   *
   * @throws {@link ArchiveRefusedError} when an entry leads out of the directory, is a device, or is too much
   */
  async writeArchive(
    path: FilePath,
    data: FileData,
    format: ArchiveFormat = "tar",
    options?: FileOptions & { owner?: string | undefined },
  ): Promise<void> {
    const where = "files.writeArchive";
    const given = checkOptions(where, options, ["user", "signal", "owner"]);
    const query = this.#pathQuery(where, path, given);
    query.set("format", format);
    const owner = optionalString(where, given, "owner");
    if (owner !== undefined) query.set("owner", owner);
    const signal = optionalSignal(where, given);
    const upload = await openUpload(where, data);
    try {
      await this.client.json({
        method: "PUT",
        path: `${this.path}/archive`,
        query,
        body: upload.body,
        headers: { "Content-Type": "application/octet-stream" },
        idempotent: false,
        signal,
        timeoutMs: null,
        unknownOutcome: "how much was unpacked is unknown",
      });
    } catch (error) {
      const failure = upload.failure();
      throw failure === undefined ? error : failure.error;
    } finally {
      upload.stop();
    }
  }

  /**
   * Copies a directory out of the sandbox, with all that is in it. What comes out of a sandbox is not trusted: nothing is
   * written outside of the local directory, whatever it holds, and neither devices nor links that lead out of it are made.
   * Node and its like only.
   *
   * @param localPath a directory, which is made when it is missing; existing files in it are replaced
   * @param options skipRefused: leave out what is refused, and name it in the result, rather than reject; maxBytes: how much
   * may be written, default 16 GiB
   * @throws {@link ArchiveRefusedError} when there is such an entry; what was written until then stays
   */
  async downloadDir(
    path: FilePath,
    localPath: string,
    options?: FileOptions & { skipRefused?: boolean | undefined; maxBytes?: number | undefined },
  ): Promise<Unpacked> {
    const where = "files.downloadDir";
    const given = checkOptions(where, options, ["user", "signal", "skipRefused", "maxBytes"]);
    const skip = optionalBoolean(where, given, "skipRefused") ?? false;
    const maxBytes = optionalInteger(where, given, "maxBytes", 0) ?? defaultMaxBytes;
    const { user, signal } = given as FileOptions;
    const stream = await this.readArchive(path, "tar", { user, signal });
    try {
      return await unpackDirectory(stream as unknown as AsyncIterable<Uint8Array>, localPath, {
        skip,
        maxBytes,
      });
    } catch (error) {
      await stream.cancel(error).catch(() => {}); // locked or already broken: nothing left to stop
      throw error;
    }
  }

  /**
   * Copies a local directory into the sandbox, with all that is in it; existing files are replaced. Node and its like only.
   *
   * @param path the directory in the sandbox, which is made when it is missing
   * @throws {@link ArchiveRefusedError} when a link in it leads out of the directory
   */
  async uploadDir(
    localPath: string,
    path: FilePath,
    options?: FileOptions & { owner?: string | undefined },
  ): Promise<void> {
    checkOptions("files.uploadDir", options, ["user", "signal", "owner"]);
    await this.writeArchive(path, packDirectory(localPath), "tar", options);
  }

  /**
   * Watches a file or a directory, with `recursive` also those below it and those that are made later. It is in force when
   * the promise resolves.
   *
   * @throws {@link APIConnectionError} in the iteration, when the connection broke: what happened since is not known
   */
  async watch(path: FilePath, options?: FileOptions & { recursive?: boolean | undefined }): Promise<Watch> {
    const where = "files.watch";
    const given = checkOptions(where, options, ["user", "signal", "recursive"]);
    const query = this.#pathQuery(where, path, given);
    if (optionalBoolean(where, given, "recursive")) query.set("recursive", "true");
    const changes = this.#changes(pathText(path), query, optionalSignal(where, given));
    await changes.next(); // ready: nothing that happens from here on is missed
    const close = async () => {
      await changes.return(undefined);
    };
    return {
      [Symbol.asyncIterator]: () => changes as AsyncGenerator<FileChange, void, undefined>,
      [asyncDispose]: close,
      close,
    };
  }

  /** Gives a URL from which a browser can download a file without a key. @param options expiresIn: seconds, default 3600 */
  async downloadUrl(
    path: FilePath,
    options?: FileOptions & { expiresIn?: number | undefined },
  ): Promise<string> {
    return this.#sign("files.downloadUrl", "read", path, options);
  }

  /** Gives a URL to which a file can be sent with PUT without a key. @param options expiresIn: seconds, default 3600 */
  async uploadUrl(
    path: FilePath,
    options?: FileOptions & { expiresIn?: number | undefined },
  ): Promise<string> {
    return this.#sign("files.uploadUrl", "write", path, options);
  }

  async #sign(where: string, operation: string, path: FilePath, options: unknown): Promise<string> {
    const given = checkOptions(where, options, ["user", "signal", "expiresIn"]);
    const answer = await this.#post(where, "/sign", given, {
      ...pathField(where, "path", path),
      operation,
      expires_in_seconds: optionalInteger(where, given, "expiresIn"),
    });
    return String(record(answer, "a signed URL")["url"]);
  }

  async *#changes(
    watched: string,
    query: URLSearchParams,
    signal: AbortSignal | undefined,
  ): AsyncGenerator<FileChange | undefined, void, undefined> {
    const headers = { Accept: "text/event-stream" };
    const unknownOutcome = "what happens to the files now is not known";
    const path = `${this.path}/watch`;
    const call = { method: "GET" as const, path, query, headers, idempotent: true, signal, unknownOutcome };
    const answer = await this.client.stream(call);
    const parser = new EventParser();
    for await (const chunk of this.client.chunks(call, answer, "the watch ended")) {
      for (const { event, data } of parser.push(chunk)) {
        if (event === "ready") yield undefined;
        else if (event === "change") yield fileChange(data);
        else if (event === "overflow") yield { type: "overflow", path: watched, isDir: false, cookie: 0 };
        else if (event === "gone") {
          yield { type: "gone", path: watched, isDir: false, cookie: 0 };
          return;
        } else if (event === "error") {
          throw (
            errorFromBody(JSON.parse(data)) ?? badResponse("the server sent an error that cannot be read")
          );
        }
      }
    }
  }

  async #post(where: string, path: string, given: Given, json: Record<string, unknown>): Promise<unknown> {
    return this.client.json({
      method: "POST",
      path: this.path + path,
      json: { ...json, user: optionalString(where, given, "user") },
      idempotent: false,
      signal: optionalSignal(where, given),
    });
  }

  async #get(where: string, path: string, query: URLSearchParams, given: Given): Promise<unknown> {
    const signal = optionalSignal(where, given);
    return this.client.json({ method: "GET", path: this.path + path, query, idempotent: true, signal });
  }

  #pathQuery(where: string, path: FilePath, given: Given): URLSearchParams {
    const query = new URLSearchParams(pathField(where, "path", path));
    const user = optionalString(where, given, "user");
    if (user !== undefined) query.set("user", user);
    return query;
  }
}

function fileMatch(value: unknown): FileMatch {
  const wire = record(value, "a match");
  return {
    path: String(wire["path"]),
    type: typeof wire["type"] === "string" ? wire["type"] : "file",
    line: typeof wire["line"] === "number" ? wire["line"] : null,
    column: typeof wire["column"] === "number" ? wire["column"] : null,
    text: typeof wire["text"] === "string" ? wire["text"] : null,
  };
}

function fileChange(data: string): FileChange {
  let value: unknown;
  try {
    value = JSON.parse(data);
  } catch {
    // Said below.
  }
  if (!isRecord(value)) throw badResponse("the server sent a change that is not JSON");
  return {
    type: String(value["type"]),
    path: String(value["path"]),
    isDir: value["is_dir"] === true,
    cookie: Number(value["cookie"] ?? 0),
  };
}
