"""Fixtures: each test runs with the sync client and with the async one."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest
from facade import Sdk


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
