"""The demo's second process: it is timed from its start, and its end is looked at."""

from __future__ import annotations

import time

import pytest

from sapwood.cli.again import go_on, process_seconds
from sapwood.errors import InternalError


def test_a_process_knows_how_old_it_is():
    """Time passes for it as for everybody, to a hundredth of a second."""
    before, begun = process_seconds(), time.perf_counter()
    time.sleep(0.05)
    passed = process_seconds() - before
    assert 0.0 < before < 24 * 3600
    assert abs(passed - (time.perf_counter() - begun)) < 0.05


def test_a_second_process_that_fails_is_told(tmp_path):
    """With what it said."""
    with pytest.raises(InternalError, match=r"second process ends well[^$]*none\.npz"):
        go_on(tmp_path / "none.npz", tmp_path / "store")
