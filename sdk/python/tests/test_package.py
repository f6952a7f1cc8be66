"""The package itself: what it exports, that the sync client is the async one's, that errors are the server's."""

from __future__ import annotations

import builtins
import importlib
import inspect
import pickle
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from facade import Sdk
from mock_server import KEY, URL, answering, refusal

import ringfence
from ringfence import _exceptions

ROOT = Path(__file__).resolve().parent.parent
PAIRS = [
    (ringfence.Sandbox, ringfence.AsyncSandbox),
    (ringfence.Client, ringfence.AsyncClient),
    (ringfence.Commands, ringfence.AsyncCommands),
    (ringfence.Files, ringfence.AsyncFiles),
    (ringfence.Process, ringfence.AsyncProcess),
    (ringfence.Terminal, ringfence.AsyncTerminal),
    (ringfence.Terminals, ringfence.AsyncTerminals),
    (ringfence.Ports, ringfence.AsyncPorts),
]
# Exported, but left out of `import *`, because builtins have the same names.
BUILTIN_NAMES = {"FileNotFoundError", "FileExistsError"}


def test_all_is_what_is_visible() -> None:
    visible = {
        name for name, value in vars(ringfence).items() if not name.startswith("_") and not inspect.ismodule(value)
    }
    assert set(ringfence.__all__) == (visible | {"__version__"}) - BUILTIN_NAMES
    assert not {name for name in ringfence.__all__ if hasattr(builtins, name)}
    assert visible > BUILTIN_NAMES


def test_every_module_is_private_and_has_a_docstring() -> None:
    for module in pkgutil.walk_packages(ringfence.__path__, "ringfence."):
        assert module.name.rpartition(".")[2].startswith("_") or ringfence.__name__ + "._" in module.name
        assert importlib.import_module(module.name).__doc__


def test_the_sync_client_is_generated_from_the_async_one() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/generate_sync.py", "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def public(cls: type) -> dict[str, Any]:
    return {name: value for name, value in inspect.getmembers(cls) if not name.startswith("_")}


# What the two may call differently.
RENAMED = {"aclose": "close"}


@pytest.mark.parametrize(("sync", "asynchronous"), PAIRS)
def test_both_clients_have_the_same_names_and_signatures(sync: type, asynchronous: type) -> None:
    ours, theirs = public(sync), {RENAMED.get(k, k): v for k, v in public(asynchronous).items()}
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        if not callable(value):
            continue
        a, b = inspect.signature(value), inspect.signature(theirs[name])
        assert list(a.parameters) == list(b.parameters), name
        for parameter in a.parameters.values():
            other = b.parameters[parameter.name]
            assert (parameter.kind, parameter.default) == (other.kind, other.default), name
            assert str(parameter.annotation) == str(other.annotation).replace("Async", ""), name
        assert inspect.getdoc(value), name
        assert (
            bool(re.search("await|async ", inspect.getsource(value.__func__ if hasattr(value, "__func__") else value)))
            is False
        )


@pytest.mark.parametrize("cls", [cls for pair in PAIRS for cls in pair])
def test_every_option_is_in_the_docstring(cls: type) -> None:
    for name, method in public(cls).items():
        doc = inspect.getdoc(method) or ""
        assert doc, f"{cls.__name__}.{name}"
        if not callable(method) or "Args:" not in doc:
            continue
        for parameter in inspect.signature(method).parameters.values():
            if parameter.name != "self":
                assert re.search(rf"^ +{parameter.name}: ", doc, re.M), f"{cls.__name__}.{name}: {parameter.name}"


def error_table() -> list[tuple[str, int, str]]:
    """Return the server's table of errors: code, HTTP status, class."""
    source = (ROOT.parent.parent / "error.go").read_text("utf-8")
    codes = dict(re.findall(r'(Code\w+)\s+Code = "(\w+)"', source))
    rows = re.findall(r'\{(Code\w+), (\d+), \d+, "(\w+)", "', source[source.index("ErrorTable") :])
    return [(codes[name], int(status), cls) for name, status, cls in rows if name in codes]


def test_the_error_table_was_found() -> None:
    assert len({code for code, _, _ in error_table()}) >= 26


@pytest.mark.parametrize(("code", "status", "cls"), sorted(set(error_table())))
def test_every_code_has_its_class(sdk: Sdk, code: str, status: int, cls: str) -> None:
    # Three answers: 503 is asked again.
    server = answering(*(refusal(code, status, retry_after=0) for _ in range(3)))
    client = sdk.Client(api_key=KEY, base_url=URL, transport=server.transport)
    with pytest.raises(ringfence.RingfenceError) as caught:
        sdk.Sandbox.create(client=client)
    assert type(caught.value) is getattr(ringfence, cls)
    assert (caught.value.code, caught.value.status) == (code, status)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), vars(again), str(again)) == (type(caught.value), vars(caught.value), str(caught.value))


def test_an_unknown_code_is_an_internal_error(sdk: Sdk) -> None:
    server = answering(refusal("brand_new", 418))
    client = sdk.Client(api_key=KEY, base_url=URL, transport=server.transport)
    with pytest.raises(ringfence.InternalError) as caught:
        sdk.Sandbox.create(client=client)
    assert (caught.value.code, caught.value.status) == ("brand_new", 418)


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    classes = {
        name: cls
        for name, cls in vars(_exceptions).items()
        if inspect.isclass(cls) and issubclass(cls, ringfence.RingfenceError)
    }
    stack: list[str] = []
    drawn: dict[str, str | None] = {}
    for indent, name in re.findall(r"^ {4}((?:[│ ] {3})*(?:[├└]── )?)(\w+Error)\b", _exceptions.__doc__ or "", re.M):
        depth = len(indent) // 4
        stack[depth:] = [name]
        drawn[name] = stack[depth - 1] if depth else None
    assert drawn.keys() == classes.keys()
    for name, parent in drawn.items():
        assert parent is None or classes[parent] in classes[name].__bases__, name
        assert getattr(ringfence, name) is classes[name]


def test_builtin_errors_catch_ours() -> None:
    for cls, builtin in (
        (ringfence.FileNotFoundError, FileNotFoundError),
        (ringfence.FileExistsError, FileExistsError),
        (ringfence.IsDirectoryError, IsADirectoryError),
        (ringfence.NotDirectoryError, NotADirectoryError),
        (ringfence.FilePermissionError, PermissionError),
        (ringfence.DiskFullError, OSError),
        (ringfence.APIConnectionError, ConnectionError),
        (ringfence.APITimeoutError, TimeoutError),
        (ringfence.DeadlineExceededError, TimeoutError),
    ):
        error = cls("it", hint="do")
        assert isinstance(error, builtin)
        assert (error.message, error.hint) == ("it", "do")
        assert str(error) == f"it; do ({cls.code})"


def test_httpx_is_the_only_dependency() -> None:
    from importlib.metadata import requires

    assert [re.split(r"[<>=]", need)[0] for need in requires("ringfence") or []] == ["httpx"]
    assert (Path(ringfence.__file__).parent / "py.typed").exists()
    assert httpx.__version__
