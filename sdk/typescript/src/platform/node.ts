/**
 * Local files. The only module that touches Node, and it does so on the first call and not when it is loaded, so
 * that the package loads in other runtimes.
 */

/** A local file as the data of an upload; see {@link localFile}. */
export class LocalFile implements AsyncIterable<Uint8Array> {
  readonly path: string | URL;

  constructor(path: string | URL) {
    this.path = path;
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Uint8Array, void, undefined> {
    const { createReadStream } = await import("node:fs");
    yield* createReadStream(this.path, { highWaterMark: 256 * 1024 }) as AsyncIterable<Uint8Array>;
  }
}

/**
 * Names a file on this machine as the data of {@link Files.write}; it is read while it is sent, so that memory
 * stays flat. A file that cannot be opened fails the write with Node's own error, before anything is sent.
 *
 * @param path path of the local file, relative to the current directory, or a `file:` URL
 */
export function localFile(path: string | URL): LocalFile {
  return new LocalFile(path);
}

/**
 * Writes a stream into a local file, by way of a new file beside it that takes its name at the end: what breaks
 * on the way leaves an older file of that name as it was.
 *
 * @returns the number of bytes written
 */
export async function saveStream(stream: ReadableStream<Uint8Array>, path: string | URL): Promise<number> {
  const [{ open, rename, rm }, { fileURLToPath }] = await Promise.all([
    import("node:fs/promises"),
    import("node:url"),
  ]);
  const target = typeof path === "string" ? path : fileURLToPath(path);
  const partial = `${target}.${crypto.randomUUID().slice(0, 8)}.partial`;
  let written = 0;
  try {
    const file = await open(partial, "wx");
    try {
      for await (const chunk of stream as unknown as AsyncIterable<Uint8Array>) {
        for (let at = 0; at < chunk.length; ) {
          at += (await file.write(chunk, at, chunk.length - at)).bytesWritten;
        }
        written += chunk.length;
      }
    } finally {
      await file.close();
    }
    await rename(partial, target);
  } catch (error) {
    await stream.cancel(error).catch(() => {}); // locked or already broken: nothing left to stop
    await rm(partial, { force: true });
    throw error;
  }
  return written;
}
