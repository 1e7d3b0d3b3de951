"""All that one allocator knows, and the steps between its states that cannot fail.

Called under the allocator's lock. A block is *taken* from its bin, *given* back,
and *retired* when nobody can be using it any more.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import dropwhile
from pathlib import Path
from typing import cast

from sapwood.allocator.caching.blocks import (
    ALLOCATED,
    FREE,
    PENDING,
    Bin,
    Block,
    Blocks,
    Pools,
    Segment,
    split,
)
from sapwood.allocator.caching.pending import Pending, captured
from sapwood.allocator.caching.picture import (
    Action,
    BlockPicture,
    BlockState,
    Picture,
    SegmentPicture,
)
from sapwood.allocator.caching.records.history import (
    NO_STACK,
    History,
    HistoryOptions,
    Stack,
    gather,
)
from sapwood.allocator.caching.records.ledger import JOURNAL_LIMIT, Ledger
from sapwood.allocator.caching.segments import Segments
from sapwood.allocator.caching.settings import Settings
from sapwood.allocator.caching.sizes import GRAIN
from sapwood.driver.api import Driver, StreamHandle
from sapwood.errors import MisuseError
from sapwood.units import Addr, Size, hex_address

_HERE = str(Path(__file__).parent)


@dataclass(frozen=True, slots=True)
class Demand:
    """What is asked for: ``size`` bytes on a stream, a block of ``need`` from a bin.

    ``stack`` is where from, if the history wants to know.
    """

    size: Size
    need: Size
    stream: StreamHandle
    bin: Bin
    stack: Stack = NO_STACK


class State:
    """Blocks, pools, segments, counters and history of one allocator.

    ``total`` is the device's memory, in bytes. ``history`` is None while nothing is
    recorded; ``past`` has then what was. ``quiet`` are streams that were seen not to
    be recording, by whoever holds the lock.
    """

    def __init__(self, driver: Driver, settings: Settings) -> None:
        self.driver, self.settings = driver, settings
        self.page = driver.abilities.page
        self.blocks: Blocks = {}
        self.pools = Pools()
        self.segments = Segments(driver, self.blocks)
        self.pending = Pending[Block]()
        self.ledger = Ledger()
        self.history: History | None = None
        self.past = History(HistoryOptions())
        self.closed = False
        self.quiet: Collection[StreamHandle] = ()
        self.total = driver.memory_info().total

    @property
    def limit(self) -> Size:
        """What this allocator may hold of it."""
        return Size(int(self.settings.per_process_memory_fraction * self.total))

    @property
    def room(self) -> int:
        """What it may still get; nothing is below 0."""
        return max(self.limit - self.segments.held - self.segments.away, 0)

    def stack_of(self, action: Action) -> Stack:
        """Return where an action comes from, if the history wants to know.

        That is the caller's stack without the allocator's own functions.
        """
        history = self.history
        if history is None or not history.wants_stack(action):
            return NO_STACK
        places = gather().places
        others = dropwhile(lambda at: at[0].co_filename.startswith(_HERE), places)
        return Stack(tuple(others))

    def note(
        self,
        action: Action,
        address: int,
        size: int,
        bin_: Bin,
        stack: Stack = NO_STACK,
    ) -> None:
        """Tell the history."""
        if self.history is not None:
            if stack is NO_STACK:
                stack = self.stack_of(action)
            pool = bin_.pool.id
            self.history.record(action, address, size, bin_.stream, pool, stack)

    def note_picture(self) -> None:
        """Tell the history that a picture was made, and how much was active then."""
        if self.history is None:
            return
        stack = self.stack_of("snapshot")
        active = self.ledger.read().total.active_bytes.current
        self.history.record("snapshot", 0, active, StreamHandle(0), stack=stack)

    def capturing(self) -> bool:
        """Whether a capture is under way whose memory comes from here.

        That is: a stream that is routed to a capture's pool, or has memory of it, is
        recording, for all that is known; or nothing is known of that pool's streams.
        """
        return any(not known or known - {*self.quiet} for known in self.captures())

    def captures(self) -> list[set[StreamHandle]]:
        """Return the streams of each capture that is routed to a pool."""
        return [
            {bin_.stream for bin_ in route.pool.bins()}
            if route.stream is None
            else {route.stream}
            for route in self.pools.routes
            if route.pool.capture
        ]

    # Settings decide what may be split.

    def refresh(self, bin_: Bin) -> None:
        """Say again whether the short way serves a bin."""
        bin_.plain = (
            self.settings.max_split_size is None
            and not bin_.pool.no_split
            and all(segment.expandable for segment in bin_.segments)
        )

    def configure(self, settings: Settings) -> None:
        """Put settings in force; what is oversize is counted anew."""
        self.settings, ledger = settings, self.ledger
        bins = self.pools.bins()
        for bin_ in bins:
            self.refresh(bin_)
        held = [b.size for b in self.blocks.values() if b.state is ALLOCATED]
        large = sum(map(self._is_oversize, held))
        ledger.oversize_allocations.add(large - ledger.oversize_allocations.current)
        classic = [s.size for b in bins for s in b.segments if not s.expandable]
        large = sum(map(self._is_oversize, classic))
        ledger.oversize_segments.add(large - ledger.oversize_segments.current)

    def _is_oversize(self, size: int) -> bool:
        most = self.settings.max_split_size
        return most is not None and size > most

    def _least_rest(self, block: Block, need: int) -> int | None:
        bin_ = block.segment.bin
        if bin_.pool.no_split:
            return None
        if self.settings.expandable_segments or bin_.size_class == "small":
            return GRAIN
        return None if self._is_oversize(need) else (1 << 20) + 1

    def fit(self, bin_: Bin, need: int) -> Block | None:
        """Return the best free block, if there is one that may serve."""
        bin_.searches += 1
        most: int | None = self.settings.max_split_size
        if self._is_oversize(need):
            most = need + self.settings.max_non_split_rounding - 1
        for block in bin_.fits(need):
            if bin_.pool.no_split and block.segment.whole() is None:
                continue
            if most is None or block.segment.expandable or block.size <= most:
                return block
        return None

    # Blocks change hands.

    def take(self, block: Block, demand: Demand) -> Addr:
        """Let a free block be allocated; what is too much of it stays free."""
        bin_, least = block.segment.bin, self._least_rest(block, demand.need)
        self.count_split(block, -1)
        bin_.remove(block)
        block.state = ALLOCATED
        if least is not None and block.size - demand.need >= least:
            rest = split(self.blocks, block, demand.need)
            rest.state = FREE
            bin_.add(rest)
            self.count_split(rest, 1)
        block.requested, block.stack = demand.size, demand.stack
        if bin_.stream != demand.stream:
            block.users, block.guest = {demand.stream}, True
        self._count_use(bin_, block.size, demand.size, block.size)
        self._count_oversize(block, 1)
        self.note("alloc", block.address, demand.size, bin_, demand.stack)
        return block.address

    def give(self, block: Block) -> None:
        """Let an allocated block be free, or pending if other streams use it."""
        bin_ = block.segment.bin
        self.note("free_requested", block.address, block.requested, bin_)
        self._count_oversize(block, -1)
        if block.users:
            self._count_use(bin_, -block.size, 0, 0)
            block.state = PENDING
            self.pending.unmarked[block] = {*block.users}
        else:
            self._count_use(bin_, -block.size, -block.requested, -block.size)
            self._free(block)

    def retire_ready(self) -> None:
        """Let the pending blocks be free that wait for nothing any more."""
        for block in self.pending.take_ready():
            self._count_use(block.segment.bin, 0, -block.requested, -block.size)
            self._free(block)

    def _free(self, block: Block) -> None:
        bin_ = block.segment.bin
        self.note("free_completed", block.address, block.requested, bin_)
        for neighbour in (block.prev, block.next):
            if neighbour.state is FREE:
                self.count_split(neighbour, -1)
        block.users, block.guest = None, False
        block = bin_.join(block, self.blocks, [])
        if block.next is block.prev:
            block.segment.idle_since = bin_.searches
        self.count_split(block, 1)

    # Blocks that several streams use: given back, waited for, handed on.

    def held(self, address: int) -> Block:
        """Return the block that somebody holds at an address; raises `MisuseError`."""
        block = self.blocks.get(address)
        if block is not None and block.state is ALLOCATED:
            return block
        if block is not None:
            raise freed_twice(address)
        around = self._around(address)
        if around is None:
            raise MisuseError(
                f"{hex_address(address)} is no address of this allocator. Free what "
                "its own malloc returned"
            )
        raise MisuseError(
            f"no block begins at {hex_address(address)}: it lies in the "
            f"{around.state.value} block at {hex_address(around.address)}. Free what "
            "malloc returned"
        )

    def held_around(self, address: int) -> Block:
        """Return the held block that an address lies in; raises `MisuseError`."""
        block = self.blocks.get(address) or self._around(address)
        if block is None or block.state is not ALLOCATED:
            return self.held(address)
        return block

    def _around(self, address: int) -> Block | None:
        segment = self.segments.containing(address)
        if segment is None:
            return None
        return next(b for b in segment.blocks() if address < b.end)

    def use(self, block: Block, stream: StreamHandle) -> None:
        """Remember that a stream uses a block; its own does anyway."""
        if stream == block.segment.bin.stream and not block.guest:
            return
        if self.capturing() and stream not in self.quiet:
            stream = captured(stream)
        block.users = {*(block.users or ()), stream}

    def bequeath(self, stream: StreamHandle, successor: StreamHandle) -> None:
        """Let everything of a stream that is gone be its successor's."""
        if stream == successor:
            return
        self.ledger.settle()
        for pool in self.pools.all.values():
            for bins in (pool.small, pool.large):
                bin_ = bins.pop(stream, None)
                if bin_ is not None:
                    self._join(bin_, bins.setdefault(successor, bin_), successor)
        self.pending.rename(stream, successor)
        for block in list(self.blocks.values()):
            if block.users and not block.users.isdisjoint({stream, successor}):
                self._rename_user(block, stream, successor)
        self.ledger.bequeath(stream, successor)

    def _rename_user(
        self, block: Block, stream: StreamHandle, successor: StreamHandle
    ) -> None:
        users = {successor if user == stream else user for user in block.users or ()}
        if block.segment.bin.stream == successor and successor in users:
            # What is ordered before the successor is ordered before its own blocks'
            # reuse.
            users.discard(successor)
            block.guest = False
        if block.state is PENDING and not users:
            self.pending.forget(block)
            self.retire_ready()
        else:
            block.users = users or None

    def _join(self, bin_: Bin, into: Bin, successor: StreamHandle) -> None:
        """Let a bin be the successor's, or its bin there have all of this one."""
        if into is bin_:
            bin_.stream = successor
            return
        for segment in bin_.segments:
            segment.bin = into
            into.segments[segment] = None
        for block in bin_.blocks():
            # Who waits without the lock may know the old bin yet: nothing is in it.
            bin_.remove(block)
            into.add(block)
        self.refresh(into)

    # Counters.

    def _count_use(self, bin_: Bin, size: int, asked: int, held: int) -> None:
        uses = self.ledger.uses
        uses.append((bin_, size, asked, held))
        if len(uses) >= JOURNAL_LIMIT:
            self.ledger.settle()

    def count_split(self, block: Block, sign: int) -> None:
        """Count a free block that is a part of a classic segment, or no more."""
        segment = block.segment
        if not segment.expandable and block.next is not block.prev:
            self.ledger.splits.append((segment.bin, sign * block.size))

    def _count_oversize(self, block: Block, sign: int) -> None:
        if self._is_oversize(block.size):
            self.ledger.oversize_allocations.add(sign)

    def count_segment(self, segment: Segment, sign: int) -> None:
        """Count a segment that was opened, or became classic, or the reverse."""
        self.refresh(segment.bin)
        if not segment.expandable:
            self.ledger.change(segment.bin, "segment", sign)
            if self._is_oversize(segment.size):
                self.ledger.oversize_segments.add(sign)

    # What all of it looks like.

    def picture(self, index: int, free: Size, *, history: bool = True) -> Picture:
        """Return the allocator as plain values; ``free`` is the device's free memory.

        ``index`` is the device's number.
        """
        bins = self.pools.bins()
        segments = [_drawn(segment) for bin_ in bins for segment in bin_.segments]
        told = self.history if history else None
        return Picture(
            device=index,
            total=self.total,
            free=free,
            limit=self.limit,
            segments=tuple(sorted(segments, key=lambda segment: segment.address)),
            pools=tuple(pool.picture() for pool in self.pools.all.values()),
            settings=self.settings.plain(),
            history=() if told is None else told.entries(),
        )


def freed_twice(address: int) -> MisuseError:
    """Return what is said of a block that is free already."""
    return MisuseError(
        f"the block at {hex_address(address)} is free already. Free what malloc "
        "returned once, and do not use it afterwards"
    )


def _drawn(segment: Segment) -> SegmentPicture:
    return SegmentPicture(
        address=segment.address,
        size=segment.size,
        stream=segment.bin.stream,
        size_class=segment.bin.size_class,
        pool=segment.bin.pool.id,
        expandable=segment.expandable,
        blocks=tuple(_drawn_block(block) for block in segment.blocks()),
        extents=tuple((extent.address, extent.size) for extent in segment.extents),
        frames=segment.stack.frames(),
    )


def _drawn_block(block: Block) -> BlockPicture:
    return BlockPicture(
        address=block.address,
        size=Size(block.size),
        requested=Size(block.requested),
        state=cast("BlockState", block.state.value),
        users=tuple(sorted(s if s >= 0 else captured(s) for s in block.users or ())),
        frames=block.stack.frames(),
    )
