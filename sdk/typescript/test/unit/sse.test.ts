import assert from "node:assert/strict";
import { test } from "node:test";
import { EventParser, type ServerSentEvent } from "../../src/sse.js";

const bytes = (text: string) => new TextEncoder().encode(text);

function parse(chunks: Uint8Array[]): ServerSentEvent[] {
  const parser = new EventParser();
  return chunks.flatMap((chunk) => parser.push(chunk));
}

const table: Array<[name: string, stream: string, events: Array<[string, string]>]> = [
  ["one event", 'event: exit\ndata: {"a":1}\n\n', [["exit", '{"a":1}']]],
  ["without a type", "data: x\n\n", [["message", "x"]]],
  ["several lines of data", "data: a\ndata: b\ndata:\n\n", [["message", "a\nb\n"]]],
  [
    "CRLF",
    "event: a\r\ndata: 1\r\n\r\ndata: 2\r\n\r\n",
    [
      ["a", "1"],
      ["message", "2"],
    ],
  ],
  [
    "CR alone",
    "event: a\rdata: 1\r\rdata: 2\r\r",
    [
      ["a", "1"],
      ["message", "2"],
    ],
  ],
  [
    "mixed line ends",
    "event: a\ndata: 1\r\n\rdata: 2\n\r\n",
    [
      ["a", "1"],
      ["message", "2"],
    ],
  ],
  ["comments", ": keep-alive\n\n:\n\ndata: 1\n: in between\n\n", [["message", "1"]]],
  ["no space after the colon", "event:a\ndata:1\n\n", [["a", "1"]]],
  ["only one space is taken", "data:  1\n\n", [["message", " 1"]]],
  ["a colon in the value", "data: a: b\n\n", [["message", "a: b"]]],
  ["a field without a colon", "data\n\n", [["message", ""]]],
  ["unknown fields", "id: 3\nretry: 10\nfoo: bar\ndata: 1\n\n", [["message", "1"]]],
  ["a type without data is no event", "event: a\n\ndata: 1\n\n", [["message", "1"]]],
  ["a byte order mark", "\ufeffdata: 1\n\n", [["message", "1"]]],
  ["a cut-off event is dropped", "data: 1\n\nevent: exit\ndata: 2\n", [["message", "1"]]],
  ["characters of all lengths", "data: aé☃😀\u0085\u2028\n\n", [["message", "aé☃😀\u0085\u2028"]]],
  ["empty", "", []],
];

for (const [name, stream, expected] of table) {
  test(`EventParser: ${name}, at every split`, () => {
    const all = bytes(stream);
    const events = expected.map(([event, data]) => ({ event, data }));
    assert.deepEqual(parse([all]), events);
    assert.deepEqual(parse([...all].map((byte) => Uint8Array.of(byte))), events, "byte by byte");
    for (let first = 0; first <= all.length; first++) {
      for (let second = first; second <= all.length; second++) {
        const chunks = [all.subarray(0, first), all.subarray(first, second), all.subarray(second)];
        assert.deepEqual(parse(chunks), events, `split at ${first} and ${second}`);
      }
    }
  });
}

// A generator with a seed, so that a failure can be had again.
function random(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state * 1664525 + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
}

test("EventParser: random streams in random chunks", () => {
  for (let seed = 1; seed <= 300; seed++) {
    const next = random(seed);
    const pick = <T>(from: readonly T[]) => from[Math.floor(next() * from.length)] as T;
    const events: ServerSentEvent[] = [];
    let stream = "";
    for (let i = 0; i < 20; i++) {
      const newline = pick(["\n", "\r\n", "\r"]);
      if (next() < 0.3) stream += `: keep-alive${newline}${newline}`;
      const lines = Array.from({ length: 1 + Math.floor(next() * 3) }, () =>
        Array.from({ length: Math.floor(next() * 12) }, () =>
          pick(["a", "é", "☃", "😀", ":", " ", '"', "\\"]),
        ).join(""),
      );
      stream += `event: ${i}${newline}${lines.map((line) => `data: ${line}${newline}`).join("")}${newline}`;
      events.push({ event: String(i), data: lines.join("\n") });
    }
    const all = bytes(stream);
    const chunks: Uint8Array[] = [];
    for (let at = 0; at < all.length; ) {
      const length = Math.floor(next() * 9);
      chunks.push(all.subarray(at, at + length));
      at += length;
    }
    assert.deepEqual(parse(chunks), events, `seed ${seed}`);
  }
});

test("EventParser: any bytes at all make no exception", () => {
  for (let seed = 1; seed <= 200; seed++) {
    const next = random(seed);
    parse(Array.from({ length: 20 }, () => Uint8Array.from({ length: 30 }, () => Math.floor(next() * 256))));
  }
});

test("EventParser: a line of 64 MiB in small chunks takes linear time", () => {
  const parser = new EventParser();
  parser.push(bytes("data: "));
  const chunk = new Uint8Array(64 * 1024).fill(0x61);
  for (let i = 0; i < 1024; i++) parser.push(chunk);
  const events = parser.push(bytes("\n\n"));
  assert.equal(events[0]?.data.length, 64 * 1024 * 1024);
});
