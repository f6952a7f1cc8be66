/** Turns what callers hand over as the content of a file into the body of a request. */

import { type Bytes, encodeUtf8 } from "./bytes.js";

/**
 * The content of a file: text (written as UTF-8), bytes, a Blob, or anything that gives pieces of text or bytes
 * one after the other: a ReadableStream, a Node stream, a generator, a {@link localFile}. Pieces are sent as they
 * come, so that memory stays flat.
 */
export type FileData =
  | string
  | Uint8Array
  | ArrayBuffer
  | Blob
  | ReadableStream<Uint8Array | string>
  | AsyncIterable<Uint8Array | string>
  | Iterable<Uint8Array | string>;

/** Bytes above this many are sent in slices: Node's fetch copies a body of bytes whole, and is slower with it. */
const largeBytes = 4 * 1024 * 1024;

const sliceBytes = 512 * 1024;

/** A body, and what its source threw while it was sent. */
export interface Upload {
  body: Bytes | Blob | ReadableStream<Uint8Array>;
  failure: () => { error: unknown } | undefined;
  /** Ends an upload whose answer came before its end. */
  stop: () => void;
}

/**
 * Opens the data. The first piece is asked for here, so that a source that cannot be opened fails before
 * anything is sent.
 */
export async function openUpload(where: string, data: unknown): Promise<Upload> {
  const whole = { failure: () => undefined, stop: () => {} };
  let bytes: Uint8Array | undefined;
  if (typeof data === "string") bytes = encodeUtf8(data);
  else if (data instanceof Uint8Array) bytes = data;
  else if (data instanceof ArrayBuffer) bytes = new Uint8Array(data);
  if (bytes !== undefined) {
    if (bytes.length <= largeBytes) return { body: bytes as Bytes, ...whole };
    return openPieces(where, slices(bytes) as Pieces);
  }
  if (data instanceof Blob) return { body: data, ...whole };
  const pieces = iterate(data);
  if (pieces === undefined) {
    throw new TypeError(
      `${where}: the data must be a string, bytes (Uint8Array, ArrayBuffer, Blob) or a stream or iterable of them`,
    );
  }
  return openPieces(where, pieces);
}

function* slices(bytes: Uint8Array): Generator<Uint8Array, void, undefined> {
  for (let at = 0; at < bytes.length; at += sliceBytes) yield bytes.subarray(at, at + sliceBytes);
}

async function openPieces(where: string, pieces: Pieces): Promise<Upload> {
  let failure: { error: unknown } | undefined;
  let ended = false;
  let target: ReadableStreamDefaultController<Uint8Array> | undefined;
  // The source may be in the middle of something and is not waited for.
  const end = (reason?: unknown) => {
    if (ended) return;
    ended = true;
    void Promise.resolve(pieces.return?.(reason)).catch(() => {});
  };
  let first: IteratorResult<unknown> | undefined = await pieces.next();
  checkPiece(where, first);
  const body = new ReadableStream<Uint8Array>(
    {
      start(controller) {
        target = controller;
      },
      async pull(controller) {
        try {
          for (;;) {
            const piece = first ?? (await pieces.next());
            first = undefined;
            if (ended) return;
            if (piece.done) {
              ended = true;
              controller.close();
              return;
            }
            const bytes = checkPiece(where, piece);
            if (bytes.length === 0) continue;
            controller.enqueue(bytes);
            return;
          }
        } catch (error) {
          failure = { error };
          controller.error(error); // breaks the request off: the server drops what it got
          end();
        }
      },
      cancel: (reason) => end(reason),
    },
    { highWaterMark: 0 },
  );
  const stop = () => {
    if (ended) return;
    // Node's fetch goes on sending after an early answer, also when it is aborted then.
    target?.error(new Error("the server answered before it had everything"));
    end();
  };
  return { body, failure: () => failure, stop };
}

interface Pieces {
  next: () => Promise<IteratorResult<unknown>> | IteratorResult<unknown>;
  return?: (value?: unknown) => unknown;
}

function iterate(data: unknown): Pieces | undefined {
  if (data instanceof ReadableStream) {
    // Not every runtime can iterate a stream.
    const reader = data.getReader();
    return {
      next: () => reader.read() as Promise<IteratorResult<unknown>>,
      return: (reason) => reader.cancel(reason),
    };
  }
  if (typeof data !== "object" || data === null) return undefined;
  if (Symbol.asyncIterator in data) return (data as AsyncIterable<unknown>)[Symbol.asyncIterator]() as Pieces;
  if (Symbol.iterator in data) return (data as Iterable<unknown>)[Symbol.iterator]() as Pieces;
  return undefined;
}

function checkPiece(where: string, piece: IteratorResult<unknown>): Uint8Array {
  if (piece.done) return new Uint8Array(0);
  if (piece.value instanceof Uint8Array) return piece.value;
  if (typeof piece.value === "string") return encodeUtf8(piece.value);
  throw new TypeError(`${where}: a stream or iterable of data must give strings or Uint8Arrays`);
}
