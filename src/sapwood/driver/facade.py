"""The calls of a driver, as the Protocol declares them, passed to a hook."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from functools import wraps
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

from sapwood.driver.api import (
    Abilities,
    Driver,
    GraphCalls,
    MemoryCalls,
    ModuleCalls,
    StreamCalls,
    WorkCalls,
)
from sapwood.driver.results import Refusal, Result

R = TypeVar("R")

_GIVES_BACK = frozenset(
    {
        "close",
        "free_host",
        "release",
        "unload_module",
        "unmap",
        "unregister_host",
        "unreserve",
    }
)


def gives_back(call: str) -> bool:
    """Return whether a call, by its name, is done even when it reports an error."""
    return call in _GIVES_BACK or call.startswith("destroy_")


def _passed(method: Callable[..., Any]) -> Callable[..., Any]:
    name = method.__name__

    @wraps(method)
    def call(self: Facade, /, *args: Any, **kwargs: Any) -> Any:
        if kwargs:
            args = inspect.signature(method).bind(self, *args, **kwargs).args[1:]
        return self.around(name, getattr(self.below, name), args)

    return call


_PARTS = MemoryCalls, StreamCalls, ModuleCalls, WorkCalls, GraphCalls

CALLS = {
    name: _passed(method)
    for calls in (*_PARTS, Driver)
    for name, method in vars(calls).items()
    if inspect.isfunction(method) and not name.startswith("_")
}
"""Every call of a driver, by its name, as a `Facade` makes it."""

if TYPE_CHECKING:
    # It has the calls, with their types. One base may be anything, or a type checker
    # would ask for a definition of each.
    class _Calls(Driver, Any): ...  # type: ignore[misc]

else:
    _Calls = type("_Calls", (), CALLS)


class Facade(_Calls):
    """A driver that passes every call on to ``below``, through `around`.

    Reading ``abilities`` is no call.
    """

    def __init__(self, below: Any, abilities: Abilities) -> None:
        self.below, self._abilities = below, abilities

    def around(self, name: str, call: Callable[..., R], args: tuple[Any, ...]) -> R:
        """Make the call ``name``; subclasses do what they are for before and after."""
        del name
        return call(*args)

    @property
    def abilities(self) -> Abilities:
        """What the device is and can do; never fails."""
        return self._abilities


class Layer(Facade):
    """A driver that passes every call on to ``driver``, through `around`."""

    def __init__(self, driver: Driver) -> None:
        super().__init__(driver, driver.abilities)
        self.driver = driver


_THINGS = (
    *("reservations", "extents", "mappings", "host", "registered"),
    *("streams", "events", "modules", "graphs", "execs"),
)

devices: WeakSet[Device] = WeakSet()
"""Those that are alive."""


class Device(Facade):
    """A device made of parts, each of which makes some of the calls.

    Where a part counts a kind of things that are not given back, it has them under
    that kind's name. A device that is barred refuses all further calls.
    """

    def __init__(
        self,
        abilities: Abilities,
        memory: MemoryCalls,
        streams: StreamCalls,
        modules: ModuleCalls,
        work: WorkCalls,
        graphs: GraphCalls,
    ) -> None:
        self._parts = memory, streams, modules, work, graphs
        made = {
            name: getattr(part, name)
            for calls, part in zip(_PARTS, self._parts, strict=True)
            for name in vars(calls)
            if name in CALLS
        }
        super().__init__(SimpleNamespace(**made), abilities)
        self._barred: Refusal | None = None
        devices.add(self)

    def live_handles(self) -> dict[str, int]:
        """Return how many of each kind of thing have not been given back."""
        return {
            kind: len(getattr(part, kind))
            for part in self._parts
            for kind in _THINGS
            if hasattr(part, kind)
        }

    def orphan(self) -> None:
        """Refuse all further calls: this is a forked child, and not its device."""
        self._bar(
            "the device belongs to the process that forked: make a Runtime in this "
            "process, or start processes by spawn"
        )

    def _bar(self, why: str) -> None:
        self._barred = Refusal(Result.DEINITIALIZED, why)


def _orphan_devices() -> None:
    for device in list(devices):
        device.orphan()


os.register_at_fork(after_in_child=_orphan_devices)
