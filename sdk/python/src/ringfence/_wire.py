"""What is sent and how answers are read; no I/O, so both clients share it."""

from __future__ import annotations

import base64
import ipaddress
import json
import os
import platform
import socket
import urllib.request
from collections.abc import AsyncIterable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, cast
from urllib.parse import quote

import httpx

from . import _options as check
from ._exceptions import (
    APIConnectionError,
    APIError,
    APIResponseError,
    APITimeoutError,
    AuthenticationError,
    class_of,
)
from ._models import Json, SandboxInfo, SecretStr, json_object
from ._version import __version__

DEFAULT_URL: Final = "http://127.0.0.1:7070"
DEFAULT_REQUEST_TIMEOUT: Final = 60.0
DEFAULT_COMMAND_TIMEOUT: Final = 30.0
# Of pausing and the like, which write all of a sandbox's memory.
LIFECYCLE_TIMEOUT: Final = 300.0
DEFAULT_OUTPUT_LIMIT: Final = 10 << 20
# How long the server may take beyond a command's deadline to end its tree and to answer.
DEADLINE_SLACK: Final = 60.0
# The server writes a comment every 15 seconds of silence.
STREAM_SILENCE: Final = 150.0

RETRIES: Final = 2
_BACKOFF: Final = 0.2
_LONGEST_WAIT: Final = 10.0

USER_AGENT: Final = f"ringfence-python/{__version__} (python/{platform.python_version()})"

HINT_SERVE: Final = "is `ringfence serve` running? RINGFENCE_URL or base_url says where"
HINT_KEY: Final = (
    "set RINGFENCE_API_KEY or pass api_key; `ringfence serve` prints a key at its first start, "
    "and `ringfence key create` makes more"
)


@dataclass
class Call:
    """One HTTP request to be made."""

    method: str
    path: str
    params: list[tuple[str, str]] = field(default_factory=lambda: [])
    json: Json | None = None
    content: bytes | Iterable[bytes] | AsyncIterable[bytes] | None = None
    headers: dict[str, str] = field(default_factory=lambda: {})
    # Seconds; UNSET: the client's request timeout, None: no limit.
    request_timeout: float | check.Unset | None = check.UNSET
    # Overrides how long to wait for the answer and for each part of it.
    read_timeout: float | check.Unset | None = check.UNSET
    # None: the method says.
    repeatable: bool | None = None

    @property
    def idempotent(self) -> bool:
        """Whether making the call twice is the same as making it once."""
        return self.method in ("GET", "HEAD", "DELETE") if self.repeatable is None else self.repeatable

    def timeout(self, default: float | None) -> httpx.Timeout:
        limit = default if isinstance(self.request_timeout, check.Unset) else self.request_timeout
        read = limit if isinstance(self.read_timeout, check.Unset) else self.read_timeout
        # Waiting for a free connection is not the server's fault and has no limit.
        return httpx.Timeout(connect=limit, read=read, write=limit, pool=None)

    def body(self) -> bytes | Iterable[bytes] | AsyncIterable[bytes] | None:
        if self.json is None:
            return self.content
        self.headers.setdefault("Content-Type", "application/json")
        return json.dumps(self.json, ensure_ascii=False, allow_nan=False).encode("utf-8")


def resolve_url(base_url: str | None) -> str:
    """Return the server's URL, without a slash at its end."""
    named = "base_url"
    if base_url is None:
        base_url, named = os.environ.get("RINGFENCE_URL", "").strip() or DEFAULT_URL, "RINGFENCE_URL"
    text = check.text("ringfence", named, base_url).strip().rstrip("/")
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL as exc:
        raise ValueError(f"{named} {base_url!r} is not a URL: {exc}") from None
    if url.scheme not in ("http", "https") or not url.host or url.query or url.fragment:
        raise ValueError(f"{named} {base_url!r} is not a URL such as {DEFAULT_URL}")
    return text


def resolve_key(api_key: str | None) -> SecretStr:
    """Return the API key, from the argument or the environment."""
    if api_key is None:
        api_key = os.environ.get("RINGFENCE_API_KEY", "")
    key = check.text("ringfence", "api_key", api_key).strip()
    if not key:
        raise AuthenticationError("there is no API key", hint=HINT_KEY)
    if not key.isascii() or not key.isprintable() or " " in key:
        raise AuthenticationError("the API key holds characters that no key has", hint=HINT_KEY)
    return SecretStr(key)


