import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { mkdtemp, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Readable } from "node:stream";
import { describe, test } from "node:test";
import { pathToFileURL } from "node:url";
import { inspect } from "node:util";
import {
  APIConnectionError,
  APIResponseError,
  DiskFullError,
  type FileData,
  FileNotFoundError,
  InvalidArgumentError,
  localFile,
  RangeInvalidError,
} from "../../src/index.js";
import { sendError, sendJson } from "./server.js";
import { createSandbox, eventually, world } from "./world.js";

const { server, options } = world();

async function scratch(t: { after: (f: () => unknown) => void }): Promise<string> {
  const directory = await mkdtemp(join(tmpdir(), "ringfence-sdk-"));
  t.after(() => rm(directory, { recursive: true }));
  return directory;
}

function webStream(...pieces: Array<Uint8Array | string>): ReadableStream<Uint8Array | string> {
  return new ReadableStream({
    start(controller) {
      for (const piece of pieces) controller.enqueue(piece);
      controller.close();
    },
  });
}

async function* generator(...pieces: Array<Uint8Array | string>): AsyncGenerator<Uint8Array | string> {
  yield* pieces;
}

describe("files.write", () => {
  const kinds: Array<[name: string, data: () => FileData, content: string]> = [
    ["text", () => "é☃😀\r\n\ufeff", "é☃😀\r\n\ufeff"],
    ["no text", () => "", ""],
    ["bytes", () => Buffer.from("bytes"), "bytes"],
    ["part of a buffer", () => new Uint8Array(Buffer.from("0123456789").buffer.slice(0)).subarray(0, 0), ""],
    ["an ArrayBuffer", () => new Uint8Array([1, 2]).buffer, "\u0001\u0002"],
    ["a Blob", () => new Blob(["a", "b"]), "ab"],
    ["a web stream", () => webStream("a", new Uint8Array([98]), ""), "ab"],
    ["an empty web stream", () => webStream(), ""],
    ["a Node stream", () => Readable.from([Buffer.from("a"), Buffer.from("b")]), "ab"],
    ["an async generator", () => generator("a", "", Buffer.from("b")), "ab"],
    ["a list of pieces", () => ["a", Buffer.from("b")], "ab"],
  ];
  for (const [name, data, content] of kinds) {
    test(`takes ${name}`, async () => {
      const sandbox = await createSandbox(options());
      const info = await sandbox.files.write("/home/user/x", data());
      assert.equal(server().file(sandbox.id, "/home/user/x")?.toString(), content);
      assert.deepEqual(info, {
        path: "/home/user/x",
        name: "x",
        type: "file",
        size: Buffer.byteLength(content),
        mode: "0644",
        uid: 0,
        gid: 0,
        owner: "root",
        group: "root",
        modifiedAt: new Date("2026-11-30T20:00:00.123Z"),
        target: null,
        etag: null,
        metadata: {},
      });
    });
  }

  test("takes part of a larger buffer", async () => {
    const sandbox = await createSandbox(options());
    await sandbox.files.write("/x", new Uint8Array([1, 2, 3, 4]).subarray(1, 3));
    assert.deepEqual(server().file(sandbox.id, "/x"), Buffer.from([2, 3]));
  });

  test("takes a local file by path and by URL", async (t) => {
    const directory = await scratch(t);
    const path = join(directory, "ü local");
    await writeFile(path, "from disk");
    const sandbox = await createSandbox(options());
    await sandbox.files.write("/a", localFile(path));
    await sandbox.files.write("/b", localFile(pathToFileURL(path)));
    assert.equal(server().file(sandbox.id, "/a")?.toString(), "from disk");
    assert.equal(server().file(sandbox.id, "/b")?.toString(), "from disk");
    const requests = server().seen.length;
    await assert.rejects(sandbox.files.write("/c", localFile(join(directory, "none"))), { code: "ENOENT" });
    assert.equal(server().seen.length, requests, "nothing was sent");
  });

  test("says who acts, who owns, and the mode in octal", async () => {
    const sandbox = await createSandbox(options());
    await sandbox.files.write("/x", "", { user: "user", owner: "root", mode: 0o755 });
    assert.deepEqual(server().last().query, { path: "/x", user: "user", owner: "root", mode: "0755" });
    await sandbox.files.write("/x", "", { mode: "0600" });
    assert.equal(server().last().query["mode"], "0600");
    await sandbox.files.write("/x", "", { mode: 0 });
    assert.equal(server().last().query["mode"], "0000");
  });

  test("any name survives", async () => {
    const sandbox = await createSandbox(options());
    for (const name of ["a b", "é😀", "-x", "a\nb", "%41", "a+b&c=d?#", "x".repeat(255), "\\", "..a"]) {
      const info = await sandbox.files.write(`/tmp/${name}`, name);
      assert.equal(info.path, `/tmp/${name}`);
      assert.equal(await sandbox.files.readText(`/tmp/${name}`), name);
    }
    await sandbox.files.write(Uint8Array.of(0x2f, 0xff, 0x2b), "bytes");
    assert.deepEqual(server().last().query, { path_base64: "L/8r" });
    await sandbox.files.rename(Uint8Array.of(0x2f, 0xff, 0x2b), "/plain");
    assert.deepEqual(server().last().json, { from_base64: "L/8r", to: "/plain" });
  });

  const wrong: Array<[name: string, path: unknown, data: unknown, options: unknown, message: RegExp]> = [
    ["no data", "/x", undefined, {}, /the data must be/],
    ["a number", "/x", 3, {}, /the data must be/],
    ["a plain object", "/x", { a: 1 }, {}, /the data must be/],
    ["a list of numbers", "/x", [1, 2], {}, /must give strings or Uint8Arrays/],
    ["no path", undefined, "", {}, /a path must be a string or a Uint8Array/],
    ["half a surrogate pair in a path", "/\ud800", "", {}, /surrogate/],
    ["an unknown option", "/x", "", { encoding: "utf8" }, /unknown option 'encoding'/],
    ["a mode that is none", "/x", "", { mode: 0.5 }, /'mode' must be/],
    ["a mode in decimal", "/x", "", { mode: 644 }, /0o644/],
  ];
  for (const [name, path, data, given, message] of wrong) {
    test(`refuses ${name} before anything is sent`, async () => {
      const sandbox = await createSandbox(options());
      const requests = server().seen.length;
      await assert.rejects(
        sandbox.files.write(path as string, data as string, given as object),
        (error: Error) => {
          assert.ok(error instanceof TypeError, inspect(error));
          assert.match(error.message, message);
          return true;
        },
      );
      assert.equal(server().seen.length, requests);
    });
  }

  test("a source that fails on the way breaks the request off, and is what is rejected with", async () => {
    const sandbox = await createSandbox(options());
    await sandbox.files.write("/x", "older");
    let aborted = false;
    server().intercept = (request, response) => {
      if (request.method !== "PUT") return false;
      request.on("error", () => {});
      request.on("close", () => {
        aborted = !request.complete;
      });
      request.resume();
      request.on("end", () => sendJson(response, 200, {}));
      return true;
    };
    for (const thrown of [new Error("mine"), new TypeError("mine as well")]) {
      aborted = false;
      async function* failing() {
        yield "a".repeat(100_000);
        throw thrown;
      }
      await assert.rejects(sandbox.files.write("/x", failing()), (error) => error === thrown);
      await eventually("the request was broken off", () => aborted);
    }
    assert.equal(server().file(sandbox.id, "/x")?.toString(), "older");
  });

  test("a generator is closed when the server refuses early", async () => {
    const sandbox = await createSandbox(options());
    server().intercept = (request, response) => {
      if (request.method !== "PUT") return false;
      request.on("error", () => {});
      sendError(response, 507, "disk_full", "the disk is full");
      return true;
    };
    let closed = false;
    let pieces = 0;
    async function* endless() {
      try {
        for (;;) {
          pieces++;
          yield Buffer.alloc(64 * 1024);
        }
      } finally {
        closed = true;
      }
    }
    await assert.rejects(sandbox.files.write("/x", endless()), DiskFullError);
    server().intercept = () => false;
    await sandbox.kill();
    await eventually("the generator was closed", () => closed);
    assert.ok(pieces < 10_000);
  });

  test("is never sent twice", async () => {
    const sandbox = await createSandbox(options());
    let requests = 0;
    server().intercept = (request) => {
      requests++;
      request.socket.destroy();
      return true;
    };
    await assert.rejects(sandbox.files.write("/x", "x"), (error: Error) => {
      assert.ok(error instanceof APIConnectionError);
      assert.match(error.message, /whether the file was written is unknown/);
      return true;
    });
    assert.equal(requests, 1);
  });
});

