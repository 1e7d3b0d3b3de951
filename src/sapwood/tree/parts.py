"""One call recorded in parts, around its live parts, and run meanwhile.

Where the function calls a live part, what was captured so far becomes a node of its
own, which is launched there and then. So all that the function holds is real when the
live part runs, and its Python runs once. Arguments are captured where they are, and
moved by relocation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from sapwood.driver.api import GraphHandle
from sapwood.driver.release import Release
from sapwood.errors import CaptureError, DriverError, MisuseError
from sapwood.memory.range import Range
from sapwood.memory.storage import Storage
from sapwood.tree.accounts import read, unheld
from sapwood.tree.adapter import Array
from sapwood.tree.ambient import BoundArray, survey
from sapwood.tree.build import Drawing, Plan, build
from sapwood.tree.forest import Forest
from sapwood.tree.leases import Lease
from sapwood.tree.live import (
    Passed,
    Returned,
    carry,
    receive,
    returned,
    sharing,
)
from sapwood.tree.node import Link, Live, Node
from sapwood.tree.outputs import Bytes, Outputs, analyse
from sapwood.tree.recorder import (
    Order,
    ambient_roles,
    argument_roles,
    differs,
    plain_changes,
)
from sapwood.tree.replay import launch, prepare
from sapwood.tree.roles import Role
from sapwood.tree.session import LivePart, Session
from sapwood.tree.signature import Arrays, Place, look
from sapwood.tree.stage import late_stages
from sapwood.tree.watch import Capture
from sapwood.units import Mask

__all__ = ["RecordedParts", "record_parts"]


@dataclass(frozen=True, slots=True)
class RecordedParts:
    """A call that was recorded in parts, and has run.

    ``error`` is the exception that the function raised, or a `CaptureError` for what
    no replay could repeat; ``unfit`` says why the node is of no further use.
    """

    node: Node
    result: Any
    error: BaseException | None
    unfit: str


def record_parts(
    order: Order, args: tuple[Any, ...], kwargs: Mapping[str, Any], forest: Forest
) -> RecordedParts:
    """Run a call, part by part, and return a node that is a chain of them.

    Called with the device's lock held, which live parts run without. Raises
    `CaptureError`, `DriverError` or `OutOfMemory`; parts before have run then.
    """
    if not forest.device.driver.abilities.exact_addresses:
        raise CaptureError(
            "this device does not know every address in an op, which live parts need",
            remedy="Leave the live parts away, or graph what is between them",
        )
    parts = _Parts(order, args, kwargs, forest)
    try:
        return parts.record()
    except DriverError:
        forest.renew_capture_stream()
        parts.close()
        raise
    except BaseException:
        parts.close()
        raise


class _Parts:
    """The recording of one call; ``carried`` is what the part in progress may use."""

    def __init__(
        self,
        order: Order,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        forest: Forest,
    ) -> None:
        self.order, self.forest, self.device = order, forest, forest.device
        self.args, self.kwargs = args, kwargs
        self.arguments = order.bind(args, kwargs)
        self.carried = order.plan.call.given
        self.names = list(order.names)
        places = self.carried.places(forest.adapter)
        self.roles = list(argument_roles(order, places, forest))
        self.made: list[Storage] = []
        self.given_away: list[Array] = []
        self.links: list[Link] = []
        self.also_used: set[int] = set()
        self.session = Session(tolerant=False)
        self.session.between = self._between
        self.error: CaptureError | None = None
        self.unfit = ""
        warm = order.group.warm
        self.range = Range.reserve(self.device.pages)
        self.capture = Capture(
            self.device,
            forest.capture_stream(),
            self.range,
            frozenset() if warm is None else warm.stays,
        )

    def record(self) -> RecordedParts:
        self._begin()
        order, session = self.order, self.session
        captured = self.capture.run(order.fn, self.args, self.kwargs, session)
        if session.unrecordable is not None:
            self.device.driver.destroy_graph(captured.graph)
            raise session.unrecordable
        node, slots = self._end(captured.graph, captured.result, last=True)
        self._link(node, slots, None)
        error = captured.error or self.error
        error = error or differs(order.group.warm, session, node.outputs)
        if error is None:
            error = self._lost(captured.result)
        head = self._head()
        return RecordedParts(head, captured.result, error, self.unfit)

    def close(self) -> None:
        """Give back what was made, for a call that failed."""
        with Release() as release:
            for link in self.links:
                release(link.part.exec.close)
                release(link.part.range.close)
            if not self.links or self.links[-1].part.range is not self.range:
                release(self.range.close)

    # One part.

    def _begin(self) -> None:
        """Look at all that the coming part may use."""
        adapter = self.forest.adapter
        self.before = survey(self.order.fn, self.arguments, adapter)
        self.ambient = self.before.guards(lambda _: True)
        slots = self.ambient.arrays
        self.arrays = look([slot.read() for slot in slots], adapter)
        self.first_line = len(self.session.lines)
        self.first = self.capture.allocations.count()

    def _end(
        self, graph: GraphHandle, shown: Any, *, last: bool
    ) -> tuple[Node, tuple[BoundArray, ...]]:
        """Make a node of what was captured, and run it."""
        forest, device, adapter = self.forest, self.device, self.forest.adapter
        places = [*self.carried.places(adapter), *self.arrays.places(adapter)]
        lines = self.session.lines[self.first_line :]
        try:
            after = survey(self.order.fn, self.arguments, adapter)
            changes = after.changes_since(self.before)
            recording = read(graph, lines, places, {}, self.range, device)
        finally:
            device.driver.destroy_graph(graph)
        self.error = self.error or plain_changes(changes)
        bound = tuple(c for c in changes if isinstance(c, BoundArray))
        alive = self.capture.allocations.alive()
        survivors = [storage for i, storage in alive.items() if i >= self.first]
        outputs = self._outputs(shown, bound, survivors)
        names, roles = self._roles(places, recording.symbols())
        unstaged = [
            role if i + 1 in recording.symbols() else Role.PINNED
            for i, role in enumerate(roles)
        ]
        drawing = Drawing(
            plan=self._plan(last=last),
            recording=recording,
            outputs=outputs,
            places=places,
            names=names,
            roles=roles,
            stages=late_stages(places, unstaged, {}, self.range, device),
            ambient=self.ambient,
            ambient_arrays=self.arrays,
        )
        node = build(drawing, self.range, device)
        self._run(node, survivors)
        self.made += survivors
        return node, bound
