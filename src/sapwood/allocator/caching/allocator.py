"""The allocator: memory in blocks, for streams, from pools.

`malloc` and `free` have a short way for what happens almost always: a block of the
default pool, nothing pending, nobody watching. It makes no driver call and touches no
counter. Everything else goes the long way.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Final, SupportsIndex, TypeVar

from sapwood.allocator.caching import release
from sapwood.allocator.caching.blocks import (
    ALLOCATED,
    Bin,
    Block,
    Pool,
    Route,
    SegmentSource,
    new_id,
)
from sapwood.allocator.caching.gate import BUSY, Gate
from sapwood.allocator.caching.picture import Entry, Picture, PoolId
from sapwood.allocator.caching.records.history import (
    MAX_ENTRIES,
    Context,
    Enabled,
    History,
    HistoryOptions,
)
from sapwood.allocator.caching.records.ledger import JOURNAL_LIMIT
from sapwood.allocator.caching.records.statistics import Counters
from sapwood.allocator.caching.serve import Attempt, demand_of, order_of, refusal, serve
from sapwood.allocator.caching.settings import DEFAULT, Settings, settings_of
from sapwood.allocator.caching.sizes import GRAIN, IMPOSSIBLE, LARGEST_SMALL
from sapwood.allocator.caching.state import Demand, State, freed_twice
from sapwood.allocator.caching.waits import attend, mark, settle, unmarked
from sapwood.allocator.checks import check_address, check_size, check_stream
from sapwood.driver.api import Driver, StreamHandle, check_driver
from sapwood.driver.release import Release
from sapwood.errors import MisuseError, OutOfMemory
from sapwood.units import Addr, Size

Observer = Callable[[int, Size, Size, Size], object]
"""Told of a shortage: the device's index, and the bytes asked for, allowed and free."""

Reclaimer = Callable[[Size], bool]
"""Asked for so many bytes; says whether anything was freed."""

T = TypeVar("T")

_GRAIN_MASK: Final = GRAIN - 1
_LOOKS: Final = 16


