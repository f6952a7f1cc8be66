/**
 * Runs code that a model wrote in sandboxes of a Ringfence server.
 *
 * Start at {@link Sandbox}. The server's URL comes from RINGFENCE_URL (default `http://127.0.0.1:7070`) and the API
 * key from RINGFENCE_API_KEY, unless an option says otherwise.
 *
 * @packageDocumentation
 */

export type { OutputCallback, RunOptions, StartOptions } from "./commands.js";
export { Commands } from "./commands.js";
export type { ConnectionOptions } from "./config.js";
export type { ErrorDetails } from "./errors.js";
export {
  AlreadyExistsError,
  APIConnectionError,
  APIError,
  APIResponseError,
  APITimeoutError,
  ArchiveRefusedError,
  AuthenticationError,
  CanceledError,
  DeadlineExceededError,
  DirectoryNotEmptyError,
  DiskFullError,
  FailedPreconditionError,
  FileExistsError,
  FileNotFoundError,
  FilePermissionError,
  InternalError,
  InvalidArgumentError,
  IsDirectoryError,
  MisdirectedError,
  NotDirectoryError,
  NotFoundError,
  NotYetSupportedError,
  PermissionDeniedError,
  PortFailedError,
  PortNotListeningError,
  PreconditionFailedError,
  ProcessNotFoundError,
  RangeInvalidError,
  ResourceExhaustedError,
  RingfenceError,
  SandboxEndedError,
  SandboxPausedError,
  SignatureExpiredError,
  TemplateNotFoundError,
  TooLargeError,
  UnavailableError,
} from "./errors.js";
export type {
  FileEntry,
  FileOptions,
  FilePath,
  ListOptions,
  ReadOptions,
  ReadTextOptions,
  RemoveOptions,
  WriteFileOptions,
  WriteManyOptions,
  WriteOptions,
} from "./file-options.js";
export { Files } from "./files.js";
export type { Deadlines, OnTimeout, SnapshotInfo } from "./lifecycle.js";
export type { NetworkFlow, NetworkLog } from "./network.js";
export type { Unpacked } from "./platform/directory.js";
export { LocalFile, localFile } from "./platform/node.js";
export type { Metrics, PortInfo, SandboxEvent } from "./ports.js";
export { Ports } from "./ports.js";
export type { Output, ProcessExit, ProcessInfo, WaitOptions } from "./process.js";
export { Process, Terminal } from "./process.js";
export type { CommandEndReason } from "./result.js";
export { CommandExitError, CommandResult } from "./result.js";
export type {
  ConnectOptions,
  CreateOptions,
  ListSandboxesOptions,
  ListSnapshotsOptions,
  NetworkConfig,
  OperationOptions,
} from "./sandbox.js";
export { Sandbox } from "./sandbox.js";
export type { TerminalOptions } from "./terminals.js";
export { Terminals } from "./terminals.js";
export type { ArchiveFormat, FileChange, FileMatch, SearchOptions, Watch } from "./trees.js";
export type { FileData } from "./upload.js";
export { VERSION } from "./version.js";
export type { FileInfo, NetworkInfo, SandboxInfo, SandboxState } from "./wire.js";
