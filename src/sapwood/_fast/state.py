"""Classes whose objects hold what a replay looks at: C reads it where it lies.

Where they were not built, these classes of Python stand for them, and nothing is played
in C.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any, Final

from sapwood.version import __version__

__all__ = [
    "CallState",
    "GuardState",
    "PageState",
    "RecordingsState",
    "ReplayState",
    "ReplaysState",
    "StreamEpoch",
    "is_native",
]


class _StreamEpoch:
    """A number that is another one once something has changed between streams."""

    __slots__ = ("_numbers", "now")

    def __init__(self) -> None:
        self._numbers = count(1)
        self.now = 0

    def advance(self) -> None:
        # Threads may pass each other: no number comes back, so all see a change.
        self.now = next(self._numbers)


class _PageState:
    """Which pages a lease holds, who uses which, and if any lease was revoked."""

    __slots__ = ("live", "revoked", "uses")


class _RecordingsState:
    """A weak reference to the stream that all replays ran on, or None."""

    __slots__ = ("single_stream",)


class _GuardState:
    """How often guards were made anew, or came to expect other arrays."""

    __slots__ = ("epoch",)


class _ReplayState:
    """What a fast replay has found: while that is so it still fits."""

    __slots__ = ("epoch", "guard_epoch", "kept", "marks", "stream_epoch")


class _ReplaysState:
    """The replays in C of one function, those to be tried first in front."""

    __slots__ = ("players",)


class _CallState:
    """The fast replays of a graphed function, what gives its runtime, and which."""

    __slots__ = ("_fast_replays", "_on", "_runtime")


if TYPE_CHECKING:
    from sapwood._fast._state import (
        CallState,
        GuardState,
        PageState,
        RecordingsState,
        ReplaysState,
        ReplayState,
        StreamEpoch,
    )

    is_native: bool
else:
    try:
        from sapwood._fast import _state as found
    except ImportError:
        found = None
    is_native: Final = found is not None and __version__ == found.VERSION

    def _chosen(reference: type[Any]) -> type[Any]:
        return getattr(found, reference.__name__[1:]) if is_native else reference

    CallState = _chosen(_CallState)
    GuardState = _chosen(_GuardState)
    PageState = _chosen(_PageState)
    RecordingsState = _chosen(_RecordingsState)
    ReplayState = _chosen(_ReplayState)
    ReplaysState = _chosen(_ReplaysState)
    StreamEpoch = _chosen(_StreamEpoch)
