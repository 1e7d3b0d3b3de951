"""The ledger: folding a journal late is counting at once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sapwood.allocator.caching.blocks import Pools
from sapwood.allocator.caching.records.ledger import Ledger

USES = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9), st.booleans()))


def _bins():
    pool = Pools().default
    return [
        pool.bin(stream, size_class)
        for stream in (1, 2)
        for size_class in ("small", "large")
    ]


class Slow:
    """Counts at once, one counter for one scope."""

    def __init__(self):
        self.now = self.peak = self.up = self.down = 0

    def add(self, delta):
        self.now += delta
        self.peak = max(self.peak, self.now)
        self.up, self.down = self.up + max(delta, 0), self.down + max(-delta, 0)

    def __eq__(self, tally):
        return (self.now, self.peak, self.up, self.down) == tuple(tally)

    __hash__ = None


@given(USES, st.integers(1, 7))
def test_folding_late_is_counting_at_once(uses, every):
    """Current, peak, rises and falls are exact in each scope, whenever it is folded."""
    bins, ledger, slow = _bins(), Ledger(), {}
    held = []
    for number, (wanted, asked, frees) in enumerate(uses):
        if frees and held:
            bin_, size, sign = *held.pop(), -1
        else:
            bin_, size, sign = wanted, asked, 1
            held.append((bin_, size))
        home = bins[bin_]
        ledger.uses.append((home, sign * size * 512, sign * size, sign * size * 512))
        for scope in ("all", home.size_class, home.stream):
            counts = slow.setdefault(scope, [Slow(), Slow(), Slow()])
            for count, delta in zip(counts, (1, size * 512, size), strict=True):
                count.add(sign * delta)
        if number % every == 0:
            ledger.settle()
    read = ledger.read()
    scopes = {"all": read.total, **read.classes, **read.streams}
    for scope, (number, bytes_, asked) in slow.items():
        account = scopes[scope]
        assert number == account.allocation
        assert number == account.active
        assert bytes_ == account.allocated_bytes
        assert bytes_ == account.active_bytes
        assert asked == account.requested_bytes


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 9), st.integers(0, 3))))
def test_what_waits_is_counted_in_order(steps):
    """Peaks are exact where blocks are freed first, and over later."""
    bins, ledger = _bins(), Ledger()
    slow = {name: Slow() for name in ("allocation", "active", "asked")}
    held, waiting = [], []
    for wanted, asked, choice in steps:
        if choice == 0 and waiting:
            bin_, size = waiting.pop(0)
            entry = (bin_, 0, -size, -size * 512)
            deltas = {"active": -1, "asked": -size}
        elif choice == 1 and held:
            bin_, size = held.pop()
            waiting.append((bin_, size))
            entry, deltas = (bin_, -size * 512, 0, 0), {"allocation": -1}
        elif choice == 2 and held:
            bin_, size = held.pop(0)
            entry = (bin_, -size * 512, -size, -size * 512)
            deltas = {"allocation": -1, "active": -1, "asked": -size}
        else:
            bin_, size = bins[wanted], asked
            held.append((bin_, size))
            entry = (bin_, size * 512, size, size * 512)
            deltas = {"allocation": 1, "active": 1, "asked": size}
        ledger.uses.append(entry)
        for name, delta in deltas.items():
            slow[name].add(delta)
    total = ledger.read().total
    assert slow["allocation"] == total.allocation
    assert slow["active"] == total.active
    assert slow["asked"] == total.requested_bytes


def test_a_block_that_waits_is_active_and_not_allocated():
    """It leaves one counter when it is freed, and the other when it is done."""
    (home, *_), ledger = _bins(), Ledger()
    ledger.uses += [(home, 512, 9, 512), (home, -512, 0, 0)]
    total = ledger.read().total
    assert (total.allocation.current, total.active.current) == (0, 1)
    assert (total.requested_bytes.current, total.active_bytes.current) == (9, 512)
    ledger.uses.append((home, 0, -9, -512))
    total = ledger.read().total
    assert (total.active.current, total.requested_bytes.current) == (0, 0)


def test_a_successor_goes_on_counting():
    """What a stream that is gone had is its successor's; nothing is counted twice."""
    bins, ledger = _bins(), Ledger()
    ledger.uses += [(bins[0], 512, 1, 512), (bins[2], 1024, 1, 1024)]
    ledger.bequeath(1, 2)
    read = ledger.read()
    assert read.streams.keys() == {2}
    assert read.streams[2].allocated_bytes.current == 1536
    assert read.total.allocated_bytes.current == 1536


def test_resets_forget_what_they_say():
    """Peaks become what is current; rises and falls begin at nothing."""
    (home, *_), ledger = _bins(), Ledger()
    ledger.uses += [(home, 512, 1, 512), (home, 512, 1, 512), (home, -512, -1, -512)]
    ledger.reset_peaks()
    total = ledger.read().total.allocated_bytes
    assert (total.current, total.peak, total.allocated) == (512, 512, 1024)
    ledger.reset_accumulated()
    total = ledger.read().total.allocated_bytes
    assert (total.current, total.peak, total.allocated, total.freed) == (512, 512, 0, 0)
