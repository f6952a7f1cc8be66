"""Drives the async client as if it were the sync one, so that each test is written once."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from typing import Any, cast

import ringfence

# Values and exceptions pass through as they are.
_PLAIN = (ringfence.CommandResult, ringfence.FileInfo, ringfence.SandboxInfo, ringfence.TemplateInfo)


_WRAPPED = (
    ringfence.AsyncSandbox,
    ringfence.AsyncClient,
    ringfence.AsyncCommands,
    ringfence.AsyncFiles,
    ringfence.AsyncProcess,
    ringfence.AsyncTerminals,
    ringfence.AsyncPorts,
)


class Facade:
    """Stands for an async object: its calls block, its iterators are iterators, its `async with` is a `with`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, target: Any) -> None:
        object.__setattr__(self, "_loop", loop)
        object.__setattr__(self, "_target", target)

    def __getattr__(self, name: str) -> Any:
        return self._wrap(getattr(self._target, name))

    def __repr__(self) -> str:
        return repr(self._target)

    def __enter__(self) -> Any:
        entered = self._loop.run_until_complete(self._target.__aenter__())
        return self if entered is self._target else self._wrap(entered)

    def __exit__(self, kind: Any, exc: Any, trace: Any) -> None:
        self._loop.run_until_complete(self._target.__aexit__(kind, exc, trace))

    def _wrap(self, value: Any) -> Any:
        if inspect.isroutine(value) or (inspect.isclass(value) and value is ringfence.AsyncClient):
            return lambda *args, **kwargs: self._wrap(value(*map(_unwrap, args), **_unwrap_all(kwargs)))
        if inspect.iscoroutine(value):
            return self._wrap(self._loop.run_until_complete(value))
        if inspect.isasyncgen(value):
            return self._iterate(value)
        if isinstance(value, _WRAPPED) or hasattr(value, "__aenter__"):
            return Facade(self._loop, value)
        if isinstance(value, list):
            return [self._wrap(item) for item in cast("list[Any]", value)]
        return value

    def __iter__(self) -> Iterator[Any]:
        return self._iterate(self._target.__aiter__())

    def _iterate(self, iterator: Any) -> Iterator[Any]:
        try:
            while True:
                try:
                    yield self._loop.run_until_complete(anext(iterator))
                except StopAsyncIteration:
                    return
        finally:
            self._loop.run_until_complete(iterator.aclose())


def _unwrap(value: Any) -> Any:
    return value._target if isinstance(value, Facade) else value


def _unwrap_all(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {key: _unwrap(value) for key, value in kwargs.items()}


class Sdk:
    """One of the two clients: `Sandbox` and `Client`, both blocking."""

    def __init__(self, kind: str, loop: asyncio.AbstractEventLoop) -> None:
        self.kind = kind
        if kind == "sync":
            self.Sandbox: Any = ringfence.Sandbox
            self.Client: Any = ringfence.Client
        else:
            self.Sandbox = Facade(loop, ringfence.AsyncSandbox)
            self.Client = lambda **kwargs: Facade(loop, ringfence.AsyncClient(**kwargs))
