package ringfence

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// Code is one of a closed list of error codes. It crosses the wire, so a code
// is never renamed or given another meaning.
type Code string

// The closed list of codes. ErrorTable says what each becomes in HTTP, on the
// command line and in the SDKs.
const (
	CodeInvalidArgument    Code = "invalid_argument"    // the request is malformed or a field is out of range
	CodeUnauthenticated    Code = "unauthenticated"     // no credential, or a wrong one
	CodePermissionDenied   Code = "permission_denied"   // a valid credential that does not open this
	CodeNotFound           Code = "not_found"           // no such sandbox, or another project's
	CodeTemplateNotFound   Code = "template_not_found"  // no such template
	CodeFileNotFound       Code = "file_not_found"      // no such file or directory in the sandbox
	CodeFileExists         Code = "file_exists"         // the target exists already
	CodeIsDirectory        Code = "is_directory"        // a file was wanted, a directory is there
	CodeNotDirectory       Code = "not_directory"       // a directory was wanted, something else is there
	CodeDirectoryNotEmpty  Code = "directory_not_empty" // removing it needs recursive
	CodeFilePermission     Code = "file_permission"     // the acting user may not do this to the file
	CodeDiskFull           Code = "disk_full"           // the sandbox's disk is full
	CodeAlreadyExists      Code = "already_exists"      // the name is taken
	CodeFailedPrecondition Code = "failed_precondition" // not allowed in the state that the sandbox is in
	CodeNotYetSupported    Code = "not_yet_supported"   // known, and refused by name until it exists
	CodePreconditionFailed Code = "precondition_failed" // the file is not the one that the caller named by its etag, or exists already
	CodeArchiveRefused     Code = "archive_refused"     // an archive that is damaged, leads out of its directory, or is too large
	CodeSignatureExpired   Code = "signature_expired"   // a signed URL whose time has passed
	CodeTooLarge           Code = "too_large"           // the body is over the limit
	CodeRangeInvalid       Code = "range_invalid"       // the byte range does not fit the file
	CodeResourceExhausted  Code = "resource_exhausted"  // the host or a quota has no room; try again later
	CodeSandboxPaused      Code = "sandbox_paused"      // the sandbox is paused, or was paused during the call
	CodeSandboxEnded       Code = "sandbox_ended"       // the sandbox ended before or during the call
	CodeDeadlineExceeded   Code = "deadline_exceeded"   // the call's own deadline passed; its outcome may be unknown
	CodeCanceled           Code = "canceled"            // the caller went away
	CodeUnavailable        Code = "unavailable"         // the sandbox or the server does not answer now
	CodePortNotListening   Code = "port_not_listening"  // nothing listens on the port in the sandbox
	CodePortFailed         Code = "port_failed"         // what listens on the port gave no answer that can be passed on
	CodeMisdirected        Code = "misdirected"         // the Host header is not one of this server's names
	CodeMethodNotAllowed   Code = "method_not_allowed"  // the path exists, this method on it does not
	CodeRouteNotFound      Code = "route_not_found"     // no such path in the API
	CodeInternal           Code = "internal"            // a fault of Ringfence
	CodeProcessNotFound    Code = "process_not_found"   // no such process in the sandbox, or not kept any more
	CodeProcessEnded       Code = "process_ended"       // the process has ended
	CodeStdinClosed        Code = "stdin_closed"        // the process's input is closed, or it never had one
)

// Error is the only error whose text reaches a caller. Message says what was
// refused, Hint what to do about it; both are safe to show. Err is for the log.
type Error struct {
	Code    Code
	Message string
	Hint    string
	Field   string // the request field at fault, if one is
	// RequestID is the request that failed, as the server's log knows it. Clients set it.
	RequestID string
	// RetryAfterSeconds is sent as Retry-After when above 0.
	RetryAfterSeconds int
	Err               error
}

// Error is the text for a log: message, cause and hint. What callers see is
// made of Message and Hint alone.
func (e *Error) Error() string {
	s := e.Message
	if e.Err != nil {
		// Errorf with %w has put the cause into the message already.
		if cause := e.Err.Error(); !strings.HasSuffix(s, cause) {
			s += ": " + cause
		}
	}
	if e.Hint != "" {
		s += "; " + e.Hint
	}
	return s
}

func (e *Error) Unwrap() error { return e.Err }

// Errorf returns an *Error with a formatted message. A %w argument becomes the
// cause, and its text part of the message that callers see; use WithCause for a
// cause that is none of their business.
func Errorf(code Code, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	return &Error{Code: code, Message: err.Error(), Err: errors.Unwrap(err)}
}

// WithHint returns e with its hint set.
func (e *Error) WithHint(format string, args ...any) *Error {
	e.Hint = fmt.Sprintf(format, args...)
	return e
}

// WithCause returns e with a cause that only the log sees.
func (e *Error) WithCause(err error) *Error {
	e.Err = err
	return e
}

// WithField returns e with the request field at fault set.
func (e *Error) WithField(field string) *Error {
	e.Field = field
	return e
}

