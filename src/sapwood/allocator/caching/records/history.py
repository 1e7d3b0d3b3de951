"""The last events of an allocator, in a ring.

`History.record` is called under the allocator's lock and appends one tuple; stacks
are gathered by the caller before it takes the lock, where `wants_stack` says so.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from itertools import islice
from types import CodeType, FrameType
from typing import Literal, get_args

from sapwood.allocator.caching.picture import DEFAULT_POOL, Action, Entry, Frame, PoolId
from sapwood.driver.api import StreamHandle
from sapwood.errors import MisuseError
from sapwood.units import Addr, Size


@dataclass(frozen=True, slots=True)
class Stack:
    """Where a thread was: code objects with the offset in each, innermost first."""

    places: tuple[tuple[CodeType, int], ...] = ()

    def frames(self) -> tuple[Frame, ...]:
        """Return the lines, innermost first."""
        return tuple(
            Frame(code.co_filename, _line(code, offset), code.co_qualname)
            for code, offset in self.places
        )


NO_STACK = Stack()


def gather(skip: int = 0) -> Stack:
    """Return the caller's stack, without its ``skip`` innermost functions."""
    places = []
    frame: FrameType | None = sys._getframe(skip + 1)  # noqa: SLF001  documented
    while frame is not None:
        places.append((frame.f_code, frame.f_lasti))
        frame = frame.f_back
    return Stack(tuple(places))


def _line(code: CodeType, offset: int) -> int:
    """Return the line of the instruction at ``offset``, else where ``code`` begins."""
    at = next(islice(code.co_positions(), offset // 2, None), (None,))[0]
    return code.co_firstlineno if at is None else at


Enabled = Literal["state", "all"]
"""``state``: stacks of what is allocated now; ``all``: also every event."""

Context = Literal["state", "alloc", "all"]
"""Which stacks: of live blocks; also in allocations' events; also in all others'."""

MAX_ENTRIES = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryOptions:
    """What a history keeps; a wrong value raises `MisuseError` when this is made.

    ``context`` None gathers no stacks. ``skip`` names actions that are not recorded;
    ``annotation`` goes with every event.
    """

    enabled: Enabled = "all"
    context: Context | None = "all"
    max_entries: int = MAX_ENTRIES
    skip: Collection[str] = ()
    annotation: str = ""

    def __post_init__(self) -> None:
        _check_choice("enabled", self.enabled, get_args(Enabled))
        _check_choice("context", self.context, (None, *get_args(Context)))
        most = self.max_entries
        if type(most) is not int or not 1 <= most <= sys.maxsize:
            raise MisuseError(
                f"max_entries: {most!r} is not allowed. Set a whole number from 1; the "
                f"default is {MAX_ENTRIES}"
            )
        if isinstance(self.skip, str):
            raise MisuseError(
                f"skip: {self.skip!r} is one text. Give a list of actions"
            )
        for action in self.skip:
            _check_choice("skip", action, get_args(Action))
        if not isinstance(self.annotation, str):
            raise MisuseError(f"annotation: {self.annotation!r} is no text. Give a str")
        object.__setattr__(self, "skip", frozenset(self.skip))


def _check_choice(name: str, value: object, allowed: Collection[object]) -> None:
    if value in allowed:
        return
    import difflib

    near = difflib.get_close_matches(str(value), [str(word) for word in allowed], 1)
    meant = f"; did you mean {near[0]!r}?" if near else ""
    raise MisuseError(
        f"{name}: {value!r} is not allowed. Choose from "
        f"{', '.join(repr(word) for word in allowed)}{meant}"
    )


_Row = tuple[Action, Addr, Size, StreamHandle, int, PoolId, Stack, str]


class History:
    """A ring of the last `Entry` values; not thread-safe by itself."""

    def __init__(self, options: HistoryOptions) -> None:
        self.options = options
        self._keeps = options.enabled == "all"
        self._rows: deque[_Row] = deque(maxlen=options.max_entries)

    def wants_stack(self, action: Action) -> bool:
        """Whether the caller should gather a stack before it records ``action``."""
        context = self.options.context
        if action == "alloc":
            return context is not None
        return context == "all" and self._keeps and action not in self.options.skip

    def record(
        self,
        action: Action,
        address: int,
        size: int,
        stream: StreamHandle,
        pool: PoolId = DEFAULT_POOL,
        stack: Stack = NO_STACK,
    ) -> None:
        """Remember one event; the oldest goes when the ring is full."""
        if not self._keeps or action in self.options.skip:
            return
        if self.options.context in {None, "state"}:
            stack = NO_STACK
        now = time.time_ns() // 1000
        note, at = self.options.annotation, Addr(address)
        self._rows.append((action, at, Size(size), stream, now, pool, stack, note))

    def entries(self) -> tuple[Entry, ...]:
        """Return the events, oldest first."""
        return tuple(
            Entry(action, address, size, stream, at, pool, stack.frames(), note)
            for action, address, size, stream, at, pool, stack, note in self._rows
        )

    def revised(self, options: HistoryOptions) -> History:
        """Return a history under other options that goes on with these events."""
        revised = History(options)
        revised._rows.extend(self._rows)
        return revised
