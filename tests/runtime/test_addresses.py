"""Recordings take addresses, of which a process has so many."""

from __future__ import annotations

import numpy as np

import sapwood as sw
from sapwood.driver.emulated.window import HIGH, LOW
from sapwood.memory.range import RESERVE

MOST = (HIGH - LOW) // RESERVE


def test_recordings_give_way_where_no_addresses_are_left():
    """Functions may have more recordings than there are addresses: the oldest go."""
    with sw.Runtime(device="emulated") as rt:
        count = 3
        functions = [rt.graph(lambda x: x + 1) for _ in range(count)]
        shapes = MOST // count + 4
        assert shapes <= 64  # so many recordings one function may have
        for n in range(1, shapes + 1):
            for f in functions:
                x = rt.array(np.arange(float(n)))
                for _ in range(3):
                    assert np.asarray(f(x)).tolist() == [i + 1.0 for i in range(n)]
        stats = [f.stats() for f in functions]
        assert sum(each.recordings for each in stats) == count * shapes > MOST
        assert sum(each.evicted for each in stats) >= count * shapes - MOST
        assert not any(each.passed_through for each in stats)
        # Those of late are there still.
        before = functions[-1].stats()
        functions[-1](x)
        assert functions[-1].stats().replays == before.replays + 1
