"""The exceptions of the SDK.

Every error is a RingfenceError:

    RingfenceError
    ├── APIConnectionError            no answer from the server; also a builtin ConnectionError
    │   └── APITimeoutError           none in time; also a builtin TimeoutError
    ├── APIResponseError              an answer that is not Ringfence's
    ├── CommandExitError              from CommandResult.check(): the exit code was not 0
    └── APIError                      the server refused; `code` says why
        ├── InvalidArgumentError      invalid_argument, method_not_allowed, route_not_found
        ├── AuthenticationError       unauthenticated; also raised where there is no API key to send
        ├── PermissionDeniedError     permission_denied
        ├── NotFoundError             not_found: no such sandbox
        ├── TemplateNotFoundError     template_not_found; the hint lists near names
        ├── ProcessNotFoundError      process_not_found: no such process, or it ended more than 10 minutes ago
        ├── FileNotFoundError         file_not_found; also a builtin FileNotFoundError
        ├── FileExistsError           file_exists; also a builtin FileExistsError
        ├── IsDirectoryError          is_directory; also a builtin IsADirectoryError
        ├── NotDirectoryError         not_directory; also a builtin NotADirectoryError
        ├── DirectoryNotEmptyError    directory_not_empty; also a builtin OSError
        ├── FilePermissionError       file_permission; also a builtin PermissionError
        ├── DiskFullError             disk_full; also a builtin OSError
        ├── AlreadyExistsError        already_exists
        ├── FailedPreconditionError   failed_precondition, process_ended, stdin_closed: not in its present state
        ├── ArchiveRefusedError       archive_refused; also raised by download_dir
        ├── PreconditionFailedError   precondition_failed: of a conditional write
        ├── NotYetSupportedError      not_yet_supported: known, and refused until it exists
        ├── SignatureExpiredError     signature_expired
        ├── TooLargeError             too_large
        ├── RangeInvalidError         range_invalid
        ├── ResourceExhaustedError    resource_exhausted; `retry_after` says when to try again
        ├── SandboxPausedError        sandbox_paused: before or during the call
        ├── SandboxEndedError         sandbox_ended: before or during the call
        ├── DeadlineExceededError     deadline_exceeded: of the call itself; also a builtin TimeoutError
        ├── CanceledError             canceled
        ├── UnavailableError          unavailable: the sandbox or the server does not answer now
        ├── PortNotListeningError     port_not_listening: nothing listens on the port in the sandbox
        ├── PortFailedError           port_failed: what listens on the port gave no answer that can be passed on
        ├── MisdirectedError          misdirected: the server does not go by the host name in the URL
        └── InternalError             internal, and every code that this version does not know

A command that fails is no error: see CommandResult.exit_code. Wrong options are
plain TypeError and ValueError, raised before anything is sent.
"""

from __future__ import annotations

import builtins
import errno as _errno
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._models import CommandResult


class RingfenceError(Exception):
    """The base of every error of the SDK.

    Attributes:
        message: what was refused or went wrong, one sentence.
        code: one of the API's closed list of codes ("file_not_found", …), or of the SDK's own:
            "connection", "timeout", "bad_response", "command_exit".
        hint: what to do about it, or None.
        request_id: 16 hex digits that the server's log has too, or None where no server answered.
        status: the HTTP status, or None.
        field: the request field at fault, or None.
        retry_after: seconds after which trying again makes sense, or None.
    """

    code: str = "internal"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        hint: str | None = None,
        request_id: str | None = None,
        status: int | None = None,
        field: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        if code is not None:
            self.code = code
        self.hint = hint
        self.request_id = request_id
        self.status = status
        self.field = field
        self.retry_after = retry_after

    def __str__(self) -> str:
        text = self.message
        if self.hint:
            text += f"; {self.hint}"
        tags = [self.code]
        if self.field:
            tags.append(f"field {self.field}")
        if self.request_id:
            tags.append(f"request {self.request_id}")
        return f"{text} ({', '.join(tags)})"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"


class APIConnectionError(RingfenceError, builtins.ConnectionError):
    """No answer: the server is not there, or the connection broke.

    Where the request may have reached the server the message says that its outcome is unknown.
    """

    code = "connection"


class APITimeoutError(APIConnectionError, builtins.TimeoutError):
    """No answer in time: see `request_timeout`. The request may have had its effect."""

    code = "timeout"


class APIResponseError(RingfenceError):
    """An answer that is not Ringfence's: something else listens at the URL, or a proxy is in between."""

    code = "bad_response"


class CommandExitError(RingfenceError):
    """A command's exit code was not 0. Raised by `CommandResult.check()` only; `result` is the whole result."""

    code = "command_exit"

    def __init__(self, result: CommandResult) -> None:
        reason = f" ({result.reason})" if result.reason else ""
        last = result.stderr.rstrip().rpartition("\n")[2][-500:]
        super().__init__(f"the command ended with exit code {result.exit_code}{reason}" + (f": {last}" if last else ""))
        self.result = result

    def __reduce__(self) -> tuple[type[CommandExitError], tuple[CommandResult]]:
        return type(self), (self.result,)