// CodeOf returns the code of err: "" for nil, the code of an *Error anywhere in
// its chain, deadline_exceeded or canceled for a context's end, else internal.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	var e *Error
	switch {
	case errors.As(err, &e):
		return e.Code
	case errors.Is(err, context.DeadlineExceeded):
		return CodeDeadlineExceeded
	case errors.Is(err, context.Canceled):
		return CodeCanceled
	}
	return CodeInternal
}

// ErrorRow says what a code becomes at each edge.
type ErrorRow struct {
	Code Code
	HTTP int    // HTTP status
	Exit int    // exit status of the command line
	SDK  string // exception class in the SDKs
	Hint string // what to do, for an error that says nothing of its own about it
}

// ErrorTable is the one table that maps codes to HTTP, CLI and SDK.
var ErrorTable = []ErrorRow{
	{CodeInvalidArgument, 400, 2, "InvalidArgumentError", "GET /v1/openapi.yaml describes what a request may hold"},
	{CodeUnauthenticated, 401, 3, "AuthenticationError", "send an API key as `Authorization: Bearer rf_…`"},
	{CodePermissionDenied, 403, 3, "PermissionDeniedError", "use an API key that opens it"},
	{CodeNotFound, 404, 4, "NotFoundError", "list what there is"},
	{CodeTemplateNotFound, 404, 4, "TemplateNotFoundError", "list the templates to see what there is"},
	{CodeFileNotFound, 404, 4, "FileNotFoundError", "list its directory to see what is there"},
	{CodeFileExists, 409, 5, "FileExistsError", "remove it first, or choose another name"},
	{CodeIsDirectory, 409, 5, "IsDirectoryError", "name a file, or list the directory"},
	{CodeNotDirectory, 409, 5, "NotDirectoryError", "name a directory, or read the file"},
	{CodeDirectoryNotEmpty, 409, 5, "DirectoryNotEmptyError", "remove it with recursive"},
	{CodeFilePermission, 403, 3, "FilePermissionError", "act as a user who may do this"},
	{CodeDiskFull, 507, 6, "DiskFullError", "remove files, or create a sandbox with a larger disk"},
	{CodeAlreadyExists, 409, 5, "AlreadyExistsError", "choose another name"},
	{CodeFailedPrecondition, 409, 5, "FailedPreconditionError", "look at the state that it is in; this does not fit it"},
	{CodeNotYetSupported, 400, 2, "NotYetSupportedError", "leave it out"},
	{CodePreconditionFailed, 412, 5, "PreconditionFailedError", "read it again, and decide anew"},
	{CodeArchiveRefused, 400, 2, "ArchiveRefusedError", "leave that entry out; what came before it is unpacked"},
	{CodeSignatureExpired, 401, 3, "SignatureExpiredError", "make another link"},
	{CodeTooLarge, 413, 2, "TooLargeError", "send less at a time"},
	{CodeRangeInvalid, 416, 2, "RangeInvalidError", "ask for bytes that are there"},
	{CodeResourceExhausted, 429, 6, "ResourceExhaustedError", "try again after the seconds of Retry-After"},
	{CodeSandboxPaused, 409, 5, "SandboxPausedError", "resume it"},
	{CodeSandboxEnded, 410, 7, "SandboxEndedError", "create another one"},
	{CodeDeadlineExceeded, 408, 8, "DeadlineExceededError", "what became of it is not known: look before you try again"},
	{CodeCanceled, 499, 8, "CanceledError", "what became of it is not known: look before you try again"},
	{CodeUnavailable, 503, 9, "UnavailableError", "wait for the seconds of Retry-After; where the outcome is not known, look before you try again"},
	{CodePortNotListening, 502, 4, "PortNotListeningError", "start what is to listen there, and wait until it does"},
	{CodePortFailed, 502, 9, "PortFailedError", "ask the program itself, in the sandbox"},
	{CodeMisdirected, 421, 2, "MisdirectedError", "call the server by its address"},
	{CodeMethodNotAllowed, 405, 2, "InvalidArgumentError", "GET /v1/openapi.yaml describes the API"},
	{CodeRouteNotFound, 404, 2, "InvalidArgumentError", "GET /v1/openapi.yaml describes the API"},
	{CodeInternal, 500, 1, "InternalError", "the server's log says more under this request id"},
	{CodeProcessNotFound, 404, 4, "ProcessNotFoundError", "list the processes to see what there is"},
	{CodeProcessEnded, 409, 5, "FailedPreconditionError", "start another one"},
	{CodeStdinClosed, 409, 5, "FailedPreconditionError", "leave stdin open when the process is started"},
}

// RowOf returns the row of code, or that of CodeInternal for an unknown one.
func RowOf(code Code) ErrorRow {
	for _, row := range ErrorTable {
		if row.Code == code {
			return row
		}
	}
	return ErrorRow{CodeInternal, 500, 1, "InternalError", "the server's log says more under this request id"}
}
