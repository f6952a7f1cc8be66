/** Archives from a sandbox are hostile: whatever they hold, nothing is made outside of the directory. */

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import * as fs from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type TestContext, test } from "node:test";
import { ArchiveRefusedError } from "../../src/index.js";
import { packDirectory, unpackDirectory } from "../../src/platform/directory.js";
import { padding, type TarEntry, tarEnd, tarHeader } from "../../src/tar.js";

async function scratch(t: TestContext): Promise<string> {
  const directory = await fs.mkdtemp(join(tmpdir(), "ringfence-archive-"));
  t.after(() => fs.rm(directory, { recursive: true, force: true }));
  return directory;
}

const entry = (name: string, more: Partial<TarEntry> = {}): TarEntry => ({
  name,
  type: "file",
  mode: 0o644,
  size: 0,
  target: "",
  ...more,
});

async function* tar(...entries: [TarEntry, string?][]): AsyncGenerator<Uint8Array> {
  for (const [one, content = ""] of entries) {
    const bytes = new TextEncoder().encode(content);
    yield tarHeader({ ...one, size: bytes.length });
    yield bytes;
    yield new Uint8Array(padding(bytes.length));
  }
  yield tarEnd;
}

const strict = { skip: false, maxBytes: 1 << 20 };
const loose = { skip: true, maxBytes: 1 << 20 };

const hostile: Record<string, (outside: string) => [TarEntry, string?][]> = {
  absolute: (outside) => [[entry(`${outside}/pwned`), "x"]],
  "dot-dot": () => [[entry("../outside/pwned"), "x"]],
  "dot-dot inside": () => [[entry("a/../../outside/pwned"), "x"]],
  "a link out": () => [[entry("l", { type: "symlink", target: "../outside" })]],
  "an absolute link": (outside) => [[entry("l", { type: "symlink", target: outside })]],
  "through a link": (outside) => [
    [entry("l", { type: "symlink", target: outside })],
    [entry("l/pwned"), "x"],
  ],
  "a hard link or device": () => [[entry("d", { type: "other" })]],
  "a link over a link": () => [
    [entry("s", { type: "symlink", target: "." })],
    [entry("l", { type: "symlink", target: "s/s/../../outside/secret" })],
  ],
  "a link down and up": () => [[entry("d/l", { type: "symlink", target: "x/../y" })]],
  "a link to nothing": () => [[entry("l", { type: "symlink", target: "" })]],
};

for (const [what, entries] of Object.entries(hostile)) {
  test(`nothing leaves the directory: ${what}`, async (t) => {
    const place = await scratch(t);
    const [outside, into] = [join(place, "outside"), join(place, "into")];
    await fs.mkdir(outside);
    await fs.writeFile(join(outside, "secret"), "secret");
    // A plain header, since an "other" entry of tarHeader is a regular file to readers.
    const stream = async function* () {
      for await (const piece of tar(...entries(outside), [entry("good"), "good"])) {
        if (what.startsWith("a hard link") && piece.length === 512 && piece[0] === 100) {
          const device = piece.slice();
          device[156] = 0x33;
          device[154] = 0;
          const sum = device.reduce((all, byte, i) => all + (i >= 148 && i < 156 ? 32 : byte), 0);
          device.set(new TextEncoder().encode(sum.toString(8).padStart(6, "0")), 148);
          yield device;
        } else yield piece;
      }
    };
    await assert.rejects(unpackDirectory(stream(), into, strict), ArchiveRefusedError);
    const result = await unpackDirectory(stream(), into, loose);
    assert.ok(result.skipped.length > 0);
    assert.equal(await fs.readFile(join(into, "good"), "utf8"), "good");
    assert.deepEqual(await fs.readdir(outside), ["secret"]);
    for (const name of await fs.readdir(into))
      assert.ok((await fs.realpath(join(into, name))).startsWith(await fs.realpath(into)));
  });
}

test("a link that was there is not written through", async (t) => {
  const place = await scratch(t);
  const [outside, into] = [join(place, "outside"), join(place, "into")];
  await fs.mkdir(outside);
  await fs.mkdir(into);
  await fs.symlink(outside, join(into, "dir"));
  await fs.symlink(join(outside, "file"), join(into, "file"));
  await assert.rejects(unpackDirectory(tar([entry("dir/pwned"), "x"]), into, strict), ArchiveRefusedError);
  await unpackDirectory(tar([entry("file"), "new"]), into, strict);
  assert.equal(await fs.readFile(join(into, "file"), "utf8"), "new");
  assert.deepEqual(await fs.readdir(outside), []);
});

test("too much, too short, and what is no archive", async (t) => {
  const into = join(await scratch(t), "into");
  const big = () => tar([entry("big"), "x".repeat(1000)]);
  await assert.rejects(unpackDirectory(big(), into, { skip: true, maxBytes: 999 }), /maxBytes/);
  const cut = async function* () {
    let left = 700;
    for await (const piece of big()) {
      yield piece.subarray(0, left);
      left -= piece.length;
      if (left <= 0) return;
    }
  };
  await assert.rejects(unpackDirectory(cut(), into, strict), ArchiveRefusedError);
  for (const bytes of [new Uint8Array(0), new Uint8Array(100), new Uint8Array(1024).fill(7)]) {
    const source = async function* () {
      yield bytes;
    };
    await unpackDirectory(source(), into, strict).then(
      (result) => assert.equal(result.files, 0),
      (error) => assert.ok(error instanceof ArchiveRefusedError),
    );
  }
});

test("a directory comes back as it was packed, also through tar itself", async (t) => {
  const place = await scratch(t);
  const source = join(place, "source");
  const long = "n".repeat(120);
  await fs.mkdir(join(source, "deep", long), { recursive: true });
  await fs.mkdir(join(source, "empty"));
  await fs.writeFile(
    join(source, "deep", long, "\u00fcn\u00ef"),
    Uint8Array.from({ length: 70_000 }, (_, i) => i),
  );
  await fs.writeFile(join(source, "run.sh"), "#!/bin/sh\n", { mode: 0o755 });
  await fs.symlink(`deep/${long}`, join(source, "link"));
  const result = await unpackDirectory(packDirectory(source), join(place, "into"), strict);
  assert.deepEqual([result.files, result.directories, result.skipped], [3, 3, []]);
  const chunks: Uint8Array[] = [];
  for await (const piece of packDirectory(source)) chunks.push(piece);
  await fs.writeFile(join(place, "made.tar"), Buffer.concat(chunks));
  await fs.mkdir(join(place, "by-tar"));
  execFileSync("tar", ["-xf", join(place, "made.tar"), "-C", join(place, "by-tar")]);
  execFileSync("tar", ["-cf", join(place, "gnu.tar"), "-C", source, "."]);
  const gnu = (await fs.readFile(join(place, "gnu.tar"))) as Uint8Array;
  const once = async function* () {
    yield gnu;
  };
  await unpackDirectory(once(), join(place, "of-gnu"), strict);
  for (const copy of ["into", "by-tar", "of-gnu"]) {
    execFileSync("diff", ["-r", "--no-dereference", source, join(place, copy)]);
    assert.equal((await fs.stat(join(place, copy, "run.sh"))).mode & 0o777, 0o755);
  }
});
