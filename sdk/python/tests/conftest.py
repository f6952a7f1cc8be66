"""Fixtures: each test runs with the sync client and with the async one."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from typing import Any

import pytest
from facade import Sdk
from server import DRIVER, Server

import ringfence


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Keep what is set on this machine out of the unit tests."""
    if request.node.get_closest_marker("e2e") is None:
        for name in list(os.environ):
            if name.startswith("RINGFENCE_") or name.lower().endswith("_proxy"):
                monkeypatch.delenv(name)


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


@pytest.fixture(params=["sync", "async"])
def sdk(request: pytest.FixtureRequest, loop: asyncio.AbstractEventLoop) -> Sdk:
    return Sdk(request.param, loop)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The real server, one for all end-to-end tests of a run."""
    server = Server(tmp_path_factory.mktemp("server"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def shared_sandbox(server: Server) -> ringfence.Sandbox:
    """A sandbox for tests that do it no harm."""
    return ringfence.Sandbox.create(name="shared", api_key=server.key, base_url=server.url)


@pytest.fixture
def client(sdk: Sdk, server: Server) -> Iterator[Any]:
    """A client of the real server."""
    client = sdk.Client(api_key=server.key, base_url=server.url)
    yield client
    (client.close if sdk.kind == "sync" else client.aclose)()


@pytest.fixture
def sandbox(sdk: Sdk, client: Any, shared_sandbox: ringfence.Sandbox) -> Any:
    """The shared sandbox, through the client under test."""
    return sdk.Sandbox.connect(shared_sandbox.id, client=client)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is for the other driver."""
    other = "fake" if DRIVER == "gvisor" else "gvisor"
    config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker(other)])
    items[:] = [item for item in items if not item.get_closest_marker(other)]
