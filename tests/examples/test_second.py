"""The demo's second process: it is timed from its start, and its end is looked at."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from examples.digits.demo import _FirstReplay
from examples.digits.second import go_on, process_seconds
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


def test_loading_data_is_left_out_of_the_time_to_the_first_replay():
    """No recording saves it; who has replayed nothing yet has no time."""
    replays = [0]
    rt = SimpleNamespace(
        stats=lambda: SimpleNamespace(replays=replays[0]), synchronize=lambda: None
    )
    with_it, without = _FirstReplay(rt, 0.0), _FirstReplay(rt, 1000.0)
    for count in (0, 1):
        replays[0] = count
        with_it()
        without()
        assert bool(with_it.seconds) == bool(count)
    assert with_it.seconds - without.seconds == pytest.approx(1000, abs=10)
