/** Snapshots, and the deadlines of a sandbox. */

import { optionalBoolean, optionalString, seconds } from "./options.js";
import { record, string } from "./wire.js";

type Given = Readonly<Record<string, unknown>>;

/** What happens after `timeout` and `idleTimeoutSeconds`. */
export type OnTimeout = "kill" | "pause";

/** A sandbox's memory and written disk at one instant. It outlives the sandbox. */
export interface SnapshotInfo {
  /** `"snap_"` and 20 letters and digits. */
  id: string;
  /** What its maker called it, or `""`. */
  name: string;
  /** The sandbox that it is of, which may be gone. */
  sandboxId: string;
  /** Canonical name of that sandbox's template. */
  template: string;
  /** The size of what starts from it. */
  vcpu: number;
  memoryMib: number;
  diskMib: number;
  /** What it takes on the server's disk. */
  bytes: number;
  createdAt: Date;
}

/** @internal */
export function snapshotInfo(value: unknown): SnapshotInfo {
  const wire = record(value, "a snapshot");
  return {
    id: string(wire["id"]),
    name: string(wire["name"]),
    sandboxId: string(wire["sandbox_id"]),
    template: string(wire["template"]),
    vcpu: Number(wire["vcpu"]),
    memoryMib: Number(wire["memory_mib"]),
    diskMib: Number(wire["disk_mib"]),
    bytes: Number(wire["bytes"]),
    createdAt: new Date(string(wire["created_at"])),
  };
}

/** @internal Returns a snapshot's id, out of itself or of a SnapshotInfo. */
export function snapshotId(where: string, snapshot: unknown): string {
  const id = typeof snapshot === "object" && snapshot !== null ? (snapshot as { id?: unknown }).id : snapshot;
  if (typeof id === "string" && id !== "") return id;
  throw new TypeError(`${where}: the snapshot must be its id, or what sandbox.snapshot() gave`);
}

/** @internal */
export function snapshotPath(where: string, snapshot: unknown): string {
  return `/v1/snapshots/${encodeURIComponent(snapshotId(where, snapshot))}`;
}

/** The deadlines of a sandbox: what happens to it by itself. */
export interface Deadlines {
  /** Seconds that it may run, above 0; then `onTimeout`. null: no limit. */
  timeout?: number | null | undefined;
  /** The same as `timeout`. */
  timeoutSeconds?: number | null | undefined;
  /** The same in milliseconds. */
  timeoutMs?: number | null | undefined;
  /** `"kill"` or `"pause"`: what happens after `timeout` and `idleTimeoutSeconds`. */
  onTimeout?: OnTimeout | undefined;
  /** The same after so many seconds without a command, file call or port traffic; what is under way counts. null: never. */
  idleTimeoutSeconds?: number | null | undefined;
  /** It is deleted so many seconds after it was paused; 0: at once. null: never. */
  autoDeleteSeconds?: number | null | undefined;
  /** Whether a call on the paused sandbox wakes it; else the call rejects with {@link SandboxPausedError}. */
  autoResume?: boolean | undefined;
}

/** @internal The names of {@link Deadlines}, for checkOptions. */
export const deadlineOptions = [
  "timeout",
  "timeoutSeconds",
  "timeoutMs",
  "onTimeout",
  "idleTimeoutSeconds",
  "autoDeleteSeconds",
  "autoResume",
] as const;

/** @internal */
export function deadlineFields(where: string, given: Given): Record<string, unknown> {
  return {
    timeout_seconds: seconds(where, given, "timeout"),
    on_timeout: optionalString(where, given, "onTimeout"),
    idle_timeout_seconds: optionalSeconds(where, given, "idleTimeoutSeconds"),
    auto_delete_seconds: optionalSeconds(where, given, "autoDeleteSeconds"),
    auto_resume: optionalBoolean(where, given, "autoResume"),
  };
}

function optionalSeconds(where: string, options: Given, name: string): number | null | undefined {
  const value = options[name];
  if (value === undefined || value === null || (typeof value === "number" && Number.isFinite(value)))
    return value;
  throw new TypeError(`${where}: '${name}' must be a finite number of seconds or null`);
}
