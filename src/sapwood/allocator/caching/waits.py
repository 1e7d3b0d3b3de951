"""What freed blocks wait for: decided under the lock, waited for without it.

A stream may be gone while somebody waits, an event of one's own may not: so what a
stream has to do is marked first, and the marks are waited for. Blocks of other streams
serve as soon as the device has ordered their uses: what is over already is better than
what has to be waited for. `mark`, `poll`, `wait` and `borrow` are called under the
lock, and leave it for their driver calls.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Final

from sapwood.allocator.caching.blocks import Bin, Block, Pool
from sapwood.allocator.caching.gate import Gate
from sapwood.allocator.caching.pending import Use, record
from sapwood.allocator.caching.state import Demand, State
from sapwood.driver.api import Driver, EventHandle, StreamHandle
from sapwood.driver.release import Release
from sapwood.units import Addr

_AT_ONCE: Final = 16
"""So many marks of a stream are asked about before the books are written."""


def unmarked(state: State) -> list[Block]:
    """Return the freed blocks whose uses are to be marked now.

    Events mean nothing while anything is captured; and where blocks of other streams
    are reused, the waits are made when they are.
    """
    if state.settings.cross_stream_reuse or not state.pending.unmarked:
        return []
    return [] if state.capturing() else list(state.pending.unmarked)


@contextmanager
def _ending(
    gate: Gate, marked: Collection[Use[Block]] = (), taken: Collection[Use[Block]] = ()
) -> Iterator[list[Use[Block]]]:
    """Write the books after driver calls about uses: those in the list are over.

    The events of ``marked`` ones stay as they are until then. Those that were
    ``taken`` go back as far as they are not over.
    """
    pending = gate.state.pending
    # Not `list[Use[Block]]()`: from Python 3.12 on that imports `typing`, which fails
    # while the interpreter ends, and finalisers come here.
    over: list[Use[Block]] = []
    pending.watch(marked)
    try:
        yield over
    finally:
        pending.end(over)
        pending.unwatch(marked)
        pending.keep(taken)
        gate.state.retire_ready()


def mark(gate: Gate, blocks: Collection[Block]) -> None:
    """Record events of the uses of freed blocks, which wait for these.

    Where one cannot be recorded, the use is unmarked again, and the others are.
    """
    pending = gate.state.pending
    uses = pending.take_unmarked(blocks)

    def marked(driver: Driver, use: Use[Block]) -> None:
        use.event = record(driver, use.stream, pending.spare)

    with Release() as release, _ending(gate, taken=uses), gate.unlocked() as driver:
        for use in uses:
            release(marked, driver, use)


def poll(gate: Gate) -> None:
    """Free the blocks that wait for nothing any more; waits for nobody.

    Asks about the events of each stream, until one is not over.
    """
    asking = True
    while asking:
        queues = gate.state.pending.queues()
        heads = [tuple(islice(queue, _AT_ONCE)) for queue in queues]
        with _ending(gate) as over, gate.unlocked() as driver:
            for uses in heads:
                for use in uses:
                    if not _is_over(driver, use):
                        break
                    over.append(use)
        asking = not {uses[-1] for uses in heads}.isdisjoint(over)


def _is_over(driver: Driver, use: Use[Block]) -> bool:
    return use.event is not None and driver.query_event(use.event)


def attend(gate: Gate) -> None:
    """Mark freed blocks, and free those that wait for nothing any more."""
    if not gate.state.pending:
        return
    with gate.observed() as state:
        if state.capturing():
            return
        blocks = unmarked(state)
        if blocks:
            mark(gate, blocks)
        poll(gate)


def settle(gate: Gate, pool: Pool | None = None) -> None:
    """Wait for what freed blocks, of one pool or all, wait for; they are free."""
    if not gate.state.pending:
        return
    with gate.entered() as state:
        mark(gate, list(state.pending.unmarked))
    gate.outlast()
    with gate.entered() as state:
        state.ledger.happened["num_sync_all_streams"] += bool(state.pending)
        marks = state.pending.marked()
        if pool is not None:
            marks = [use for use in marks if use.block.segment.bin.pool is pool]
        wait(gate, marks=marks)


def wait(
    gate: Gate,
    streams: Iterable[StreamHandle] = (),
    marks: Collection[Use[Block]] = (),
    *,
    patient: bool = True,
) -> set[StreamHandle]:
    """Wait for marked uses and for streams; return the streams that had no work.

    Unless ``patient``, streams are asked only. More work may come meanwhile: who then
    unmaps waits again, but not for long.
    """
    pending = gate.state.pending
    over, events = set[StreamHandle](), list[EventHandle]()
    with _ending(gate, marks) as ended:
        try:
            with gate.unlocked() as driver:
                for stream in dict.fromkeys(streams):
                    if driver.query_stream(stream):
                        over.add(stream)
                    elif patient:
                        events.append(record(driver, stream, pending.spare))
            with gate.unlocked(waiting=True) as driver:
                for use in marks:
                    if use.event is not None:
                        driver.synchronize_event(use.event)
                    ended.append(use)
                for event in events:
                    driver.synchronize_event(event)
        finally:
            pending.spare += events
    return over


# Blocks of other streams.


def borrow(gate: Gate, demand: Demand) -> Addr | None:
    """Return a block that is free once its stream has waited for others."""
    state, bin_ = gate.state, demand.bin
    if state.pending:
        _order_uses(gate, demand)
    block = state.fit(bin_, demand.need)
    if block is not None:
        return state.take(block, demand)
    asked = [each.stream for each in _others(bin_)]
    if not asked:
        return None
    over = wait(gate, asked, patient=False)
    block = state.fit(bin_, demand.need)
    if block is not None:
        return state.take(block, demand)
    fits = [state.fit(each, demand.need) for each in _others(bin_)]
    best = min(
        (block for block in fits if block is not None),
        key=lambda b: (b.segment.bin.stream not in over, b.size, b.address),
        default=None,
    )
    return None if best is None else _lend(gate, best, demand)


def _others(bin_: Bin) -> list[Bin]:
    """Return the bins of other streams that a demand of a bin may borrow from."""
    bins = bin_.pool.of_class(bin_.size_class).values()
    return [each for each in bins if each is not bin_ and not each.is_empty()]


def _order_uses(gate: Gate, demand: Demand) -> None:
    """Let streams wait, on the device, for the uses of their pending blocks.

    Those of the demand's pool and class: they are free, as far as it was done.
    """
    pending, home = gate.state.pending, demand.bin

    def is_alike(block: Block) -> bool:
        bin_ = block.segment.bin
        return bin_.pool is home.pool and bin_.size_class == home.size_class

    marked = [use for use in pending.marked() if is_alike(use.block)]
    taken = pending.take_unmarked([b for b in pending.unmarked if is_alike(b)])
    with _ending(gate, marked, taken) as ordered, gate.unlocked() as driver:
        for use in (*marked, *taken):
            own = use.block.segment.bin.stream
            if use.event is not None:
                driver.wait_event(own, use.event)
            elif use.stream != own:
                pending.order(driver, own, use.stream)
            ordered.append(use)


def _lend(gate: Gate, block: Block, demand: Demand) -> Addr:
    """Take another stream's block; the device orders what that still does with it."""
    earlier = block.segment.bin.stream
    gate.state.take(block, demand)
    try:
        with gate.unlocked() as driver:
            if not driver.query_stream(earlier):
                gate.state.pending.order(driver, demand.stream, earlier)
    except BaseException:
        # Nobody has used it.
        block.users = None
        gate.state.give(block)
        raise
    return block.address
