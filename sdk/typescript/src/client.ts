/** One server and one credential: sends requests, maps their errors, tries idempotent ones again. */

import type { Bytes } from "./bytes.js";
import type { Connection } from "./config.js";
import { APIConnectionError, APITimeoutError, badResponse, errorFromResponse } from "./errors.js";
import { runtime } from "./platform/environment.js";
import { VERSION } from "./version.js";

/** Pauses before the second and third try of an idempotent call, in milliseconds. They span a server's restart. */
const retryPausesMs = [200, 1000] as const;

/** Longest pause that a server's Retry-After is followed for, in milliseconds. */
const longestPauseMs = 5000;

/** Milliseconds without a byte after which a stream counts as broken: four of the server's keep-alives. */
const silenceMs = 60_000;

export interface Call {
  method: "GET" | "POST" | "PUT" | "PATCH" | "DELETE";
  /** Below the base URL, with its variable parts encoded. */
  path: string;
  query?: URLSearchParams | undefined;
  json?: unknown;
  body?: Bytes | Blob | ReadableStream<Uint8Array> | undefined;
  headers?: Record<string, string> | undefined;
  /** May be sent again after a connection failure or a 503. */
  idempotent: boolean;
  signal?: AbortSignal | undefined;
  /** Milliseconds; null for none; default is the connection's request timeout. */
  timeoutMs?: number | null | undefined;
  /** What an error adds when no answer came; default says that the outcome is unknown unless it is idempotent. */
  unknownOutcome?: string | undefined;
  /** What an error advises when no answer came in time. */
  lateHint?: string | undefined;
  /** Called before each time that the call is sent. */
  onAttempt?: (() => void) | undefined;
}

/** An answer whose body is still to be read. */
export interface Answer {
  response: Response;
  /** Ends the connection of this answer with the given reason. */
  abort: (reason: unknown) => void;
  /** Stops listening to the caller's signal. Must be called when the body is done with. */
  release: () => void;
}

export class Client {
  readonly baseUrl: string;
  readonly #connection: Connection;
  readonly #credential: string | undefined;

  constructor(connection: Connection, credential: string | undefined) {
    this.baseUrl = connection.baseUrl;
    this.#connection = connection;
    this.#credential = credential;
  }

  /** Sends a call and reads its JSON answer; null for an answer without content. */
  async json(call: Call): Promise<unknown> {
    const answer = await this.#send(call, true);
    const { response } = answer;
    try {
      const text = await response.text();
      if (response.status === 204 || text === "") return null;
      try {
        return JSON.parse(text);
      } catch {
        throw badResponse(
          `${this.baseUrl} answered ${call.method} ${call.path} with something other than JSON`,
          {
            status: response.status,
            requestId: response.headers.get("x-request-id") ?? undefined,
          },
        );
      }
    } catch (error) {
      throw this.translate(error, call);
    } finally {
      answer.release();
    }
  }

  /** Sends a call and returns as soon as the answer's headers are there. */
  stream(call: Call): Promise<Answer> {
    return this.#send(call, false);
  }

  /** Returns a client of the same server with another credential. */
  as(credential: string | undefined): Client {
    return new Client(this.#connection, credential);
  }

  /**
   * Yields the bytes of an answer that does not end by itself, whose type has to be the one that was asked for. A silence
   * that is too long breaks its connection, and so does leaving the iteration.
   *
   * @param ended what it means that no more bytes come
   */
  async *chunks(call: Call, answer: Answer, ended: string): AsyncGenerator<Uint8Array, never, undefined> {
    const { response, abort, release } = answer;
    const broken = (reason: string) =>
      connectionError(this.baseUrl, new TypeError(reason), call.unknownOutcome);
    let silent: ReturnType<typeof setTimeout> | undefined;
    try {
      const type = response.headers.get("content-type") ?? "";
      const reader = response.body?.getReader();
      if (reader === undefined || !type.startsWith(call.headers?.["Accept"] ?? "")) {
        throw badResponse(`${this.baseUrl} answered a request for a stream with '${type}'`, {
          requestId: response.headers.get("x-request-id") ?? undefined,
        });
      }
      for (;;) {
        silent = setTimeout(() => abort(broken(`nothing came for ${silenceMs / 1000} s`)), silenceMs);
        const { done, value } = await reader.read();
        clearTimeout(silent);
        if (done) throw broken(ended);
        yield value;
      }
    } catch (error) {
      throw this.translate(error, call);
    } finally {
      clearTimeout(silent);
      abort(new Error("done")); // frees the connection of a stream that is left in its middle
      release();
    }
  }

  /**
   * Makes an error of this package out of what fetch threw. What the caller's own signal, a deadline or the
   * source of an upload threw is kept as it is.
   */
  translate(error: unknown, call: Call): unknown {
    if (call.signal?.aborted && error === call.signal.reason) return error;
    if (!isNetworkError(error)) return error;
    return connectionError(this.baseUrl, error, unknownOutcome(call));
  }

  async #send(call: Call, timeBody: boolean): Promise<Answer> {
    for (let attempt = 1; ; attempt++) {
      const pause = call.idempotent ? retryPausesMs[attempt - 1] : undefined;
      call.onAttempt?.();
      try {
        const answer = await this.#sendOnce(call, timeBody);
        if (answer.response.ok) return answer;
        try {
          if (answer.response.status !== 503 || pause === undefined) {
            throw await errorFromResponse(answer.response, this.baseUrl);
          }
          const retryAfter = Number(answer.response.headers.get("retry-after") ?? 0) * 1000;
          await answer.response.body?.cancel();
          await sleep(Math.min(Math.max(pause, retryAfter || 0), longestPauseMs), call.signal);
        } finally {
          answer.release();
        }
      } catch (error) {
        if (!isNetworkError(error) || call.signal?.aborted) throw error;
        if (pause === undefined) throw this.translate(error, call);
        // Spread out, so that clients that lost the same server do not come back in step.
        await sleep(pause * (0.75 + Math.random() / 2), call.signal);
      }
    }
  }

