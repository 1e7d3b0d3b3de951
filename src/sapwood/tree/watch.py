"""Running a user's function while it is watched: as a warm-up, or captured.

Either way its Python runs exactly once, to its end or to its exception. A capture
that ends with an exception is kept up to there: that is what eager code would have
done to memory.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sapwood.driver.api import GraphHandle
from sapwood.driver.streams import Fork, Stream
from sapwood.errors import DriverError
from sapwood.memory.device import Device, routed
from sapwood.memory.range import Range
from sapwood.memory.storage import Storage
from sapwood.tree.session import Session, entered, user_line
from sapwood.units import Size

__all__ = ["Captured", "Watched", "capture", "warm_up"]

Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Watched:
    """What a function did: its result or its exception, and what it allocated.

    After a warm-up, ``storages`` are those that outlived it and ``stays`` their
    places in the order of allocation.
    """

    result: Any
    error: BaseException | None
    session: Session | None
    storages: tuple[Storage, ...]
    stays: frozenset[int]


@dataclass(frozen=True, slots=True)
class Captured(Watched):
    """The same, with the graph that was captured instead of run."""

    session: Session
    graph: GraphHandle


class _Allocations:
    """The allocations of a watched function, in order, held weakly."""

    def __init__(self) -> None:
        self._made: list[weakref.ref[Storage]] = []

    def add(self, storage: Storage) -> Storage:
        self._made.append(weakref.ref(storage))
        return storage

    def count(self) -> int:
        return len(self._made)

    def alive(self) -> dict[int, Storage]:
        found = {i: made() for i, made in enumerate(self._made)}
        return {i: storage for i, storage in found.items() if storage is not None}


class _HeapRoute:
    def __init__(self, device: Device, allocations: _Allocations) -> None:
        self.device, self.allocations = device, allocations

    def allocate(self, size: Size, stream: Stream) -> Storage:
        return self.allocations.add(self.device.allocate_on_heap(size, stream))


class _RangeRoute:
    def __init__(
        self,
        device: Device,
        range_: Range,
        allocations: _Allocations,
        stays: frozenset[int],
    ) -> None:
        self.device, self.range = device, range_
        self.allocations, self.stays = allocations, stays

    def allocate(self, size: Size, stream: Stream) -> Storage:
        stays = self.allocations.count() in self.stays
        line = user_line()
        self.device.returns.drain()
        return self.allocations.add(
            self.range.allocate(
                size, stream, self.device.returns, stays=stays, line=line
            )
        )


def warm_up(
    fn: Function,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    device: Device,
    session: Session | None,
) -> Watched:
    """Run a function eagerly and watch what it allocates; its exceptions pass.

    Without a session it may do what no recording could repeat.
    """
    allocations = _Allocations()
    with routed(_HeapRoute(device, allocations)), entered(session):
        result = fn(*args, **kwargs)
    alive = allocations.alive()
    return Watched(result, None, session, tuple(alive.values()), frozenset(alive))


def capture(
    fn: Function,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    device: Device,
    session: Session,
    *,
    stream: Stream,
    range_: Range,
    stays: frozenset[int],
) -> Captured:
    """Capture a function into a driver graph, its allocations into a range.

    Raises `DriverError` where the capture itself failed. The caller destroys the
    graph.
    """
    allocations = _Allocations()
    route = _RangeRoute(device, range_, allocations, stays)
    result, error = None, None
    driver = device.driver
    driver.begin_capture(stream.handle)
    try:
        with Fork(stream) as fork, stream, routed(route):
            try:
                with entered(session):
                    result = fn(*args, **kwargs)
            except DriverError:
                raise
            except BaseException as raised:  # noqa: BLE001 - raised again after a launch
                error = raised
            fork.join()
        graph = driver.end_capture(stream.handle)
    except BaseException as failed:
        _abandon(device, stream, failed)
        raise
    return Captured(result, error, session, (), frozenset(), graph)


def _abandon(device: Device, stream: Stream, failed: BaseException) -> None:
    """End a capture that nobody wants, so that the stream can be used again."""
    try:
        graph = device.driver.end_capture(stream.handle)
    except DriverError as error:
        # An invalidated capture reports that at its end: it is over all the same.
        failed.add_note(f"the capture ended with {error.name}")
    else:
        device.driver.destroy_graph(graph)
