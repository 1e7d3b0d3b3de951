"""A recording's range is as large as its ops need, not as what its Python held."""

from __future__ import annotations

import numpy as np
import pytest

import sapwood as sw
from sapwood.driver.emulated import Emulated
from sapwood.units import Size

PAGE = Size(1 << 16)
COUNT = PAGE // 4


def _held(x):
    """Hold every temporary by a name until the end."""
    a = x + 1
    b = a * 2
    c = b + 3
    d = c * 4
    e = d + 5
    return e - 1


def _dropped(x):
    """Do the same, and hold no temporary longer than its use."""
    x = (x + 1) * 2
    x = (x + 3) * 4
    return (x + 5) - 1


@pytest.fixture
def pages():
    """Return what tells how many pages a recorded function's range has."""

    def recorded(function):
        device = Emulated(Size(256 * PAGE), PAGE, "latest")
        with sw.Runtime(device) as rt:
            f = rt.graph(function)
            for seed in range(4):
                host = np.random.default_rng(seed).random(COUNT, np.float32)
                out = f(rt.array(host))
                assert np.asarray(out).tobytes() == function(host).tobytes()
                del out
            assert f.stats().replays == 2
            taken = rt.memory_stats()["ranges.pages"]
        device.close()
        return taken

    return recorded


def test_names_that_hold_temporaries_cost_no_pages(pages):
    """A range is as large as ops need it, however long Python holds its arrays."""
    assert pages(_held) == pages(_dropped)


def test_it_is_the_plan_that_saves_them(pages, monkeypatch):
    """Where every temporary has a place of its own, the range is larger."""

    def apart(lives):
        places = np.cumsum([0, *(-(-size // 512) * 512 for *_, size in lives)])
        return places[:-1].tolist()

    planned = pages(_held)
    monkeypatch.setattr("sapwood.tree.record.recorder._packed", apart)
    assert pages(_held) > planned
