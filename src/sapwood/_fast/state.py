"""Classes whose objects hold what a replay looks at: C reads it where it lies.

Where they were not built, these classes of Python stand for them, and nothing is played
in C.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from itertools import count
from typing import Any, Final

from sapwood.version import __version__


class StreamEpoch:
    """A number that is another one once something has changed between streams."""

    __slots__ = ("_numbers", "now")

    def __init__(self) -> None:
        self._numbers = count(1)
        self.now = 0

    def advance(self) -> None:
        """Have it be another one."""
        # Threads may pass each other: no number comes back, so all see a change.
        self.now = next(self._numbers)


class PageState:
    """Which pages a lease holds, who uses which, and if any lease was revoked.

    ``writes`` is how many replays have written arrays that others have.
    """

    __slots__ = ("live", "revoked", "uses", "writes")

    live: Any
    revoked: bool
    uses: Any
    writes: int


class RecordingsState:
    """A weak reference to the stream that all replays ran on, or None."""

    __slots__ = ("single_stream",)

    single_stream: Any


class GuardState:
    """How often guards were made anew, or came to expect other arrays."""

    __slots__ = ("epoch",)

    epoch: int


class ReplayState:
    """What a fast replay has found: while that is so it still fits.

    While it ``rests``, what it has kept holds no pages.
    """

    __slots__ = ("epoch", "guard_epoch", "kept", "rests", "stream_epoch")

    epoch: int
    guard_epoch: int
    stream_epoch: int
    kept: Any
    rests: bool


class SkipsState:
    """How many calls run the plain function that ``target`` gives, and how many have.

    Those ``left`` run it without more ado; C has counted those that ``passed``.
    """

    __slots__ = ("left", "passed", "target")

    left: int
    passed: int
    target: Callable[[], Callable[..., Any]]


class ReplaysState:
    """The replays in C of one function, those to be tried first in front.

    Where there are none, ``skips`` tells if a call runs the plain function.
    """

    __slots__ = ("players", "skips")

    players: tuple[Any, ...]
    skips: SkipsState


class CallState:
    """The fast replays of a graphed function, what gives its runtime, and which."""

    __slots__ = ("_fast_replays", "_on", "_runtime")

    _fast_replays: Any
    _on: Any
    _runtime: Callable[[], Any]


def _built() -> bool:
    """Put the classes of C in the place of these; false where there are none."""
    try:
        found = import_module("sapwood._fast._state")
    except ImportError:
        return False
    if __version__ != found.VERSION:
        return False
    of_c = {name: each for name, each in vars(found).items() if isinstance(each, type)}
    globals().update(of_c)
    return True


is_native: Final = _built()
