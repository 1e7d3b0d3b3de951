"""A state machine of the caching allocator: everything that may happen to it.

`Caching` makes a small device on any driver and a few streams, and writes everything
that it is given; whatever overlaps, is reused too early or is unmapped too soon shows
in the bytes, and the books are compared with the device after each step.
Needs Hypothesis.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Final

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from sapwood.allocator.caching.picture import DEFAULT_POOL, Picture, PoolId
from sapwood.allocator.caching.settings import DEFAULT
from sapwood.driver.api import Driver, StreamHandle
from sapwood.driver.emulated import Emulated
from sapwood.errors import DriverError, InternalError, MisuseError, OutOfMemory
from sapwood.units import Addr, Size, align_up
from tests.support.caching_rig import CachingRig, allocated, fixed_bytes
from tests.support.machine import Machine

__all__ = ["Caching", "Owned", "small_caching_device"]

_KIB: Final = 1 << 10
_MIB: Final = 1 << 20
_HELD: Final = 6
_POOLS: Final = 2
_STREAMS: Final = 3


def small_caching_device(schedule: str, total: int, page: int) -> Driver:
    """Return an emulated device of so many bytes, in pages of so many."""
    return Emulated(Size(total), Size(page), schedule)


@dataclass(slots=True, eq=False)
class Owned:
    """A block that somebody holds: what its bytes are, and who wrote them last."""

    address: Addr
    size: int
    stream: StreamHandle
    writer: StreamHandle
    value: int
    pool: PoolId


_place = st.integers(0, 11)
"""Picks one of however many there are."""
_stream = st.integers(0, _STREAMS - 1)
_streams = st.permutations(range(_STREAMS))
_size = st.sampled_from(
    [
        1,
        512,
        1300,
        300 * _KIB,
        _MIB,
        _MIB + 1,
        2 * _MIB,
        3 * _MIB + 7,
        9 * _MIB,
        10 * _MIB,
        13 * _MIB,
    ]
)
_pool = st.sampled_from([None, None, None, 0, 1])
_texts = st.sampled_from(
    [
        "expandable_segments:True",
        "expandable_segments:False",
        "expandable_segments:False,max_split_size_mb:22",
        "expandable_segments:True,max_split_size_mb:20",
        "expandable_segments:True,roundup_power2_divisions:4",
        "expandable_segments:False,garbage_collection_threshold:0.3",
        "expandable_segments:True,cross_stream_reuse:True",
        "expandable_segments:False,cross_stream_reuse:True",
    ]
)


class Caching(Machine):
    """Everything that may happen to an allocator, with the contents of its blocks.

    Subclass it and set ``driver``: given a schedule, a total and a page, it opens a
    device. Raises `InternalError` for a broken law, `DriverError` where the device
    notices first.
    """

    driver: Callable[[str, int, int], Driver] = staticmethod(small_caching_device)

    @initialize(
        schedule=st.sampled_from(["latest", "random:3", "latest", "earliest"]),
        total=st.sampled_from([24 * _MIB, 48 * _MIB]),
        page=st.sampled_from([2 * _MIB, 64 * _KIB]),
        text=_texts,
    )
    def begin(self, schedule: str, total: int, page: int, text: str) -> None:
        """Open a device."""
        self.rig = CachingRig(
            type(self).driver(schedule, total, page),
            DEFAULT.revised(text),
            total=Size(total),
        )
        self.begun()
        self.allocator = self.rig.allocator
        self.total, self.page, self.limit = total, page, total
        self.streams = [self.rig.stream() for _ in range(_STREAMS)]
        self.owned: list[Owned] = []
        self.gone: list[Addr] = []
        self.pools: list[PoolId] = []
        self.lenders: list[PoolId] = []
        self.routes: list[PoolId] = []
        self.written = 0
        self.reserved = 0

    # Blocks.

    @rule(size=_size, stream=_stream, pool=_pool)
    def allocate(self, size: int, stream: int, pool: int | None) -> None:
        """Make a block and write it; the oldest goes where there are too many."""
        self._allocate(size, self.streams[stream], pool)
        self._keep_few()

    def _keep_few(self) -> None:
        while len(self.owned) > _HELD:
            self._free(self.owned[0])

    def _allocate(self, size: int, stream: StreamHandle, place: int | None) -> bool:
        routes, idle = [*self.routes], self._idle_pools()
        inner: AbstractContextManager[object] = nullcontext()
        if place is not None and idle:
            routes.append(idle[place % len(idle)])
            inner = self.allocator.using(routes[-1])
        try:
            with inner:
                address = self.allocator.malloc(size, stream)
        except OutOfMemory:
            if not routes:
                self._check_that_nothing_fits(size)
            return False
        pool = routes[-1] if routes else DEFAULT_POOL
        block = Owned(address, size, stream, stream, 0, pool)
        self.owned.append(block)
        self._write(block, stream)
        return True

    @rule(size=_size, stream=_stream, position=st.integers(0, 5))
    def fail(self, size: int, stream: int, position: int) -> None:
        """Ask for a block while a driver call fails: all is as before, or it is made.

        Cache may have been given back on the way.
        """
        before, faulty = self.rig.check(), self.rig.faulty
        faulty.position, faulty.plan = 0, {position}
        try:
            address = self.allocator.malloc(size, self.streams[stream])
        except DriverError:
            faulty.plan = ()
            gone = _extents(before) >= _extents(self.rig.check())
            if not gone:
                raise InternalError("what fails makes nothing", before) from None
        else:
            faulty.plan = ()
            self.allocator.free(address)

    @precondition(lambda self: self.owned)
    @rule(place=_place)
    def free(self, place: int) -> None:
        """Give a block back, whatever still uses it."""
        self._free(self._any(place))

    @precondition(lambda self: self.owned)
    @rule(place=_place, size=_size, stream=_stream, other=_stream)
    def hand_over(self, place: int, size: int, stream: int, other: int) -> None:
        """Give a block back with its writes queued, for others of its bytes."""
        self._free(self._any(place))
        for each in (stream, other):
            self._allocate(size, self.streams[each], None)
        self._check_all()
        self._keep_few()

    @rule(address=_place)
    def free_again(self, address: int) -> None:
        """What nobody holds cannot be given back."""
        held = {block.address for block in self.owned}
        for gone in self.gone[-1 - address :]:
            if gone in held:
                continue
            try:
                self.allocator.free(gone)
            except MisuseError:
                continue
            raise InternalError("a block is freed once", {"address": gone})

    @precondition(lambda self: self.owned)
    @rule(place=_place, stream=_stream, view=st.booleans())
    def use(self, place: int, stream: int, view: bool) -> None:
        """Write a block on any stream, told to the allocator, perhaps of a view."""
        block, on = self._any(place), self.streams[stream]
        offset = block.size // 2 if view else 0
        self.allocator.record_stream(Addr(block.address + offset), on)
        self._write(block, on)

    @precondition(lambda self: self.owned)
    @rule(place=_place, streams=_streams, size=_size, view=st.booleans())
    def use_and_free(
        self, place: int, streams: list[int], size: int, view: bool
    ) -> None:
        """Give a block back that others still write; ask for its like.

        One of them may be done already, and runs on to its end after the others.
        """
        block = self._any(place)
        first, second, third = streams
        self.use(place, first, view=view)
        self.use(place, second, view=view)
        self._free(block)
        self.synchronize(first)
        self._allocate(block.size, block.stream, None)
        self._allocate(size, block.stream, None)
        for stream in (third, second):
            self.synchronize(stream)
        self._check_all()
        self._keep_few()

    @rule(size=_size, streams=_streams, back=st.booleans())
    def lend(self, size: int, streams: list[int], back: bool) -> None:
        """Let a block cross streams, perhaps back, with all its writes queued."""
        self.configure("expandable_segments:True,cross_stream_reuse:True")
        owner, other, _ = streams
        turns = [owner, other, owner] if back else [owner, other]
        for stream in turns[:-1]:
            if self._allocate(size, self.streams[stream], None):
                self._free(self.owned[-1])
        self._allocate(size, self.streams[turns[-1]], None)
        for stream in reversed(turns):
            self.synchronize(stream)
        self._check_all()
        self._keep_few()

    @precondition(lambda self: self.owned)
    @rule(place=_place)
    def read(self, place: int) -> None:
        """Compare one block, which waits for no more than it needs."""
        self._check(self._any(place))

    @rule(stream=_stream)
    def synchronize(self, stream: int) -> None:
        """Let a stream run to its end."""
        self.rig.checked.synchronize_stream(self.streams[stream])

    def _any(self, place: int) -> Owned:
        return self.owned[place % len(self.owned)]

    def _free(self, block: Owned) -> None:
        self.allocator.free(block.address)
        self.owned.remove(block)
        self.gone = [*self.gone[-3:], block.address]

    def _write(self, block: Owned, stream: StreamHandle) -> None:
        if stream != block.writer:
            self.rig.wait(stream, block.writer)
        # No two writes within sight of each other may look alike.
        self.written = block.value = self.written % 255 + 1
        block.writer = stream
        self.rig.fill(block.address, block.size, block.value, stream)

    def _check(self, block: Owned) -> None:
        found = self.rig.read(block.address, block.size, block.writer)
        if found.count(block.value) != block.size:
            raise InternalError(
                "what is held does not change",
                {"block": block.address, "size": block.size},
            )

    def _check_all(self) -> None:
        for block in self.owned:
            self._check(block)

    # Caches.

    @rule(size=_size, stream=_stream)
    def empty_cache(self, size: int, stream: int) -> None:
        """Give the cache back, with a write of it still queued."""
        if self._allocate(size, self.streams[stream], None):
            self._free(self.owned[-1])
        self.allocator.empty_cache()

    @rule(keep=st.sampled_from([0, 2 * _MIB, 20 * _MIB]))
    def trim(self, keep: int) -> None:
        """Give some of the cache back; what is said to be given back is free again."""
        before = self.rig.atlas.used()
        given = self.allocator.trim(keep)
        if before - self.rig.atlas.used() != given:
            raise InternalError(
                "trimming says what it gave back",
                {"before": before, "after": self.rig.atlas.used(), "said": given},
            )

    @rule(fraction=st.sampled_from([0.25, 0.5, 1.0]))
    def allow(self, fraction: float) -> None:
        """Allow less of the device, or all."""
        self.allocator.memory_fraction = fraction
        self.limit = int(fraction * self.total)

    @rule(text=_texts)
    def configure(self, text: str) -> None:
        """Change the settings while there are blocks of all kinds."""
        self.allocator.configure(text)
        self.limit = self.total

    # Pools.

    @precondition(lambda self: len(self.pools) < _POOLS)
    @rule(no_split=st.booleans(), use_on_oom=st.booleans())
    def create_pool(self, no_split: bool, use_on_oom: bool) -> None:
        """Make a pool of one's own."""
        pool = self.allocator.create_pool(no_split=no_split, use_on_oom=use_on_oom)
        self.pools.append(pool)
        if use_on_oom:
            self.lenders.append(pool)

    @precondition(lambda self: self._idle_pools())
    @rule(place=_place)
    def release_pool(self, place: int) -> None:
        """Let go of a pool, with whatever is still held of it."""
        idle = self._idle_pools()
        pool = idle[place % len(idle)]
        self.pools.remove(pool)
        self.allocator.release_pool(pool)

    @precondition(lambda self: self._idle_pools())
    @rule(place=_place)
    def enter(self, place: int) -> None:
        """Have all that this thread asks for come from a pool."""
        idle = self._idle_pools()
        self.routes.append(idle[place % len(idle)])
        self.allocator.begin(self.routes[-1])

    @precondition(lambda self: self.routes)
    @rule()
    def leave_pool(self) -> None:
        """End what began last."""
        self.allocator.end(self.routes.pop())

    def _idle_pools(self) -> list[PoolId]:
        return [pool for pool in self.pools if pool not in self.routes]

    @rule(stream=_stream, successor=_stream)
    def forget(self, stream: int, successor: int) -> None:
        """Destroy a stream; another, ordered after it, has what was its own."""
        if stream == successor:
            return
        old, new = self.streams[stream], self.streams[successor]
        self.rig.wait(new, old)
        self.allocator.forget_stream(old, new)
        for block in self.owned:
            block.stream = new if block.stream == old else block.stream
            block.writer = new if block.writer == old else block.writer
        self.rig.streams.remove(old)
        self.rig.checked.destroy_stream(old)
        self.streams[stream] = self.rig.stream()

    # Laws.

    @invariant()
    def books_are_true(self) -> None:
        """No law of `validate` is broken, counters are exact, the holders are known."""
        self.stepped()
        picture = self.rig.check()
        drawn = allocated(picture)
        held = {block.address: block.size for block in self.owned}
        if {address: block.requested for address, (block, _) in drawn.items()} != held:
            raise InternalError(
                "a block is allocated while somebody holds it", (picture, held)
            )
        for block in self.owned:
            _, pool = drawn[block.address]
            lent = block.pool == DEFAULT_POOL and pool in self.lenders
            if pool != block.pool and not lent:
                raise InternalError(
                    "a block comes from the pool that it was asked of",
                    {"block": block.address, "asked": block.pool, "is": pool},
                )
        self._check_growth()

    def _check_growth(self) -> None:
        reserved = self.rig.atlas.used()
        if reserved > self.reserved and reserved > self.limit:
            raise InternalError(
                "nothing grows beyond the limit",
                {"reserved": reserved, "limit": self.limit},
            )
        self.reserved = reserved

    def _check_that_nothing_fits(self, size: int) -> None:
        """What could be given back would not have been enough to grow by."""
        room = self.limit - fixed_bytes(self.rig.check())
        if self._growth(size) <= room:
            raise InternalError(
                "out of memory is honest", {"asked": size, "room": room}
            )

    def _growth(self, size: int) -> int:
        """Return the most that growing takes for a request."""
        if self.allocator.settings.roundup_power2_divisions:
            size += size // 4
        if self.allocator.settings.expandable_segments:
            return align_up(size, self.page)
        if size <= _MIB:
            return 2 * _MIB
        return 20 * _MIB if size < 10 * _MIB else align_up(size, 2 * _MIB)

    def leave(self) -> None:
        """Close the device."""
        self.rig.abandon()

    def end(self) -> None:
        """Compare everything, give everything back, and look for what is left."""
        while self.routes:
            self.leave_pool()
        self._check_all()
        while self.owned:
            self._free(self.owned[-1])
        for pool in self.pools:
            self.allocator.release_pool(pool)
        self.allocator.empty_cache()
        if self.rig.atlas.used():
            raise InternalError(
                "an empty cache holds nothing", self.allocator.picture()
            )
        self.rig.finish()


def _extents(picture: Picture) -> set[tuple[Addr, Size]]:
    return {each for segment in picture.segments for each in segment.extents}
