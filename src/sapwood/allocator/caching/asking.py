"""A request: checked, made a demand, and refused where nothing serves it."""

from __future__ import annotations

import operator
import threading
from typing import SupportsIndex

from sapwood.allocator.caching.expand import Attempt, attempts
from sapwood.allocator.caching.grow import growth_size
from sapwood.allocator.caching.records.history import Stack
from sapwood.allocator.caching.sizes import IMPOSSIBLE, class_of, rounded
from sapwood.allocator.caching.state import Demand, State
from sapwood.driver.api import StreamHandle
from sapwood.errors import MisuseError, OutOfMemory
from sapwood.units import Size


def checked_size(size: SupportsIndex) -> int:
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


def demand_of(state: State, size: int, stream: StreamHandle, stack: Stack) -> Demand:
    """Return what a request means: how large a block, from which bin."""
    need = rounded(size, state.settings.divisions(size))
    pool = state.pools.routed(threading.get_ident(), stream) or state.pools.default
    return Demand(Size(size), need, stream, pool.bin(stream, class_of(need)), stack)


Order = tuple[Attempt, ...]


def order_of(state: State, demand: Demand) -> tuple[Order, Order]:
    """Return what to try for a demand: first, and after asking for memory.

    Nothing further where it is refused before anything is given up for it.
    """
    order = attempts(
        state.settings,
        private=demand.bin.pool.private,
        capturing=state.capturing(),
        limited=state.settings.per_process_memory_fraction < 1.0,
    )
    if _is_rejected(state, demand):
        return (Attempt.FIT,), ()
    at = order.index(Attempt.RECLAIM)
    return order[:at], order[at:]


def _is_rejected(state: State, demand: Demand) -> bool:
    if not state.settings.throw_on_cudamalloc_oom:
        return False
    return state.ledger.allocated() + growth_size(state, demand) > state.limit


def refusal(state: State, demand: Demand, index: int, free: Size) -> OutOfMemory:
    """Return the error of a demand that nothing serves.

    ``free`` is the device's free memory, in bytes.
    """
    from sapwood.allocator.caching.export.portrait import portray
    from sapwood.allocator.caching.shortage.explain import out_of_memory
    from sapwood.allocator.caching.shortage.remedies import Request

    if _is_rejected(state, demand):
        state.ledger.rejections += 1
    else:
        state.ledger.ooms += 1
    state.note("oom", free, demand.need, demand.bin, demand.stack)
    bin_ = demand.bin
    request = Request(
        size=demand.size,
        rounded=demand.need,
        growth=growth_size(state, demand),
        page=state.page,
        stream=demand.stream,
        pool=bin_.pool.id,
        size_class=bin_.size_class,
        settings=state.settings,
        capturing=state.capturing(),
    )
    picture = portray(state, index, free, history=False)
    return out_of_memory(picture, request)
