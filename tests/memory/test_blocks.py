"""Blocks against a model that looks at every unit of the interval."""

from __future__ import annotations

from itertools import groupby, pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sapwood.errors import InternalError
from sapwood.memory.blocks import ALIGNMENT, Blocks
from sapwood.units import Addr, Size

START = 1 << 20
place = st.integers(0, 99)
sizes = st.integers(0, 6 * ALIGNMENT)


def _free_of(blocks):
    return tuple(sorted((free.start, free.end) for free in blocks._by_start.values()))


class BlocksMachine(RuleBasedStateMachine):
    """Every unit of the model is taken, or free with a set of tags."""

    def __init__(self):
        super().__init__()
        self.blocks = Blocks(Addr(START), Addr(2 * START))
        self.units = []

    def _free(self):
        """Return ``(first, end, tags)`` of each maximal run of free units."""
        found, at = [], 0
        for free, group in groupby(self.units, lambda tags: tags is not None):
            run = list(group)
            if free:
                found.append((at, at + len(run), frozenset().union(*run)))
            at += len(run)
        return found

    def _unite(self):
        for first, end, tags in self._free():
            self.units[first:end] = [tags] * (end - first)

    @rule(count=st.integers(1, 8))
    def grow(self, count):
        self.blocks.grow(Size(count * ALIGNMENT))
        self.units += [frozenset()] * count
        self._unite()

    @rule(size=sizes)
    def take(self, size):
        need = max(-(-size // ALIGNMENT), 1)
        fits = [(end - first, first) for first, end, _ in self._free()]
        fits = [each for each in fits if each[0] >= need]
        taken = self.blocks.take(Size(size))
        if not fits:
            assert taken is None
            return
        first = min(fits)[1]
        assert taken == (START + first * ALIGNMENT, self.units[first])
        self.units[first : first + need] = [None] * need

    @precondition(lambda self: self.blocks.taken)
    @rule(place=place, tags=st.frozensets(st.sampled_from("abc")))
    def give(self, place, tags):
        taken = sorted(self.blocks.taken.items())
        address, size = taken[place % len(taken)]
        self.blocks.give(address, tags)
        first, count = (address - START) // ALIGNMENT, size // ALIGNMENT
        self.units[first : first + count] = [tags] * count
        self._unite()

    @rule(size=sizes)
    def grow_by_what_is_missing(self, size):
        """Growing by it makes room at the end, and by a unit less does not."""
        need = max(-(-size // ALIGNMENT), 1)
        free = self._free()
        tail = 0
        if free and free[-1][1] == len(self.units):
            tail = free[-1][1] - free[-1][0]
        missing = self.blocks.missing(Size(size))
        assert missing == (need - tail) * ALIGNMENT
        if missing > 0:
            self.grow(missing // ALIGNMENT)
            assert self.blocks.missing(Size(size)) == 0

    @invariant()
    def bytes_are_conserved(self):
        blocks = self.blocks
        free = [(hi - lo) for lo, hi in _free_of(blocks)]
        assert sum(free) + sum(blocks.taken.values()) == blocks.end - blocks.start
        assert blocks.end - blocks.start == len(self.units) * ALIGNMENT

    @invariant()
    def free_is_what_the_model_says(self):
        assert _free_of(self.blocks) == tuple(
            (START + first * ALIGNMENT, START + end * ALIGNMENT)
            for first, end, _ in self._free()
        )

    @invariant()
    def blocks_do_not_overlap(self):
        spans = sorted((at, at + size) for at, size in self.blocks.taken.items())
        spans = sorted([*spans, *_free_of(self.blocks)])
        for (_, end), (start, _) in pairwise(spans):
            assert end == start

    @invariant()
    def the_tail_is_the_last_free_block(self):
        free = self._free()
        size, tags = 0, frozenset()
        if free and free[-1][1] == len(self.units):
            first, end, tags = free[-1]
            size = (end - first) * ALIGNMENT
        tail = self.blocks._by_end.get(self.blocks.end)
        assert (tail.end - tail.start, tail.tags) == (size, tags) if tail else not size


BlocksMachine.TestCase.settings = settings(stateful_step_count=30)
TestBlocks = BlocksMachine.TestCase


def test_a_block_is_given_back_once():
    """Giving back what is not taken is a broken law, by address."""
    blocks = Blocks(Addr(START), Addr(2 * START))
    blocks.grow(Size(ALIGNMENT))
    address, _ = blocks.take(Size(1))
    blocks.give(address)
    with pytest.raises(InternalError, match="0x10_0000"):
        blocks.give(address)


def test_a_block_without_bytes_has_an_address_of_its_own():
    """Two blocks of no bytes do not share an address."""
    blocks = Blocks(Addr(START), Addr(2 * START))
    blocks.grow(Size(2 * ALIGNMENT))
    assert blocks.take(Size(0))[0] != blocks.take(Size(0))[0]
    assert blocks.take(Size(0)) is None
