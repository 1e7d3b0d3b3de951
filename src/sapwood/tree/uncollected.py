"""No garbage is collected while anything is captured.

Whatever a finaliser gives back to the device, be it somebody else's, may spoil a
capture that this thread is in. Explicit calls of ``gc.collect`` do what they do. Who
turns collecting off while somebody captures finds it on again afterwards.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["collected", "uncollected"]


class _Halt:
    """The captures in progress, and whether Python had collected before.

    At every step a signal's handler or a finaliser may come in between: a capture of
    its own is one more.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._captures: set[object] = set()
        self._had = False

    def begin(self, capture: object) -> None:
        with self._lock:
            self._captures.add(capture)
            if len(self._captures) == 1:
                self._had = gc.isenabled()
                gc.disable()

    def end(self, capture: object) -> None:
        """End a capture; one that is over, or never began, changes nothing."""
        with self._lock:
            if self._captures == {capture}:
                if self._had:
                    gc.enable()
                self._had = False
            self._captures.discard(capture)

    def forget(self) -> None:
        """Begin anew, in a process in which nobody captures."""
        self._lock, self._captures = threading.RLock(), set()
        if self._had:
            gc.enable()
        self._had = False


class _Mine(threading.local):
    """The captures of one thread."""

    def __init__(self) -> None:
        self.captures: list[object] = []


_halt, _mine = _Halt(), _Mine()


def _forked() -> None:
    _mine.captures.clear()
    _halt.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


@contextmanager
def uncollected() -> Iterator[None]:
    """Have nothing collected, on any thread, but for what is `collected` inside."""
    capture, mine = object(), _mine.captures
    try:
        mine.append(capture)
        _halt.begin(capture)
        yield
    finally:
        _halt.end(capture)
        if capture in mine:
            mine.remove(capture)


@contextmanager
def collected() -> Iterator[None]:
    """Have Python collect as before, unless another thread captures."""
    captures = list(_mine.captures)
    try:
        for each in captures:
            _halt.end(each)
        yield
    finally:
        for each in captures:
            _halt.begin(each)
