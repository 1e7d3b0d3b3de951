"""What is tried for a request that nothing free serves, and in which order."""

from __future__ import annotations

from itertools import product

import pytest

from sapwood.allocator.caching.serve import Attempt, attempts
from sapwood.allocator.caching.settings import DEFAULT
from sapwood.errors import OutOfMemory

MIB = 1 << 20
SHARE = 24 * MIB
CLASSIC = DEFAULT.replace(expandable_segments=False)
ORDER = [
    Attempt.FIT,
    Attempt.BORROW,
    Attempt.COLLECT,
    Attempt.GROW,
    Attempt.RECLAIM,
    Attempt.SPARE,
    Attempt.OWN,
    Attempt.SETTLE,
    Attempt.OTHERS,
    Attempt.REMAP,
]
"""From what costs nobody anything to what everybody pays for."""

WAITS = {*ORDER[1:3], *ORDER[6:]}
"""What waits for work, or gives up what a capture may have seen."""


@pytest.mark.parametrize(
    ("private", "capturing", "limited", "crossing", "threshold"),
    list(product([False, True], repeat=5)),
)
def test_the_order_is_one(private, capturing, limited, crossing, threshold):
    """Settings and circumstances leave attempts out; they never change places."""
    chosen = DEFAULT.replace(
        cross_stream_reuse=crossing,
        garbage_collection_threshold=0.5 if threshold else 0.0,
    )
    left_out = WAITS if capturing else set()
    left_out = left_out | ({Attempt.SPARE} if private else set())
    left_out |= set() if crossing else {Attempt.BORROW}
    left_out |= set() if threshold and limited else {Attempt.COLLECT}
    found = attempts(chosen, private=private, capturing=capturing, limited=limited)
    assert list(found) == [each for each in ORDER if each not in left_out]


class Stocks:
    """A full device: what serves five requests, each by another attempt."""

    def __init__(self, rig):
        self.rig, self.allocator = rig, rig.allocator
        self.own, self.user, self.other = (rig.stream() for _ in range(3))
        self.offered = [self._held(SHARE, self.own)]
        self.pending = self._held(SHARE, self.own)
        halves = [self._held(SHARE // 2, self.own) for _ in range(2)]
        cached = self._held(SHARE, self.other)
        self.live = self._held(SHARE + 8 * MIB, self.own)
        self.allocator.on_pressure(self._reclaim)
        self.allocator.record_stream(self.pending, self.user)
        rig.busy.keep(self.user, seconds=0.3)
        for address in (self.pending, *halves, cached):
            self.allocator.free(address)

    def _held(self, size, stream):
        return self.allocator.malloc(size, stream)

    def _reclaim(self, _):
        if self.offered:
            self.allocator.free(self.offered.pop())
            return True
        return False

    def left(self):
        """Return which stocks are untouched, in the order in which they should go."""
        blocks = {
            (block.state, segment.stream, block.size)
            for segment in self.allocator.picture().segments
            for block in segment.blocks
        }
        stocks = {
            "own": ("free", self.own, SHARE // 2),
            "pending": ("pending", self.own, SHARE),
            "others": ("free", self.other, SHARE),
        }
        offered = ["offered"] if self.offered else []
        return offered + [name for name, what in stocks.items() if what in blocks]


def test_each_stock_goes_when_those_before_it_are_gone(make_rig):
    """Observers, the own cache, pending blocks, other streams; then an error."""
    stocks = Stocks(make_rig(settings=CLASSIC))
    order, told = ["offered", "own", "pending", "others"], []
    stocks.allocator.on_out_of_memory(lambda *what: told.append(what))
    for gone in range(4):
        assert stocks.left() == order[gone:]
        stocks.allocator.malloc(SHARE, stocks.own)
        counters = stocks.allocator.counters()
        assert counters.num_sync_all_streams == (gone >= 2)
        assert counters.num_alloc_retries == (gone >= 3)
    assert stocks.left() == told == []
    with pytest.raises(OutOfMemory):
        stocks.allocator.malloc(SHARE, stocks.own)
    assert [asked for _, asked, _, _ in told] == [SHARE]
