/** Where the server is and who is calling: options first, then the environment, then the default. */

import { AuthenticationError } from "./errors.js";
import { optionalFunction, optionalSignal, optionalString, seconds } from "./options.js";
import { environment } from "./platform/environment.js";

/** Where a server is looked for that nobody named. */
export const DEFAULT_BASE_URL = "http://127.0.0.1:7070";

/** Default limit, in seconds, of a request that runs no command and moves no file. */
export const DEFAULT_REQUEST_TIMEOUT_SECONDS = 60;

/** Options of every call that starts without a sandbox object. */
export interface ConnectionOptions {
  /** API key, `rf_…`. Default: the environment variable RINGFENCE_API_KEY. */
  apiKey?: string | undefined;
  /** URL of the server. Default: the environment variable RINGFENCE_URL, then `http://127.0.0.1:7070`. */
  baseUrl?: string | undefined;
  /**
   * Seconds in which the server has to answer a request; past them the call rejects with
   * {@link APITimeoutError}. Default 60; null means no limit. A command has its own deadline instead, and
   * for the bytes of a file this limits only the time until they begin to flow.
   */
  requestTimeout?: number | null | undefined;
  /** The same as `requestTimeout`. */
  requestTimeoutSeconds?: number | null | undefined;
  /** The same in milliseconds. */
  requestTimeoutMs?: number | null | undefined;
  /** Used instead of the global `fetch`: for a proxy, for tests. It must behave as the standard says. */
  fetch?: typeof fetch | undefined;
  /** Aborts this call. It rejects with the signal's reason. */
  signal?: AbortSignal | undefined;
}

/** The names of {@link ConnectionOptions}, for checkOptions. */
export const connectionOptions = [
  "apiKey",
  "baseUrl",
  "requestTimeout",
  "requestTimeoutSeconds",
  "requestTimeoutMs",
  "fetch",
  "signal",
] as const;

export interface Connection {
  apiKey: string | undefined;
  baseUrl: string; // without a slash at the end
  requestTimeoutMs: number | null;
  fetch: typeof fetch;
  signal: AbortSignal | undefined;
}

/**
 * Resolves the options of a call.
 *
 * @param needsKey false for a call that has another credential
 */
export function resolveConnection(
  where: string,
  options: Readonly<Record<string, unknown>>,
  needsKey = true,
): Connection {
  const timeout = seconds(where, options, "requestTimeout");
  if (typeof timeout === "number" && timeout <= 0) {
    throw new TypeError(`${where}: 'requestTimeout' must be above 0, or null for no limit`);
  }
  const connection: Connection = {
    apiKey: undefined,
    baseUrl: resolveBaseUrl(where, optionalString(where, options, "baseUrl")),
    requestTimeoutMs: timeout === null ? null : (timeout ?? DEFAULT_REQUEST_TIMEOUT_SECONDS) * 1000,
    // Called as a plain function: browsers refuse a fetch with another receiver.
    fetch: optionalFunction<typeof fetch>(where, options, "fetch") ?? ((input, init) => fetch(input, init)),
    signal: optionalSignal(where, options),
  };
  // One that is given and empty is a variable that was not set, and no wish to call as somebody else.
  const apiKey = optionalString(where, options, "apiKey")?.trim() ?? environment("RINGFENCE_API_KEY");
  if (!apiKey && needsKey) {
    throw new AuthenticationError("no API key: set RINGFENCE_API_KEY or pass apiKey", {
      code: "unauthenticated",
      hint: "`ringfence serve` prints a key at its first start, and `ringfence key create` makes more",
    });
  }
  if (apiKey) connection.apiKey = checkCredential("the API key (RINGFENCE_API_KEY or apiKey)", apiKey);
  return connection;
}

/** Refuses what no header can carry: fetch would name the whole value in its error. */
export function checkCredential(what: string, value: string): string {
  if (/^[\x21-\x7e]+$/.test(value)) return value;
  throw new AuthenticationError(`${what} has a character that a header cannot carry`, {
    code: "unauthenticated",
    hint: "pass exactly what `ringfence serve` or `ringfence key create` printed",
  });
}

function resolveBaseUrl(where: string, option: string | undefined): string {
  const source = option?.trim() ? "baseUrl" : "RINGFENCE_URL";
  const given = option?.trim() || environment("RINGFENCE_URL") || DEFAULT_BASE_URL;
  let url: URL;
  try {
    url = new URL(given);
  } catch {
    throw new TypeError(`${where}: ${source} is not a URL such as ${DEFAULT_BASE_URL}: '${given}'`);
  }
  if (url.protocol !== "http:" && url.protocol !== "https:") {
    throw new TypeError(`${where}: ${source} must start with http:// or https://, not ${url.protocol}`);
  }
  if (url.username !== "" || url.password !== "") {
    throw new TypeError(
      `${where}: ${source} must not hold a user name or password; the API key is the credential`,
    );
  }
  if (url.search !== "" || url.hash !== "") {
    throw new TypeError(`${where}: ${source} must end with its host or path`);
  }
  return url.origin + url.pathname.replace(/\/+$/, "");
}
