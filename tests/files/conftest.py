"""Programs in other processes: this Python, this library, and a folder to share."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import sapwood as sw
from sapwood.driver.emulated import Emulated
from sapwood.driver.layers import Checked, Recorded
from tests.support.shelf import Shelf

PROGRAMS = Path(__file__).parent / "programs"


def _run(*argv, env=None, cwd=None):
    """Run a program; return what it printed, as JSON."""
    path = os.pathsep.join(sys.path)
    here = os.environ | {"PYTHONPATH": path, "SAPWOOD_DEVICE": "emulated"}
    done = subprocess.run(
        [sys.executable, "-W", "error", *map(str, argv)],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env=here | (env or {}),
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


class Opened:
    """A runtime on a device of its own, whose calls are counted."""

    def __init__(self, store, *, page=1 << 16, total=1 << 26):
        self.device = Emulated(total, page)
        self.checked = Checked(self.device)
        self.driver = Recorded(self.checked)
        self.rt = sw.Runtime(device=self.driver, store=store)

    def close(self):
        """Close both; nothing may be left, but what a test still holds."""
        self.rt.close()
        gc.collect()
        leaks = self.checked.leaks()
        self.device.close()
        return leaks


@pytest.fixture
def open_runtime():
    """Return a maker of runtimes; at the end everything was given back."""
    opened = []

    def make(store=None, **options):
        opened.append(Opened(store, **options))
        return opened[-1]

    yield make
    for each in opened:
        assert each.close() == {}


@pytest.fixture
def store():
    """Return a store in memory."""
    return Shelf()
