/** Bytes, text and base64 with web standards only. */

export type Bytes = Uint8Array<ArrayBuffer>;

const encoder = new TextEncoder();

/** Encodes text as UTF-8. Lone surrogates become U+FFFD, as everywhere in JavaScript. */
export function encodeUtf8(text: string): Bytes {
  return encoder.encode(text);
}

/** Decodes UTF-8; what is not UTF-8 becomes U+FFFD. A byte order mark is kept: it is part of the bytes. */
export function decodeUtf8(bytes: Uint8Array): string {
  return new TextDecoder("utf-8", { ignoreBOM: true }).decode(bytes);
}

// String.fromCharCode takes its bytes as arguments, and engines bound their number.
const argumentsAtOnce = 0x8000;

export function encodeBase64(bytes: Uint8Array): string {
  const parts: string[] = [];
  for (let at = 0; at < bytes.length; at += argumentsAtOnce) {
    parts.push(String.fromCharCode(...bytes.subarray(at, at + argumentsAtOnce)));
  }
  return btoa(parts.join(""));
}

export function decodeBase64(text: string): Bytes {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  return bytes;
}

export function concat(chunks: readonly Uint8Array[]): Bytes {
  let length = 0;
  for (const chunk of chunks) length += chunk.length;
  const all = new Uint8Array(length);
  let at = 0;
  for (const chunk of chunks) {
    all.set(chunk, at);
    at += chunk.length;
  }
  return all;
}

/** Keeps the last `limit` bytes of what is pushed into it, in memory that the limit bounds. */
export class Tail {
  readonly #limit: number;
  #chunks: Uint8Array[] = [];
  #first = 0; // index of the oldest chunk that is kept
  #kept = 0;
  #total = 0;

  constructor(limit: number) {
    this.#limit = limit;
  }

  /** Whether more than the limit was pushed. */
  get truncated(): boolean {
    return this.#total > this.#limit;
  }

  push(chunk: Uint8Array): void {
    this.#chunks.push(chunk);
    this.#kept += chunk.length;
    this.#total += chunk.length;
    for (;;) {
      const oldest = this.#chunks[this.#first];
      if (oldest === undefined || this.#kept - oldest.length < this.#limit) break;
      this.#kept -= oldest.length;
      this.#chunks[this.#first++] = new Uint8Array(0);
    }
    if (this.#first > 1024 && this.#first > this.#chunks.length / 2) {
      this.#chunks = this.#chunks.slice(this.#first);
      this.#first = 0;
    }
  }

  bytes(): Bytes {
    const all = concat(this.#chunks.slice(this.#first));
    return all.length > this.#limit ? all.slice(all.length - this.#limit) : all;
  }
}
