"""The short way and the long way are one; inside of a call only `free` is possible."""

from __future__ import annotations

import random

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
