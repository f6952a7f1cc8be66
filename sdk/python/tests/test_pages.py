"""Runs both pages' programs as they are, in real sandboxes, and compares what they print."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from server import REPOSITORY, Server

import ringfence

EXAMPLES = REPOSITORY / "examples/python"

pytestmark = [pytest.mark.e2e, pytest.mark.gvisor]

# print(exit_code, stdout, stderr) of the first cell, then print(stdout) of the second.
SUPERSERVE = """\
0               x         y
count  4.000000  4.000000
mean   2.500000  5.000000
std    1.290994  2.581989
min    1.000000  2.000000
25%    1.750000  3.500000
50%    2.500000  5.000000
75%    3.250000  6.500000
max    4.000000  8.000000
\x20
540

"""

# The page prints 'NA': 180 among the sums too. No pandas does: read_csv takes the text NA for a missing value
# unless it is told otherwise, and groupby leaves those out.
DECLAW = """\
--- snippet 1 (exit=0) ---
solution: {x: 13/7, y: 11/7}
--- snippet 2 (exit=0) ---
{'APAC': 150, 'EU': 80}
--- snippet 3 (exit=0) ---
wrote /tmp/chart.png

chart.png exists: SIZE bytes
"""


def run(program: str, server: Server, directory: Path) -> str:
    done = subprocess.run(
        [sys.executable, EXAMPLES / program],
        env={**os.environ, **server.environment},
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def png_size(data: bytes) -> tuple[int, int]:
    """Return a PNG's width and height."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert data[-8:] == b"IEND\xaeB`\x82"
    width, height = struct.unpack(">II", data[16:24])
    return width, height


def live(server: Server) -> set[str]:
    return {info.id for info in ringfence.Sandbox.list(api_key=server.key, base_url=server.url)}


def test_superserve_page(server: Server, tmp_path: Path) -> None:
    before = live(server)
    assert run("superserve_page.py", server, tmp_path) == SUPERSERVE
    # 6.4 by 4.8 inches, matplotlib's default, at 150 dots an inch.
    assert png_size((tmp_path / "chart.png").read_bytes()) == (960, 720)
    assert live(server) == before


def test_declaw_page(server: Server, tmp_path: Path) -> None:
    before = live(server)
    printed = run("declaw_page.py", server, tmp_path)
    size = re.search(r"exists: (\d+) bytes", printed)
    assert size is not None
    assert int(size[1]) > 10_000
    assert printed.replace(size[1], "SIZE") == DECLAW
    assert live(server) == before


def test_the_tool_of_the_superserve_page(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The page defines run_python for a model to call; call it, before the program's last line kills the sandbox."""
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    program = (EXAMPLES / "superserve_page.py").read_text("utf-8")
    assert program.endswith("\nsandbox.kill()\n")
    names: dict[str, object] = {}
    exec(compile(program.removesuffix("sandbox.kill()\n"), "superserve_page.py", "exec"), names)
    run_python, sandbox = names["run_python"], names["sandbox"]
    assert callable(run_python)
    assert isinstance(sandbox, ringfence.Sandbox)
    assert run_python("print('é' * 3)") == {"exit_code": 0, "stdout": "ééé\n", "stderr": ""}
    failed = run_python("1 / 0")
    assert failed["exit_code"] == 1
    assert failed["stderr"].startswith("Traceback (most recent call last):")
    assert "ZeroDivisionError" in failed["stderr"]
    assert len(run_python("print('x' * 50_000)")["stdout"]) == 10_000
    assert run_python("open('clean.csv', 'w').write('a')")["exit_code"] == 0
    assert run_python("print(open('clean.csv').read())")["stdout"] == "a\n"
    sandbox.kill()