class Allocator:
    """A caching allocator over one device; thread-safe.

    ``settings`` may be text in PyTorch's spelling. ``index`` is the device's number
    in pictures. Sizes are bytes; addresses that it returns are multiples of 512, which
    is its ``grain``. All calls raise `MisuseError` where they are misused, and
    `DriverError` where a device call failed, having done nothing; those that give
    back have done their work even then.
    """

    grain: Final = Size(GRAIN)

    def __init__(
        self, driver: Driver, settings: str | Settings = DEFAULT, *, index: int = 0
    ) -> None:
        check_driver(driver)
        state = State(driver, settings_of(settings))
        self.index, self._gate = index, Gate(state)
        self._observers: list[Observer] = []
        self._reclaimers: list[Reclaimer] = []
        lock = self._gate.lock
        self._acquire, self._release = lock.acquire, lock.release
        self._blocks, self._uses = state.blocks, state.ledger.uses
        # Blocks that were merged into others: a new one costs more than its memory.
        self._spare: list[Block] = []
        self._small, self._large = state.pools.default.small, state.pools.default.large

    # The short way. The mode is busy while blocks are changing hands, as a finaliser
    # may run between any two lines; see `Gate`. A `with` of the lock takes twice as
    # long as its two methods.

    def malloc(self, size: int, stream: StreamHandle) -> Addr:
        """Return memory of ``size`` bytes for work on ``stream``; 0 for none.

        Raises `OutOfMemory`, which says what would have fitted.
        """
        block, gate = None, self._gate
        try:
            self._acquire()
            need = (size + _GRAIN_MASK) & ~_GRAIN_MASK
            bin_ = (self._small if need <= LARGEST_SMALL else self._large).get(stream)
            if bin_ is not None and bin_.plain and not gate.mode and need > 0:
                gate.mode = BUSY
                try:
                    block = bin_.cut(need, size, self._blocks, self._spare)
                    if block is not None:
                        self._uses += ((bin_, need, size, need),)
                finally:
                    gate.mode = gate.calm
        except BaseException:
            # No function of Python's may be called: there may be no room on the stack.
            try:  # noqa: SIM105
                self._release()
            except RuntimeError:  # the wait for it is what was interrupted
                pass
            check_size(size)
            check_stream(stream)
            raise
        self._release()
        return self._malloc(size, stream) if block is None else block.address

    def free(self, address: Addr) -> None:
        """Give back what `malloc` returned, or 0; also inside finalisers."""
        size, gate = 0, self._gate
        try:
            self._acquire()
            block = (blocks := self._blocks).get(address)
            if (
                block is not None
                and block.state is ALLOCATED
                and block.users is None
                and not gate.mode
                and (bin_ := block.segment.bin).plain
                and len(self._uses) < JOURNAL_LIMIT
            ):
                gate.mode = BUSY
                try:
                    less, asked = -block.size, -block.requested
                    bin_.join(block, blocks, self._spare)
                    size = less
                    self._uses += ((bin_, size, asked, size),)
                finally:
                    gate.mode = gate.calm
        except BaseException:
            try:  # noqa: SIM105 - as in `malloc`
                self._release()
            except RuntimeError:
                pass
            check_address(address)
            raise
        self._release()
        if not size:
            self._free(address)

    # The long way.

    def _malloc(self, size: int, stream: StreamHandle) -> Addr:
        check_size(size)
        check_stream(stream)
        size = _checked_size(size)
        if size == 0:
            return Addr(0)
        gate = self._gate
        stack = gate.state.stack_of("alloc")
        try:
            attend(gate)
            with gate.observed(stream) as state:
                _check_open(state)
                demand = demand_of(state, size, stream, stack)
                order = order_of(state, demand)
                block = state.fit(demand.bin, demand.need)
                if block is not None:
                    return state.take(block, demand)
            for attempt in order[1:]:
                if attempt is Attempt.RECLAIM and not self._reclaim(demand.need):
                    continue
                address = serve(gate, demand, attempt)
                if address is not None:
                    return address
            raise self._shortage(demand)
        finally:
            release.tidy(gate)

    def _reclaim(self, need: Size) -> bool:
        # All are asked, and may call the allocator.
        freed = [reclaim(need) for reclaim in tuple(self._reclaimers)]
        return any(freed)

    def _shortage(self, demand: Demand) -> OutOfMemory:
        with self._looking(demand.stream) as (state, free):
            error = refusal(state, demand, self.index, free)
            limit = state.limit
        for observer in tuple(self._observers):
            observer(self.index, demand.size, limit, free)
        return error

    def _free(self, address: Addr) -> None:
        check_address(address)
        if address == 0:
            return
        gate = self._gate
        if gate.is_inside():
            if not gate.put_off(gate.state.held(address)):
                raise freed_twice(address)
            return
        try:
            with gate.observed() as state:
                block = state.held(address)
                state.give(block)
                if block in unmarked(state):
                    mark(gate, [block])
        finally:
            release.tidy(gate)

    def record_stream(self, address: Addr, stream: StreamHandle) -> None:
        """Say that work on ``stream``, given to it until the free, uses a block.

        ``address`` may lie inside the block: a view protects all of it. On the
        block's own stream, and for 0, nothing happens.
        """
        check_address(address)
        check_stream(stream)
        if address:
            with self._gate.observed(stream) as state:
                state.use(state.held_around(address), stream)

    def forget_stream(self, stream: StreamHandle, successor: StreamHandle) -> None:
        """Hand a destroyed stream's blocks on to ``successor``, ordered after it."""
        for each in (stream, successor):
            check_stream(each)
        with self._gate.entered(alone=True) as state:
            state.bequeath(stream, successor)

    def usable_size(self, address: Addr) -> Size:
        """Return how large the block at an address is, at least what was asked for."""
        with self._gate.entered() as state:
            return Size(state.held(address).size)

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._gate.state.closed

    @property
    def base(self) -> Addr | None:
        """The lowest address that is reserved; None where nothing is."""
        return self._gate.state.segments.lowest()

    # Pools.

    def create_pool(
        self,
        *,
        no_split: bool = False,
        use_on_oom: bool = False,
        source: SegmentSource | None = None,
        capture: bool = False,
    ) -> PoolId:
        """Return a new private pool, in use until `release_pool`.

        ``no_split``: each block has a segment of its own. ``use_on_oom``: its free
        blocks serve others before memory runs out. ``source``: its segments come from
        there. ``capture``: it is for recorded work, whose memory stays where it is.
        """
        with self._gate.entered() as state:
            _check_open(state)
            pool = Pool(
                new_id(capture=capture),
                no_split=no_split,
                use_on_oom=use_on_oom,
                capture=capture,
                source=source,
            )
            state.pools.all[pool.id] = pool
            return pool.id

    def begin(
        self, pool: PoolId, *, stream: StreamHandle | None = None, thread: bool = True
    ) -> None:
        """Send allocations to a pool: those on ``stream``, else those of this thread.

        Without a stream and with ``thread`` false: all. Until `end`; nests.
        """
        with self._gate.entered() as state:
            mine = threading.get_ident() if thread and stream is None else None
            state.pools.begin(Route(state.pools.used(pool), mine, stream))

    def end(self, pool: PoolId) -> None:
        """End the innermost `begin` of a pool; this thread's, if there is one."""
        with self._gate.entered() as state:
            state.pools.end(state.pools.named(pool), threading.get_ident())
            if not state.captures():
                # Where a capture ended with it, so did the uses inside it.
                state.pending.take_unmarked(state.pending.captured_only())
                state.retire_ready()

    @contextmanager
    def using(self, pool: PoolId) -> Iterator[None]:
        """Send this thread's allocations to a pool inside a ``with`` block."""
        self.begin(pool)
        try:
            yield
        finally:
            self.end(pool)

    def release_pool(self, pool: PoolId) -> None:
        """Let go of a pool; after the last time its free memory goes back.

        Blocks that somebody holds stay valid.
        """
        with self._gate.entered() as state:
            released = state.pools.used(pool)
            released.use_count -= 1
        if released.use_count == 0:
            self._give_back(lambda state: release.cached(state, released.bins()))

    # Giving memory back.

    def empty_cache(self, pool: PoolId | None = None) -> None:
        """Give back all free memory that nobody has a claim on, or that of a pool.

        Waits for events and streams. Does nothing where this thread is routed to a
        pool, or anything is captured.
        """
        with self._gate.observed() as state:
            bins = _emptied(state, pool)
            settled = None if pool is None else state.pools.named(pool)
        if not bins:
            return
        try:
            settle(self._gate, settled)
            release.give_back(self._gate, lambda state: release.cached(state, bins))
        finally:
            release.tidy(self._gate)

    def trim(self, keep: int = 0) -> Size:
        """Give back free memory until at most ``keep`` bytes of it are left.

        Returns how many bytes. Waits for streams, not for events.
        """
        kept = _checked_kept(keep)
        return self._give_back(lambda state: release.trimmed(state, kept))

    def _give_back(self, choose: Callable[[State], release.Chosen]) -> Size:
        try:
            return release.give_back(self._gate, choose)
        finally:
            release.tidy(self._gate)

    def close(self) -> None:
        """Give everything back; what is still held goes when it is freed."""
        with self._gate.entered() as state:
            state.closed = True
            state.pools.routes.clear()
        with Release() as releasing:
            releasing(settle, self._gate)
            releasing(release.tidy, self._gate)

    # Settings.

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        return self._gate.state.settings

    def configure(self, settings: str | Settings) -> None:
        """Replace all settings, by text in PyTorch's spelling or a value.

        Raises `MisuseError` with nothing changed.
        """
        new = settings_of(settings)
        with self._gate.entered() as state:
            state.configure(new)

    @property
    def memory_fraction(self) -> float:
        """The part of the device's memory that may be held: a float in [0, 1]."""
        return self._gate.state.settings.per_process_memory_fraction

    @memory_fraction.setter
    def memory_fraction(self, fraction: float) -> None:
        """Set it; TypeError for what is no float."""
        _check_fraction(fraction)
        with self._gate.entered() as state:
            new = state.settings.replace(per_process_memory_fraction=fraction)
            state.configure(new)

    # Watching.

    def counters(self) -> Counters:
        """Return all counters, exact at this moment."""
        with self._gate.entered() as state:
            return state.ledger.read()

    def allocated_bytes(self) -> Size:
        """Return the bytes in blocks that somebody holds."""
        with self._gate.entered() as state:
            return Size(state.ledger.allocated())

    def blocks(self) -> Iterator[tuple[Addr, Size, str]]:
        """Yield each block's address, size and state."""
        for segment in self.picture().segments:
            for block in segment.blocks:
                yield block.address, block.size, block.state

    def reset_peaks(self) -> None:
        """Let every peak be what is current."""
        with self._gate.entered() as state:
            state.ledger.reset_peaks()

    def reset_accumulated(self) -> None:
        """Begin counting what was allocated, freed and happened anew."""
        with self._gate.entered() as state:
            state.ledger.reset_accumulated()

    def record_history(
        self,
        enabled: Enabled | None = "all",
        *,
        context: Context | None = "all",
        max_entries: int = MAX_ENTRIES,
        skip: Collection[str] = (),
        annotation: str = "",
        clear: bool = False,
    ) -> None:
        """Record what happens from now on; ``enabled`` None ends it.

        The arguments are those of `HistoryOptions`; earlier events are kept unless
        ``clear``.
        """
        options = None
        if enabled is not None:
            options = HistoryOptions(
                enabled=enabled,
                context=context,
                max_entries=max_entries,
                skip=skip,
                annotation=annotation,
            )
        with self._gate.entered() as state:
            past = History(HistoryOptions()) if clear else state.history or state.past
            state.past = past
            state.history = None if options is None else past.revised(options)

    def history(self) -> tuple[Entry, ...]:
        """Return the recorded events, oldest first."""
        with self._gate.entered() as state:
            return (state.history or state.past).entries()

    def picture(self) -> Picture:
        """Return everything as plain values; a history remembers that it was made."""
        with self._looking() as (state, free):
            drawn = state.picture(self.index, free)
            state.note_picture()
            return drawn

    @contextmanager
    def _looking(self, *streams: StreamHandle) -> Iterator[tuple[State, Size]]:
        """Enter, and say what the device had free when all was as it is now.

        It is asked without the lock, so again where memory came or went meanwhile.
        """
        gate, segments = self._gate, self._gate.state.segments
        for left in reversed(range(_LOOKS)):
            before = segments.arrivals, segments.departures
            free = self._asked()
            entered = gate.observed(*streams) if streams else gate.entered()
            with entered as state:
                same = before == (segments.arrivals, segments.departures)
                if same or not left:
                    # What is held is not free, whatever came in between.
                    most = max(state.total - segments.held, 0)
                    yield state, free if same else Size(min(free, most))
                    return

    def _asked(self) -> Size:
        """Say what the device has free; it is asked without the lock."""
        return self._gate.state.driver.memory_info().free

    def on_out_of_memory(self, observer: Observer) -> Callable[[], None]:
        """Tell of shortages before they are raised; returns what ends that."""
        return _attached(self._observers, observer)

    def on_pressure(self, reclaimer: Reclaimer) -> Callable[[], None]:
        """Ask for memory before any cache is given up; returns what ends that."""
        return _attached(self._reclaimers, reclaimer)


