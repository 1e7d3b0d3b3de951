"""What happened, as frozen records.

A replay is no event: a hit makes no record, it only counts. Everything that costs
more than a replay, or surprises, is one.
"""

from __future__ import annotations

from dataclasses import dataclass

from sapwood.units import Size


@dataclass(frozen=True, slots=True)
class _OfCall:
    """What happened to calls of a function with arguments of one signature."""

    function: str
    signature: str


@dataclass(frozen=True, slots=True)
class _OfRecording:
    """What happened to a recording of a function, by its name."""

    function: str
    recording: str


@dataclass(frozen=True, slots=True)
class WarmedUp(_OfCall):
    """A function ran eagerly and was watched."""


@dataclass(frozen=True, slots=True)
class Recorded(_OfCall):
    """A recording of ``ops`` was made; it clobbers ``pages``."""

    ops: int
    pages: int


@dataclass(frozen=True, slots=True)
class Restored(_OfCall):
    """A recording of another process was linked: ``ops``, clobbering ``pages``."""

    ops: int
    pages: int


@dataclass(frozen=True, slots=True)
class Fallback:
    """A runtime that named no device runs on the emulated one, for a reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class Missed(_OfCall):
    """None of the ``recordings`` of this signature could be replayed."""

    recordings: int
    reason: str


@dataclass(frozen=True, slots=True)
class Evicted(_OfRecording):
    """A recording gave way after ``replays`` of it."""

    replays: int
    reason: str


@dataclass(frozen=True, slots=True)
class PassedThrough(_OfCall):
    """A call ran eagerly and made no recording."""

    reason: str


@dataclass(frozen=True, slots=True)
class Escaped(_OfRecording):
    """Outputs were copied to ordinary memory: ``size`` bytes in all."""

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
