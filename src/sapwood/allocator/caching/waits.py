"""Waiting for work: decided under the lock, done without it, so that nobody else waits.

A stream may be gone while somebody waits, an event of one's own may not: so what a
stream has to do is marked first, and the marks are waited for. `mark`, `poll` and
`wait` are called under the lock, and leave it for their driver calls.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from sapwood.allocator.caching.block import Block
from sapwood.allocator.caching.gate import Gate
from sapwood.allocator.caching.pending import Use, record
from sapwood.allocator.caching.pools import Pool
from sapwood.allocator.caching.state import State
from sapwood.driver.api import Driver, EventHandle, StreamHandle
from sapwood.driver.release import Release


def unmarked(state: State) -> list[Block]:
    """Return the freed blocks whose uses are to be marked now.

    Events mean nothing while anything is captured; and where blocks of other streams
    are reused, the waits are made when they are.
    """
    if state.settings.cross_stream_reuse or not state.pending.unmarked:
        return []
    return [] if state.capturing() else list(state.pending.unmarked)


def mark(gate: Gate, blocks: Collection[Block]) -> None:
    """Record events of the uses of freed blocks, which wait for these.

    Where one cannot be recorded, the use is unmarked again, and the others are.
    """
    pending = gate.state.pending
    uses = pending.take_unmarked(blocks)

    def marked(driver: Driver, use: Use) -> None:
        use.event = record(driver, use.stream, pending.spare)

    with Release() as release:
        try:
            with gate.unlocked() as driver:
                for use in uses:
                    release(marked, driver, use)
        finally:
            pending.keep(uses)
            gate.state.retire_ready()


def poll(gate: Gate) -> None:
    """Free the blocks that wait for nothing any more; waits for nobody.

    Asks about the events of each stream, until one is not over.
    """
    pending, asking = gate.state.pending, True
    while asking:
        heads, over = pending.heads(), list[Use]()
        try:
            with gate.unlocked() as driver:
                for uses in heads:
                    for use in uses:
                        if not _is_over(driver, use):
                            break
                        over.append(use)
        finally:
            pending.end(over)
            gate.state.retire_ready()
        asking = not {uses[-1] for uses in heads}.isdisjoint(over)


def _is_over(driver: Driver, use: Use) -> bool:
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
        wait(gate, marks=state.pending.marked(pool))


def wait(
    gate: Gate,
    streams: Iterable[StreamHandle] = (),
    marks: Collection[Use] = (),
    *,
    patient: bool = True,
) -> set[StreamHandle]:
    """Wait for marked uses and for streams; return the streams that had no work.

    Unless ``patient``, streams are asked only. More work may come meanwhile: who then
    unmaps waits again, but not for long.
    """
    pending = gate.state.pending
    over, ended, events = set[StreamHandle](), list[Use](), list[EventHandle]()
    pending.watch(marks)
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
        pending.end(ended)
        pending.unwatch(marks)
        pending.spare += events
        gate.state.retire_ready()
    return over
