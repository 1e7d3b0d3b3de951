"""Measuring that may take too long, or fail: a text says so in place of figures."""

from __future__ import annotations

import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["Figures", "TooLong", "at_most", "tried"]

Figures = dict[str, Any]


class TooLong(BaseException):
    """What was begun takes longer than was allowed; nothing on the way may catch it."""


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    """Raise `TooLong` where what is inside takes longer."""

    def stop(*_: object) -> None:
        raise TooLong(f"it takes longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def tried(measure: Callable[[], Figures]) -> Figures:
    """Return what is measured, or why it is not; where it failed, trace that, too."""
    try:
        return measure()
    except TooLong as error:
        return {"says": f"skipped: {error}"}
    except Exception as error:  # noqa: BLE001 - the other figures are still wanted
        traceback.print_exc()
        return {"says": f"failed: {type(error).__name__}: {str(error)[:200]}"}
