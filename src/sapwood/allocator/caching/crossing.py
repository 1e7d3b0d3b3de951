"""Blocks of other streams, which serve once the device has ordered their uses.

Blocks that wait for other streams are free to their own as soon as that has waited,
and free blocks of one stream to another. What is over already is better than what
has to be waited for. All here is called under the lock, and leaves it for driver calls.
"""

from __future__ import annotations

from sapwood.allocator.caching.bins import Bin
from sapwood.allocator.caching.block import Block
from sapwood.allocator.caching.gate import Gate
from sapwood.allocator.caching.pending import Use
from sapwood.allocator.caching.state import Demand
from sapwood.allocator.caching.waits import wait
from sapwood.units import Addr


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
    unmarked = pending.take_unmarked([b for b in pending.unmarked if is_alike(b)])
    ordered: list[Use] = []
    pending.watch(marked)
    try:
        with gate.unlocked() as driver:
            for use in (*marked, *unmarked):
                own = use.block.segment.bin.stream
                if use.event is not None:
                    driver.wait_event(own, use.event)
                elif use.stream != own:
                    pending.order(driver, own, use.stream)
                ordered.append(use)
    finally:
        pending.end(ordered)
        pending.unwatch(marked)
        pending.keep(unmarked)
        gate.state.retire_ready()


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
