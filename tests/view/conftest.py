"""Made-up snapshots, and a browser to look at the pages made from them."""

from __future__ import annotations

import runpy
import time
from pathlib import Path

import pytest

from sapwood.view import render

HERE = Path(__file__).parent
DRAWN = "return document.documentElement.dataset.drawn"
PATIENCE = 20.0
"""For how many seconds a page may load."""


@pytest.fixture(scope="session")
def make_snapshot():
    """Return the function that makes up snapshots: recordings and seed."""
    return runpy.run_path(str(HERE / "snapshots.py"))["snapshot"]


@pytest.fixture
def snapshot(make_snapshot):
    """Return a snapshot of a middling program, to be changed at will."""
    return make_snapshot()


@pytest.fixture
def shown(chromium, tmp_path):
    """Return a function that opens the page about a snapshot; nothing may complain."""

    def show(snapshot, scheme="light"):
        page = tmp_path / "page.html"
        page.write_text(render(snapshot), encoding="utf-8")
        chromium.execute_cdp_cmd(
            "Emulation.setEmulatedMedia",
            {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
        )
        chromium.get(page.as_uri())
        # A busy machine draws some time after it has loaded.
        deadline = time.monotonic() + PATIENCE
        while not chromium.execute_script(DRAWN):
            assert time.monotonic() < deadline, chromium.get_log("browser")
            time.sleep(0.05)
        return chromium

    yield show
    assert chromium.get_log("browser") == []
