"""Ports, metrics and events of real sandboxes."""

from __future__ import annotations

import os
import time
from typing import Any

import httpx
import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.gvisor]


@pytest.fixture
def place(sandbox: Any) -> Any:
    """A directory of the test's own."""
    path = f"/tmp/{os.urandom(6).hex()}"
    sandbox.files.make_dir(path)
    yield path
    sandbox.files.remove(path, recursive=True)


def test_a_page_in_a_sandbox_is_reached(sandbox: Any, place: str) -> None:
    sandbox.files.write(f"{place}/index.html", "<h1>hi</h1>")
    with sandbox.commands.start(["python3", "-m", "http.server", "8123", "--bind", "127.0.0.1"], cwd=place) as web:
        deadline = time.monotonic() + 20
        while not any(port.port == 8123 for port in sandbox.ports.list()):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        [port] = [port for port in sandbox.ports.list() if port.port == 8123]
        assert (port.public, port.address) == (False, "127.0.0.1")
        url = sandbox.ports.url(8123, "/index.html")
        assert httpx.get(url).status_code == 401
        link = sandbox.ports.link(8123, "/index.html", expires_in=60)
        with httpx.Client(follow_redirects=True) as browser:
            assert browser.get(link).text == "<h1>hi</h1>"
        waking, public = sandbox.ports.publish(8123, wakes=True), sandbox.ports.publish(8123)
        assert (waking.public, waking.wakes, public.public, public.wakes) == (True, True, True, False)
        assert httpx.get(url).text == "<h1>hi</h1>"
        assert not sandbox.ports.unpublish(8123).public
        assert httpx.get(url).status_code == 401
        assert web.get_info().running


def test_metrics_and_events(sandbox: Any) -> None:
    now = sandbox.metrics()
    assert now.memory_bytes > 0
    assert now.memory_limit_bytes > now.memory_bytes
    assert now.processes >= 0
    assert all(sample.at <= now.at for sample in sandbox.metrics_history(until=now.at))
    tag = os.urandom(4).hex()
    process = sandbox.commands.run("true", tag=tag).id
    kinds: list[str] = []
    last = ""
    for event in sandbox.events():
        kinds.append(event.type)
        last = event.id
        if event.type == "process_ended" and event.data["process"] == process:
            break
    assert kinds[0] in ("created", "gap")
    assert "process_started" in kinds
    sandbox.files.write("/tmp/seen", "x")
    after = next(iter(sandbox.events(after=last)))
    assert (after.type, after.sandbox_id) == ("file_written", sandbox.id)
