"""Running a user's function while it is watched: as a warm-up, or captured.

Either way its Python runs exactly once, to its end or to its exception. A capture
that ends with an exception is kept up to there: that is what eager code would have
done to memory.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NoReturn

from sapwood.driver.api import GraphHandle
from sapwood.driver.streams import Fork, Stream, outside
from sapwood.errors import CaptureError, DriverError, InternalError
from sapwood.memory.blocks import ALIGNMENT
from sapwood.memory.device import Device, routed
from sapwood.memory.range import Range
from sapwood.memory.storage import Storage
from sapwood.tree.watch.session import Session, Warm, entered, raising_line, user_line
from sapwood.units import Size, align_up

Function = Callable[..., Any]

_SCATTERED: Final = 4
"""Fragmentation, estimated: a capture spreads over so many bytes for each alive."""

_PLAIN: Final = {bool, bytes, complex, float, int, str, type(None)}


class Caught:
    """An exception that was caught, until it is raised again.

    Its traceback keeps alive the frames that it came through, and all arrays that these
    name. A frame that names the exception would make a cycle of that. Frames name this
    object instead, which lets go of the exception when somebody takes it.
    """

    def __init__(self, error: BaseException) -> None:
        self.error: BaseException | None = error
        # Not repr(error) of arrays: it would read device memory inside a capture.
        plain = all(type(each) in _PLAIN for each in error.args)
        self.text = repr(error) if plain else type(error).__name__
        self.where = raising_line(error)

    def forget_frames(self) -> None:
        """Let go of all that the frames in its traceback name."""
        if self.error is not None:
            self.error.__traceback__ = self.error.__context__ = None

    @property
    def is_ordinary(self) -> bool:
        """Whether it is an error, and not what ends the program or a task."""
        return isinstance(self.error, Exception)

    def taken(self) -> BaseException | None:
        """Return the exception, for the first who asks."""
        error, self.error = self.error, None
        return error

    def reraise(self) -> NoReturn:
        """Raise the exception, for the first who asks."""
        error = self.taken()
        try:
            if error is None:
                raise InternalError(f"{self.text} is raised once")
            raise error
        finally:
            del error


@contextmanager
def unrepeated(error: CaptureError | Caught | Warm | None) -> Iterator[None]:
    """Return a context that raises ``error`` in place of a `DriverError`.

    So that the function does not run again: it has written plain values, or raised what
    ends a program. Of an ordinary exception nothing is left, and it may.
    """
    try:
        yield
    except DriverError:
        if isinstance(error, CaptureError):
            raise error.anew() from None
        if isinstance(error, Caught) and not error.is_ordinary:
            error.reraise()
        raise


@dataclass(frozen=True, slots=True)
class Watched:
    """What a function returned in a warm-up, and what it allocated.

    ``storages`` are those that outlived it and ``stays`` their places in the order of
    allocation.
    """

    result: Any
    storages: tuple[Storage, ...]
    stays: frozenset[int]


@dataclass(frozen=True, slots=True)
class Captured:
    """What a function did: its result or its exception, and the graph of it."""

    result: Any
    error: Caught | None
    session: Session
    graph: GraphHandle


class Allocations:
    """The allocations of a watched function, in order, held weakly.

    As a route they are made on the heap.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self._made: list[weakref.ref[Storage]] = []
        self._all = self._alive = self._most = 0

    def allocate(self, size: Size, stream: Stream) -> Storage:
        """Allocate on the heap, and note that."""
        return self.add(self.device.allocate_on_heap(size, stream))

    def add(self, storage: Storage) -> Storage:
        """Note an allocation, and return it."""
        size = align_up(max(storage.size, 1), ALIGNMENT)
        self._made.append(weakref.ref(storage, partial(self._gone, size)))
        self._all += size
        self._alive += size
        self._most = max(self._most, self._alive)
        return storage

    def _gone(self, size: int, _: object) -> None:
        self._alive -= size

    def room(self) -> Size:
        """Return how much they need, if they are made again: a guess, on the safe side.

        They lie scattered where those between them have gone, but not without end.
        """
        return Size(min(self._all, _SCATTERED * self._most))

    def count(self) -> int:
        """Return how many there were."""
        return len(self._made)

    def alive(self, first: int = 0) -> dict[int, Storage]:
        """Return those from the ``first`` on that somebody holds, by their place."""
        found = {i: made() for i, made in enumerate(self._made[first:], first)}
        return {i: storage for i, storage in found.items() if storage is not None}


