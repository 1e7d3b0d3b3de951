"""A thread that asks, now and then, whether copies are over."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Final, Protocol

__all__ = ["Owner", "Worker"]

_INTERVAL: Final = 1e-3  # seconds


class Owner(Protocol):
    """Whoever has something to be looked after."""

    def look_after(self) -> bool:
        """Do what can be done now; return whether there will be more."""
        ...


class Worker:
    """Looks after its owner from each `wake` on, until there is nothing more.

    The thread ends with the owner, whom it does not keep alive, or with the process.
    """

    def __init__(self) -> None:
        self._calls = SimpleQueue[bool]()
        self._end: Callable[[], object] | None = None

    def start(self, owner: Owner) -> None:
        """Start the thread, unless it runs."""
        if self._end is None:
            thread = threading.Thread(
                target=_run,
                args=(self._calls, weakref.ref(owner)),
                name="sapwood-pinned",
                daemon=True,
            )
            self._end = weakref.finalize(owner, _end, self._calls, thread)
            thread.start()

    def wake(self) -> None:
        """Let the thread look; may be called anywhere, by finalisers too."""
        if self._end is not None:
            self._calls.put(True)

    def stop(self) -> None:
        """End the thread, and wait until it has."""
        if self._end is not None:
            self._end()
            self._end, self._calls = None, SimpleQueue[bool]()


def _run(calls: SimpleQueue[bool], owner: weakref.ref[Owner]) -> None:
    while calls.get():
        while _looked_after(owner):
            try:
                if not calls.get(timeout=_INTERVAL):
                    return
            except Empty:
                continue


def _looked_after(owner: weakref.ref[Owner]) -> bool:
    found = owner()
    return found is not None and found.look_after()


def _end(calls: SimpleQueue[bool], thread: threading.Thread) -> None:
    calls.put(False)
    if thread is not threading.current_thread():
        thread.join()
