"""A request that no free block serves at once: one attempt after the other.

What an attempt takes from others is taken under the lock, made free without it,
and used under it again: nobody else sees it in between.
"""

from __future__ import annotations

import enum
import threading

from sapwood.allocator.caching import pages, release
from sapwood.allocator.caching.blocks import Bin, Block
from sapwood.allocator.caching.gate import Gate
from sapwood.allocator.caching.records.history import Stack
from sapwood.allocator.caching.settings import Settings
from sapwood.allocator.caching.sizes import class_of, rounded
from sapwood.allocator.caching.state import Demand, State
from sapwood.allocator.caching.waits import borrow, settle, wait
from sapwood.driver.api import StreamHandle
from sapwood.driver.release import Release
from sapwood.errors import OutOfMemory
from sapwood.units import Addr, Size


class Attempt(enum.Enum):
    """One way to serve a request, or to make room before it is tried again."""

    FIT = "a free block of the bin"
    BORROW = "blocks of other streams, after what they wait for"
    COLLECT = "growing, after idle segments went back"
    GROW = "growing"
    RECLAIM = "what those who watch the pressure give back"
    SPARE = "pools that help out"
    OWN = "growing, after the bin's own cache went back"
    SETTLE = "blocks that events were awaited for"
    OTHERS = "growing, after all caches went back"
    REMAP = "free pages of any segment, mapped anew"


def attempts(
    settings: Settings, *, private: bool, capturing: bool, limited: bool
) -> tuple[Attempt, ...]:
    """Return what to try for a request, in order, until it is served.

    While anything is captured nobody may be waited for, so nothing that is mapped can
    go. ``limited``: a memory fraction below 1 is set.
    """
    order = [Attempt.FIT]
    if settings.cross_stream_reuse and not capturing:
        order.append(Attempt.BORROW)
    if settings.garbage_collection_threshold and limited and not capturing:
        order.append(Attempt.COLLECT)
    order += [Attempt.GROW, Attempt.RECLAIM]
    if not private:
        order.append(Attempt.SPARE)
    if not capturing:
        order += [Attempt.OWN, Attempt.SETTLE, Attempt.OTHERS, Attempt.REMAP]
    return tuple(order)


def demand_of(state: State, size: int, stream: StreamHandle, stack: Stack) -> Demand:
    """Return what a request means: how large a block, from which bin."""
    need = rounded(size, state.settings.divisions(size))
    pool = state.pools.routed(threading.get_ident(), stream) or state.pools.default
    return Demand(Size(size), need, stream, pool.bin(stream, class_of(need)), stack)


def order_of(state: State, demand: Demand) -> tuple[Attempt, ...]:
    """Return what to try for a demand; its refusal may come before anything is."""
    if _is_rejected(state, demand):
        return (Attempt.FIT,)
    return attempts(
        state.settings,
        private=demand.bin.pool.private,
        capturing=state.capturing(),
        limited=state.settings.per_process_memory_fraction < 1.0,
    )


def _is_rejected(state: State, demand: Demand) -> bool:
    if not state.settings.throw_on_cudamalloc_oom:
        return False
    return state.ledger.allocated() + pages.growth_size(state, demand) > state.limit


def refusal(state: State, demand: Demand, index: int, free: Size) -> OutOfMemory:
    """Return the error of a demand that nothing serves.

    ``free`` is the device's free memory, in bytes.
    """
    from sapwood.allocator.caching.shortage import Request, out_of_memory

    if _is_rejected(state, demand):
        state.ledger.happened["num_oom_rejections"] += 1
    else:
        state.ledger.happened["num_ooms"] += 1
    state.note("oom", free, demand.need, demand.bin, demand.stack)
    request = Request(
        size=demand.size,
        rounded=demand.need,
        growth=pages.growth_size(state, demand),
        page=state.page,
        stream=demand.stream,
        pool=demand.bin.pool.id,
        size_class=demand.bin.size_class,
        settings=state.settings,
        capturing=state.capturing(),
    )
    return out_of_memory(state.picture(index, free, history=False), request)


def serve(gate: Gate, demand: Demand, attempt: Attempt) -> Addr | None:
    """Make room, and try; again, if others gave memory back meanwhile."""
    if attempt is Attempt.SETTLE:
        settle(gate)
    elif attempt in {Attempt.COLLECT, Attempt.OWN, Attempt.OTHERS}:
        with gate.entered() as state:
            state.ledger.happened["num_alloc_retries"] += attempt is Attempt.OTHERS
        release.give_back(gate, lambda state: given_up(state, attempt, demand))
    seen = gate.state.segments.departures
    address = _attempted(gate, demand, attempt)
    while address is None and (now := gate.outlast()) != seen:
        seen, address = now, _attempted(gate, demand, attempt)
    return address


def given_up(state: State, attempt: Attempt, demand: Demand) -> release.Chosen:
    """Return what is given back for an attempt, before it grows."""
    if attempt is Attempt.COLLECT:
        return release.idle(state)
    if attempt is Attempt.OWN:
        return release.cached(state, [demand.bin])
    return release.cached(state, release.freeable(state))


def _attempted(gate: Gate, demand: Demand, attempt: Attempt) -> Addr | None:
    if attempt is Attempt.BORROW:
        with gate.entered():
            return borrow(gate, demand)
    last, block = attempt is Attempt.REMAP, None
    with gate.observed(demand.stream) as state:
        if attempt is Attempt.SPARE:
            block = _spare(state, demand)
            return None if block is None else state.take(block, demand)
        if attempt is not Attempt.GROW:
            block = state.fit(demand.bin, demand.need)
        giving = [] if block is not None else pages.donors(state, demand, last=last)
        if block is None and not giving:
            block = pages.grow(state, demand, [], last=last)
        if block is not None:
            return state.take(block, demand)
    return _moved(gate, demand, giving, last=last) if giving else None


def _spare(state: State, demand: Demand) -> Block | None:
    """Return a free block of a pool that helps out, on the demand's stream."""
    for pool in state.pools.all.values():
        if pool.use_on_oom and pool.use_count:
            bin_ = pool.of_class(demand.bin.size_class).get(demand.stream)
            found = None if bin_ is None else state.fit(bin_, demand.need)
            if found is not None:
                return found
    return None


def _moved(gate: Gate, demand: Demand, giving: list[Bin], *, last: bool) -> Addr | None:
    """Grow by the free pages of bins, and by new ones.

    They are unmapped first. As the ``last`` attempt streams are waited for; else
    only pages of those that are over are moved.
    """
    with gate.entered():
        over = wait(gate, [bin_.stream for bin_ in giving], patient=last)
    idle = [bin_ for bin_ in giving if last or bin_.stream in over]
    loose: list[pages.Donor] = []
    with Release() as undo, gate.observed(demand.stream) as state:
        try:
            moved = pages.moves(state, demand, idle, classic=last)
            release.remove(gate, moved, loose, patient=last)
            block = pages.grow(state, demand, loose, last=last)
            return None if block is None else state.take(block, demand)
        finally:
            undo(release.surrender, gate, (), [extent for _, extent in loose])