def warm_up(
    fn: Function,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    device: Device,
    session: Session | None,
    allocations: Allocations | None = None,
) -> Watched:
    """Run a function eagerly and watch what it allocates; its exceptions pass.

    Without a session it may do what no recording could repeat. ``allocations`` are
    filled meanwhile.
    """
    allocations = allocations or Allocations(device)
    with (
        routed(allocations),
        entered(session),
        device.framework.watched(device.allocate),
    ):
        result = fn(*args, **kwargs)
    if session is not None:
        session.room = Size(session.room + allocations.room())
    alive = allocations.alive()
    return Watched(result, tuple(alive.values()), frozenset(alive))


class Capture:
    """The capture of one function; what runs live interrupts it.

    ``allocations`` are those of the function, in order. Those that are expected to
    stay are put apart. ``written`` is said of the first change that could not be put
    back when the capture failed.
    """

    def __init__(
        self, device: Device, stream: Stream, range_: Range, stays: frozenset[int]
    ) -> None:
        self.device, self.stream = device, stream
        self.range, self.stays = range_, stays
        self.allocations = Allocations(device)
        self.fork = Fork(stream)
        self._around = stream
        self.failed: Caught | None = None
        self.written: CaptureError | None = None
        self._open = False

    def run(
        self,
        fn: Function,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        session: Session,
    ) -> Captured:
        """Run a function, captured; its graph is what was captured last.

        Raises `DriverError` where the capture itself failed. The caller destroys the
        graph.
        """
        result, error = None, None
        self._around = self.device.stream()
        try:
            self._begin()
            with self.fork, self.stream, routed(self):
                try:
                    with (
                        entered(session),
                        self.device.framework.watched(self.device.allocate),
                    ):
                        result = fn(*args, **kwargs)
                except DriverError:
                    raise
                except BaseException as raised:  # noqa: BLE001 - raised after a launch
                    error = Caught(raised)
                self._check()
                graph = self._ended(session)
        except BaseException as failed:
            self.failed = None
            self.fork.leave()  # as what enters it may have been interrupted
            self._abandon(failed)
            raise
        return Captured(result, error, session, graph)

    def _check(self) -> None:
        if self.failed is not None:
            # The capture ended with this error, even if the function caught it.
            self.failed.reraise()

    def _ended(self, session: Session) -> GraphHandle:
        """End the capture; what the function may not do can have invalidated it."""
        try:
            return self.pause()
        except DriverError:
            if session.unrecordable is not None:
                raise session.unrecordable.anew() from None
            raise

    def allocate(self, size: Size, stream: Stream) -> Storage:
        """Allocate for the function, as a route."""
        stays = self.allocations.count() in self.stays
        line = user_line()
        self.device.returns.drain_dropped()
        storage = self.range.allocate(
            size, stream, self.device.returns, stays=stays, line=line
        )
        return self.allocations.add(storage)

    def pause(self) -> GraphHandle:
        """End the capture so far, and return its graph."""
        self.fork.join()
        graph = self.device.driver.end_capture(self.stream.handle)
        self._open = False
        self.fork.leave()
        return graph

    def live(self, graph: GraphHandle | None = None) -> ExitStack:
        """Return a context in which nothing is captured, nor anybody watched.

        Work goes to the stream that was current before the capture. A ``graph`` that
        was captured so far is destroyed where this raises.
        """
        around = entered(None), routed(None), outside(self.fork), self._around
        with ExitStack() as context:
            try:
                for each in around:
                    context.enter_context(each)
            except BaseException:
                if graph is not None:
                    self.device.driver.destroy_graph(graph)
                raise
            return context.pop_all()

    def resume(self, range_: Range) -> None:
        """Capture on, into another range."""
        with outside(self.fork):
            self._begin()
        self.range = range_
        self.fork.again()

    def is_on(self) -> bool:
        """Return whether what the function launches now is captured."""
        return self._open

    def _begin(self) -> None:
        self.device.framework.prime()
        # Set first: an interrupt between begin_capture and the next line would leave a
        # capture open that nobody ends.
        self._open = True
        try:
            self.device.driver.begin_capture(self.stream.handle)
        except DriverError:
            self._open = False
            raise

    def _abandon(self, failed: BaseException) -> None:
        """End a capture that nobody wants, so that the stream can be used again."""
        if not self._open:
            return
        driver = self.device.driver
        try:
            graph = driver.end_capture(self.stream.handle)
        except DriverError as error:
            # end_capture of an invalidated capture fails, and has ended it.
            failed.add_note(f"the capture ended with {error.name}")
        else:
            driver.destroy_graph(graph)
