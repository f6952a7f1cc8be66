"""Runs the programs of the documentation."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from server import REPOSITORY, Server


def program(name: str) -> str:
    text = (REPOSITORY / name).read_text("utf-8")
    return "\n".join(re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S))


@pytest.mark.e2e
@pytest.mark.gvisor
@pytest.mark.parametrize(
    ("name", "begins"),
    [
        ("docs/sdk-python.md", "0 42\n"),
        ("sdk/python/README.md", "0 42\n"),
        ("docs/lifecycle.md", "1\n running\nTrue\n"),
    ],
)
def test_the_documentation_runs(server: Server, name: str, begins: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program(name)],
        env={**os.environ, **server.environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.stderr, done.stderr  # whole: pytest shortens what it compares
    assert done.returncode == 0
    assert done.stdout.startswith(begins)
