"""Python stacks, gathered cheaply now and read only when somebody looks.

A gathered stack holds code objects and positions in them, no frames: it keeps no
local variable alive. Lines are looked up when it is read.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from itertools import islice
from types import CodeType, FrameType

from sapwood.allocator.caching.picture import Frame

__all__ = ["NO_STACK", "Stack", "gather"]


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