def request_timeout(call: str, value: object) -> float | None:
    """Return a request timeout in seconds; None means no limit."""
    if value is None:
        return None
    seconds = check.number(call, "request_timeout", value)
    if seconds <= 0:
        raise ValueError(f"{call}: request_timeout must be above 0; None means no limit")
    return seconds


def proxy_of(base_url: str) -> str | None:
    """Return the proxy that the environment names for the server; never one for this machine itself."""
    url = httpx.URL(base_url)
    if is_loopback(url.host):
        return None
    proxies = urllib.request.getproxies()
    proxy = proxies.get(url.scheme) or proxies.get("all")
    if not proxy or urllib.request.proxy_bypass(url.netloc.decode("ascii")):
        return None
    return proxy if "://" in proxy else "http://" + proxy


def is_loopback(host: str) -> bool:
    """Return whether a URL's host is this machine itself."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host.strip("[]").partition("%")[0])
        return address.is_loopback or address.is_unspecified
    except ValueError:
        return False


def socket_options() -> list[tuple[int, int, int]]:
    """Return options that notice a dead peer during a command that is silent for hours."""
    options = [
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    ]
    for name, seconds in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 20), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, name):
            options.append((socket.IPPROTO_TCP, getattr(socket, name), seconds))
    return options


def limits(max_connections: int) -> httpx.Limits:
    """Return the limits of a connection pool."""
    return httpx.Limits(
        max_connections=max_connections,
        max_keepalive_connections=min(max_connections, 100),
        # Shorter than any server's patience, so that a request does not meet a closing connection.
        keepalive_expiry=20.0,
    )


def sandbox_path(id: str, *rest: str) -> str:
    """Return the path of a sandbox's resource."""
    return "/".join(["/v1/sandboxes", quote(id, safe=""), *rest])


def snapshot_path(id: str) -> str:
    """Return the path of a snapshot."""
    return "/v1/snapshots/" + quote(id, safe="")


def made_sandbox(answer: object) -> tuple[SandboxInfo, str]:
    """Return a sandbox that the server made, and its access token."""
    return SandboxInfo._from_json(answer), access_token(answer)


def access_token(answer: object) -> SecretStr:
    """Return the access token in an answer."""
    token = json_object(answer, "sandbox").get("access_token")
    if not isinstance(token, str):
        raise APIResponseError("the server made a sandbox without an access token")
    return SecretStr(token)


def path_param(call: str, name: str, path: object) -> tuple[str, str]:
    """Return the query parameter that carries a path; one that is not UTF-8 goes as base64."""
    if isinstance(path, os.PathLike):
        path = os.fspath(cast("os.PathLike[Any]", path))
    if isinstance(path, str):
        try:
            path.encode("utf-8")
        except UnicodeEncodeError:
            try:
                path = path.encode("utf-8", "surrogateescape")
            except UnicodeEncodeError:
                raise ValueError(f"{call}: {name} {path!r} holds surrogates that stand for no byte") from None
        else:
            return name, str(path)
    if not isinstance(path, bytes):
        raise TypeError(f"{call}: {name} must be a str, bytes or path, got {type(path).__name__}")
    try:
        return name, path.decode("utf-8")
    except UnicodeDecodeError:
        return name + "_base64", base64.b64encode(path).decode("ascii")


def path_text(path: str | bytes | os.PathLike[str]) -> str:
    """Return a path as str; bytes that are not UTF-8 become surrogate escapes."""
    return os.fsdecode(path)


def error_of(response: httpx.Response, body: bytes, url: str) -> APIError | APIResponseError:
    """Return the error that an answer with a status of 300 or more stands for."""
    request_id = response.headers.get("x-request-id")
    status = response.status_code
    try:
        answer: object = json.loads(body)
    except ValueError:
        answer = None
    error = error_body(answer)
    if error is None:
        where = f" and points to {response.headers['location']}" if "location" in response.headers else ""
        shown = body[:200].decode("utf-8", "replace").strip()
        return APIResponseError(
            f"{url} answered {status} {response.reason_phrase}{where}" + (f": {shown}" if shown else ""),
            hint="check that RINGFENCE_URL points at a Ringfence server and that no proxy is in between",
            request_id=request_id,
            status=status,
        )
    return api_error(error, status=status, request_id=request_id, retry_after=_seconds(response))


def error_body(answer: object) -> Json | None:
    """Return what is in {"error": …}, or None where there is no such thing."""
    if not isinstance(answer, dict):
        return None
    error = cast("dict[str, object]", answer).get("error")
    if not isinstance(error, dict):
        return None
    error = cast("dict[str, object]", error)
    return error if isinstance(error.get("code"), str) else None


