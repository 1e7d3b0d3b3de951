"""The tiers of tests, and what holds around every test."""

from __future__ import annotations

import gc

import pytest

pytest_plugins = ("tests.tiers",)


@pytest.fixture(autouse=True)
def _quick_collections():
    """Leave what was there before a test out of the collections that it asks for.

    They would take a tenth of a second each, and some tests ask for hundreds.
    """
    gc.freeze()
    yield
    gc.unfreeze()
