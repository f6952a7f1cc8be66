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

/** A body, and what its source threw while it was sent. */
export interface Upload {
  body: Bytes | Blob | ReadableStream<Uint8Array>;
  failure: () => { error: unknown } | undefined;
}

/**
 * Opens the data. The first piece is asked for here, so that a source that cannot be opened fails before
 * anything is sent.
 */
export async function openUpload(where: string, data: unknown): Promise<Upload> {
  const none = () => undefined;
  if (typeof data === "string") return { body: encodeUtf8(data), failure: none };
  if (data instanceof Uint8Array) return { body: data as Bytes, failure: none };
  if (data instanceof ArrayBuffer) return { body: new Uint8Array(data), failure: none };
  if (data instanceof Blob) return { body: data, failure: none };
  const pieces = iterate(data);
  if (pieces === undefined) {
    throw new TypeError(
      `${where}: the data must be a string, bytes (Uint8Array, ArrayBuffer, Blob) or a stream or iterable of them`,
    );
  }
  return openPieces(where, pieces);
}

async function openPieces(where: string, pieces: Pieces): Promise<Upload> {
  let failure: { error: unknown } | undefined;
  let first: IteratorResult<unknown> | undefined = await pieces.next();
  checkPiece(where, first);
  const body = new ReadableStream<Uint8Array>(
    {
      async pull(controller) {
        try {
          for (;;) {
            const piece = first ?? (await pieces.next());
            first = undefined;
            if (piece.done) return controller.close();
            const bytes = checkPiece(where, piece);
            if (bytes.length === 0) continue;
            return controller.enqueue(bytes);
          }
        } catch (error) {
          failure = { error };
          controller.error(error); // breaks the request off: the server drops what it got
          await pieces.return?.(undefined);
        }
      },
      async cancel(reason) {
        await pieces.return?.(reason);
      },
    },
    { highWaterMark: 0 },
  );
  return { body, failure: () => failure };
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