def api_error(error: Json, *, status: int | None, request_id: str | None, retry_after: float | None = None) -> APIError:
    """Return the exception of an error body."""

    def text(name: str) -> str | None:
        value = error.get(name)
        return value if isinstance(value, str) and value else None

    code = text("code") or "internal"
    return class_of(code)(
        text("message") or "the server gave no message",
        code=code,
        hint=text("hint"),
        request_id=text("request_id") or request_id,
        status=status,
        field=text("field"),
        retry_after=retry_after,
    )


def transport_error(exc: httpx.TransportError, call: Call, url: str) -> APIConnectionError:
    """Return our error for one of the transport, saying whether the request may have had its effect."""
    detail = str(exc) or type(exc).__name__
    if isinstance(exc, (httpx.ConnectError, httpx.ConnectTimeout)):
        cls = APITimeoutError if isinstance(exc, httpx.ConnectTimeout) else APIConnectionError
        return cls(f"cannot connect to {url}: {detail}", hint=HINT_SERVE)
    what = f"{call.method} {url}{call.path}"
    unknown = "" if call.idempotent else "; whether it had its effect is unknown"
    if isinstance(exc, httpx.TimeoutException):
        return APITimeoutError(
            f"{what}: no answer in time{unknown}", hint="give a longer request_timeout if it may take so long"
        )
    return APIConnectionError(
        f"{what}: the connection broke: {detail}{unknown}", hint="did the server stop? see its log"
    )


def _seconds(response: httpx.Response) -> float | None:
    try:
        return max(0.0, float(response.headers["retry-after"]))
    except (KeyError, ValueError):
        return None


def retry_wait(attempt: int, retry_after: float | None) -> float:
    """Return how many seconds to wait before attempt number attempt, the first repetition being 1."""
    return min(_LONGEST_WAIT, max(retry_after or 0.0, _BACKOFF * 4 ** (attempt - 1)))


def json_answer(response: httpx.Response, body: bytes, url: str) -> object:
    """Return an answer's JSON."""
    try:
        return json.loads(body)
    except ValueError:
        raise APIResponseError(
            f"{url} answered {response.status_code} with something that is not JSON: "
            f"{body[:200].decode('utf-8', 'replace')!r}",
            hint="check that RINGFENCE_URL points at a Ringfence server and that no proxy is in between",
            request_id=response.headers.get("x-request-id"),
            status=response.status_code,
        ) from None


def byte_range(call: str, offset: object, length: object) -> tuple[int, int | None]:
    """Return a checked offset and length; a length of None reaches to the end."""
    start = check.integer_or_none(call, "offset", offset) or 0
    count = check.integer_or_none(call, "length", length)
    if start < 0 or (count is not None and count < 0):
        raise ValueError(f"{call}: offset and length must not be negative")
    return start, count


def range_header(offset: int, length: int | None) -> dict[str, str]:
    """Return the Range header of a part, or none for the whole."""
    # A range cannot be empty on the wire: the whole is asked for, and not read.
    if (offset == 0 and length is None) or length == 0:
        return {}
    last = "" if length is None else str(offset + length - 1)
    return {"Range": f"bytes={offset}-{last}"}


class RangeCutter:
    """Cuts the part that was asked for out of an answer, which may be the whole file."""

    def __init__(self, response: httpx.Response, offset: int, length: int | None) -> None:
        self._skip = 0 if response.status_code == 206 else offset
        self._left = length

    @property
    def done(self) -> bool:
        """Whether all that was asked for has come."""
        return self._left == 0

    def cut(self, chunk: bytes) -> bytes:
        """Return what of a chunk was asked for."""
        if self._skip:
            skipped = min(self._skip, len(chunk))
            self._skip -= skipped
            chunk = chunk[skipped:]
        if self._left is not None:
            chunk = chunk[: self._left]
            self._left -= len(chunk)
        return chunk


def template_path(name: str) -> str:
    """Return the path of a template, whose name may hold slashes."""
    return "/v1/templates/" + quote(name, safe="")


def may_repeat(call: Call, exc: Exception, attempt: int) -> bool:
    """Return whether a call that failed is made again: two times at most, and only what may be repeated."""
    return call.idempotent and attempt <= RETRIES and not isinstance(exc, APITimeoutError)


def add_note(exc: BaseException, note: str) -> None:
    """Add a line to what is shown of an exception; Python 3.10 has no place for it."""
    if hasattr(exc, "add_note"):
        exc.add_note(note)  # pyright: ignore[reportUnknownMemberType, reportAttributeAccessIssue]
