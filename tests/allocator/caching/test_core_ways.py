"""The short way and the long way are one; finalisers may come at any moment."""

from __future__ import annotations

import gc
import random
import threading

import pytest

from sapwood.allocator.caching.allocator import Allocator
from sapwood.allocator.caching.settings import DEFAULT
from sapwood.allocator.caching.validate import validate
from sapwood.allocator.simulate.ours import Ground
from sapwood.errors import MisuseError
from sapwood.units import Size

MIB = 1 << 20


def _made(**settings):
    driver = Ground(Size(1 << 34))
    return Allocator(driver, DEFAULT.replace(**settings)), driver.create_stream()


def _life(allocator, stream, steps, seed):
    """Allocate and free at random; return the addresses in their order."""
    chance, held, seen = random.Random(seed), [], []
    for _ in range(steps):
        if held and chance.random() < 0.5:
            allocator.free(held.pop(chance.randrange(len(held))))
        else:
            held.append(allocator.malloc(int(2 ** chance.uniform(0, 23)), stream))
            seen.append(held[-1])
    return seen


@pytest.mark.parametrize("seed", range(5))
def test_both_ways_lead_to_the_same_places(seed):
    """Addresses, books and counters are those of an allocator that is watched."""
    short, long = _made(), _made()
    long[0].record_history("all", context=None)
    assert _life(*short, 2_000, seed) == _life(*long, 2_000, seed)
    assert short[0].picture().segments == long[0].picture().segments
    counters = [each[0].counters() for each in (short, long)]
    assert counters[0].total == counters[1].total
    assert counters[0].hits == counters[1].hits
    assert validate(short[0].picture()) == []


class Holder:
    """Holds a block, in a cycle, so that only garbage collection frees it."""

    def __init__(self, allocator, stream, size):
        self.allocator, self.me = allocator, self
        self.address = allocator.malloc(size, stream)

    def __del__(self):
        self.allocator.free(self.address)


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.deep
def test_finalisers_free_at_any_moment(special):
    """Collections inside of calls give every block back once, and break nothing."""
    allocator, stream = _made()
    if special:
        allocator.record_history("all")
    before = gc.get_threshold()
    gc.set_threshold(3, 2, 2)
    try:
        for size in [100, 3 * MIB, 700, 40_000] * 300:
            Holder(allocator, stream, size)
            allocator.free(allocator.malloc(size * 2, stream))
    finally:
        gc.set_threshold(*before)
    gc.collect()
    assert allocator.counters().total.allocation.current == 0
    assert validate(allocator.picture()) == []


class Meddling(Ground):
    """Calls back in the middle of growing, as a finaliser may."""

    def create(self, size):
        made = super().create(size)
        self.meddle()
        return made

    def meddle(self):
        """Do nothing, at first."""


def test_inside_a_call_only_free_is_possible():
    """A free is put off until the call is over; anything else is refused by name."""
    driver = Meddling(Size(1 << 30))
    allocator, stream = Allocator(driver), driver.create_stream()
    block = allocator.malloc(5 * MIB, stream)
    refused = []

    def meddle():
        driver.meddle = lambda: None
        allocator.free(block)
        with pytest.raises(MisuseError, match="free already"):
            allocator.free(block)
        for call in (allocator.counters, lambda: allocator.malloc(9, stream)):
            with pytest.raises(MisuseError, match="finaliser") as caught:
                call()
            refused.append(caught.value)

    driver.meddle = meddle
    other = allocator.malloc(30 * MIB, stream)
    assert len(refused) == 2
    assert allocator.counters().total.allocation.current == 1
    allocator.free(other)
    with pytest.raises(MisuseError, match=r"free already|no block begins"):
        allocator.free(block)


def test_threads_share_one_allocator():
    """Hits of four threads, each with a stream, leave books that are true."""
    driver = Ground(Size(1 << 34))
    allocator = Allocator(driver)
    streams = [driver.create_stream() for _ in range(4)]
    threads = [
        threading.Thread(target=_life, args=(allocator, stream, 2_000, stream))
        for stream in streams
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    picture, total = allocator.picture(), allocator.counters().total
    assert validate(picture) == []
    live = [b for s in picture.segments for b in s.blocks if b.state == "allocated"]
    assert total.allocation.current == len(live)
    assert total.allocated_bytes.current == sum(block.size for block in live)