describe("files.writeMany", () => {
  test("takes a list or an object, and answers in order", async () => {
    const sandbox = await createSandbox(options());
    const infos = await sandbox.files.writeMany(
      [
        { path: "/a", data: "1" },
        { path: "/b", data: "22" },
      ],
      { mode: 0o600 },
    );
    assert.deepEqual(
      infos.map(({ path, size, mode }) => [path, size, mode]),
      [
        ["/a", 1, "0600"],
        ["/b", 2, "0600"],
      ],
    );
    await sandbox.files.writeMany({ "/c": "333", "/d": Uint8Array.of(1) });
    assert.equal(server().file(sandbox.id, "/c")?.toString(), "333");
    assert.deepEqual(await sandbox.files.writeMany([]), []);
  });

  test("sends a few at a time", async () => {
    const sandbox = await createSandbox(options());
    let now = 0;
    let most = 0;
    server().intercept = (request, response) => {
      if (request.method !== "PUT") return false;
      most = Math.max(most, ++now);
      request.resume();
      setTimeout(() => {
        now--;
        sendJson(response, 200, {});
      }, 10);
      return true;
    };
    const entries = Array.from({ length: 40 }, (_, i) => ({ path: `/${i}`, data: "x" }));
    await sandbox.files.writeMany(entries);
    assert.ok(most > 1 && most <= 8, `${most} at a time`);
    most = 0;
    await sandbox.files.writeMany(entries, { concurrency: 1 });
    assert.equal(most, 1);
  });

  test("the first failure stops the rest", async () => {
    const sandbox = await createSandbox(options());
    const entries = Array.from({ length: 40 }, (_, i) => ({
      path: i === 3 ? "relative" : `/${i}`,
      data: "x",
    }));
    await assert.rejects(sandbox.files.writeMany(entries, { concurrency: 2 }), InvalidArgumentError);
    assert.ok(server().seen.length < 10);
    await assert.rejects(sandbox.files.writeMany([{ path: "/a", content: "x" } as never]), TypeError);
    await assert.rejects(sandbox.files.writeMany([["/a", "x"] as never]), TypeError);
    await assert.rejects(sandbox.files.writeMany("/a" as never), TypeError);
  });
});

