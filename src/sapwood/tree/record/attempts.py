"""A call recorded by a framework that captures by itself, in as many tries as need be.

A capture may be spoilt by others, and nobody knows beforehand how much it allocates.
Nothing of a failed attempt has run, and nothing is left of it: another one may follow.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from sapwood.errors import DriverError
from sapwood.memory.range import LENT
from sapwood.tree.choose.recordings import Recordings
from sapwood.tree.record.adopted import Short, attempt, is_spoilt
from sapwood.tree.record.recorder import Recorded
from sapwood.tree.record.taking import (
    RecordRequest,
)
from sapwood.tree.watch.capturer import GraphCapturer
from sapwood.units import Size

__all__ = ["record_adopted"]

ROOM: Final = Size(128 << 20)
"""What there is to allocate from beyond what the warm-up has allocated: what it found
ready, such as the workspaces of libraries, is made anew in a capture, and allocators
round up. cuBLAS wants 32 MiB on an H200, for each stream."""

MORE: Final = 8
"""How many times as much there is when it was not enough."""

TRIES: Final = 4
"""How often a function is captured before what spoils it is taken to be its own."""


def record_adopted(
    order: RecordRequest, recordings: Recordings, capturer: GraphCapturer
) -> Recorded:
    """Have a call captured and build a node; nothing of it has run.

    Whatever waits for the whole device, on any thread, spoils a capture; and there may
    have been too little room. Then the function is captured again, unless it has
    changed something that cannot be put back. Raises `CaptureError`, `DriverError` or
    `OutOfMemory`, and then no trace is left of it in what it is known to reach.
    """
    for _ in range(TRIES - 1):
        try:
            return _record(order, recordings, capturer)
        except DriverError as error:
            if not is_spoilt(error):
                raise
    return _record(order, recordings, capturer)


def _record(
    order: RecordRequest, recordings: Recordings, capturer: GraphCapturer
) -> Recorded:
    warm = order.specialization.warm
    room = Size(ROOM + warm.room) if warm else Size(MORE * ROOM)
    while room < LENT:
        with suppress(Short):
            return attempt(room, order, recordings, capturer)
        room = Size(MORE * room)
    return attempt(LENT, order, recordings, capturer)
