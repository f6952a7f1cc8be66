/*
 * RingfenceError                   code, message, hint, requestId, status, field, retryAfterSeconds
 * ├─ APIConnectionError            connection: no answer from the server; it is not there, or the connection broke
 * │  └─ APITimeoutError            timeout: none in time
 * ├─ APIResponseError              bad_response: an answer that is not one of a Ringfence server
 * ├─ CommandExitError              command_exit: from CommandResult.check() alone, the exit code was not 0
 * └─ APIError                      the server refused; code says why
 *    ├─ InvalidArgumentError       invalid_argument, method_not_allowed, route_not_found
 *    ├─ NotYetSupportedError       not_yet_supported: known, and refused by name until it exists
 *    ├─ AuthenticationError        unauthenticated; also where there is no API key to send
 *    ├─ PermissionDeniedError      permission_denied
 *    ├─ NotFoundError              not_found: no such sandbox
 *    ├─ TemplateNotFoundError      template_not_found; the hint lists near names
 *    ├─ ProcessNotFoundError       process_not_found: no such process, or it ended more than 10 minutes ago
 *    ├─ FileNotFoundError, FileExistsError, IsDirectoryError, NotDirectoryError, DirectoryNotEmptyError,
 *    │  FilePermissionError        file_not_found, file_exists and so on
 *    ├─ DiskFullError              disk_full
 *    ├─ AlreadyExistsError         already_exists
 *    ├─ FailedPreconditionError    failed_precondition: not in the state that the sandbox is in; process_ended, stdin_closed
 *    ├─ PreconditionFailedError, ArchiveRefusedError, SignatureExpiredError
 *    ├─ TooLargeError, RangeInvalidError
 *    ├─ ResourceExhaustedError     resource_exhausted; retryAfterSeconds says when to try again
 *    ├─ SandboxPausedError         sandbox_paused: before or during the call
 *    ├─ SandboxEndedError          sandbox_ended: before or during the call
 *    ├─ DeadlineExceededError      deadline_exceeded, said by the server
 *    ├─ CanceledError, UnavailableError, PortNotListeningError, PortFailedError, MisdirectedError
 *    └─ InternalError              internal, and every code that this version does not know
 *
 * Mistakes that are seen before anything is sent (an unknown option, two spellings of one option, a value of
 * the wrong type) are a TypeError. A call that was aborted rejects with its signal's reason.
 */

/** What an error carries besides its message. */
export interface ErrorDetails {
  code: string;
  hint?: string | undefined;
  requestId?: string | undefined;
  status?: number | undefined;
  field?: string | undefined;
  retryAfterSeconds?: number | undefined;
  cause?: unknown;
}

/** The base of every error of this package. */
export class RingfenceError extends Error {
  /**
   * One of the server's closed list of codes, such as `"file_not_found"`, or one of this package's own:
   * `"connection"`, `"timeout"`, `"bad_response"`, `"command_exit"`.
   */
  readonly code: string;
  /** What to do about it; undefined when there is nothing to say. */
  readonly hint: string | undefined;
  /** The server's id of the request, for its log; undefined when no server answered. */
  readonly requestId: string | undefined;
  /** HTTP status; undefined when no server answered or when the error came inside a stream. */
  readonly status: number | undefined;
  /** The request field at fault, as the server spells it; undefined when it is no single one. */
  readonly field: string | undefined;
  /** Seconds after which another try makes sense; undefined when the server did not say. */
  readonly retryAfterSeconds: number | undefined;

  constructor(message: string, details: ErrorDetails) {
    super(message, details.cause === undefined ? undefined : { cause: details.cause });
    this.code = details.code;
    this.hint = details.hint;
    this.requestId = details.requestId;
    this.status = details.status;
    this.field = details.field;
    this.retryAfterSeconds = details.retryAfterSeconds;
  }

  /** The message, the hint and the request id in one line. */
  override toString(): string {
    let text = `${this.name}: ${this.message}`;
    if (this.hint !== undefined) text += `; ${this.hint}`;
    if (this.requestId !== undefined) text += ` (request ${this.requestId})`;
    return text;
  }
}

/**
 * No answer from the server: it could not be reached at the URL, or the connection broke. When it broke during a
 * call that changes something, the message says that the outcome is unknown.
 */
