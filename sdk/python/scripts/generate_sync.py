"""Writes src/ringfence/_sync from src/ringfence/_async.

The async client is the source; the sync one is the same text with words replaced
and then formatted. `--check` writes nothing and fails if what is there differs.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src/ringfence/_async"
TARGET = ROOT / "src/ringfence/_sync"

# In order: what goes away, then what has another name. Docstrings are changed with the code.
RULES = [
    (r"\basync def\b", "def"),
    (r"\basync with await\b", "with"),
    (r"\basync with\b", "with"),
    (r"\basync for\b", "for"),
    (r"\bawait +", ""),
    (
        r"\bAsync(Sandbox|Lifecycle|Client|Commands|Files|Process|Terminals|Terminal|Trees|Ports|Iterator|Iterable)\b",
        r"\1",
    ),
    (r"\bAsyncGenerator\[((?:\w|[ |]|AsyncIterator\[\w+\])+), None\]", r"Generator[\1, None, None]"),
    (r"\bAsyncGenerator\b", "Generator"),
    (r"\bhttpx\.Async(\w+)\b", r"httpx.\1"),
    (r"\b_bridge_async\b", "_bridge_sync"),
    (r"\basynccontextmanager\b", "contextmanager"),
    (r"\baclosing\b", "closing"),
    (r"\b__aenter__\b", "__enter__"),
    (r"\b__aexit__\b", "__exit__"),
    (r"\b__aiter__\b", "__iter__"),
    (r"\ba(close|read|next)\b", r"\1"),
    (r"\baiter_raw\b", "iter_raw"),
    (r"every event loop, each of which gets connections of its own", "every thread"),
]
LEFTOVERS = re.compile(r"\b(async|await|asyncio|aclose|Async\w*|Awaitable|Coroutine)\b")

HEADER = "# Generated from ../_async/{name} by scripts/generate_sync.py; change that file.\n"
PACKAGE_DOC = '"""The sync client, generated from `ringfence._async` by scripts/generate_sync.py."""\n'


def generate(name: str, text: str) -> str:
    """Return the sync text of an async module."""
    if name == "__init__.py":
        text = PACKAGE_DOC
    for pattern, replacement in RULES:
        text = re.sub(pattern, replacement, text)
    if name != "__init__.py" and (left := LEFTOVERS.search(text)):
        line = text[: left.start()].count("\n") + 1
        raise SystemExit(f"{SOURCE / name}:{line}: {left[0]!r} has no sync counterpart; add a rule")
    return _ruff(["format"], _ruff(["check", "--select", "I", "--fix", "--quiet"], HEADER.format(name=name) + text))


def _ruff(command: list[str], text: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(TARGET / "generated.py"), "-"],
        input=text,
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"ruff {command[0]}: {done.stderr}{done.stdout}")
    return done.stdout


def main() -> int:
    """Write the sync modules, or with --check compare them."""
    checking = sys.argv[1:] == ["--check"]
    wanted = {path.name: generate(path.name, path.read_text("utf-8")) for path in sorted(SOURCE.glob("*.py"))}
    stale = [path.name for path in TARGET.glob("*.py") if path.name not in wanted]
    differing = [
        name
        for name, text in wanted.items()
        if not (TARGET / name).exists() or (TARGET / name).read_text("utf-8") != text
    ]
    if checking:
        for name in sorted(stale + differing):
            print(f"{TARGET / name} is not what scripts/generate_sync.py makes; run it")
        return 1 if stale or differing else 0
    TARGET.mkdir(exist_ok=True)
    for name in stale:
        (TARGET / name).unlink()
    for name in differing:
        (TARGET / name).write_text(wanted[name], "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
