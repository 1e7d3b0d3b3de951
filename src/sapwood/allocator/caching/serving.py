"""Requests that no free block serves at once: one attempt after the other."""

from __future__ import annotations

from sapwood.allocator.caching import asking, crossing, leaving, stitch
from sapwood.allocator.caching.bins import Bin
from sapwood.allocator.caching.block import Block
from sapwood.allocator.caching.controls import Controls
from sapwood.allocator.caching.expand import Attempt, Donor
from sapwood.allocator.caching.grow import donors, grow
from sapwood.allocator.caching.leaving import Chosen, Surrender, removal
from sapwood.allocator.caching.state import Demand, State
from sapwood.allocator.caching.waits import waits
from sapwood.driver.release import Release
from sapwood.errors import OutOfMemory
from sapwood.units import Addr


def given_up(state: State, attempt: Attempt, demand: Demand) -> Chosen:
    """Return what is given back for an attempt, before it grows."""
    if attempt is Attempt.COLLECT:
        return leaving.idle(state)
    if attempt is Attempt.OWN:
        return leaving.cached(state, [demand.bin])
    if attempt is Attempt.OTHERS:
        return leaving.cached(state, leaving.freeable(state))
    return {}


def ready(state: State, attempt: Attempt, demand: Demand) -> Block | None:
    """Return the free block by which an attempt serves a demand without growing."""
    if attempt is Attempt.SPARE:
        return _spare(state, demand)
    if attempt is Attempt.GROW:
        return None
    return state.fit(demand.bin, demand.need)


def _spare(state: State, demand: Demand) -> Block | None:
    """Return a free block of a pool that helps out, on the demand's stream."""
    for pool in state.pools.all.values():
        if not pool.use_on_oom or pool.use_count == 0:
            continue
        bins = pool.small if demand.bin.size_class == "small" else pool.large
        bin_ = bins.get(demand.stream)
        found = None if bin_ is None else state.fit(bin_, demand.need)
        if found is not None:
            return found
    return None


class Serving(Controls):
    """Serves what the short way does not.

    What an attempt takes from others is taken under the lock, made free without it,
    and used under it again: nobody else sees it in between.
    """

    __slots__ = ()

    def _serve(self, demand: Demand, attempts: asking.Order) -> Addr | None:
        for attempt in attempts:
            address = self._attempted(demand, attempt)
            if address is not None:
                return address
        return None

    def _attempted(self, demand: Demand, attempt: Attempt) -> Addr | None:
        """Make room, and serve; again, if others gave memory back meanwhile."""
        self._make_room(demand, attempt)
        seen = self._state.segments.departures
        address = self._served(demand, attempt)
        while address is None and (now := self._outlast()) != seen:
            seen, address = now, self._served(demand, attempt)
        return address

    def _make_room(self, demand: Demand, attempt: Attempt) -> None:
        if attempt is Attempt.SETTLE:
            self._settle()
        elif attempt in {Attempt.COLLECT, Attempt.OWN, Attempt.OTHERS}:
            with self._entered() as state:
                state.ledger.retries += attempt is Attempt.OTHERS
            self._give_back(lambda state: given_up(state, attempt, demand))

    def _served(self, demand: Demand, attempt: Attempt) -> Addr | None:
        if attempt is Attempt.BORROW:
            return self._borrowed(demand)
        last, grows = attempt is Attempt.STITCH, attempt is not Attempt.SPARE
        quiet = self._look(demand.stream)
        with self._entered(quiet=quiet) as state:
            block = ready(state, attempt, demand)
            giving: list[Bin] = []
            if block is None and grows:
                giving = donors(state, demand, last=last)
                block = None if giving else grow(state, demand, [], last=last)
                state.ledger.misses += block is not None
            if block is not None:
                return state.take(block, demand)
        return self._moved(demand, giving, last=last) if giving else None

    def _moved(self, demand: Demand, giving: list[Bin], *, last: bool) -> Addr | None:
        """Grow by the free pages of bins, and by new ones.

        They are unmapped first. As the ``last`` attempt streams are waited for; else
        only pages of those that are over are moved.
        """
        asked = [bin_.stream for bin_ in giving]
        over = self._wait(lambda state: waits(state, streams=asked, patient=last)).over
        idle = [bin_ for bin_ in giving if last or bin_.stream in over]
        with self._entered(quiet=self._look(demand.stream)) as state:
            chosen = stitch.chosen(state, demand, idle, classic=last)
            moving = removal(state, chosen, keep=True, patient=last)
            self._launched(moving)
        loose: list[Donor] = []
        with Release() as undo:
            try:
                try:
                    self._see_through(moving)
                finally:
                    loose += moving.kept
                with self._entered() as state:
                    block = grow(state, demand, loose, last=last)
                    state.ledger.misses += block is not None
                    return None if block is None else state.take(block, demand)
            finally:
                if loose:
                    undo(self._send, lambda state: _unused(state, loose))

    def _borrowed(self, demand: Demand) -> Addr | None:
        """Return a block that is free once its stream has waited for others."""
        if self._state.pending:
            self._send(lambda state: crossing.ordering(state, demand))
        with self._entered() as state:
            block = state.fit(demand.bin, demand.need)
            if block is not None:
                return state.take(block, demand)
            asked = [bin_.stream for bin_ in crossing.others(demand)]
        if not asked:
            return None
        over = self._wait(lambda state: waits(state, streams=asked, patient=False)).over
        return self._send(lambda state: crossing.lending(state, demand, over)).address

    def _shortage(self, demand: Demand) -> OutOfMemory:
        with self._looking(demand.stream) as (state, free):
            error = asking.refusal(state, demand, self.index, free)
            limit = state.limit
        for observer in tuple(self._observers):
            observer(self.index, demand.size, limit, free)
        return error


def _unused(state: State, loose: list[Donor]) -> Surrender:
    return Surrender(state.segments, extents=[extent for _, extent in loose])
