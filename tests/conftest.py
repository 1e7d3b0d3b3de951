"""The tiers of tests, what holds around every test, and the browser that some need."""

from __future__ import annotations

import gc
import runpy
from pathlib import Path

import pytest

from sapwood.uncollected import forget, uncollecting

pytest_plugins = ("tests.tiers", "tests.laws.frozen")


@pytest.fixture(autouse=True)
def _collects_as_before():
    """Fail a test that leaves Python's collecting another; put it right for others."""
    before = gc.isenabled(), gc.get_threshold()
    yield
    left, after = uncollecting(), (gc.isenabled(), gc.get_threshold())
    if left or after != before:
        forget()
        gc.set_threshold(*before[1])
        (gc.enable if before[0] else gc.disable)()
        pytest.fail(
            f"collecting was (enabled, thresholds) {before} and is {after}"
            f"{'; not given back by ' if left else ''}{', '.join(map(repr, left))}",
            pytrace=False,
        )


@pytest.fixture(autouse=True)
def _quick_collections():
    """Leave what was there before a test out of the collections that it asks for.

    They would take a tenth of a second each, and some tests ask for hundreds.
    """
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="session")
def chromium():
    """Yield a running browser; skip, with the reason, where there is none."""
    module = runpy.run_path(str(Path(__file__).with_name("view") / "chromium.py"))
    reason = module["missing"]()
    if reason:
        pytest.skip(reason)
    browser = module["start"]()
    yield browser
    browser.quit()
