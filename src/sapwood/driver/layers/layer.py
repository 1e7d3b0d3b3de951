"""What all layers share: every call of a driver, passed on through one hook."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from sapwood.driver.api import Abilities, Driver

__all__ = ["Layer", "gives_back"]

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
    method: Callable[Concatenate[Driver, P], R],
) -> Callable[Concatenate[Layer, P], R]:
    name, signature = method.__name__, inspect.signature(method)

    @wraps(method)
    def call(self: Layer, /, *args: P.args, **kwargs: P.kwargs) -> R:
        values: tuple[Any, ...] = args
        if kwargs:
            values = signature.bind(self, *args, **kwargs).args[1:]
        below: Callable[..., R] = getattr(self.driver, name)
        return self.around(name, below, values)

    return call


class Layer:
    """A driver that passes every call on to ``driver``, through `around`.

    Reading ``abilities`` is no call.
    """

    def __init__(self, driver: Driver) -> None:
        self.driver = driver

    def around(self, name: str, call: Callable[..., R], args: tuple[Any, ...]) -> R:
        """Make the call ``name``; subclasses do what they are for before and after."""
        del name
        return call(*args)

    @property
    def abilities(self) -> Abilities:
        """What the device is and can do."""
        return self.driver.abilities

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
