"""Starts the real server, bin/ringfence, for the end-to-end tests.

RINGFENCE_TEST_DRIVER says what isolates its sandboxes: `fake` (the default, needs nothing) or `gvisor`
(needs root and a built code-interpreter template in RINGFENCE_TEMPLATE_DIR).
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import httpx
import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
DRIVER = os.environ.get("RINGFENCE_TEST_DRIVER") or "fake"


def missing(what: str) -> NoReturn:
    """Skip, and fail where nothing may be skipped."""
    if os.environ.get("RINGFENCE_TEST_REQUIRE_ALL") == "1":
        pytest.fail(f"missing: {what}")
    pytest.skip(f"missing: {what}")


def binary() -> Path:
    path = Path(os.environ.get("RINGFENCE_TEST_BINARY") or REPOSITORY / "bin/ringfence")
    if not path.exists():
        missing(f"{path}; run `make build`")
    return path


def write_fake_templates(directory: Path) -> None:
    """Write records of templates whose images the fake driver never opens."""
    (directory / "images").mkdir(parents=True)
    for name, aliases in (("base", []), ("code-interpreter", ["superserve/code-interpreter", "code-interpreter-v1"])):
        image = secrets.token_hex(32)
        (directory / "images" / f"{image}.erofs").write_bytes(b"")
        record = {
            "name": name,
            "aliases": aliases,
            "summary": "of the fake driver",
            "image": image,
            "recipe": secrets.token_hex(32),
            "user": "root",
            "work_dir": "/home/user",
            "env": {"PATH": "/usr/local/bin:/usr/bin:/bin"},
            "vcpu": 1,
            "memory_mib": 256,
            "disk_mib": 1024,
            "built_at": "2026-11-30T20:00:00.000000Z",
        }
        (directory / f"{name}.json").write_text(json.dumps(record))


class Server:
    """A server of its own on a free port of loopback, with its data in a directory."""

    def __init__(self, directory: Path, driver: str = DRIVER) -> None:
        self.driver = driver
        self.key = "rf_" + secrets.token_hex(32)
        self._directory = directory
        self._log = directory / "server.log"
        if driver == "gvisor":
            templates = Path(os.environ.get("RINGFENCE_TEMPLATE_DIR") or "/var/lib/ringfence/templates")
            if os.geteuid() != 0:
                missing("root, which real sandboxes need")
            if not (templates / "code-interpreter.json").exists():
                missing(f"the code-interpreter template in {templates}; run `make template`")
        else:
            templates = directory / "templates"
            write_fake_templates(templates)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        self.url = f"http://{address}"
        self._command = [
            str(binary()), "serve", "--listen", address, "--driver", driver,
            "--data-dir", str(directory / "data"), "--template-dir", str(templates),
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> Mapping[str, str]:
        """What a program needs to find this server."""
        return {"RINGFENCE_URL": self.url, "RINGFENCE_API_KEY": self.key}

    def start(self) -> None:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("RINGFENCE_")}
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                self._command,
                env={**inherited, "RINGFENCE_API_KEY": self.key},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._directory,
            )
        deadline = time.monotonic() + 30
        with httpx.Client(trust_env=False, verify=False) as client:
            while True:
                if self._process.poll() is not None:
                    raise AssertionError(f"the server ended with {self._process.returncode}:\n{self.log()}")
                try:
                    if client.get(f"{self.url}/health").status_code == 200:
                        return
                except httpx.TransportError:
                    pass
                if time.monotonic() > deadline:
                    self._process.kill()
                    self._process.wait()
                    raise AssertionError(f"the server does not answer:\n{self.log()}")
                time.sleep(0.05)

    def log(self) -> str:
        """Return the last of what the server wrote."""
        return self._log.read_text("utf-8", "replace")[-8000:] if self._log.exists() else ""

    def kill(self) -> None:
        """End the server as a power cut would."""
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._process = None

    def stop(self) -> None:
        """End the sandboxes, then the server."""
        if self._process is None:
            return
        try:
            headers = {"Authorization": f"Bearer {self.key}"}
            with httpx.Client(trust_env=False, verify=False, base_url=self.url, headers=headers, timeout=30) as client:
                for sandbox in client.get("/v1/sandboxes", params={"limit": "1000"}).json()["sandboxes"]:
                    client.delete(f"/v1/sandboxes/{sandbox['id']}")
        finally:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
                raise AssertionError(f"the server did not end:\n{self.log()}") from None
            finally:
                self._process = None
