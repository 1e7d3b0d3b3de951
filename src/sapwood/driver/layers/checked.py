"""A layer that keeps its own account of what a driver was asked for.

It is written from the Protocol alone: which calls give, use and take back which kind
of handle is read from the names and types there, so that it checks any driver, and
the emulated device's own bookkeeping too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar, get_type_hints

from sapwood.driver.api import (
    Access,
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
from sapwood.driver.results import Refusal, Result, invalid_value
from sapwood.errors import MisuseError
from sapwood.units import Addr, Size, hex_address

R = TypeVar("R")

_KINDS: dict[object, str] = {
    EventHandle: "event",
    ExecHandle: "exec",
    ExtentHandle: "extent",
    GraphHandle: "graph",
    ModuleHandle: "module",
    StreamHandle: "stream",
}
_PLACES = {
    "allocate_host": "host",
    "free_host": "host",
    "map": "mapping",
    "unmap": "mapping",
    "register_host": "registered",
    "unregister_host": "registered",
    "reserve": "reservation",
    "unreserve": "reservation",
}
"""The calls that give or take back what is known by its address, and what that is."""


class _Rule:
    """What one call gives, takes back, and where it uses which kind of handle."""

    def __init__(self, method: Callable[..., object]) -> None:
        hints = get_type_hints(method)
        self.place = _PLACES.get(method.__name__)
        self.gives = _KINDS.get(hints.pop("return"), self.place)
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
        # By handle or address, with the size of what has one.
        self._live: dict[str, dict[int, Size]] = {
            kind: {} for kind in (*_KINDS.values(), *_PLACES.values())
        }
        self._access: dict[int, Access] = {}  # of mappings

    def around(self, name: str, call: Callable[..., R], args: tuple[Any, ...]) -> R:
        """Check the call, make it, and note what it gave or took."""
        rule = _RULES[name]
        try:
            for place, kind in rule.uses:
                self._check_handle(kind, args[place])
            self._check_addresses(name, args)
        except Refusal as refusal:
            raise refusal.error(name) from None
        if rule.takes:
            # Before it is done: what is given back, another thread may get at once.
            self._note_end(rule, args)
            return call(*args)
        result = call(*args)
        self._note(name, rule, args, result)
        return result

    def leaks(self) -> dict[str, int]:
        """Return how many of each kind of thing are out, of the kinds that are."""
        return {kind: len(live) for kind, live in self._live.items() if live}

    def poison(self, ranges: Iterable[tuple[Addr, Size]], value: int = 0xFF) -> None:
        """Fill what of the ranges is mapped and writable, when all work is done.

        Raises `MisuseError` while a stream of this driver is capturing.
        """
        # A copy, made in one go: other threads may make streams meanwhile.
        for each in tuple(self._live["stream"]):
            if self.driver.capture_status(StreamHandle(each)) is not CaptureStatus.NONE:
                raise MisuseError(
                    f"stream {each} is capturing: poison memory between captures"
                )
        self.driver.synchronize()
        stream = self.driver.create_stream()
        try:
            for address, size in ranges:
                for start, stop in self._meeting("mapping", address, size):
                    if self._access[start] is Access.READ_WRITE:
                        lo, hi = max(address, start), min(address + size, stop)
                        self.driver.set(Addr(lo), value, Size(hi - lo), stream)
            self.driver.synchronize_stream(stream)
        finally:
            self.driver.destroy_stream(stream)

    def _check_handle(self, kind: str, handle: int) -> None:
        if handle not in self._live[kind]:
            raise Result.INVALID_HANDLE.refusal(
                f"{kind} {handle} was never given out here, or was given back: use "
                "handles only between the two"
            )

    def _check_addresses(self, name: str, args: tuple[Any, ...]) -> None:
        match name, args:
            case "map", (address, extent):
                size = self._live["extent"][extent]
                if not any(
                    start <= address and address + size <= stop
                    for start, stop in self._meeting("reservation", address, size)
                ):
                    raise _wrong(address, "is not reserved for that much memory")
                self._check_free("mapping", address, size)
            case "unreserve", (address, size):
                if self._live["reservation"].get(address) != size:
                    raise _wrong(address, "begins no reservation of that size")
                self._check_free("mapping", address, size)
            case "register_host", (address, size):
                self._check_free("registered", address, size)
            case (("unmap" | "set_access"), (address, size, *_)):
                if not self._are_whole(address, size):
                    raise _wrong(address, "begins no whole mappings of that size")
            case (("free_host" | "unregister_host"), (address,)):
                if address not in self._live[_PLACES[name]]:
                    raise _wrong(address, f"begins no {_PLACES[name]} memory")

    def _are_whole(self, address: Addr, size: Size) -> bool:
        """Return whether an interval is made of whole mappings."""
        at, mappings = int(address), self._live["mapping"]
        while at < address + size and at in mappings:
            at += mappings[at]
        return at == address + size > address

    def _check_free(self, kind: str, address: Addr, size: Size) -> None:
        for start, _ in self._meeting(kind, address, size):
            raise _wrong(address, f"meets the {kind} at {hex_address(start)}")

    def _meeting(
        self, kind: str, address: Addr, size: Size
    ) -> Iterator[tuple[int, int]]:
        """Yield what of a kind meets an interval, from where to where it is."""
        for start, length in tuple(self._live[kind].items()):
            if start < address + size and address < start + length:
                yield start, start + length

    def _note(
        self, name: str, rule: _Rule, args: tuple[Any, ...], result: object
    ) -> None:
        match name, args:
            case "map", (address, extent):
                self._live["mapping"][address] = self._live["extent"][extent]
                self._access[address] = Access.NONE
            case "set_access", (address, size, access):
                for start, _ in self._meeting("mapping", address, size):
                    self._access[start] = access
            case "register_host", (address, size):
                self._live["registered"][address] = size
            case _ if rule.gives is not None and isinstance(result, int):
                self._live[rule.gives][result] = args[0] if args else Size(0)

    def _note_end(self, rule: _Rule, args: tuple[Any, ...]) -> None:
        for place, kind in rule.uses:
            self._live[kind].pop(args[place], None)
        if rule.place is not None:
            address, size = (*args, Size(1))[:2]
            for start, _ in self._meeting(rule.place, address, size):
                del self._live[rule.place][start]


def _wrong(address: Addr, why: str) -> Refusal:
    return invalid_value(
        f"{hex_address(address)} {why}: give back and use exactly what was given"
    )
