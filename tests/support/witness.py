"""A layer that knows under whose lock each call is made, and refuses what may not be.

Under an allocator's lock only growth calls the device: whoever only wants a block
that is free never waits for anything else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from sapwood.driver.api import Driver
from sapwood.driver.layers import Layer
from sapwood.errors import InternalError

__all__ = ["GROWTH", "Witness"]

R = TypeVar("R")

GROWTH: Final = frozenset({"create", "map", "reserve", "set_access"})
"""What growing calls."""

_UNDO: Final = frozenset({"release", "unmap", "unreserve"})


class Witness(Layer):
    """Sees every call with whether the thread that makes it is ``inside`` the lock.

    ``locked`` and ``free`` are the names of calls made with and without it. Raises
    `InternalError` for a call under the lock that neither grows nor undoes growth
    that has just failed.
    """

    def __init__(self, driver: Driver) -> None:
        super().__init__(driver)
        self.inside: Callable[[], bool] = bool
        self.locked: set[str] = set()
        self.free: set[str] = set()
        self._failed = False

    def forget(self) -> None:
        """Begin anew."""
        self.locked, self.free = set(), set()

    def around(self, name: str, call: Callable[..., R], args: tuple[Any, ...]) -> R:
        """Make the call, unless it may not be made here."""
        if not self.inside():
            self.free.add(name)
            return call(*args)
        self.locked.add(name)
        if name not in GROWTH and not (self._failed and name in _UNDO):
            raise InternalError(
                f"nothing but growth calls the device under the lock: {name}",
                {"call": name, "args": args},
            )
        self._failed = self._failed and name in _UNDO
        try:
            return call(*args)
        except BaseException:
            self._failed = True
            raise