export class APIConnectionError extends RingfenceError {}
/** No answer in time: see `requestTimeout`. The request may have had its effect. */
export class APITimeoutError extends APIConnectionError {}
/** An answer that is not one of a Ringfence server: something else listens at the URL, or a proxy is in between. */
export class APIResponseError extends RingfenceError {}

/** The server refused: `code`, `message` and `hint` say what and what to do, `requestId` finds it in its log. */
export class APIError extends RingfenceError {}
/** The request is malformed or one of its fields is out of range; `field` names it. */
export class InvalidArgumentError extends APIError {}
/** Known, and refused by name until it exists. */
export class NotYetSupportedError extends APIError {}
/** No API key, or a wrong one. */
export class AuthenticationError extends APIError {}
/** A valid credential that does not open this, such as a sandbox's access token on the control plane. */
export class PermissionDeniedError extends APIError {}
/** No such sandbox, or one of another project. */
export class NotFoundError extends APIError {}
/** No such template; the hint lists near names. */
export class TemplateNotFoundError extends APIError {}
/** No such process in the sandbox, or it ended more than 10 minutes ago. */
export class ProcessNotFoundError extends APIError {}
/** No such file or directory in the sandbox. */
export class FileNotFoundError extends APIError {}
/** The target exists already. */
export class FileExistsError extends APIError {}
/** A file was wanted, a directory is there. */
export class IsDirectoryError extends APIError {}
/** A directory was wanted, something else is there. */
export class NotDirectoryError extends APIError {}
/** The directory has entries; removing it needs `recursive: true`. */
export class DirectoryNotEmptyError extends APIError {}
/** The acting user may not do this to the file. */
export class FilePermissionError extends APIError {}
/** The sandbox's disk is full. */
export class DiskFullError extends APIError {}
/** The name is taken. */
export class AlreadyExistsError extends APIError {}
/** An archive holds what must not be unpacked: a path that leads out, a device, or too much. */
export class ArchiveRefusedError extends APIError {}
/** The file is not the one that the caller asked to change, or is there already. */
export class PreconditionFailedError extends APIError {}
/** Not allowed in the state that the sandbox is in. */
export class FailedPreconditionError extends APIError {}
/** A signed URL whose time has passed. */
export class SignatureExpiredError extends APIError {}
/** The body is over the server's limit. */
export class TooLargeError extends APIError {}
/** The byte range does not fit the file. */
export class RangeInvalidError extends APIError {}
/** The host or a quota has no room; try again after `retryAfterSeconds`. */
export class ResourceExhaustedError extends APIError {}
/** The sandbox is paused, or was paused during the call; resume it. */
export class SandboxPausedError extends APIError {}
/** The sandbox ended before or during the call. */
export class SandboxEndedError extends APIError {}
/** The server gave the call up since its own deadline passed; its outcome may be unknown. */
export class DeadlineExceededError extends APIError {}
/** The server gave the call up because it was cancelled. */
export class CanceledError extends APIError {}
/** The sandbox or the server does not answer now. */
export class UnavailableError extends APIError {}
/** Nothing listens on the port in the sandbox. */
export class PortNotListeningError extends APIError {}
/** What listens on the port gave no answer that can be passed on. */
export class PortFailedError extends APIError {}
/** The URL's host name is not one of the server's names. */
export class MisdirectedError extends APIError {}
/** A fault of Ringfence; also the class of every code that this version does not know. */
export class InternalError extends APIError {}

type ErrorClass = new (message: string, details: ErrorDetails) => RingfenceError;

