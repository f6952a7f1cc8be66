"""Run code that a model wrote in a sandbox on your own machine.

    from ringfence import Sandbox

    with Sandbox.create(template="code-interpreter", timeout=600) as sandbox:
        sandbox.files.write("/home/user/cell.py", "print(6 * 7)")
        result = sandbox.commands.run("python cell.py", timeout=60)
        print(result.exit_code, result.stdout, result.stderr)

`RINGFENCE_URL` says where `ringfence serve` listens (default http://127.0.0.1:7070), and
`RINGFENCE_API_KEY` is the key that it printed. `AsyncSandbox` has the same names, awaited.
The tree of errors is in the docstring of RingfenceError's module: `help(ringfence._exceptions)`.
"""

from ._archive import Unpacked
from ._async._client import AsyncClient
from ._async._commands import AsyncCommands
from ._async._files import AsyncFiles
from ._async._ports import AsyncPorts
from ._async._processes import AsyncProcess, AsyncTerminal
from ._async._sandbox import AsyncSandbox
from ._async._terminals import AsyncTerminals
from ._exceptions import (
    AlreadyExistsError,
    APIConnectionError,
    APIError,
    APIResponseError,
    APITimeoutError,
    ArchiveRefusedError,
    AuthenticationError,
    CanceledError,
    CommandExitError,
    DeadlineExceededError,
    DirectoryNotEmptyError,
    DiskFullError,
    FailedPreconditionError,
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
)

# Builtins have these two names, so `from ringfence import *` leaves them alone. Both are subclasses
# of the builtin ones: `except FileNotFoundError` catches them as it is.
from ._exceptions import FileExistsError as FileExistsError
from ._exceptions import FileNotFoundError as FileNotFoundError
from ._file_models import FileChange, FileMatch, SearchResult
from ._lifecycle_models import SnapshotInfo
from ._models import CommandResult, FileInfo, NetworkConfig, SandboxInfo, SecretStr, TemplateInfo
from ._network_models import NetworkFlow, NetworkLog
from ._port_models import Event, Metrics, PortInfo
from ._process_models import Output, ProcessExit, ProcessInfo
from ._sync._client import Client
from ._sync._commands import Commands
from ._sync._files import Files
from ._sync._ports import Ports
from ._sync._processes import Process, Terminal
from ._sync._sandbox import Sandbox
from ._sync._terminals import Terminals
from ._version import __version__

__all__ = [
    "APIConnectionError",
    "APIError",
    "APIResponseError",
    "APITimeoutError",
    "AlreadyExistsError",
    "ArchiveRefusedError",
    "AsyncClient",
    "AsyncCommands",
    "AsyncFiles",
    "AsyncPorts",
    "AsyncProcess",
    "AsyncSandbox",
    "AsyncTerminal",
    "AsyncTerminals",
    "AuthenticationError",
    "CanceledError",
    "Client",
    "CommandExitError",
    "CommandResult",
    "Commands",
    "DeadlineExceededError",
    "DirectoryNotEmptyError",
    "DiskFullError",
    "Event",
    "FailedPreconditionError",
    "FileChange",
    "FileInfo",
    "FileMatch",
    "FilePermissionError",
    "Files",
    "InternalError",
    "InvalidArgumentError",
    "IsDirectoryError",
    "Metrics",
    "MisdirectedError",
    "NetworkConfig",
    "NetworkFlow",
    "NetworkLog",
    "NotDirectoryError",
    "NotFoundError",
    "NotYetSupportedError",
    "Output",
    "PermissionDeniedError",
    "PortFailedError",
    "PortInfo",
    "PortNotListeningError",
    "Ports",
    "PreconditionFailedError",
    "Process",
    "ProcessExit",
    "ProcessInfo",
    "ProcessNotFoundError",
    "RangeInvalidError",
    "ResourceExhaustedError",
    "RingfenceError",
    "Sandbox",
    "SandboxEndedError",
    "SandboxInfo",
    "SandboxPausedError",
    "SearchResult",
    "SecretStr",
    "SignatureExpiredError",
    "SnapshotInfo",
    "TemplateInfo",
    "TemplateNotFoundError",
    "Terminal",
    "Terminals",
    "TooLargeError",
    "UnavailableError",
    "Unpacked",
    "__version__",
]
