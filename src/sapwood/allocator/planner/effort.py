"""When a search has done enough: by its success, by the clock, or by its steps."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Effort:
    """How long to search on, which depends on the best height found so far, in bytes.

    A height of ``enough`` ends it, and ``goes_on``, which is asked often. It lasts for
    ``seconds``, but for ``polish`` where the height is at most ``near``, and, if it is
    ``patient``, until there is one; and for at most ``most`` steps. What a search does
    depends on its steps alone: the seconds only end it.
    """

    enough: int
    seconds: float
    near: int = 0
    polish: float = math.inf
    patient: bool = False
    most: int | None = None
    steps: int = 0
    best: int | None = None
    goes_on: Callable[[int | None], bool] | None = None
    _started: float = field(default_factory=time.monotonic)

    @property
    def elapsed(self) -> float:
        """The seconds since it was made."""
        return time.monotonic() - self._started

    def late(self) -> bool:
        """Return whether the time is over."""
        best = self.best
        if self.goes_on is not None and not self.goes_on(best):
            return True
        if best is None and self.patient:
            return False
        is_near = best is not None and best <= self.near
        allowed = min(self.seconds, self.polish) if is_near else self.seconds
        return self.elapsed >= allowed

    def step(self, best: int) -> bool:
        """Say what the best height is. Return whether to go on; then count a step."""
        self.best = best
        if best <= self.enough or self.steps == self.most or self.late():
            return False
        self.steps += 1
        return True
