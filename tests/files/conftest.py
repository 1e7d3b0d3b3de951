"""Programs in other processes: this Python, this library, and a folder to share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).parent / "programs"


def _run(*argv, env=None, cwd=None):
    """Run a program; return what it printed, as JSON."""
    done = subprocess.run(
        [sys.executable, "-W", "error", *map(str, argv)],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), **(env or {})},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert not done.stderr, done.stderr[-4000:]
    return json.loads(done.stdout)


@pytest.fixture(scope="session")
def run_program():
    """Return what runs a program in a process of its own."""
    return _run


@pytest.fixture(scope="session")
def programs():
    """Return the folder of the programs, from which they import one another."""
    return PROGRAMS
