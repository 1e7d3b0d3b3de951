"""A lender over the emulated device, libraries that are only faces, and real programs.

A face is as much of a library as an adapter touches, so that what is asked of it is
known without a GPU. Programs marked ``gpu`` run the real ones.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from sapwood.allocator.caching.allocator import Allocator
from sapwood.allocator.lending import Lender
from sapwood.driver.emulated import Emulated

ROOT = Path(__file__).parents[3]


@pytest.fixture
def driver():
    driver = Emulated(256 << 20, schedule="latest")
    yield driver
    gc.collect()
    assert sum(driver.live_handles().values()) == 0
    driver.close()


@pytest.fixture
def lender(driver):
    """A lender whose memory is all back at the end."""
    allocator = Allocator(driver)
    lender = Lender(allocator, driver)
    yield lender
    gc.collect()
    lender.close()
    allocator.close()


@pytest.fixture
def raw(driver, request):
    """Two streams of another library, which outlive the lender's use of them."""
    streams = [driver.open_foreign_stream() for _ in range(2)]
    yield streams
    if "lender" in request.fixturenames:
        for stream in streams:
            request.getfixturevalue("lender").forget_stream(stream)
    for stream in streams:
        driver.close_foreign_stream(stream)


@pytest.fixture
def face(monkeypatch):
    """Put modules of given names and contents in the place of a library."""

    def wear(**modules) -> None:
        for name, contents in modules.items():
            path = name.replace("__", ".")
            module = ModuleType(path)
            module.__path__ = []
            vars(module).update(contents)
            monkeypatch.setitem(sys.modules, path, module)
            parent, _, child = path.rpartition(".")
            if parent:
                monkeypatch.setattr(sys.modules[parent], child, module, raising=False)

    return wear


@pytest.fixture
def run_program():
    """Run a program in a process of its own, and return what it printed, as JSON."""

    def run(text: str, **environment: str) -> dict:
        path = os.pathsep.join(
            filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")])
        )
        done = subprocess.run(
            [sys.executable, "-c", text],
            env={**os.environ, "PYTHONPATH": path, **environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run
