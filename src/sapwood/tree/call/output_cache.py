"""Storages of outputs that stay after their arrays, for the next replay's.

To end a lease and begin another, and to make storages anew, costs more than to launch.
So the storages of one replay are kept for the next, as long as nobody else has one:
how many references there are tells.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from sys import getrefcount
from typing import Any, Final

from sapwood.driver.streams import Stream
from sapwood.memory.storage import Storage
from sapwood.units import Addr

__all__ = ["Kept", "Made"]

Made = tuple[int, Any, Addr]
"""An array to be made: over which of the storages, its template, and where."""


class Kept:
    """Storages that are kept, and what makes arrays over them.

    ``held`` are the objects that arrays refer to while they live: the storages, or
    what a framework has in their place, and ``had`` says which of them the ``makers``,
    one of each array, have as well. Other uses, which ``count`` tells of each of the
    ``numbers``, may be watched.
    """

    __slots__ = ("count", "held", "makers", "numbers", "others", "storages", "uses")

    def __init__(
        self,
        storages: Sequence[Storage],
        held: Sequence[Any],
        makers: Sequence[Callable[[], Any]],
        had: Sequence[int],
        count: Callable[[int], int] = int,
        numbers: Sequence[int] = (),
    ) -> None:
        self.storages, self.held, self.makers = storages, held, makers
        self.count, self.numbers = count, numbers
        # What they come to while no array lives: by how they are held, not as read,
        # for a reference that nobody knows of may end later.
        self.uses = [1 + had.count(k) for k in range(len(held))]
        self.others = [*map(count, numbers)]

    def is_only(self, stream: Stream) -> bool:
        """Return whether this stream alone has used the storages, and all are valid."""
        return all(
            storage.writer is stream
            and not storage.readers
            and storage.stale is None
            and all(other is stream for other in storage.borrowers)
            for storage in self.storages
        )

    def is_idle(self) -> bool:
        """Return whether nobody else has any of the storages."""
        uses = [counted - _COUNTING for counted in map(getrefcount, self.held)]
        return uses == self.uses and [*map(self.count, self.numbers)] == self.others


def _held_once() -> int:
    probe = [object()]
    return next(map(getrefcount, probe))


_COUNTING: Final = _held_once() - 1
"""References that counting makes itself."""
