"""Blocks that several streams use: given back, waited for, handed on."""

from __future__ import annotations

from sapwood.allocator.caching.bins import Bin
from sapwood.allocator.caching.block import ALLOCATED, PENDING, Block
from sapwood.allocator.caching.pending import captured
from sapwood.allocator.caching.state import State
from sapwood.driver.api import StreamHandle
from sapwood.errors import MisuseError
from sapwood.units import hex_address


def held(state: State, address: int) -> Block:
    """Return the block that somebody holds at an address; raises `MisuseError`."""
    block = state.blocks.get(address)
    if block is not None and block.state is ALLOCATED:
        return block
    if block is not None:
        raise freed_twice(address)
    around = _around(state, address)
    if around is None:
        raise MisuseError(
            f"{hex_address(address)} is no address of this allocator. Free what its "
            "own malloc returned"
        )
    raise MisuseError(
        f"no block begins at {hex_address(address)}: it lies in the "
        f"{around.state.value} block at {hex_address(around.address)}. Free what "
        "malloc returned"
    )


def freed_twice(address: int) -> MisuseError:
    """Return what is said of a block that is free already."""
    return MisuseError(
        f"the block at {hex_address(address)} is free already. Free what malloc "
        "returned once, and do not use it afterwards"
    )


def _around(state: State, address: int) -> Block | None:
    segment = state.segments.containing(address)
    if segment is None:
        return None
    return next(b for b in segment.blocks() if address < b.end)


def block_around(state: State, address: int) -> Block:
    """Return the held block that an address lies in; raises `MisuseError`."""
    block = state.blocks.get(address) or _around(state, address)
    if block is None or block.state is not ALLOCATED:
        return held(state, address)
    return block


def use(state: State, block: Block, stream: StreamHandle) -> None:
    """Remember that a stream uses a block; its own does anyway."""
    if stream == block.segment.bin.stream and not block.guest:
        return
    if state.capturing() and stream not in state.quiet:
        stream = captured(stream)
    block.users = {*(block.users or ()), stream}


def bequeath(state: State, stream: StreamHandle, successor: StreamHandle) -> None:
    """Let everything of a stream that is gone be its successor's."""
    if stream == successor:
        return
    state.ledger.settle()
    for pool in state.pools.all.values():
        for bins in (pool.small, pool.large):
            bin_ = bins.pop(stream, None)
            if bin_ is not None:
                _join(state, bin_, bins, successor)
    state.pending.rename(stream, successor)
    for block in list(state.blocks.values()):
        if block.users and not block.users.isdisjoint({stream, successor}):
            _rename_user(state, block, stream, successor)
    state.ledger.bequeath(stream, successor)


def _rename_user(
    state: State, block: Block, stream: StreamHandle, successor: StreamHandle
) -> None:
    users = {successor if user == stream else user for user in block.users or ()}
    if block.segment.bin.stream == successor and successor in users:
        # What is ordered before the successor is ordered before its own blocks' reuse.
        users.discard(successor)
        block.guest = False
    if block.state is PENDING and not users:
        state.pending.forget(block)
        state.retire_ready()
    else:
        block.users = users or None


def _join(
    state: State, bin_: Bin, bins: dict[StreamHandle, Bin], successor: StreamHandle
) -> None:
    into = bins.get(successor)
    if into is None:
        bin_.stream = successor
        bins[successor] = bin_
        return
    for segment in bin_.segments:
        segment.bin = into
        into.segments[segment] = None
    for block in bin_.blocks():
        # Who waits without the lock may know the old bin yet: nothing is in it.
        bin_.remove(block)
        into.add(block)
    state.refresh(into)
