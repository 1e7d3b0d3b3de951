"""A layer that counts calls, and remembers them if asked to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

from sapwood.driver.api import Driver
from sapwood.driver.facade import Layer

R = TypeVar("R")


class Recorded(Layer):
    """Counts the calls made of a driver, failed ones included.

    With ``keep``, ``calls`` holds ``(name, arguments)`` of each, in order. ``ever``
    counts all of them, whatever is forgotten.
    """

    def __init__(self, driver: Driver, *, keep: bool = False) -> None:
        super().__init__(driver)
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.ever = Counter[str]()
        self._forgotten = Counter[str]()
        self._keep = keep

    def around(self, name: str, call: Callable[..., R], args: tuple[Any, ...]) -> R:
        """Count the call, then make it."""
        self.ever[name] += 1
        if self._keep:
            self.calls.append((name, args))
        return call(*args)

    def counts(self) -> dict[str, int]:
        """Return how often each call was made since the last `reset`."""
        return dict(self.ever - self._forgotten)

    def reset(self) -> None:
        """Forget all calls so far."""
        self._forgotten = self.ever.copy()
        self.calls.clear()
