"""Lets programs that use the PyPI package superserve, unchanged, work with a Ringfence server.

    PYTHONPATH=/path/to/this/directory SUPERSERVE_BASE_URL=http://127.0.0.1:7070/superserve python program.py

The package sends commands and files to host names of its vendor that no setting changes, by TLS. In a
process that this is loaded into, connections to those names go to the server of SUPERSERVE_BASE_URL, which
serves them on a port of its own (`ringfence serve --superserve-listen 127.0.0.1:7443`) with a certificate that
this process alone trusts, for those names alone. Every other name of the vendor is refused: nothing leaves
for there. It needs nothing but the standard library.
"""

from __future__ import annotations

import json
import os
import socket
import ssl
import threading
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

VENDOR = "superserve.ai"
DATA_HOSTS = ("sandbox.superserve.ai", "usw-sandbox.superserve.ai", "staging-sandbox.superserve.ai")
# Stands for the server's port in the answers to lookups: what connects to it is sent on. Some libraries
# keep the address of an answer and not its port, so the port cannot say it.
_MARK = "127.83.83.83"

_lock = threading.Lock()
_found: tuple[str, int, str] | None = None
_real_getaddrinfo = socket.getaddrinfo
_real_connect = socket.socket.connect
_real_connect_ex = socket.socket.connect_ex
_real_wrap_socket = ssl.SSLContext.wrap_socket
_real_wrap_bio = ssl.SSLContext.wrap_bio


def _vendors(name: Any) -> bool:
    if isinstance(name, (bytes, bytearray)):
        name = bytes(name).decode("ascii", "replace")
    if not isinstance(name, str):
        return False
    name = name.lower().rstrip(".")
    return name == VENDOR or name.endswith("." + VENDOR)


def _server() -> tuple[str, int, str]:
    """The host and the port that the vendor's names lead to, and who signs for it."""
    global _found
    with _lock:
        if _found is not None:
            return _found
        base = os.environ.get("SUPERSERVE_BASE_URL", "").strip().rstrip("/")
        host = urllib.parse.urlsplit(base).hostname
        if not host or _vendors(host):
            raise OSError(f"SUPERSERVE_BASE_URL does not name a Ringfence server, and nothing may call {VENDOR} from here")
        try:
            with urllib.request.urlopen(base + "/preload", timeout=30) as response:
                answer = json.load(response)
        except Exception as error:
            detail = error.read(1000).decode("utf-8", "replace") if isinstance(error, urllib.error.HTTPError) else ""
            raise OSError(f"{base} does not say where it serves the names of {VENDOR}: {error} {detail}") from error
        _found = (host, int(answer["port"]), str(answer["ca"]))
        return _found


def _getaddrinfo(host: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
    if not _vendors(host):
        return _real_getaddrinfo(host, port, *args, **kwargs)
    name = (host.decode("ascii") if isinstance(host, (bytes, bytearray)) else host).lower().rstrip(".")
    if name not in DATA_HOSTS and name.partition(".")[2] not in DATA_HOSTS:
        raise socket.gaierror(socket.EAI_NONAME, f"{name} may not be called from here; SUPERSERVE_BASE_URL is what the package calls")
    _server()
    return _real_getaddrinfo(_MARK, port, socket.AF_INET, *args[1:], **{k: v for k, v in kwargs.items() if k != "family"})


def _there(address: Any) -> Any:
    if isinstance(address, tuple) and address and address[0] == _MARK:
        host, port, _ = _server()
        return _real_getaddrinfo(host, port, socket.AF_INET, socket.SOCK_STREAM)[0][4]
    return address


def _connect(self: socket.socket, address: Any) -> None:
    return _real_connect(self, _there(address))


def _connect_ex(self: socket.socket, address: Any) -> int:
    return _real_connect_ex(self, _there(address))


def _trust(context: ssl.SSLContext, server_hostname: Any) -> None:
    """The authority can sign for the data plane's names and for no other, so that a context that
    trusts it, too, trusts nobody with anything else."""
    if _vendors(server_hostname):
        context.load_verify_locations(cadata=_server()[2])


def _wrap_socket(self: ssl.SSLContext, *args: Any, **kwargs: Any) -> ssl.SSLSocket:
    _trust(self, kwargs.get("server_hostname") or (args[4] if len(args) > 4 else None))
    return _real_wrap_socket(self, *args, **kwargs)


def _wrap_bio(self: ssl.SSLContext, *args: Any, **kwargs: Any) -> ssl.SSLObject:
    _trust(self, kwargs.get("server_hostname") or (args[3] if len(args) > 3 else None))
    return _real_wrap_bio(self, *args, **kwargs)


def install() -> None:
    """Redirects the vendor's names in this process, once."""
    if socket.getaddrinfo is _getaddrinfo:
        return
    socket.getaddrinfo = _getaddrinfo
    socket.socket.connect = _connect  # type: ignore[method-assign]
    socket.socket.connect_ex = _connect_ex  # type: ignore[method-assign]
    ssl.SSLContext.wrap_socket = _wrap_socket  # type: ignore[method-assign]
    ssl.SSLContext.wrap_bio = _wrap_bio  # type: ignore[method-assign]
    # A proxy would be asked to connect to the vendor.
    direct = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    if direct != "*" and VENDOR not in direct.split(","):
        os.environ["no_proxy"] = os.environ["NO_PROXY"] = f"{direct},{VENDOR}" if direct else VENDOR
