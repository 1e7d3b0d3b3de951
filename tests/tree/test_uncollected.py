"""Garbage waits while anything is captured, and only as long as that."""

from __future__ import annotations

import gc
import random
import threading
from contextlib import ExitStack

import pytest

from sapwood.tree.uncollected import collected, uncollected


@pytest.fixture(autouse=True)
def as_before():
    before = gc.isenabled()
    yield
    assert gc.isenabled() == before


@pytest.mark.parametrize("enabled", [True, False])
def test_python_collects_as_it_did_before(enabled):
    """Captures within each other, and errors: the last to end gives it back."""
    had = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        with uncollected():
            assert not gc.isenabled()
            with pytest.raises(KeyError), uncollected():
                raise KeyError
            assert not gc.isenabled()
            with collected():
                assert gc.isenabled() == enabled
            assert not gc.isenabled()
        assert gc.isenabled() == enabled
    finally:
        (gc.enable if had else gc.disable)()


def test_threads_that_capture_at_once_are_all_left_alone():
    """Whoever comes and goes: while one captures, nothing is collected."""
    broken = []

    def captures(seed):
        chance = random.Random(seed)
        for _ in range(300):
            with ExitStack() as stack:
                stack.enter_context(uncollected())
                if chance.random() < 0.3:
                    with collected():
                        sorted(range(chance.randrange(50)))
                if gc.isenabled():
                    broken.append(seed)

    threads = [threading.Thread(target=captures, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not broken
