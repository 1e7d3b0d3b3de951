"""A thread that asks, now and then, whether copies are over."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Final, Protocol

_INTERVAL: Final = 1e-3  # seconds


class Owner(Protocol):
    """Whoever has something to be looked after."""

    def look_after(self) -> bool:
        """Do what can be done now; return whether there will be more."""


class Worker:
    """Looks after its owner from each `wake` on, until there is nothing more.

    The thread ends with the owner, whom it does not keep alive, or with the process.
    """

    def __init__(self) -> None:
        # Entered anew by what a finaliser does inside.
        self._lock = threading.RLock()
        self._calls: SimpleQueue[bool] | None = None
        self._end: Callable[[], object] | None = None

    def start(self, owner: Owner) -> None:
        """Start the thread, unless it runs."""
        if self._end is not None:
            return
        with self._lock:
            if self._end is None:
                # A queue for each: what ends one thread is not for the next.
                calls = SimpleQueue[bool]()
                self._end = weakref.finalize(owner, _end, calls, _started(calls, owner))
                self._calls = calls

    def wake(self) -> None:
        """Let the thread look; may be called anywhere, by finalisers too."""
        calls = self._calls
        if calls is not None:
            calls.put(True)

    def stop(self) -> None:
        """End the thread, and wait until it has."""
        with self._lock:
            end, self._end, self._calls = self._end, None, None
        if end is not None:
            end()


def _started(calls: SimpleQueue[bool], owner: Owner) -> threading.Thread:
    args = calls, weakref.ref(owner)
    thread = threading.Thread(
        target=_run, args=args, name="sapwood-pinned", daemon=True
    )
    try:
        thread.start()
    except BaseException:
        calls.put(False)  # an interrupt, with the thread running
        raise
    return thread


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
