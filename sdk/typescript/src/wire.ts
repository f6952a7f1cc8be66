/** What the server's JSON becomes. Fields that this version does not know are left out. */

import { type Bytes, decodeBase64 } from "./bytes.js";
import { badResponse } from "./errors.js";

export type Wire = Record<string, unknown>;

export function isRecord(value: unknown): value is Wire {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** Returns the value as a record; anything else is no answer of a Ringfence server. */
export function record(value: unknown, what: string): Wire {
  if (isRecord(value)) return value;
  throw badResponse(`the server's answer is not ${what}`);
}

/** Where a sandbox stands in its life; later servers may know more. */
export type SandboxState =
  | "starting"
  | "running"
  | "pausing"
  | "paused"
  | "resuming"
  | "failed"
  | "deleted"
  | (string & {});

/** What may leave a sandbox, as the server keeps it. */
export interface NetworkInfo {
  allowOut: string[];
  denyOut: string[];
  /** null: the caller did not say. */
  allowInternetAccess: boolean | null;
  /** Whether nothing outside reaches a port of the sandbox. */
  closedPorts: boolean;
}

/** A sandbox as the server described it at one instant. Times are exact to the millisecond. */
export interface SandboxInfo {
  /** 20 letters and digits. */
  id: string;
  name: string;
  /** Canonical name of its template. */
  template: string;
  state: SandboxState;
  /** Why it ended, such as `"killed"`, `"expired"` or `"oom"`; null while it lives. */
  reason: string | null;
  /** One sentence about the end; null when there is none. */
  detail: string | null;
  vcpu: number;
  memoryMib: number;
  diskMib: number;
  metadata: Record<string, string>;
  /** Who runs commands that name nobody. */
  user: string;
  /** Where commands start that name no directory. */
  workDir: string;
  network: NetworkInfo;
  createdAt: Date;
  startedAt: Date | null;
  endedAt: Date | null;
  /** When its running period ends, and `onTimeout` happens; null without a limit, and while it is paused. */
  expiresAt: Date | null;
  /** Since when it is paused; null: it is not. */
  pausedAt: Date | null;
  /** When `onTimeout` happens if nobody uses it until then; null: never. */
  idleAt: Date | null;
  /** When it is deleted, being paused; null: never. */
  deleteAt: Date | null;
  /** How long a running period may be; null: for ever. */
  timeoutSeconds: number | null;
  onTimeout: "kill" | "pause" | (string & {});
  /** For how long nobody may use it; null: for ever. */
  idleTimeoutSeconds: number | null;
  /** How long it may be paused; null: for ever. */
  autoDeleteSeconds: number | null;
  /** Whether a call on the paused sandbox wakes it. */
  autoResume: boolean;
}

export function networkInfo(value: unknown): NetworkInfo {
  const wire = isRecord(value) ? value : {};
  const allow = wire["allow_internet_access"];
  return {
    allowOut: strings(wire["allow_out"]),
    denyOut: strings(wire["deny_out"]),
    allowInternetAccess: typeof allow === "boolean" ? allow : null,
    closedPorts: wire["closed_ports"] === true,
  };
}

export function sandboxInfo(value: unknown): SandboxInfo {
  const wire = record(value, "a sandbox");
  return {
    id: string(wire["id"]),
    name: string(wire["name"]),
    template: string(wire["template"]),
    state: string(wire["state"]),
    reason: stringOrNull(wire["reason"]),
    detail: stringOrNull(wire["detail"]),
    vcpu: Number(wire["vcpu"]),
    memoryMib: Number(wire["memory_mib"]),
    diskMib: Number(wire["disk_mib"]),
    metadata: { ...(isRecord(wire["metadata"]) ? (wire["metadata"] as Record<string, string>) : {}) },
    user: string(wire["user"]),
    workDir: string(wire["work_dir"]),
    network: networkInfo(wire["network"]),
    createdAt: new Date(string(wire["created_at"])),
    startedAt: dateOrNull(wire["started_at"]),
    endedAt: dateOrNull(wire["ended_at"]),
    expiresAt: dateOrNull(wire["expires_at"]),
    pausedAt: dateOrNull(wire["paused_at"]),
    idleAt: dateOrNull(wire["idle_at"]),
    deleteAt: dateOrNull(wire["delete_at"]),
    timeoutSeconds: numberOrNull(wire["timeout_seconds"]),
    onTimeout: string(wire["on_timeout"]) || "kill",
    idleTimeoutSeconds: numberOrNull(wire["idle_timeout_seconds"]),
    autoDeleteSeconds: numberOrNull(wire["auto_delete_seconds"]),
    autoResume: wire["auto_resume"] !== false,
  };
}

/** A file, directory or other entry in a sandbox. */
export interface FileInfo {
  /** Absolute path; bytes of it that are not UTF-8 are U+FFFD, and then `pathBytes` has the real ones. */
  path: string;
  /** Last part of the path. */
  name: string;
  type: "file" | "directory" | "symlink" | "other";
  /** Bytes. */
  size: number;
  /** Permission bits as four octal digits, such as `"0644"`. */
  mode: string;
  uid: number;
  gid: number;
  /** Name of the owner, or its number where it has none. */
  owner: string;
  /** Name of the group, or its number where it has none. */
  group: string;
  /** Exact to the millisecond. */
  modifiedAt: Date;
  /** What a symlink points at; null for everything else. */
  target: string | null;
  /** Changes whenever the file does; for `ifMatch` of {@link Files.write}. null from a server that has none. */
  etag: string | null;
  /** Extended attributes of the namespace "user", as {@link Files.setMetadata} sets them; only of {@link Files.getInfo}. */
  metadata: Record<string, string>;
  /** The path byte for byte; only there when it is not UTF-8. Every method of `files` takes it as a path. */
  pathBytes?: Bytes;
}

export function fileInfo(value: unknown): FileInfo {
  const wire = record(value, "a file's description");
  const info: FileInfo = {
    path: string(wire["path"]),
    name: string(wire["name"]),
    type: string(wire["type"]) as FileInfo["type"],
    size: Number(wire["size"]),
    mode: string(wire["mode"]),
    uid: Number(wire["uid"]),
    gid: Number(wire["gid"]),
    owner: string(wire["owner"]),
    group: string(wire["group"]),
    modifiedAt: new Date(string(wire["modified_at"])),
    target: stringOrNull(wire["target"]),
    etag: stringOrNull(wire["etag"]),
    metadata: { ...(isRecord(wire["metadata"]) ? (wire["metadata"] as Record<string, string>) : {}) },
  };
  if (typeof wire["path_base64"] === "string") info.pathBytes = decodeBase64(wire["path_base64"]);
  return info;
}

export function string(value: unknown): string {
  return typeof value === "string" ? value : "";
}

function stringOrNull(value: unknown): string | null {
  return typeof value === "string" ? value : null;
}

function numberOrNull(value: unknown): number | null {
  return typeof value === "number" ? value : null;
}

function strings(value: unknown): string[] {
  return Array.isArray(value) ? value.map(String) : [];
}

function dateOrNull(value: unknown): Date | null {
  return typeof value === "string" ? new Date(value) : null;
}
