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

import sapwood

__all__ = ["interrupted"]

_ROOT: Final = str(Path(sapwood.__file__).parent)
_DEVICE: Final = f"{_ROOT}/driver/emulated"
_LOOKED: Final = {
    dis.opmap[name]
    for name in ("RESUME", "JUMP_BACKWARD", "CALL", "CALL_FUNCTION_EX", "CALL_KW")
    if name in dis.opmap
}


def interrupted(call: Callable[[], object], at: int, within: str = "") -> str | None:
    """Interrupt a call at the place of that number, from 1; return where that was.

    None where it was over before. Only the library's own code counts, and of that none
    that emulates a device, or that it calls: a real one is not interrupted. With
    ``within``, only files whose paths end so count, and where their functions begin.
    """
    tracer = _Tracer(at, within)
    collects, traced = gc.isenabled(), sys.gettrace()
    gc.disable()
    # CPython 3.12 tells of opcodes if any frame had asked when tracing began.
    sys._getframe().f_trace_opcodes = True
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

    def __init__(self, at: int, within: str) -> None:
        self.where: str | None = None
        self._left, self._paths = at, within
        self._latest: dict[FrameType, int] = {}
        self._returned = False
        self._emulated = False

    def called(self, frame: FrameType, *_: Any) -> Any:
        """Have a frame be traced, if it counts."""
        name = frame.f_code.co_filename
        if self._emulated or not name.startswith(_ROOT):
            return None
        if name.startswith(_DEVICE):
            self._emulated, frame.f_trace_lines = True, False
            return self._within
        frame.f_trace_opcodes = True
        if self._paths and name.endswith(self._paths):
            # No event tells of the look where it begins. A finaliser that is
            # interrupted there does nothing, so elsewhere that is not asked for.
            self._latest[frame], self._returned = dis.opmap["RESUME"], False
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

    def _within(self, _: FrameType, event: str, __: Any) -> Any:
        self._emulated = event != "return"
        return self._within

    def _pass(self, frame: FrameType) -> None:
        self._left -= frame.f_code.co_filename.endswith(self._paths)
        if self._left == 0:
            name = Path(frame.f_code.co_filename).name
            self.where = f"{name}:{frame.f_lineno} {frame.f_code.co_name}"
            self._latest.clear()
            sys.settrace(None)
            raise KeyboardInterrupt