class APIError(RingfenceError):
    """The server refused: `code`, `message` and `hint` say what and what to do, `request_id` finds it in its log."""


class InvalidArgumentError(APIError):
    """The request is malformed, or a field is out of its range: `field` names it."""

    code = "invalid_argument"


class AuthenticationError(APIError):
    """No API key, or one that the server does not know."""

    code = "unauthenticated"


class PermissionDeniedError(APIError):
    """A valid credential that does not open this."""

    code = "permission_denied"


class NotFoundError(APIError):
    """No such sandbox, or another project's."""

    code = "not_found"


class TemplateNotFoundError(APIError):
    """No such template; the hint lists near names."""

    code = "template_not_found"


class ProcessNotFoundError(APIError):
    """No such process in the sandbox, or it ended more than 10 minutes ago."""

    code = "process_not_found"


class FileNotFoundError(APIError, builtins.FileNotFoundError):
    """No such file or directory in the sandbox."""

    code = "file_not_found"
    errno = _errno.ENOENT


class FileExistsError(APIError, builtins.FileExistsError):
    """The target exists already in the sandbox."""

    code = "file_exists"
    errno = _errno.EEXIST


class IsDirectoryError(APIError, builtins.IsADirectoryError):
    """A file was wanted and a directory is there."""

    code = "is_directory"
    errno = _errno.EISDIR


class NotDirectoryError(APIError, builtins.NotADirectoryError):
    """A directory was wanted and something else is there."""

    code = "not_directory"
    errno = _errno.ENOTDIR


class DirectoryNotEmptyError(APIError, builtins.OSError):
    """The directory holds something: removing it needs recursive=True."""

    code = "directory_not_empty"
    errno = _errno.ENOTEMPTY


class FilePermissionError(APIError, builtins.PermissionError):
    """The acting user may not do this to the file."""

    code = "file_permission"
    errno = _errno.EACCES


class DiskFullError(APIError, builtins.OSError):
    """The sandbox's disk is full."""

    code = "disk_full"
    errno = _errno.ENOSPC


class AlreadyExistsError(APIError):
    """The name is taken."""

    code = "already_exists"


class ArchiveRefusedError(APIError):
    """An archive holds what must not be unpacked: a path that leads out, a device, or too much."""

    code = "archive_refused"


class PreconditionFailedError(APIError):
    """The file is not the one that the caller asked to change, or is there already."""

    code = "precondition_failed"


class FailedPreconditionError(APIError):
    """Not allowed in the state that the sandbox is in."""

    code = "failed_precondition"


class NotYetSupportedError(APIError):
    """Known, and refused by name until it exists."""

    code = "not_yet_supported"


class SignatureExpiredError(APIError):
    """A signed URL whose time has passed."""

    code = "signature_expired"


class TooLargeError(APIError):
    """The request's body is over the limit."""

    code = "too_large"


class RangeInvalidError(APIError):
    """The byte range does not fit the file."""

    code = "range_invalid"


class ResourceExhaustedError(APIError):
    """The host or a quota has no room: try again after `retry_after` seconds."""

    code = "resource_exhausted"


class SandboxPausedError(APIError):
    """The sandbox is paused, or was paused during the call; resume it."""

    code = "sandbox_paused"


class SandboxEndedError(APIError):
    """The sandbox ended before or during the call; the message says why."""

    code = "sandbox_ended"


class DeadlineExceededError(APIError, builtins.TimeoutError):
    """The call's own deadline passed on the server; its outcome may be unknown."""

    code = "deadline_exceeded"


class CanceledError(APIError):
    """The caller went away."""

    code = "canceled"


class UnavailableError(APIError):
    """The sandbox or the server does not answer now."""

    code = "unavailable"


class PortNotListeningError(APIError):
    """Nothing listens on the port in the sandbox."""

    code = "port_not_listening"


class PortFailedError(APIError):
    """What listens on the port gave no answer that can be passed on."""

    code = "port_failed"


class MisdirectedError(APIError):
    """The server does not go by the host name in the URL: start it with `--host-name`."""

    code = "misdirected"


class InternalError(APIError):
    """A fault of Ringfence, or a code that this version of the SDK does not know."""

    code = "internal"


_BY_CODE: dict[str, type[APIError]] = {
    cls.code: cls
    for cls in (
        InvalidArgumentError,
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
        NotYetSupportedError,
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
    )
}
_BY_CODE["method_not_allowed"] = InvalidArgumentError
_BY_CODE["route_not_found"] = InvalidArgumentError
_BY_CODE["process_ended"] = FailedPreconditionError
_BY_CODE["stdin_closed"] = FailedPreconditionError


def class_of(code: str) -> type[APIError]:
    """Return the class of an error code; InternalError for one that this version does not know."""
    return _BY_CODE.get(code, InternalError)
