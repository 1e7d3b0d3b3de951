"""An allocator's surroundings: its pools, cache, settings, counters and history."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from sapwood.allocator.caching import leaving, upkeep
from sapwood.allocator.caching.picture import Entry, Picture, PoolId
from sapwood.allocator.caching.pools import SegmentSource
from sapwood.allocator.caching.records.history import (
    MAX_ENTRIES,
    Context,
    Enabled,
    HistoryOptions,
)
from sapwood.allocator.caching.records.statistics import Counters
from sapwood.allocator.caching.rounds import Rounds
from sapwood.allocator.caching.settings import Settings, settings_of
from sapwood.allocator.caching.state import State
from sapwood.driver.api import StreamHandle
from sapwood.driver.release import Release
from sapwood.units import Addr, Size

Observer = Callable[[int, Size, Size, Size], object]
"""Told of a shortage: the device's index, and the bytes asked for, allowed and free."""

Reclaimer = Callable[[Size], bool]
"""Asked for so many bytes; says whether anything was freed."""

T = TypeVar("T")

_LOOKS: Final = 16


class Controls(Rounds):
    """All of an allocator but allocating; ``index`` is its device's in pictures."""

    __slots__ = ("_observers", "_reclaimers", "index")

    def __init__(self, state: State, index: int) -> None:
        super().__init__(state)
        self.index = index
        self._observers: list[Observer] = []
        self._reclaimers: list[Reclaimer] = []

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._state.closed

    @property
    def base(self) -> Addr | None:
        """The lowest address that is reserved; None where nothing is."""
        return self._state.segments.lowest()

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
        with self._entered() as state:
            upkeep.check_open(state)
            return state.pools.create(
                no_split=no_split, use_on_oom=use_on_oom, capture=capture, source=source
            ).id

    def begin(
        self, pool: PoolId, *, stream: StreamHandle | None = None, thread: bool = True
    ) -> None:
        """Send allocations to a pool: those on ``stream``, else those of this thread.

        Without a stream and with ``thread`` false: all. Until `end`; nests.
        """
        with self._entered() as state:
            upkeep.begin(state, pool, stream, thread=thread)

    def end(self, pool: PoolId) -> None:
        """End the innermost `begin` of a pool; this thread's, if there is one."""
        with self._entered() as state:
            upkeep.end(state, pool)

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
        with self._entered() as state:
            released = upkeep.release_pool(state, pool)
        try:
            if released.use_count == 0:
                self._give_back(lambda state: leaving.cached(state, released.bins()))
        finally:
            self._tidy()

    # Giving memory back.

    def empty_cache(self, pool: PoolId | None = None) -> None:
        """Give back all free memory that nobody has a claim on, or that of a pool.

        Waits for events and streams. Does nothing where this thread is routed to a
        pool, or anything is captured.
        """
        with self._entered(quiet=self._look()) as state:
            bins = upkeep.emptied(state, pool)
            settled = None if pool is None else state.pools.named(pool)
        if not bins:
            return
        try:
            self._settle(settled)
            self._give_back(lambda state: leaving.cached(state, bins))
        finally:
            self._tidy()

    def trim(self, keep: int = 0) -> Size:
        """Give back free memory until at most ``keep`` bytes of it are left.

        Returns how many bytes. Waits for streams, not for events.
        """
        kept = upkeep.checked_kept(keep)
        try:
            return self._give_back(lambda state: leaving.trimmed(state, kept))
        finally:
            self._tidy()

    def close(self) -> None:
        """Give everything back; what is still held goes when it is freed."""
        with self._entered() as state:
            state.closed = True
            state.pools.routes.clear()
        with Release() as release:
            release(self._settle)
            release(self._tidy)

    # Settings.

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        return self._state.settings

    def configure(self, settings: str | Settings) -> None:
        """Replace all settings, by text in PyTorch's spelling or a value.

        Raises `MisuseError` with nothing changed.
        """
        new = settings_of(settings)
        with self._entered() as state:
            upkeep.configure(state, new)

    @property
    def memory_fraction(self) -> float:
        """The part of the device's memory that may be held: a float in [0, 1]."""
        return self._state.settings.per_process_memory_fraction

    @memory_fraction.setter
    def memory_fraction(self, fraction: float) -> None:
        """Set it; TypeError for what is no float."""
        upkeep.check_fraction(fraction)
        with self._entered() as state:
            upkeep.configure(
                state, state.settings.replace(per_process_memory_fraction=fraction)
            )

    # Watching.

    def counters(self) -> Counters:
        """Return all counters, exact at this moment."""
        with self._entered() as state:
            return state.ledger.read()

    def reset_peaks(self) -> None:
        """Let every peak be what is current."""
        with self._entered() as state:
            state.ledger.reset_peaks()

    def reset_accumulated(self) -> None:
        """Begin counting what was allocated, freed and happened anew."""
        with self._entered() as state:
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
        with self._entered() as state:
            upkeep.record_history(state, options, clear=clear)

    def history(self) -> tuple[Entry, ...]:
        """Return the recorded events, oldest first."""
        with self._entered() as state:
            return (state.history or state.past).entries()

    def picture(self) -> Picture:
        """Return everything as plain values; a history remembers that it was made."""
        from sapwood.allocator.caching.export.portrait import portray

        with self._looking() as (state, free):
            drawn = portray(state, self.index, free)
            state.note_picture()
            return drawn

    @contextmanager
    def _looking(self, *streams: StreamHandle) -> Iterator[tuple[State, Size]]:
        """Enter, and say what the device had free when all was as it is now.

        It is asked without the lock, so again where memory came or went meanwhile.
        """
        segments = self._state.segments
        for left in reversed(range(_LOOKS)):
            before = segments.arrivals, segments.departures
            free = self._asked()
            quiet = self._look(*streams) if streams else ()
            with self._entered(quiet=quiet) as state:
                same = before == (segments.arrivals, segments.departures)
                if same or not left:
                    # What is held is not free, whatever came in between.
                    most = max(state.total - segments.held, 0)
                    yield state, free if same else Size(min(free, most))
                    return

    def _asked(self) -> Size:
        """Say what the device has free; it is asked without the lock."""
        return self._state.driver.memory_info().free

    def on_out_of_memory(self, observer: Observer) -> Callable[[], None]:
        """Tell of shortages before they are raised; returns what ends that."""
        return _attached(self._observers, observer)

    def on_pressure(self, reclaimer: Reclaimer) -> Callable[[], None]:
        """Ask for memory before any cache is given up; returns what ends that."""
        return _attached(self._reclaimers, reclaimer)


def _attached(watchers: list[T], watcher: T) -> Callable[[], None]:
    watchers.append(watcher)

    def detach() -> None:
        """End it; once more does nothing."""
        if watcher in watchers:
            watchers.remove(watcher)

    return detach
