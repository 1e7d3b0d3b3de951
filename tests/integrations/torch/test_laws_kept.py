"""A result that is kept is never changed by later calls, however many there are."""

from __future__ import annotations

import gc

import pytest

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.gpu

CALLS = 1_000


def test_nothing_of_what_was_kept_stays_in_memory(rt):
    """When a thousand outputs are dropped, all of their memory is given back."""
    f, x = rt.graph(lambda x: x * 2), torch.zeros(1 << 16, device="cuda")
    for _ in range(4):
        f(x)
    before = rt.memory_stats()
    kept = [f(x) for _ in range(CALLS // 4)]
    assert rt.memory_stats()["pages.live"] > 0
    kept.clear()
    gc.collect()
    f(x)
    after = rt.memory_stats()
    assert after["pages.live"] == before["pages.live"] == 0
    assert after["heap.bytes"] <= before["heap.bytes"]
    assert after["ranges"] <= before["ranges"] + 4