describe("reading", () => {
  test("bytes, text, and a byte order mark", async () => {
    const sandbox = await createSandbox(options());
    const bytes = Uint8Array.from({ length: 256 }, (_, i) => i);
    await sandbox.files.write("/x", bytes);
    const read = await sandbox.files.read("/x");
    assert.ok(read.constructor === Uint8Array);
    assert.deepEqual(read, bytes);
    await sandbox.files.write("/x", "\ufeffé😀");
    assert.equal(await sandbox.files.readText("/x"), "\ufeffé😀");
    await sandbox.files.write("/x", Uint8Array.of(0xe9));
    assert.equal(await sandbox.files.readText("/x", { encoding: "latin1" }), "é");
    await assert.rejects(sandbox.files.readText("/x"), (error: Error) => {
      assert.ok(error instanceof TypeError);
      assert.match(error.message, /\/x is not utf-8 text; files.read returns its bytes/);
      return true;
    });
    await assert.rejects(sandbox.files.readText("/x", { encoding: "klingon" }), /unknown encoding 'klingon'/);
  });

  const ranges: Array<
    [given: { offset?: number; length?: number }, header: string | undefined, content: string]
  > = [
    [{}, undefined, "0123456789"],
    [{ offset: 0 }, undefined, "0123456789"],
    [{ offset: 3 }, "bytes=3-", "3456789"],
    [{ length: 4 }, "bytes=0-3", "0123"],
    [{ offset: 2, length: 3 }, "bytes=2-4", "234"],
    [{ offset: 8, length: 100 }, "bytes=8-107", "89"],
  ];
  for (const [given, header, content] of ranges) {
    test(`a range: ${JSON.stringify(given)}, also from a server that sends the whole file`, async () => {
      const sandbox = await createSandbox(options());
      await sandbox.files.write("/x", "0123456789");
      const check = async () => {
        assert.equal(Buffer.from(await sandbox.files.read("/x", given)).toString(), content);
        assert.equal(server().last().headers.range, header);
        assert.equal(await new Response(await sandbox.files.readStream("/x", given)).text(), content);
      };
      await check();
      server().intercept = (request) => {
        server().seen.push({ method: "", path: "", query: {}, json: {}, headers: { ...request.headers } });
        delete request.headers.range;
        return false;
      };
      assert.equal(Buffer.from(await sandbox.files.read("/x", given)).toString(), content);
      assert.equal(await new Response(await sandbox.files.readStream("/x", given)).text(), content);
    });
  }

  test("ranges that cannot be", async () => {
    const sandbox = await createSandbox(options());
    await sandbox.files.write("/x", "0123456789");
    await assert.rejects(sandbox.files.read("/x", { offset: 11 }), RangeInvalidError);
    for (const given of [{ offset: -1 }, { offset: 0.5 }, { length: 0 }, { length: Number.NaN }]) {
      await assert.rejects(sandbox.files.read("/x", given), TypeError);
    }
  });

  test("a stream is read no faster than it is wanted, and can be cancelled", async () => {
    const sandbox = await createSandbox(options());
    let sent = 0;
    let closed = false;
    server().intercept = (request, response) => {
      if (request.method !== "GET") return false;
      response.writeHead(200, { "Content-Type": "application/octet-stream" });
      const more = () => {
        while (!closed && response.write(Buffer.alloc(64 * 1024))) sent += 64 * 1024;
      };
      response.on("drain", more);
      response.on("close", () => {
        closed = true;
      });
      more();
      return true;
    };
    const reader = (await sandbox.files.readStream("/x")).getReader();
    assert.ok((await reader.read()).value?.length);
    await new Promise((resolve) => setTimeout(resolve, 100));
    assert.ok(sent < 50e6, `${sent} bytes were sent`);
    await reader.cancel();
    await eventually("the connection closed", () => closed);
  });

  test("a file that breaks off is an error of every way to read", async (t) => {
    const directory = await scratch(t);
    const sandbox = await createSandbox(options());
    server().intercept = (_, response) => {
      response.writeHead(200, { "Content-Length": "100000" });
      response.write(Buffer.alloc(50000));
      setTimeout(() => response.destroy(), 20);
      return true;
    };
    await assert.rejects(sandbox.files.read("/x"), APIConnectionError);
    await assert.rejects(sandbox.files.readText("/x"), APIConnectionError);
    const stream = await sandbox.files.readStream("/x");
    await assert.rejects(new Response(stream).arrayBuffer(), APIConnectionError);
    await writeFile(join(directory, "x"), "older");
    await assert.rejects(sandbox.files.readTo("/x", join(directory, "x")), APIConnectionError);
    assert.equal(await readFile(join(directory, "x"), "utf8"), "older");
    assert.deepEqual(await readdir(directory), ["x"]);
  });

  test("a signal aborts a stream under way", async () => {
    const sandbox = await createSandbox(options());
    server().intercept = (_, response) => {
      response.writeHead(200, { "Content-Length": "100000" });
      response.write(Buffer.alloc(50000));
      return true;
    };
    const controller = new AbortController();
    const stream = await sandbox.files.readStream("/x", { signal: controller.signal });
    const reason = new Error("enough");
    setTimeout(() => controller.abort(reason), 20);
    await assert.rejects(new Response(stream).arrayBuffer(), reason);
  });

  test("readTo writes a local file", async (t) => {
    const directory = await scratch(t);
    const sandbox = await createSandbox(options());
    await sandbox.files.write("/x", "content");
    assert.equal(await sandbox.files.readTo("/x", join(directory, "a")), 7);
    assert.equal(await sandbox.files.readTo("/x", pathToFileURL(join(directory, "b")), { offset: 3 }), 4);
    assert.equal(await readFile(join(directory, "a"), "utf8"), "content");
    assert.equal(await readFile(join(directory, "b"), "utf8"), "tent");
    assert.deepEqual((await readdir(directory)).sort(), ["a", "b"]);
    await assert.rejects(sandbox.files.readTo("/none", join(directory, "c")), FileNotFoundError);
    await assert.rejects(sandbox.files.readTo("/x", join(directory, "none", "c")), { code: "ENOENT" });
  });
});

