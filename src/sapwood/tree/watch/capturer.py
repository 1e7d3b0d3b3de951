"""A framework that captures by itself: what is asked of it, and what it then tells."""

from __future__ import annotations

import gc
from collections.abc import Callable, Container, Mapping, Sequence
from time import monotonic, sleep
from typing import Any, Final, Protocol, TypeVar

from sapwood.driver.api import GraphHandle
from sapwood.driver.streams import Stream, outside
from sapwood.errors import CaptureError, DriverError
from sapwood.graphs.adopt import Owner
from sapwood.graphs.recording import RANGE, Kind, RecordedOp, Recording, Touch
from sapwood.memory.device import Device
from sapwood.memory.range import Range
from sapwood.memory.storage import Storage
from sapwood.tree.call.signature import Place
from sapwood.tree.watch.session import Session
from sapwood.tree.watch.watch import Capture, Captured
from sapwood.units import Addr, Size, size_text

T = TypeVar("T")

_NOTHING: Final[Mapping[Addr, int]] = {}
PATIENCE: Final = 0.5
"""For how many seconds other threads may hold what the function has made."""

_PAUSE: Final = 1e-3  # seconds


class Graph(Protocol):
    """Graphs a function."""

    def __call__(
        self, target: Callable[[], Callable[..., Any]], *, back: bool
    ) -> Callable[..., Any]:
        """Graph what runs another one's calls, or goes ``back`` through one."""


class GoesBack(CaptureError):
    """A result requires grad: its gradient would have to be sent back by a replay."""


class Undetached(TypeError):
    """An argument requires grad, and was computed."""


class Graded(Protocol):
    """Calls of a function whose results require grad."""

    def applies(self) -> bool:
        """Return whether a gradient may be sent back through a call."""

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call, and have gradients of what it returns sent on."""


class Hosted(Protocol):
    """Calls of a function that is passed arrays of the host."""

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any] | None:
        """Return the result of a call, alone; None where it is none of these."""


class GraphCapturer(Protocol):
    """A framework that captures by itself."""

    def hosted(self, target: Callable[[], Callable[..., Any]], graph: Graph) -> Hosted:
        """Return what runs calls of a function with arrays of the host."""

    def graded(self, target: Callable[[], Callable[..., Any]], graph: Graph) -> Graded:
        """Return what runs calls of a function, by what gives it, with gradients."""

    def stream(self) -> Stream:
        """Return the stream that captures are made on."""

    def rejoin(self) -> None:
        """Have all work to come run after what captures have run on that stream.

        What is captured has not; but the framework may have prepared something.
        """

    def histories(self, arrays: Sequence[Any]) -> Mapping[int, object]:
        """Return by what gradients go back through arrays, by ids, where any do."""

    def refusal(
        self, result: Any, histories: Mapping[int, object]
    ) -> CaptureError | None:
        """Return what would be wrong with the result of what this thread ran last.

        What it was passed may go out if its history is as before.
        """

    def owner(self, range_: Range, room: Size, *, warm: bool) -> Owner:
        """Return a capture on that stream that allocates from ``room`` of a range.

        ``warm`` says that this thread has run before what is to be captured.
        """


class Adopting(Capture):
    """A capture that its ``owner`` makes: another one, where it is resumed."""

    def __init__(
        self, device: Device, capturer: GraphCapturer, range_: Range, owner: Owner
    ) -> None:
        super().__init__(device, capturer.stream(), range_, frozenset())
        self.capturer, self.owner = capturer, owner

    def run(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        session: Session,
    ) -> Captured:
        """Run a function, captured, and have the owner see what it returned."""
        captured = super().run(fn, args, kwargs, session)
        try:
            self.owner.returned(captured.result)  # which may run hooks of the user's
        except BaseException:
            self.device.driver.destroy_graph(captured.graph)
            raise
        return captured

    def pause(self) -> GraphHandle:
        """End the capture, and return its graph."""
        self.fork.join()
        self._open = False
        raw = self.owner.end()
        self.fork.leave()
        with outside(self.fork):
            self.capturer.rejoin()
        return self.device.driver.adopt_graph(raw)

    def _begin(self) -> None:
        self.owner.begin()
        self._open = True

    def _abandon(self, failed: BaseException) -> None:
        if not self._open:
            return
        self.owner.abandon()
        try:
            self.capturer.rejoin()
        except DriverError as error:
            failed.add_note(f"no stream could wait for it: {error.name}")


def lasting(lost: Callable[[], list[T]]) -> list[T]:
    """Return what stays ``lost`` once garbage is collected, and others had some time.

    Garbage may be in cycles, or be what another thread is about to let go of:
    autograd's tell that they are done before they do.
    """
    found, deadline = lost(), monotonic() + PATIENCE
    while found and monotonic() < deadline:
        gc.collect()
        sleep(_PAUSE)  # a collection leaves no other thread its turn
        found = lost()
    return found


def told_of(
    session: Session,
    places: Sequence[Place],
    stages: Mapping[int, Storage],
    range_: Range,
    memos: Container[Storage],
    first: int = 0,
    crossing: Mapping[Addr, int] = _NOTHING,
) -> Recording:
    """Return what the session was told, as a recording whose ops have only names.

    Those are the ops from the ``first`` on. What it was not told of may write all
    places. ``crossing`` are places, by where they begin, of which the function has
    arrays over storages of its own, and ``memos`` what a function remembers. Raises
    `CaptureError` for a storage that is neither in the range nor in a place.
    """
    symbols: dict[int, int] = {}
    for i, place in enumerate(places):
        symbols.setdefault(id(stages.get(i, place.storage)), i + 1)
    touches: list[Touch] = []
    if session.untold:
        sizes = [Size(place.hi - place.lo) for place in places]
        touches += [Touch(i + 1, 0, size, True) for i, size in enumerate(sizes) if size]
    for storage, use in session.used.items():
        inside = range_.holds(storage.address)
        symbol = symbols.get(id(storage), RANGE if inside else None)
        if symbol is None and storage.address in crossing:
            symbol = crossing[storage.address] + 1
        if symbol is None and storage.size and storage not in memos:
            raise CaptureError(
                f"an array of {size_text(storage.size)} is used that is neither an "
                "argument nor reachable from what the function's code names",
                where=use.where,
                remedy="Pass it as an argument, or keep it in a variable, attribute or "
                "container that the function itself names",
            )
        if symbol:
            touches.append(Touch(symbol, 0, storage.size, use.writes))
    ops = session.ops[first:]
    named = tuple(RecordedOp(Kind.KERNEL, b"", name=name) for name, _ in ops)
    return Recording(named, (), (), tuple(touches))
