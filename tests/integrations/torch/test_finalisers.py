"""A finaliser may run in the middle of any call, and may call graphed functions."""

from __future__ import annotations

import gc
from contextlib import suppress

import pytest

import sapwood as sw

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.gpu


class Cyclic:
    """Garbage that the collector alone finds; ``last`` is what it does then."""

    def __init__(self, last):
        self.me, self.last = self, last

    def __del__(self):
        # What comes inside a call of the allocator's is refused there.
        with suppress(sw.MisuseError):
            self.last()


@pytest.mark.parametrize("kept", [0, 1, 4])
@pytest.mark.parametrize("threshold", range(7, 60, 8))
def test_a_call_in_the_middle_of_another_changes_nothing_of_it(played, threshold, kept):
    """Neither the result of the one nor that of the other is anybody else's."""
    f = played.graph(lambda x: x * 2 + 1)
    x = torch.ones(3, device="cuda")
    z = torch.full((3,), 5.0, device="cuda")
    outer, inner = [], []

    def last():
        inner.append(f(z))
        del inner[: len(inner) - kept]

    before = gc.get_threshold()
    gc.collect()
    gc.set_threshold(threshold, 2, 2)
    try:
        for _ in range(60):
            Cyclic(last)
            outer.append(f(x))
            del outer[: len(outer) - 3]
            assert {tuple(y.tolist()) for y in outer} == {(3.0,) * 3}
            assert {tuple(y.tolist()) for y in [*inner]} <= {(11.0,) * 3}
    finally:
        gc.set_threshold(*before)
        gc.collect()
