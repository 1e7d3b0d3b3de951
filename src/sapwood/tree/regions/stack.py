"""What frames of the user's code would do next: catch an exception, or only return."""

from __future__ import annotations

import dis
import sys
from collections.abc import Mapping
from functools import lru_cache
from types import CodeType, FrameType

from sapwood.tree.watch.session import is_users

__all__ = ["caught_at", "only_returns"]

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


def caught_at(stop: CodeType) -> str | None:
    """Return ``file:line`` of the innermost `try` that the caller's caller is in.

    Frames are looked at up to the one that runs ``stop``. ``with`` does not count.
    """
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - made for this
    own = frame.f_code.co_filename if frame is not None else ""
    while frame is not None and frame.f_code is not stop:
        code = frame.f_code
        if code.co_filename != own and _is_caught(code, frame.f_lasti):
            return f"{code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return None


def _is_caught(code: CodeType, at: int) -> bool:
    """Return whether a `try` in ``code`` is around the instruction at ``at``."""
    entries, kinds = _handlers(code)
    seen: set[int] = set()
    while at not in seen:
        seen.add(at)
        target = next((to for lo, hi, to in entries if lo <= at < hi), None)
        if target is None:
            return False
        if kinds[target]:
            return True
        # That of a `with` or a comprehension, which raises on from there.
        at = target
    return False


@lru_cache(maxsize=512)
def _handlers(
    code: CodeType,
) -> tuple[tuple[tuple[int, int, int], ...], Mapping[int, bool]]:
    """Return ``(start, end, target)`` of all handlers, and which are a `try`'s."""
    ops = [op for op in dis.get_instructions(code) if op.opname != "CACHE"]
    after = dict(zip((op.offset for op in ops), ops[1:], strict=False))
    entries = dis.Bytecode(code).exception_entries  # type: ignore[attr-defined]
    names = {op.offset: op.opname for op in ops}
    kinds = {
        entry.target: names[entry.target] == "PUSH_EXC_INFO"
        and after[entry.target].opname != "WITH_EXCEPT_START"
        for entry in entries
    }
    return tuple((e.start, e.end, e.target) for e in entries), kinds
