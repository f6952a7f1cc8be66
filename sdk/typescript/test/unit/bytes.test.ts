import assert from "node:assert/strict";
import { test } from "node:test";
import { decodeBase64, decodeUtf8, encodeBase64, encodeUtf8, Tail } from "../../src/bytes.js";

test("base64: all bytes and lengths around the piece size", () => {
  for (const length of [0, 1, 2, 3, 256, 0x7fff, 0x8000, 0x8001, 0x18001]) {
    const bytes = Uint8Array.from({ length }, (_, i) => i & 0xff);
    assert.equal(encodeBase64(bytes), Buffer.from(bytes).toString("base64"));
    assert.deepEqual(decodeBase64(encodeBase64(bytes)), bytes);
  }
});

test("decodeUtf8: keeps a byte order mark, replaces what is not UTF-8", () => {
  assert.equal(decodeUtf8(encodeUtf8("\ufeffx")), "\ufeffx");
  assert.equal(decodeUtf8(Uint8Array.of(0x61, 0xff, 0x62)), "a\ufffdb");
});

test("Tail: keeps the last bytes for every limit and chunking", () => {
  const all = Uint8Array.from({ length: 60 }, (_, i) => i);
  for (let limit = 1; limit <= 61; limit++) {
    for (const step of [1, 2, 7, 30, 60]) {
      const tail = new Tail(limit);
      for (let at = 0; at < all.length; at += step) tail.push(all.subarray(at, at + step));
      assert.deepEqual(
        tail.bytes(),
        all.slice(Math.max(0, all.length - limit)),
        `limit ${limit} step ${step}`,
      );
      assert.equal(tail.truncated, limit < all.length);
    }
  }
});

test("Tail: memory is bounded by the limit", () => {
  const tail = new Tail(1000);
  const before = process.memoryUsage().arrayBuffers;
  for (let i = 0; i < 200_000; i++) tail.push(new Uint8Array(1000).fill(i & 0xff));
  assert.ok(process.memoryUsage().arrayBuffers - before < 100e6);
  assert.deepEqual(tail.bytes(), new Uint8Array(1000).fill(199_999 & 0xff));
});
