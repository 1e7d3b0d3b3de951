"""Whether a function decides nothing any more: all that is left of it is to return."""

from __future__ import annotations

import dis
import sys
from functools import lru_cache
from types import CodeType, FrameType

from sapwood.tree.watch.session import is_users

__all__ = ["only_returns"]

_STRAIGHT = frozenset(
    {
        *("BUILD_CONST_KEY_MAP", "BUILD_LIST", "BUILD_MAP", "BUILD_TUPLE", "CACHE"),
        *("COPY", "EXTENDED_ARG", "LOAD_CONST", "LOAD_FAST", "LOAD_FAST_BORROW"),
        *("LOAD_FAST_BORROW_LOAD_FAST_BORROW", "LOAD_FAST_CHECK"),
        *("LOAD_FAST_LOAD_FAST", "LOAD_SMALL_INT", "NOP", "POP_TOP", "STORE_FAST"),
        *("STORE_FAST_LOAD_FAST", "STORE_FAST_STORE_FAST", "SWAP"),
    }
)
"""Instructions that read and ask nothing but what the function's own names hold."""

_RETURNS = frozenset({"RETURN_CONST", "RETURN_VALUE"})


def only_returns(stop: CodeType) -> bool:
    """Return whether every frame of the user's that called this returns from there on.

    Frames are looked at up to the one that runs ``stop``. What a framework's own do
    behind a call hangs on nothing that an eager region changes.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - made for this
    while frame is not None and frame.f_code is not stop:
        code = frame.f_code
        if _may_decide(code.co_filename) and not _returns_after(code, frame.f_lasti):
            return False
        frame = frame.f_back
    return True


def _may_decide(file: str) -> bool:
    # What is typed in, or made of text, has no file.
    return file.startswith("<") or is_users(file)


@lru_cache(maxsize=512)
def _returns_after(code: CodeType, at: int) -> bool:
    """Return whether nothing is decided behind the instruction at ``at``."""
    for op in dis.get_instructions(code):
        if op.offset <= at:
            continue
        if op.opname in _RETURNS:
            return True
        if op.opname not in _STRAIGHT:
            return False
    return False