def _check_open(state: State) -> None:
    if state.closed:
        raise MisuseError("this allocator is closed. Make a new one")


def _checked_size(size: SupportsIndex) -> int:
    """Return a size as an int; `MisuseError` for what nobody can want.

    That is below 0, and from 1 EiB.
    """
    whole = operator.index(size)
    if whole < 0:
        raise MisuseError(f"cannot allocate {whole} bytes: ask for 0 or more")
    if whole >= IMPOSSIBLE:
        raise MisuseError(
            f"cannot allocate {whole} bytes: 1 EiB and more is a mistake, not a "
            "shortage. Look at how the size was computed"
        )
    return whole


def _checked_kept(keep: object) -> int:
    """Return how much to keep; TypeError if no whole number, `MisuseError` below 0."""
    if not isinstance(keep, SupportsIndex):
        raise TypeError(
            f"what trim keeps is a whole number of bytes, not {type(keep).__name__}: "
            "write trim(0), or round it"
        )
    whole = operator.index(keep)
    if whole < 0:
        raise MisuseError(f"cannot keep {whole} bytes: keep 0 or more")
    return whole


def _check_fraction(fraction: object) -> None:
    if type(fraction) is not float:
        raise TypeError(
            f"a memory fraction is a float, not {type(fraction).__name__}: write "
            "0.5, or 1.0 for all"
        )
    if not 0.0 <= fraction <= 1.0:
        raise MisuseError(
            f"a memory fraction of {fraction} is not possible. Set one from 0.0 to 1.0"
        )


def _emptied(state: State, id_: PoolId | None) -> list[Bin]:
    """Return the bins whose caches go: those that are freeable, or of one pool.

    None inside a route or a capture. A capture's pool keeps its memory in place while
    it is in use.
    """
    if state.capturing():
        return []
    if id_ is not None:
        pool = state.pools.named(id_)
        return [] if pool.capture and not pool.freeable else pool.bins()
    mine = threading.get_ident()
    routed = any(route.thread == mine for route in state.pools.routes)
    return [] if routed else release.freeable(state)


def _attached(watchers: list[T], watcher: T) -> Callable[[], None]:
    watchers.append(watcher)

    def detach() -> None:
        """End it; once more does nothing."""
        if watcher in watchers:
            watchers.remove(watcher)

    return detach
