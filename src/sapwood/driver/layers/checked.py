"""A layer that keeps its own account of what a driver was asked for.

It is written from the Protocol alone: which calls give, use and take back which kind
of handle is read from the names and types there, so that it checks any driver, and
the emulated device's own bookkeeping too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar, get_type_hints

from sapwood.driver.api import (
    CaptureStatus,
    Driver,
    EventHandle,
    ExecHandle,
    ExtentHandle,
    GraphHandle,
    ModuleHandle,
    StreamHandle,
)
from sapwood.driver.facade import CALLS, Layer, gives_back
from sapwood.driver.layers.ledger import Ledger
from sapwood.driver.results import Refusal, Result
from sapwood.errors import MisuseError
from sapwood.units import Addr, Size

__all__ = ["Checked"]

R = TypeVar("R")

_KINDS: dict[object, str] = {
    EventHandle: "event",
    ExecHandle: "exec",
    ExtentHandle: "extent",
    GraphHandle: "graph",
    ModuleHandle: "module",
    StreamHandle: "stream",
}


class _Rule:
    """The handles in one call: where it uses them, and the kind that it returns."""

    def __init__(self, method: Callable[..., object]) -> None:
        hints = get_type_hints(method)
        self.gives = _KINDS.get(hints.pop("return"))
        self.takes = gives_back(method.__name__)
        self.uses = [
            (place, _KINDS[hint])
            for place, hint in enumerate(hints.values())
            if hint in _KINDS
        ]


_RULES = {name: _Rule(method) for name, method in CALLS.items()}


class Checked(Layer):
    """Refuses wrong use of handles and addresses, and says what was not given back.

    A refused call raises `DriverError` and does not reach the driver.
    """

    def __init__(self, driver: Driver) -> None:
        super().__init__(driver)
        self._live: dict[str, set[int]] = {kind: set() for kind in _KINDS.values()}
        self._ledger = Ledger(driver.abilities.page)

    def around(self, name: str, call: Callable[..., R], args: tuple[Any, ...]) -> R:
        """Check the call, make it, and note what it gave or took."""
        rule = _RULES[name]
        try:
            for place, kind in rule.uses:
                self._check(kind, args[place])
            self._ledger.check(name, args)
        except Refusal as refusal:
            raise refusal.error(name) from None
        if rule.takes:
            # Before it is done: what is given back, another thread may get at once.
            self._note(name, rule, args, None)
            return call(*args)
        result = call(*args)
        self._note(name, rule, args, result)
        return result

    def leaks(self) -> dict[str, int]:
        """Return how many of each kind of thing are out, of the kinds that are."""
        counts = {kind: len(live) for kind, live in self._live.items()}
        counts |= self._ledger.counts()
        return {kind: number for kind, number in counts.items() if number}

    def poison(self, ranges: Iterable[tuple[Addr, Size]], value: int = 0xFF) -> None:
        """Fill what of the ranges is mapped and writable, when all work is done.

        Raises `MisuseError` while a stream of this driver is capturing.
        """
        # A copy, made in one go: other threads may make streams meanwhile.
        for each in tuple(self._live["stream"]):
            status = self.driver.capture_status(StreamHandle(each))
            if status is not CaptureStatus.NONE:
                raise MisuseError(
                    f"stream {each} is capturing: poison memory between captures"
                )
        self.driver.synchronize()
        stream = self.driver.create_stream()
        try:
            for address, size in self._ledger.writable(ranges):
                self.driver.set(address, value, size, stream)
            self.driver.synchronize_stream(stream)
        finally:
            self.driver.destroy_stream(stream)

    def _check(self, kind: str, handle: int) -> None:
        if handle not in self._live[kind]:
            raise Refusal(
                Result.INVALID_HANDLE,
                f"{kind} {handle} was never given out here, or was given back: use "
                "handles only between the two",
            )

    def _note(
        self, name: str, rule: _Rule, args: tuple[Any, ...], result: object
    ) -> None:
        if rule.takes:
            for place, kind in rule.uses:
                self._live[kind].discard(args[place])
        elif rule.gives is not None and isinstance(result, int):
            self._live[rule.gives].add(result)
        self._ledger.note(name, args, result)
