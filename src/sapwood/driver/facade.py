"""The calls of a driver: declared once for devices and layers, passed to a hook."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from functools import wraps
from types import SimpleNamespace
from typing import Any, Concatenate, ParamSpec, TypeVar
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

P = ParamSpec("P")
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


def _passed(
    method: Callable[Concatenate[Any, P], R],
) -> Callable[Concatenate[Facade, P], R]:
    name = method.__name__

    @wraps(method)
    def call(self: Facade, /, *args: P.args, **kwargs: P.kwargs) -> R:
        values: tuple[Any, ...] = args
        if kwargs:
            values = inspect.signature(method).bind(self, *args, **kwargs).args[1:]
        below: Callable[..., R] = getattr(self.below, name)
        return self.around(name, below, values)

    return call


class Facade:
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

    memory_info = _passed(Driver.memory_info)
    close = _passed(Driver.close)

    reserve = _passed(Driver.reserve)
    unreserve = _passed(Driver.unreserve)
    create = _passed(Driver.create)
    release = _passed(Driver.release)
    map = _passed(Driver.map)
    set_access = _passed(Driver.set_access)
    unmap = _passed(Driver.unmap)
    allocate_host = _passed(Driver.allocate_host)
    free_host = _passed(Driver.free_host)
    register_host = _passed(Driver.register_host)
    unregister_host = _passed(Driver.unregister_host)

    create_stream = _passed(Driver.create_stream)
    destroy_stream = _passed(Driver.destroy_stream)
    adopt_stream = _passed(Driver.adopt_stream)
    raw_stream = _passed(Driver.raw_stream)
    synchronize_stream = _passed(Driver.synchronize_stream)
    query_stream = _passed(Driver.query_stream)
    create_event = _passed(Driver.create_event)
    destroy_event = _passed(Driver.destroy_event)
    record_event = _passed(Driver.record_event)
    wait_event = _passed(Driver.wait_event)
    query_event = _passed(Driver.query_event)
    synchronize_event = _passed(Driver.synchronize_event)
    elapsed = _passed(Driver.elapsed)
    synchronize = _passed(Driver.synchronize)

    load_module = _passed(Driver.load_module)
    unload_module = _passed(Driver.unload_module)
    find_function = _passed(Driver.find_function)
    pointers = _passed(Driver.pointers)
    launch = _passed(Driver.launch)
    copy = _passed(Driver.copy)
    set = _passed(Driver.set)
    call_host = _passed(Driver.call_host)
    upload = _passed(Driver.upload)
    download = _passed(Driver.download)

    begin_capture = _passed(Driver.begin_capture)
    end_capture = _passed(Driver.end_capture)
    capture_status = _passed(Driver.capture_status)
    counter = _passed(Driver.counter)
    create_graph = _passed(Driver.create_graph)
    destroy_graph = _passed(Driver.destroy_graph)
    add_node = _passed(Driver.add_node)
    nodes = _passed(Driver.nodes)
    edges = _passed(Driver.edges)
    node_op = _passed(Driver.node_op)
    instantiate = _passed(Driver.instantiate)
    destroy_exec = _passed(Driver.destroy_exec)
    set_op = _passed(Driver.set_op)
    launch_graph = _passed(Driver.launch_graph)
    adopt_graph = _passed(Driver.adopt_graph)
    words = _passed(Driver.words)
    surround = _passed(Driver.surround)
    adopt_exec = _passed(Driver.adopt_exec)


CALLS: dict[str, Callable[..., Any]] = {
    name: call for name, call in vars(Facade).items() if hasattr(call, "__wrapped__")
}
"""Every call of a driver, by its name."""


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
        parts = {
            MemoryCalls: memory,
            StreamCalls: streams,
            ModuleCalls: modules,
            WorkCalls: work,
            GraphCalls: graphs,
        }
        made = {
            name: getattr(part, name)
            for calls, part in parts.items()
            for name in vars(calls)
            if name in CALLS
        }
        super().__init__(SimpleNamespace(**made), abilities)
        self._things = {
            kind: getattr(part, kind)
            for part in parts.values()
            for kind in _THINGS
            if hasattr(part, kind)
        }
        self._barred: Refusal | None = None
        devices.add(self)

    def live_handles(self) -> dict[str, int]:
        """Return how many of each kind of thing have not been given back."""
        return {kind: len(things) for kind, things in self._things.items()}

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
