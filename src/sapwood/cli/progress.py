"""What a terminal shows while something takes longer than a second."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

_WIDTH = 79


@contextmanager
def progress(say: Callable[[], str]) -> Iterator[None]:
    """Show what ``say`` returns, and for how long already, each second on a terminal.

    In the end the line is empty again.
    """
    if not (sys.stderr and sys.stderr.isatty()):
        yield
        return
    over, began = Event(), time.monotonic()

    def show() -> None:
        while not over.wait(1.0):
            _write(f"{say()}, {time.monotonic() - began:.0f} s")

    thread = Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        _write("")


def _write(text: str) -> None:
    print(f"\r{text[:_WIDTH]:{_WIDTH}}\r", end="", file=sys.stderr, flush=True)