describe("the other verbs", () => {
  test("send what they are given", async () => {
    const sandbox = await createSandbox(options());
    const path = `/v1/sandboxes/${sandbox.id}/files`;
    await sandbox.files.writeMany({ "/d/a": "1", "/d/b": "22" });
    const seen = () => {
      const { method, path: at, query, json } = server().last();
      return [method, at.slice(path.length), query, json];
    };
    const list = await sandbox.files.list("/d", { depth: 2, user: "user" });
    assert.deepEqual(
      list.map((entry) => entry.path),
      ["/d/a", "/d/b"],
    );
    assert.deepEqual(seen(), ["GET", "/list", { path: "/d", user: "user", depth: "2" }, {}]);
    assert.equal((await sandbox.files.getInfo("/d/b")).size, 2);
    assert.deepEqual(seen(), ["GET", "/stat", { path: "/d/b" }, {}]);
    assert.equal((await sandbox.files.stat("/d/b")).size, 2);
    assert.equal(await sandbox.files.exists("/d/b"), true);
    assert.equal(await sandbox.files.exists("/d/c"), false);
    await sandbox.files.makeDir("/e/f", { owner: "user", mode: 0o700 });
    assert.deepEqual(seen(), ["POST", "/mkdir", {}, { path: "/e/f", owner: "user", mode: "0700" }]);
    assert.equal((await sandbox.files.rename("/d/a", "/d/c", { user: "user" })).path, "/d/c");
    assert.deepEqual(seen(), ["POST", "/rename", {}, { from: "/d/a", to: "/d/c", user: "user" }]);
    await sandbox.files.remove("/d/c", { recursive: true });
    assert.deepEqual(seen(), ["DELETE", "", { path: "/d/c", recursive: "true" }, {}]);
    await assert.rejects(sandbox.files.remove("/d/c"), FileNotFoundError);
    await assert.rejects(sandbox.files.getInfo("relative"), InvalidArgumentError);
    await assert.rejects(sandbox.files.exists("relative"), InvalidArgumentError);
  });

  test("remove whose first answer was lost is a success", async () => {
    const sandbox = await createSandbox(options());
    await sandbox.files.write("/x", "");
    let requests = 0;
    server().intercept = (request, response) => {
      if (requests++ > 0) return false;
      response.end = (() => request.socket.destroy()) as never;
      return false;
    };
    await sandbox.files.remove("/x");
    assert.equal(requests, 2);
  });

  test("an answer that is none of ours", async () => {
    const sandbox = await createSandbox(options());
    server().intercept = (_, response) => {
      sendJson(response, 200, "hello");
      return true;
    };
    await assert.rejects(sandbox.files.getInfo("/x"), APIResponseError);
    await assert.rejects(sandbox.files.list("/x"), APIResponseError);
  });
});

