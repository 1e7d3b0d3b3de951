"""Ten thousand random steps on a small device; contents never overlap."""

from __future__ import annotations

import random

import pytest

from sapwood.allocator.caching.settings import DEFAULT
from sapwood.errors import OutOfMemory

pytestmark = pytest.mark.deep

MIB = 1 << 20
KIB = 1 << 10
STEPS = 10_000
SETTINGS = {
    "expandable": DEFAULT,
    "classic": DEFAULT.replace(expandable_segments=False),
    "both": DEFAULT.replace(cross_stream_reuse=True, max_split_size=20 * MIB),
}


class Fuzz:
    """Blocks of 2 to 20 KiB and MiB, each with its own byte at both ends."""

    def __init__(self, rig, seed):
        self.rig, self.chance, self.held = rig, random.Random(seed), []
        self.streams = [rig.stream() for _ in range(3)]
        self.total = self.number = self.refused = 0

    def step(self):
        roll = self.chance.random()
        if roll < 0.51:
            self.allocate()
        elif roll < 0.98 and self.held:
            self.free(self.chance.randrange(len(self.held)))
        elif roll < 0.99:
            self.rig.allocator.empty_cache()
        else:
            self.rig.check()

    def allocate(self):
        unit = self.chance.choice([KIB, KIB, KIB, MIB])
        size = self.chance.randrange(2 * unit, 20 * unit)
        while self.held and self.total + size > 40 * MIB:
            self.free(self.chance.randrange(len(self.held)))
        stream = self.chance.choice(self.streams)
        try:
            address = self.rig.allocator.malloc(size, stream)
        except OutOfMemory:
            self.refused += 1
            return
        self.number = self.number % 254 + 1
        self.held.append((address, size, stream, self.number))
        self.total += size
        for start, length in _ends(address, size):
            self.rig.fill(start, length, self.number, stream)
        if self.chance.random() < 0.2:
            self.cross(address, size, stream)

    def cross(self, address, size, stream):
        """Write the same again on another stream, which is told to the allocator."""
        other = self.chance.choice(self.streams)
        self.rig.allocator.record_stream(address, other)
        if other != stream:
            self.rig.wait(other, stream)
        for start, length in _ends(address, size):
            self.rig.fill(start, length, self.number, other)
        if other != stream:
            self.rig.wait(stream, other)

    def free(self, place):
        address, size, stream, value = self.held.pop(place)
        self.total -= size
        for start, length in _ends(address, size):
            found = self.rig.read(start, length, stream)
            assert found.count(value) == length, hex(address)
        self.rig.allocator.free(address)


def _ends(address, size):
    length = min(2 * KIB, size // 2)
    return (address, length), (address + size - length, length)


@pytest.mark.parametrize("kind", SETTINGS)
def test_contents_never_overlap(open_rig, kind):
    """E test_allocator_fuzz: 10,000 steps, on three streams, near the limit."""
    with open_rig(settings=SETTINGS[kind], total=64 * MIB) as rig:
        fuzz = Fuzz(rig, seed=11)
        for _ in range(STEPS):
            fuzz.step()
        while fuzz.held:
            fuzz.free(-1)
        rig.check()
        rig.allocator.empty_cache()
        assert rig.atlas.used() == 0
