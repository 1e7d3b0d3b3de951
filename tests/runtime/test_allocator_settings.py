"""Settings of the allocator, from the environment, for the arrays of a runtime."""

from __future__ import annotations

import numpy as np
import pytest

import sapwood as sw

MIB = 1 << 20
TOTAL = 64 * MIB


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setenv("SAPWOOD_DEVICE", "emulated")
    monkeypatch.setenv("SAPWOOD_EMULATED_MEMORY", str(TOTAL))


def _bytes(rt, count):
    return rt.array(np.zeros(count, np.uint8))


def test_arrays_keep_to_the_fraction(monkeypatch):
    """What the environment allows of the device is what arrays get of it."""
    monkeypatch.setenv("SAPWOOD_ALLOC_CONF", "per_process_memory_fraction:0.5")
    with sw.Runtime() as rt:
        held = _bytes(rt, TOTAL // 2 - 4 * MIB)
        with pytest.raises(sw.OutOfMemory):
            _bytes(rt, 8 * MIB)
        del held
        assert _bytes(rt, 8 * MIB).shape == (8 * MIB,)


@pytest.mark.parametrize(
    "text",
    [
        "expandable_segments:False",
        "expandable_segments:False,max_split_size_mb:40",
        "roundup_power2_divisions:4,garbage_collection_threshold:0.5",
        "cross_stream_reuse:True",
    ],
)
def test_calls_are_right_under_any_settings(monkeypatch, text):
    """Arrays and recordings are those of numpy, however memory is found for them."""
    monkeypatch.setenv("SAPWOOD_ALLOC_CONF", text)
    with sw.Runtime() as rt:
        triple = rt.graph(lambda x: (x + x) + x)
        held = []
        for number in range(12):
            host = np.full(300_000, number, np.float32)
            held = [*held[-2:], (triple(rt.array(host)), host)]
            for found, given in held:
                assert np.asarray(found).tobytes() == (3 * given).tobytes()
        assert triple.stats().replays > 0
        del held, found


def test_a_runtime_with_wrong_settings_is_not_made(monkeypatch):
    """The error names the variable, the key, the value and what is allowed."""
    monkeypatch.setenv("SAPWOOD_ALLOC_CONF", "max_split_size_mb:1")
    said = "SAPWOOD_ALLOC_CONF: max_split_size: 1 MiB .* Set at least"
    with pytest.raises(sw.MisuseError, match=said):
        sw.Runtime()
