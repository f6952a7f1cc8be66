/** The binary stream of a process's output: one byte of kind, four of length, big-endian, and that many bytes. */

import { concat, decodeUtf8 } from "./bytes.js";
import { badResponse } from "./errors.js";
import { isRecord, type Wire } from "./wire.js";

export const streamType = "application/vnd.ringfence.stream";

/** Kinds of frames. */
export const frameKind = {
  stdout: 1,
  stderr: 2,
  started: 3,
  exit: 4,
  error: 5,
  keepAlive: 6,
  position: 7,
  lost: 8,
} as const;

/** The server's frames hold at most 1 MiB; what claims more is no stream of ours. */
const largest = 16 * 1024 * 1024;

export interface Frame {
  kind: number;
  data: Uint8Array;
}

/** Takes a stream's bytes in pieces of any size and gives its frames. */
export class FrameParser {
  #pieces: Uint8Array[] = [];
  #held = 0;

  push(bytes: Uint8Array): Frame[] {
    this.#pieces.push(bytes);
    this.#held += bytes.length;
    const frames: Frame[] = [];
    for (;;) {
      if (this.#held < 5) return frames;
      const head = this.#peek(5);
      const size = new DataView(head.buffer, head.byteOffset, 5).getUint32(1);
      if (size > largest)
        throw badResponse(`the server sent a frame of ${size} bytes, more than any of ours has`);
      if (this.#held < 5 + size) return frames;
      const whole = this.#take(5 + size);
      frames.push({ kind: whole[0] as number, data: whole.subarray(5) });
    }
  }

  #peek(count: number): Uint8Array {
    const first = this.#pieces[0] as Uint8Array;
    if (first.length >= count) return first;
    this.#pieces = [concat(this.#pieces)];
    return this.#pieces[0] as Uint8Array;
  }

  #take(count: number): Uint8Array {
    const first = this.#peek(count);
    if (first.length === count) this.#pieces.shift();
    else this.#pieces[0] = first.subarray(count);
    this.#held -= count;
    return first.subarray(0, count);
  }
}

/** Reads the JSON object that a frame carries. */
export function frameJson(frame: Frame): Wire {
  let value: unknown;
  try {
    value = JSON.parse(decodeUtf8(frame.data));
  } catch {
    // Said below.
  }
  if (isRecord(value)) return value;
  throw badResponse(`the server sent a frame of kind ${frame.kind} that is not JSON`);
}

/** Reads the number that a frame carries. */
export function frameNumber(frame: Frame): number {
  if (frame.data.length === 8) {
    const value = new DataView(frame.data.buffer, frame.data.byteOffset, 8).getBigUint64(0);
    if (value <= BigInt(Number.MAX_SAFE_INTEGER)) return Number(value);
  }
  throw badResponse(`the server sent a frame of kind ${frame.kind} that holds no position`);
}