  async #sendOnce(call: Call, timeBody: boolean): Promise<Answer> {
    call.signal?.throwIfAborted();
    const controller = new AbortController();
    const follow = () => controller.abort(call.signal?.reason);
    call.signal?.addEventListener("abort", follow, { once: true });
    const timeoutMs = call.timeoutMs === undefined ? this.#connection.requestTimeoutMs : call.timeoutMs;
    const stopTimer =
      timeoutMs === null
        ? () => {}
        : startTimer(timeoutMs, () => controller.abort(this.#late(call, timeoutMs)));
    const release = () => {
      stopTimer();
      call.signal?.removeEventListener("abort", follow);
    };

    const headers: Record<string, string> = {
      Accept: "application/json",
      "User-Agent": `ringfence-sdk-typescript/${VERSION} (${runtime()})`,
      ...call.headers,
    };
    if (this.#credential !== undefined) headers["Authorization"] = `Bearer ${this.#credential}`;
    if (call.json !== undefined) headers["Content-Type"] = "application/json";
    const init: RequestInit & { duplex?: "half" } = {
      method: call.method,
      headers,
      body: call.json === undefined ? (call.body ?? null) : JSON.stringify(call.json),
      // A redirect would carry the credential and, for POST, lose the body.
      redirect: "manual",
      signal: controller.signal,
    };
    if (call.body instanceof ReadableStream) {
      init.duplex = "half";
      // Node's fetch keeps a copy of all that it sends, in case it has to send it again, unless these two rule that out.
      init.redirect = "error";
      init.window = null;
    }
    const query = call.query === undefined || `${call.query}` === "" ? "" : `?${call.query}`;
    try {
      const response = await this.#connection.fetch(`${this.baseUrl}${call.path}${query}`, init);
      if (!timeBody) stopTimer();
      return { response, abort: (reason) => controller.abort(reason), release };
    } catch (error) {
      release();
      throw error;
    }
  }

  #late(call: Call, timeoutMs: number): APITimeoutError {
    const unknown = unknownOutcome(call);
    return new APITimeoutError(
      `${this.baseUrl} did not answer ${call.method} ${call.path} within ${Math.round(timeoutMs) / 1000} s${unknown && `; ${unknown}`}`,
      { code: "timeout", hint: call.lateHint ?? "requestTimeout sets how long a request may take" },
    );
  }
}

function unknownOutcome(call: Call): string {
  return call.unknownOutcome ?? (call.idempotent ? "" : "whether the request took effect is unknown");
}

/** Makes the error for a server that cannot be reached, or for a connection that broke. */
export function connectionError(baseUrl: string, cause: unknown, unknown = ""): APIConnectionError {
  const { reason, sent } = explain(cause);
  return new APIConnectionError(
    sent
      ? `the connection to ${baseUrl} broke (${reason})${unknown && `; ${unknown}`}`
      : `cannot reach the Ringfence server at ${baseUrl} (${reason})`,
    {
      code: "connection",
      hint: sent
        ? "look at the server's log"
        : "is `ringfence serve` running? RINGFENCE_URL or baseUrl says where it is looked for",
      cause,
    },
  );
}

/** Calls back once after the given time, however long; a platform's timers stop at 24.8 days. */
function startTimer(ms: number, callback: () => void): () => void {
  if (ms > 0x7fff_ffff) return () => {};
  const timer = setTimeout(callback, ms);
  return () => clearTimeout(timer);
}

/** fetch reports every failure of the network as a TypeError; a body that breaks off is one too. */
function isNetworkError(error: unknown): boolean {
  return error instanceof TypeError;
}

/** Finds the words and the stage of a network failure in the chain of causes. */
function explain(error: unknown): { reason: string; sent: boolean } {
  const notSent =
    /^(ECONNREFUSED|ENOTFOUND|EAI_AGAIN|EHOSTUNREACH|ENETUNREACH|UND_ERR_CONNECT_TIMEOUT|UNABLE_TO_.*|.*CERT.*|EPROTO)$/;
  let reason = "";
  let sent = true;
  for (let at: unknown = error, depth = 0; at instanceof Error && depth < 5; depth++) {
    const { code, errors } = at as { code?: unknown; errors?: unknown };
    if (at.message !== "") reason = at.message;
    else if (typeof code === "string") reason = code;
    if (typeof code === "string" && notSent.test(code)) sent = false;
    // Several addresses of one name were tried; the first stands for all.
    at = Array.isArray(errors) && errors.length > 0 ? errors[0] : at.cause;
  }
  return { reason: reason || String(error), sent };
}

/** Waits; rejects with the signal's reason when it is aborted. */
export function sleep(ms: number, signal: AbortSignal | undefined): Promise<void> {
  return new Promise((resolve, reject) => {
    signal?.throwIfAborted(); // a throw in here rejects
    const stop = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, ms);
    signal?.addEventListener("abort", stop, { once: true });
  });
}
