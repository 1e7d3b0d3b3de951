"""What came of replaying a trace on a policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sapwood.units import Size

__all__ = ["Failure", "Outcome"]


@dataclass(frozen=True, slots=True)
class Failure:
    """Where a replay ran out of memory: in which pass, and for which buffer.

    ``live`` are the bytes that were alive without it, ``text`` what the policy said.
    """

    turn: int
    buffer: str
    time: int
    size: Size
    live: Size
    text: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a policy served a trace.

    ``peak`` is the most that the trace keeps alive at once: the lower bound of
    ``reserved``, the most physical memory that the policy held. ``calls`` are those
    of the driver, by name. ``requests`` were served before it ended. ``seconds`` is
    the time of it all, planning included, and no part of what makes outcomes equal.
    """

    trace: str
    policy: str
    reserved: Size
    peak: Size
    requests: int
    calls: Mapping[str, int]
    failure: Failure | None = None
    seconds: float = field(default=0.0, compare=False)

    @property
    def ratio(self) -> float | None:
        """``reserved`` to ``peak``; None where the policy ran out of memory."""
        if self.failure is not None:
            return None
        return self.reserved / self.peak if self.peak else 1.0

    @property
    def driver_calls(self) -> int:
        """How many calls of the driver there were."""
        return sum(self.calls.values())
