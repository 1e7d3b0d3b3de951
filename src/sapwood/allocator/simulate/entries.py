"""From an allocator's history to a trace.

A buffer ends when its block could be used again: where ``free_completed`` was noted,
there, so that what other streams still used counts as alive. Private pools are
replayed as part of the default one.
"""

from __future__ import annotations

from sapwood.allocator.caching.picture import Picture
from sapwood.allocator.simulate.log import Log
from sapwood.allocator.simulate.trace import Trace

__all__ = ["from_picture"]


def from_picture(name: str, picture: Picture) -> Trace:
    """Return the trace of a picture's history, and of the blocks it does not know."""
    actions = {entry.action for entry in picture.history}
    ends = "free_completed" if "free_completed" in actions else "free_requested"
    log = Log()
    for entry in picture.history:
        if entry.action == "alloc":
            log.allocate(entry.address, entry.size, entry.stream)
        elif entry.action == ends:
            log.free(entry.address, entry.size, entry.stream)
    log.survive(
        (block.address, block.requested, segment.stream)
        for segment in picture.segments
        for block in segment.blocks
        if block.state in {"allocated", "pending"}
    )
    return log.trace(name)
