import assert from "node:assert/strict";
import { test } from "node:test";
import { type Frame, FrameParser, frameJson, frameKind, frameNumber } from "../../src/frames.js";
import { APIResponseError } from "../../src/index.js";

function frame(kind: number, data: Uint8Array): Uint8Array {
  const bytes = new Uint8Array(5 + data.length);
  bytes[0] = kind;
  new DataView(bytes.buffer).setUint32(1, data.length);
  bytes.set(data, 5);
  return bytes;
}

const text = (value: string) => new TextEncoder().encode(value);
const seven = new Uint8Array([0, 0, 0, 0, 0, 0, 0, 7]);

test("frames come whole however they are cut", () => {
  const wanted: [number, Uint8Array][] = [
    [frameKind.position, seven],
    [frameKind.stdout, Uint8Array.from({ length: 256 }, (_, i) => i)],
    [frameKind.keepAlive, new Uint8Array(0)],
    [frameKind.stderr, new Uint8Array(70_000).fill(120)],
    [frameKind.exit, text('{"exit_code": 3}')],
  ];
  const stream = Buffer.concat(wanted.map(([kind, data]) => frame(kind, data)));
  for (const size of [1, 2, 5, 17, 1000, 65_536, stream.length]) {
    const parser = new FrameParser();
    const got: Frame[] = [];
    for (let at = 0; at < stream.length; at += size) got.push(...parser.push(stream.subarray(at, at + size)));
    assert.deepEqual(
      got.map((one) => [one.kind, Buffer.from(one.data)]),
      wanted.map(([kind, data]) => [kind, Buffer.from(data)]),
    );
    assert.equal(frameNumber(got[0] as Frame), 7);
    assert.deepEqual(frameJson(got[4] as Frame), { exit_code: 3 });
  }
});

test("nonsense in a frame is an error of the answer", () => {
  assert.throws(() => frameNumber({ kind: 7, data: text("123") }), APIResponseError);
  assert.throws(() => frameNumber({ kind: 7, data: new Uint8Array(8).fill(255) }), APIResponseError);
  for (const data of ["not json", "[1]", ""]) {
    assert.throws(() => frameJson({ kind: 4, data: text(data) }), APIResponseError);
  }
  assert.throws(() => new FrameParser().push(new Uint8Array([1, 255, 255, 255, 255])), APIResponseError);
});
