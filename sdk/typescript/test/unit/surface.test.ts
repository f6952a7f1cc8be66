import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { test } from "node:test";
import { errorClassOf } from "../../src/errors.js";
import * as sdk from "../../src/index.js";

const root = new URL("../../../", import.meta.url); // from build/test/unit

test("the exports are these and no others", () => {
  assert.deepEqual(Object.keys(sdk).sort(), [
    "APIConnectionError",
    "APIError",
    "APIResponseError",
    "APITimeoutError",
    "AlreadyExistsError",
    "ArchiveRefusedError",
    "AuthenticationError",
    "CanceledError",
    "CommandExitError",
    "CommandResult",
    "Commands",
    "DeadlineExceededError",
    "DirectoryNotEmptyError",
    "DiskFullError",
    "FailedPreconditionError",
    "FileExistsError",
    "FileNotFoundError",
    "FilePermissionError",
    "Files",
    "InternalError",
    "InvalidArgumentError",
    "IsDirectoryError",
    "LocalFile",
    "MisdirectedError",
    "NotDirectoryError",
    "NotFoundError",
    "NotYetSupportedError",
    "PermissionDeniedError",
    "PortFailedError",
    "PortNotListeningError",
    "Ports",
    "PreconditionFailedError",
    "Process",
    "ProcessNotFoundError",
    "RangeInvalidError",
    "ResourceExhaustedError",
    "RingfenceError",
    "Sandbox",
    "SandboxEndedError",
    "SandboxPausedError",
    "SignatureExpiredError",
    "TemplateNotFoundError",
    "Terminal",
    "Terminals",
    "TooLargeError",
    "UnavailableError",
    "VERSION",
    "localFile",
  ]);
});

test("the members are these and no others", () => {
  const members = (of: object) => Reflect.ownKeys(of).map(String).sort();
  const own = (of: { prototype: object }) => members(of.prototype).filter((name) => name !== "constructor");
  const builtIn = ["length", "name", "prototype"];
  assert.deepEqual(
    members(sdk.Sandbox).filter((name) => !builtIn.includes(name)),
    ["connect", "create", "deleteSnapshot", "getInfo", "getSnapshot", "kill", "list", "listSnapshots"],
  );
  assert.deepEqual(own(sdk.Sandbox), [
    String(Symbol.asyncDispose),
    "accessToken",
    "createSnapshot",
    "events",
    "fork",
    "getAccessToken",
    "getInfo",
    "getNetwork",
    "getNetworkLog",
    "kill",
    "listSnapshots",
    "metrics",
    "metricsHistory",
    "networkFlows",
    "pause",
    "restore",
    "resume",
    "sandboxId",
    "setTimeout",
    "snapshot",
    "update",
    "updateNetwork",
  ]);
  assert.deepEqual(own(sdk.Commands), ["connect", "get", "kill", "list", "run", "start"]);
  const symbols = [Symbol.asyncDispose, Symbol.asyncIterator].map(String).sort();
  assert.deepEqual(own(sdk.Process), [
    ...symbols,
    "closeStdin",
    "getInfo",
    "info",
    "kill",
    "lost",
    "position",
    "result",
    "sendStdin",
    "setSize",
    "signal",
    "wait",
  ]);
  assert.deepEqual(own(sdk.Terminal), ["resize", "send"]);
  assert.deepEqual(own(sdk.Terminals), ["connect", "create"]);
  assert.deepEqual(own(sdk.Ports), ["link", "list", "publish", "unpublish", "url"]);
  assert.deepEqual(own(Object.getPrototypeOf(sdk.Files)), [
    "checksum",
    "chmod",
    "copy",
    "downloadDir",
    "downloadUrl",
    "readArchive",
    "search",
    "setMetadata",
    "uploadDir",
    "uploadUrl",
    "watch",
    "writeArchive",
  ]);
  assert.deepEqual(own(sdk.Files), [
    "exists",
    "getInfo",
    "list",
    "makeDir",
    "read",
    "readStream",
    "readText",
    "readTo",
    "remove",
    "rename",
    "stat",
    "write",
    "writeMany",
  ]);
  assert.deepEqual(own(sdk.CommandResult), ["check", "stderrBytes", "stdoutBytes", "withOutput"]);
});

test("every error has its own name and is below RingfenceError", () => {
  for (const [name, value] of Object.entries(sdk)) {
    if (!name.endsWith("Error") || name === "CommandExitError") continue;
    const error = new (value as typeof sdk.RingfenceError)("message", { code: "x" });
    assert.ok(error instanceof sdk.RingfenceError);
    assert.equal(error.name, name);
    assert.match(error.stack ?? "", new RegExp(`^${name}: message`));
    assert.ok(!Object.hasOwn(error, "name"));
  }
});

test("codes have the classes that the server's table says", async () => {
  const go = await readFile(new URL("../../error.go", root), "utf8");
  const codes = new Map([...go.matchAll(/^\s*(Code\w+)\s+Code\s+= "(\w+)"/gm)].map((m) => [m[1], m[2]]));
  const rows = [...go.matchAll(/^\s*\{(Code\w+), \d+, \d+, "(\w+)", "/gm)];
  assert.ok(rows.length >= 20);
  for (const [, constant, name] of rows) {
    const code = codes.get(constant) ?? "";
    assert.equal(errorClassOf(code).prototype.name, name, code);
  }
});

test("VERSION is package.json's, and nothing is needed at run time", async () => {
  const pkg = JSON.parse(await readFile(new URL("package.json", root), "utf8"));
  assert.equal(sdk.VERSION, pkg.version);
  for (const field of ["dependencies", "peerDependencies", "optionalDependencies"])
    assert.equal(pkg[field], undefined);
  for (const version of Object.values(pkg.devDependencies)) assert.match(String(version), /^\d+\.\d+\.\d+$/);
});
