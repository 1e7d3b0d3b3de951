"""Interrupts wherever one may come: what Control-C does to a library in a call of it.

CPython looks for signals where a function begins, where a loop goes back, and where a
call into C is over; nowhere else.
"""

from __future__ import annotations

import dis
import gc
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Final

__all__ = ["interrupted"]

_ROOT: Final = str(Path(__file__).parents[1])
_APART: Final = tuple(f"{_ROOT}/{name}" for name in ("driver/emulated", "testing"))
_LOOKED: Final = {
    dis.opmap[name]
    for name in ("RESUME", "JUMP_BACKWARD", "CALL", "CALL_FUNCTION_EX", "CALL_KW")
    if name in dis.opmap
}


def interrupted(call: Callable[[], object], at: int) -> str | None:
    """Interrupt a call at the place of that number, from 1; return where that was.

    None where it was over before. Only the library's own code counts, and of that none
    that emulates a device: a real one is not interrupted.
    """
    tracer = _Tracer(at)
    collects, traced = gc.isenabled(), sys.gettrace()
    gc.disable()
    sys.settrace(tracer.called)
    try:
        call()
    except KeyboardInterrupt:
        if tracer.where is None:
            raise
    finally:
        sys.settrace(traced)
        if collects:
            gc.enable()
    return tracer.where


class _Tracer:
    """Counts the places, and interrupts at one of them; `called` is to be set."""

    def __init__(self, at: int) -> None:
        self.where: str | None = None
        self._left = at
        self._latest: dict[FrameType, int] = {}
        self._returned = False

    def called(self, frame: FrameType, *_: Any) -> Any:
        """Have a frame be traced, if it counts."""
        name = frame.f_code.co_filename
        if not name.startswith(_ROOT) or name.startswith(_APART):
            return None
        frame.f_trace_opcodes = True
        return self._traced

    def _traced(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "opcode":
            before = self._latest.get(frame)
            self._latest[frame] = frame.f_code.co_code[frame.f_lasti]
            # After a function in Python there is no look.
            if before in _LOOKED and not self._returned:
                self._pass(frame)
            self._returned = False
        elif event == "return":
            self._latest.pop(frame, None)
            self._returned = True
        return self._traced

    def _pass(self, frame: FrameType) -> None:
        self._left -= 1
        if self._left == 0:
            name = Path(frame.f_code.co_filename).name
            self.where = f"{name}:{frame.f_lineno} {frame.f_code.co_name}"
            self._latest.clear()
            sys.settrace(None)
            raise KeyboardInterrupt
