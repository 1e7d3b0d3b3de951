"""Hypothesis profiles, and what to do with tests that need a CUDA device."""

from __future__ import annotations

import gc
import os
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from sapwood.uncollected import forget, uncollecting

settings.register_profile("dev", deadline=None, max_examples=30)
settings.register_profile(
    "ci",
    deadline=None,
    max_examples=60,
    derandomize=True,
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],  # two busy cores are slow: no fault
)
settings.register_profile("night", deadline=None, max_examples=3_000)
settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE", "ci" if "CI" in os.environ else "dev")
)


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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked ``gpu`` where there is no CUDA device, or no bindings."""
    if Path("/proc/driver/nvidia/version").exists() and find_spec("cuda"):
        return
    skip = pytest.mark.skip(reason="needs a CUDA device and cuda.bindings")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)
