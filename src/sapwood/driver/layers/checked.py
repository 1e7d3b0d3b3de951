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
from sapwood.driver.results import Refusal, Result
from sapwood.errors import MisuseError
from sapwood.units import Addr, Size, align_down, hex_address


class Ledger:
    """What was reserved, created, mapped and made accessible, page by page."""

    def __init__(self, page: Size) -> None:
        self._page = page
        self._sizes: dict[ExtentHandle, Size] = {}
        self._reservations: dict[Addr, Size] = {}
        self._mappings: dict[Addr, Size] = {}
        self._access: dict[int, Access] = {}  # of mapped pages, by address
        self._host: set[Addr] = set()
        self._registered: dict[Addr, Size] = {}

    def check(self, name: str, args: tuple[Any, ...]) -> None:
        """Refuse a call that the account says is wrong."""
        rule = getattr(self, f"_check_{name}", None)
        if rule is not None:
            rule(*args)

    def note(self, name: str, args: tuple[Any, ...], result: object) -> None:
        """Take a call that was made into the account."""
        rule = getattr(self, f"_note_{name}", None)
        if rule is not None:
            rule(result, *args)

    def counts(self) -> dict[str, int]:
        """Return how many reservations, mappings and host blocks there are."""
        return {
            "host": len(self._host),
            "mapping": len(self._mappings),
            "registered": len(self._registered),
            "reservation": len(self._reservations),
        }

    def writable(
        self, ranges: Iterable[tuple[Addr, Size]]
    ) -> Iterator[tuple[Addr, Size]]:
        """Yield the parts of the ranges, page by page, that may be written."""
        for address, size in ranges:
            end = address + size
            for page in range(align_down(address, self._page), end, self._page):
                if self._access.get(page) is Access.READ_WRITE:
                    lo, hi = max(page, address), min(page + self._page, end)
                    yield Addr(lo), Size(hi - lo)

    def _check_unreserve(self, address: Addr, size: Size) -> None:
        if self._reservations.get(address) != size:
            raise _wrong(address, "is not where a reservation of that size begins")
        self._refuse_mapped(address, size)

    def _check_map(self, address: Addr, extent: ExtentHandle) -> None:
        size = self._sizes[extent]
        if not any(
            start <= address and address + size <= start + length
            for start, length in self._reservations.items()
        ):
            raise _wrong(address, "is not reserved for that much memory")
        self._refuse_mapped(address, size)

    def _check_unmap(self, address: Addr, size: Size) -> None:
        at = address
        while at < address + size and at in self._mappings:
            at = Addr(at + self._mappings[at])
        if size <= 0 or at != address + size:
            raise _wrong(address, "is not where whole mappings of that size begin")

    def _check_set_access(self, address: Addr, size: Size, _access: Access) -> None:
        self._check_unmap(address, size)

    def _check_free_host(self, address: Addr) -> None:
        if address not in self._host:
            raise _wrong(address, "is not where a host block begins")

    def _check_register_host(self, address: Addr, size: Size) -> None:
        for start, length in self._registered.items():
            if start < address + size and address < start + length:
                raise _wrong(address, f"is registered from {hex_address(start)}")

    def _check_unregister_host(self, address: Addr) -> None:
        if address not in self._registered:
            raise _wrong(address, "is not where registered memory begins")

    def _note_reserve(self, result: Addr, size: Size, _at: Addr | None = None) -> None:
        self._reservations[result] = size

    def _note_unreserve(self, _: None, address: Addr, _size: Size) -> None:
        del self._reservations[address]

    def _note_create(self, result: ExtentHandle, size: Size) -> None:
        self._sizes[result] = size

    def _note_release(self, _: None, extent: ExtentHandle) -> None:
        del self._sizes[extent]

    def _note_map(self, _: None, address: Addr, extent: ExtentHandle) -> None:
        size = self._mappings[address] = self._sizes[extent]
        self._note_set_access(None, address, size, Access.NONE)

    def _note_set_access(
        self, _: None, address: Addr, size: Size, access: Access
    ) -> None:
        for page in self._pages(address, size):
            self._access[page] = access

    def _note_unmap(self, _: None, address: Addr, size: Size) -> None:
        for page in self._pages(address, size):
            del self._access[page]
            self._mappings.pop(Addr(page), None)

    def _note_allocate_host(self, result: Addr, _size: Size) -> None:
        self._host.add(result)

    def _note_free_host(self, _: None, address: Addr) -> None:
        self._host.remove(address)

    def _note_register_host(self, _: None, address: Addr, size: Size) -> None:
        self._registered[address] = size

    def _note_unregister_host(self, _: None, address: Addr) -> None:
        del self._registered[address]

    def _refuse_mapped(self, address: Addr, size: Size) -> None:
        # A reservation has far more pages than there are mappings.
        for start, length in self._mappings.items():
            if start < address + size and address < start + length:
                raise _wrong(address, f"has memory mapped at {hex_address(start)}")

    def _pages(self, address: Addr, size: Size) -> range:
        return range(address, address + size, self._page)


def _wrong(address: Addr, why: str) -> Refusal:
    return Refusal(
        Result.INVALID_VALUE,
        f"{hex_address(address)} {why}: give back and use exactly what was given",
    )


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
