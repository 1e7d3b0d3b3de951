"""The guards of one recording: do all slots that were read still hold the same?

They keep no user object alive: roots are held weakly, everything else is found again
from them. An unchanged slot costs an identity test, most of them in C.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import is_, itemgetter
from typing import Any

from sapwood.tree.ambient.reach import Arrays, Inside, Row, constant_of, layout_of
from sapwood.tree.ambient.slots import Slot
from sapwood.tree.ambient.views import EMPTY, Space, value_text
from sapwood.tree.containers import Identity, constant_key

__all__ = ["Ambient", "Check", "Guard"]

_CHANGING = object()
"""Stands for a value that may change while it stays the same object."""


@dataclass(frozen=True, slots=True)
class Guard:
    """One guarded slot. ``pin``: its array is used; ``seen``: the number of a node
    that was come by before, or -1."""

    path: str
    row: Row
    pin: bool
    seen: int


class _Group:
    """Slots of one kind in one space; ``expected`` is what is tried first."""

    __slots__ = ("expected", "frozen", "pick")

    def __init__(self, guards: Sequence[Guard], expected: Sequence[Any]) -> None:
        keys = [guard.row.key for guard in guards]
        # itemgetter gives a tuple for two keys and more.
        self.pick: Callable[[Space], Sequence[Any]] = itemgetter(*keys, *keys[:1])
        self.expected = (*expected, *expected[:1])
        self.frozen = tuple(guard.row.frozen for guard in (*guards, *guards[:1]))


class Check:
    """What is guarded inside one thing, by one view."""

    __slots__ = (
        "_arrays",
        "_constants",
        "_extent",
        "_idle",
        "_lacks",
        "_nodes",
        "_opaque",
        "_pinned",
        "_seen",
        "guards",
        "open",
        "path",
        "thing",
    )
