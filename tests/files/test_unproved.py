"""Law 2, where something has no proof: no recording of another process is replayed."""

from __future__ import annotations

import numpy as np
import pytest

import sapwood as sw
from tests.support.shelf import Shelf


class Opaque:
    """Holds a value where nothing but a call tells it."""

    def __init__(self, value):
        self.held = (value for _ in iter(int, 1))

    @property
    def flipped(self):
        return self.held.gi_frame.f_locals["value"]


def _operands(flipped, x, y, _):
    return y - x if flipped else x - y


def _parts(flipped, x, y, _):
    a, b = x * 2.0, y * 2.0
    return (a, b) if flipped else (b, a)


def _views(flipped, x, *_):
    a = x * 2.0
    return a[::-1] if flipped else a


def _aliases(flipped, x, y, _):
    made = x * 2.0
    return (made, x) if flipped else (made, y)


def _keys(flipped, x, *_):
    return {"left" if flipped else "right": x * 2.0}


def _plain(flipped, x, *_):
    return x * 2.0, "left" if flipped else "right"


def _slots(flipped, x, y, holder):
    a, b = x * 2.0, y * 2.0
    holder.u, holder.v = (a, b) if flipped else (b, a)
    return a + b


WIRINGS = (_operands, _parts, _views, _aliases, _keys, _plain, _slots)


class Holder:
    u = v = None


def _shown(value):
    if isinstance(value, dict):
        return {key: _shown(each) for key, each in value.items()}
    if isinstance(value, tuple):
        return [_shown(each) for each in value]
    return value if isinstance(value, str) else np.asarray(value).tolist()


def _run(store, wiring, flipped):
    """Return what calls gave, and what an eager one does; and why none was found."""
    with sw.Runtime(device="emulated", store=store) as rt:
        x, y = rt.array(np.arange(4.0)), rt.array(np.ones(4))
        opaque, holder = Opaque(flipped), Holder()

        def f(x, y):
            return wiring(opaque.flipped, x, y, holder)

        def seen(result):
            return _shown((result, *(v for v in vars(holder).values())))

        with sw.disabled():
            want = seen(f(x, y))
        vars(holder).clear()
        g = rt.graph(f, name="f")
        return [seen(g(x, y)) for _ in range(3)], want, g.stats(), g.explain()


@pytest.mark.parametrize("wiring", WIRINGS, ids=lambda wiring: wiring.__name__[1:])
def test_the_same_ops_prove_nothing(wiring):
    """Ops of the same names may read other bytes, and leave other things behind."""
    store = Shelf()
    for flipped in (False, True):
        found, want, stats, why = _run(store, wiring, flipped)
        assert found == [want] * 3
        assert stats.restored == 0
        assert "cannot be proved to be the same in another process" in why