test("256 MiB up and down with flat memory", async () => {
  const sandbox = await createSandbox(options());
  const pieces = 256;
  const piece = (i: number) => Buffer.alloc(1024 * 1024, i); // each its own memory, so that what is kept is seen
  const expected = createHash("sha256");
  for (let i = 0; i < pieces; i++) expected.update(piece(i));
  const digest = expected.digest("hex");
  const uploaded = createHash("sha256");
  let most = 0;
  const watch = setInterval(() => {
    most = Math.max(most, process.memoryUsage.rss());
  }, 20);
  async function* source() {
    for (let i = 0; i < pieces; i++) yield piece(i);
  }
  server().intercept = (request, response) => {
    if (request.method === "PUT") {
      request.on("data", (chunk) => uploaded.update(chunk));
      request.on("end", () => sendJson(response, 200, { size: pieces << 20 }));
      return true;
    }
    response.writeHead(200, { "Content-Length": String(pieces << 20) });
    Readable.from(source()).pipe(response);
    return true;
  };
  const before = process.memoryUsage.rss();
  await sandbox.files.write("/big", source());
  assert.equal(uploaded.digest("hex"), digest);
  const downloaded = createHash("sha256");
  const reader = (await sandbox.files.readStream("/big")).getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    downloaded.update(value);
  }
  clearInterval(watch);
  assert.equal(downloaded.digest("hex"), digest);
  assert.ok(most - before < 150e6, `memory grew by ${Math.round((most - before) / 1e6)} MB`);
});
