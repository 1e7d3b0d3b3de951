"""What happened, as frozen records, and where the records go.

A replay is no event: a hit makes no record, it only counts. Everything that costs
more than a replay, or surprises, is one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from sapwood.units import Size

__all__ = [
    "Closed",
    "Escaped",
    "Event",
    "Evicted",
    "Fallback",
    "Log",
    "Missed",
    "PassedThrough",
    "Recorded",
    "Restored",
    "Sink",
    "StoreTrouble",
    "WarmedUp",
]


@dataclass(frozen=True, slots=True)
class WarmedUp:
    """A function ran eagerly and was watched."""

    function: str
    signature: str


@dataclass(frozen=True, slots=True)
class Recorded:
    """A recording of ``ops`` was made; it clobbers ``pages``."""

    function: str
    signature: str
    ops: int
    pages: int


@dataclass(frozen=True, slots=True)
class Restored:
    """A recording of another process was linked: ``ops``, clobbering ``pages``."""

    function: str
    signature: str
    ops: int
    pages: int


@dataclass(frozen=True, slots=True)
class Fallback:
    """A runtime that named no device runs on the emulated one, for a reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class Missed:
    """None of the ``recordings`` of this signature could be replayed."""

    function: str
    signature: str
    recordings: int
    reason: str


@dataclass(frozen=True, slots=True)
class Evicted:
    """A recording gave way after ``replays`` of it."""

    function: str
    signature: str
    replays: int
    reason: str


@dataclass(frozen=True, slots=True)
class PassedThrough:
    """A call ran eagerly and made no recording."""

    function: str
    signature: str
    reason: str


@dataclass(frozen=True, slots=True)
class Escaped:
    """Outputs were copied to ordinary memory: ``size`` bytes in all."""

    function: str
    signature: str
    outputs: int
    size: Size


@dataclass(frozen=True, slots=True)
class StoreTrouble:
    """The store could not give or take something; calls go on without it."""

    reason: str


@dataclass(frozen=True, slots=True)
class Closed:
    """A runtime was closed, with ``recordings`` made and ``outputs`` still held."""

    recordings: int
    outputs: int


Event = (
    WarmedUp
    | Recorded
    | Restored
    | Missed
    | Evicted
    | Fallback
    | PassedThrough
    | Escaped
    | StoreTrouble
    | Closed
)


class Sink(Protocol):
    """Whatever wants to hear of events; it must neither block nor raise."""

    def __call__(self, event: Event) -> None: ...


class Log:
    """A sink that remembers the last ``size`` events.

    Appending is atomic: threads may share one log.
    """

    def __init__(self, size: int) -> None:
        self._ring: deque[Event] = deque(maxlen=size)

    def __call__(self, event: Event) -> None:
        self._ring.append(event)

    def __iter__(self) -> Iterator[Event]:
        """Iterate over a copy of the remembered events, oldest first."""
        return iter(self._ring.copy())

    def __len__(self) -> int:
        return len(self._ring)
