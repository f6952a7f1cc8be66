import { record } from "./wire.js";

/** A row of a sandbox's network log: a connection, or a lookup that was refused. */
export interface NetworkFlow {
  /** In the order of their begin. */
  id: number;
  at: Date;
  /** What was looked up or announced. */
  name: string | null;
  /** null for a lookup. */
  address: string | null;
  port: number | null;
  /** `"tcp"`, `"udp"`, `"icmp"`, `"dns"`, or a number of IP. */
  protocol: string;
  /** `"allowed"`, `"denied"`, or `"failed"`: allowed, but the other side could not be reached. */
  verdict: string;
  /** Why; docs/network.md lists them. */
  reason: string;
  /** The entry of the policy that decided, as it was written. */
  rule: string | null;
  bytesSent: number;
  bytesReceived: number;
  /** null while it is open. */
  durationSeconds: number | null;
  /** How often it happened in a row, for what was denied. */
  count: number;
}

/** A page of a network log. */
export interface NetworkLog {
  flows: NetworkFlow[];
  /** Goes on after them, also when there are none yet. */
  nextCursor: string;
}

/** @internal */
export function networkLog(value: unknown): NetworkLog {
  const wire = record(value, "a network log");
  return {
    flows: Array.isArray(wire["flows"]) ? wire["flows"].map(flow) : [],
    nextCursor: String(wire["next_cursor"] ?? ""),
  };
}

function flow(value: unknown): NetworkFlow {
  const wire = record(value, "a network flow");
  const text = (name: string): string | null => (typeof wire[name] === "string" ? wire[name] : null);
  const number = (name: string): number | null => (typeof wire[name] === "number" ? wire[name] : null);
  return {
    id: number("id") ?? 0,
    at: new Date(text("at") ?? ""),
    name: text("name"),
    address: text("address"),
    port: number("port"),
    protocol: text("protocol") ?? "",
    verdict: text("verdict") ?? "",
    reason: text("reason") ?? "",
    rule: text("rule"),
    bytesSent: number("bytes_sent") ?? 0,
    bytesReceived: number("bytes_received") ?? 0,
    durationSeconds: number("duration_seconds"),
    count: number("count") ?? 1,
  };
}
