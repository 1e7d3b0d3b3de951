"""No garbage is collected while anything is captured.

Whatever a finaliser gives back to the device, be it somebody else's, may spoil a
capture that this thread is in. Explicit calls of ``gc.collect`` do what they do.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["collected", "uncollected"]


class _Halt:
    """How many captures are in progress, and whether Python had collected before."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._captures, self._had = 0, False

    def begin(self) -> None:
        with self._lock:
            if not self._captures:
                self._had = gc.isenabled()
                gc.disable()
            self._captures += 1

    def end(self) -> None:
        with self._lock:
            self._captures -= 1
            if self._had and not self._captures:
                gc.enable()


_halt = _Halt()


@contextmanager
def uncollected() -> Iterator[None]:
    """Have nothing collected, on any thread, but for what is `collected` inside."""
    _halt.begin()
    try:
        yield
    finally:
        _halt.end()


@contextmanager
def collected() -> Iterator[None]:
    """Have Python collect as before, unless somebody else captures."""
    _halt.end()
    try:
        yield
    finally:
        _halt.begin()