/** The class of each code that the server sends. */
const classes: Record<string, ErrorClass> = {
  invalid_argument: InvalidArgumentError,
  unauthenticated: AuthenticationError,
  permission_denied: PermissionDeniedError,
  not_found: NotFoundError,
  template_not_found: TemplateNotFoundError,
  file_not_found: FileNotFoundError,
  file_exists: FileExistsError,
  is_directory: IsDirectoryError,
  not_directory: NotDirectoryError,
  directory_not_empty: DirectoryNotEmptyError,
  file_permission: FilePermissionError,
  disk_full: DiskFullError,
  already_exists: AlreadyExistsError,
  archive_refused: ArchiveRefusedError,
  precondition_failed: PreconditionFailedError,
  failed_precondition: FailedPreconditionError,
  not_yet_supported: NotYetSupportedError,
  signature_expired: SignatureExpiredError,
  too_large: TooLargeError,
  range_invalid: RangeInvalidError,
  resource_exhausted: ResourceExhaustedError,
  sandbox_paused: SandboxPausedError,
  sandbox_ended: SandboxEndedError,
  deadline_exceeded: DeadlineExceededError,
  canceled: CanceledError,
  unavailable: UnavailableError,
  port_not_listening: PortNotListeningError,
  port_failed: PortFailedError,
  misdirected: MisdirectedError,
  method_not_allowed: InvalidArgumentError,
  route_not_found: InvalidArgumentError,
  internal: InternalError,
  process_not_found: ProcessNotFoundError,
  process_ended: FailedPreconditionError,
  stdin_closed: FailedPreconditionError,
};

// Set here, and not as fields, so that the name is in the stack's first line and is no property of its own.
// Names are spelled out: a minifier may rename classes.
const names = {
  RingfenceError,
  InvalidArgumentError,
  NotYetSupportedError,
  AuthenticationError,
  PermissionDeniedError,
  NotFoundError,
  TemplateNotFoundError,
  ProcessNotFoundError,
  FileNotFoundError,
  FileExistsError,
  IsDirectoryError,
  NotDirectoryError,
  DirectoryNotEmptyError,
  FilePermissionError,
  DiskFullError,
  AlreadyExistsError,
  ArchiveRefusedError,
  PreconditionFailedError,
  FailedPreconditionError,
  SignatureExpiredError,
  TooLargeError,
  RangeInvalidError,
  ResourceExhaustedError,
  SandboxPausedError,
  SandboxEndedError,
  DeadlineExceededError,
  CanceledError,
  UnavailableError,
  PortNotListeningError,
  PortFailedError,
  MisdirectedError,
  InternalError,
  APIConnectionError,
  APITimeoutError,
  APIResponseError,
  APIError,
};
for (const [name, errorClass] of Object.entries(names)) errorClass.prototype.name = name;

/** The class of a code; InternalError for one that this version does not know. */
export function errorClassOf(code: string): ErrorClass {
  return Object.hasOwn(classes, code) ? (classes[code] ?? InternalError) : InternalError;
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null;
}

function text(value: unknown): string | undefined {
  return typeof value === "string" && value !== "" ? value : undefined;
}

/** Makes the error out of a parsed `{"error": {…}}`; undefined when the value is not one. */
export function errorFromBody(
  body: unknown,
  details: Partial<ErrorDetails> = {},
): RingfenceError | undefined {
  if (!isRecord(body) || !isRecord(body["error"])) return undefined;
  const wire = body["error"];
  const code = text(wire["code"]);
  if (code === undefined) return undefined;
  return new (errorClassOf(code))(text(wire["message"]) ?? code, {
    ...details,
    code,
    hint: text(wire["hint"]),
    field: text(wire["field"]),
    requestId: text(wire["request_id"]) ?? details.requestId,
  });
}

/** Makes the error out of an answer that is not a success. */
export async function errorFromResponse(response: Response, url: string): Promise<RingfenceError> {
  const retryAfter = Number(response.headers.get("retry-after") ?? Number.NaN);
  const details = {
    requestId: response.headers.get("x-request-id") ?? undefined,
    status: response.status,
    retryAfterSeconds: Number.isFinite(retryAfter) ? retryAfter : undefined,
  };
  const body = await response.text().catch(() => "");
  let parsed: unknown;
  try {
    parsed = JSON.parse(body);
  } catch {
    // Not ours; said below.
  }
  const ours = errorFromBody(parsed, details);
  if (ours !== undefined) return ours;
  const excerpt = body.trim().slice(0, 200);
  return badResponse(
    `${url} answered with status ${response.status} and no Ringfence error${excerpt === "" ? "" : `: ${excerpt}`}`,
    details,
  );
}

/** Makes the error for an answer that no Ringfence server gives. */
export function badResponse(message: string, details: Partial<ErrorDetails> = {}): APIResponseError {
  return new APIResponseError(message, {
    hint: "check that RINGFENCE_URL or baseUrl names a Ringfence server, not older than this package, and no other",
    ...details,
    code: "bad_response",
  });
}
