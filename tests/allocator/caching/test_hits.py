"""Hits: which block they take, and that an interrupted one leaves nothing held."""

from __future__ import annotations

import signal
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.allocator.caching.allocator import Allocator
from sapwood.driver.emulated import Emulated
from sapwood.units import Size

MIB = 1 << 20
STEPS = st.lists(
    st.tuples(st.integers(0, 7), st.sampled_from([512, 1024, 1536, 4096, 9000])),
    max_size=80,
)


def _reach(allocator):
    """Return the free ranges, each with what it could grow to, read off the blocks."""
    found = {}
    for block in allocator._gate.state.blocks.values():
        if block.state.value == "free":
            hole = block.next
            grows = hole.size if hole.state.value == "unmapped" else 0
            found[block.address] = (block.size, block.size + grows)
    return found


def _expected(allocator, need):
    fits = [
        (reach, address)
        for address, (size, reach) in _reach(allocator).items()
        if size >= need
    ]
    return min(fits)[1] if fits else None


def _is_in_order(bin_):
    order = [(block.reach, block.address) for block in bin_.free[1:-1]]
    return order == sorted(order) and bin_.sizes[1:-1] == [reach for reach, _ in order]


@given(STEPS)
def test_a_hit_takes_the_best_fit(steps):
    """Whatever was freed, and merged: the smallest that fits, the lowest of several."""
    device = Emulated(Size(32 * MIB), Size(2 * MIB))
    allocator, stream = Allocator(device), device.create_stream()
    allocator.free(allocator.malloc(2 * MIB // 4, stream))
    held = []
    for choice, size in steps:
        if held and choice < 3:
            allocator.free(held.pop(choice % len(held)))
        else:
            expected = _expected(allocator, -(-size // 512) * 512)
            held.append(allocator.malloc(size, stream))
            assert expected is not None
            assert held[-1] == expected
        (bin_,) = [bin_ for bin_ in allocator._gate.state.pools.bins() if bin_.segments]
        assert _is_in_order(bin_)
        assert {block.address for block in bin_.free[1:-1]} == set(_reach(allocator))
    for address in held:
        allocator.free(address)
    allocator.close()
    device.close()


@pytest.mark.parametrize("call", ["malloc", "free"])
def test_an_interrupted_wait_holds_nothing(call):
    """Control-C while another thread has the lock is a KeyboardInterrupt, no more."""
    device = Emulated(Size(32 * MIB), Size(2 * MIB))
    allocator, stream = Allocator(device), device.create_stream()
    address = allocator.malloc(512, stream)
    held, over = threading.Event(), threading.Event()

    def hold():
        with allocator._gate.lock:
            held.set()
            time.sleep(0.05)
            signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
            over.wait(30)

    before = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    holder = threading.Thread(target=hold)
    holder.start()
    try:
        held.wait(30)
        arguments = {"malloc": (512, stream), "free": (address,)}[call]
        with pytest.raises(KeyboardInterrupt):
            getattr(allocator, call)(*arguments)
    finally:
        over.set()
        holder.join()
        signal.signal(signal.SIGUSR1, before)
    assert not allocator._gate.lock._is_owned()
    allocator.free(address)
    allocator.close()
    device.close()
