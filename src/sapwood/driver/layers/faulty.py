"""A layer that makes chosen calls fail, as a device may fail them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, TypeVar

from sapwood.driver.api import Driver
from sapwood.driver.facade import Layer, gives_back
from sapwood.driver.results import Result
from sapwood.errors import OutOfMemory

R = TypeVar("R")


class Faulty(Layer):
    """Fails the calls at the positions in ``plan``, counted from 0.

    Calls that give something back are done and then reported failed, and a capture is
    ended but gives no graph; all others fail before they do anything. ``create`` and
    ``allocate_host`` fail with `OutOfMemory`, the rest with `DriverError`.

    ``position`` is the number of calls seen, ``fired`` the name of the last call that
    was made to fail. Both, and ``plan``, may be set anew at any time.
    """

    def __init__(self, driver: Driver, plan: Collection[int] = ()) -> None:
        super().__init__(driver)
        self.plan = plan
        self.position = 0
        self.fired: str | None = None

    def around(self, name: str, call: Callable[..., R], args: tuple[Any, ...]) -> R:
        """Make the call, unless it is its turn to fail."""
        position, self.position = self.position, self.position + 1
        if position not in self.plan:
            return call(*args)
        self.fired = name
        if gives_back(name):
            call(*args)
        elif name == "end_capture":
            self.driver.destroy_graph(self.driver.end_capture(*args))
        if name in {"create", "allocate_host"}:
            raise OutOfMemory(name, asked=args[0], free=0)
        raise Result.UNKNOWN.refusal(
            f"call {position} was made to fail on purpose: take it out of the plan"
        ).error(name)
