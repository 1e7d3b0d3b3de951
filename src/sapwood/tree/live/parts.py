"""One call recorded in parts, around its live parts, and run meanwhile.

Where the function calls a live part, what was captured so far becomes a node of its
own, which is launched there and then. So all that the function holds is real when the
live part runs, and its Python runs once. Arguments are captured where they are, and
moved by relocation.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from sapwood.driver.api import GraphHandle
from sapwood.driver.release import Release
from sapwood.errors import CaptureError, DriverError
from sapwood.graphs.recording import Recording
from sapwood.memory.pages import Extent
from sapwood.memory.range import Range
from sapwood.memory.storage import Storage
from sapwood.tree.accounts import outliving, read, stray
from sapwood.tree.ambient import BoundArray
from sapwood.tree.build import Drawing, Plan, build
from sapwood.tree.containers import flatten
from sapwood.tree.forest import Forest
from sapwood.tree.leases import Lease
from sapwood.tree.live.carried import CarriedRoles
from sapwood.tree.live.chain import answer_for_all
from sapwood.tree.live.crossing import (
    REMEDY,
    Passed,
    Returned,
    carry,
    check_open,
    hold_weakly,
    made_inside,
    receive,
    returned,
    sharing,
    unlike,
)
from sapwood.tree.live.handlers import caught_at
from sapwood.tree.node import Link, Live, Node
from sapwood.tree.outputs import Bytes, Outputs, analyse
from sapwood.tree.recorder import (
    Order,
    Recorded,
    differs,
    plain_changes,
)
from sapwood.tree.replay import launch, prepare
from sapwood.tree.roles import Role
from sapwood.tree.session import LivePart, Session
from sapwood.tree.signature import Place, look
from sapwood.tree.stage import late_stages
from sapwood.tree.uncollected import collected, uncollected
from sapwood.tree.watch import Capture, Caught
from sapwood.units import Addr

__all__ = ["RecordedParts", "record_parts"]


class RecordedParts(NamedTuple):
    """A call that was recorded in parts, and has run.

    ``made`` is the chain of them; ``unfit`` says why that is of no further use, if its
    error does not.
    """

    result: Any
    made: Recorded
    unfit: str


def record_parts(
    order: Order,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    forest: Forest,
    *,
    tolerant: bool,
) -> RecordedParts:
    """Run a call, part by part, and return a node that is a chain of them.

    Called with the device's lock held, which live parts run without. Where it is
    ``tolerant``, a live part may return what no replay could take. Raises
    `CaptureError`, `DriverError` or `OutOfMemory`; the parts before have run then.
    """
    if not forest.device.driver.abilities.exact_addresses:
        raise CaptureError(
            "live parts need a device that knows every address in an op, and this one "
            "does not",
            remedy="Graph what is before and behind the live part each for itself",
        )
    parts = _Parts(order, args, kwargs, forest, tolerant=tolerant)
    try:
        return parts.record()
    except BaseException as error:
        if isinstance(error, DriverError):
            forest.renew_capture_stream()
        parts.close()
        raise
    finally:
        parts.let_go()


class _Parts:
    """The recording of one call; ``carried`` is what the part in progress may use.

    ``made`` are the storages that parts made so far; ``shown`` the identities of those
    that something is known to hold; ``stirred`` says that what is guarded has changed
    meanwhile.
    """

    def __init__(
        self,
        order: Order,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        forest: Forest,
        *,
        tolerant: bool,
    ) -> None:
        self.tolerant = tolerant
        self.order, self.forest, self.device = order, forest, forest.device
        self.args, self.kwargs = args, kwargs
        self.arguments = order.bind(args, kwargs)
        self.carried = order.plan.call.given
        self.roles = CarriedRoles(order, forest)
        self.made: list[Storage] = []
        self.shown: set[int] = set()
        self.links: list[Link] = []
        self.session = Session(tolerant=False)
        self.session.between = self._between
        self.error: CaptureError | None = None
        self.first_key: Hashable = None
        self.unfit, self.stirred = "", False
        warm = order.group.warm
        stays = frozenset() if warm is None else warm.stays
        stream = forest.capture_stream()
        self.range = Range.reserve(self.device.pages)
        self.capture = Capture(
            self.device, stream, self.range, stays, escapes=order.plan.escapes
        )

    def record(self) -> RecordedParts:
        """Run the function, and return what was made of it."""
        self._begin()
        self.first_arrays = self.arrays
        order, session = self.order, self.session
        with uncollected():
            captured = self.capture.run(order.fn, self.args, self.kwargs, session)
        if session.unrecordable is not None:
            self.device.driver.destroy_graph(captured.graph)
            raise session.unrecordable.anew()
        node = self._end(captured.graph, captured.result, last=True)
        for i in node.revokes:
            self.forest.leases.donate(self.carried.storages[i], node.label)
        other = differs(order.group.warm, session, node.outputs)
        if other is not None and self.stirred:
            self.unfit, other = self.unfit or str(other), None
        error = captured.error or self.error or other or self._unheld()
        head = answer_for_all(self.links, self.roles.used_later)
        made = Recorded(head, self.first_arrays, (), error)
        return RecordedParts(captured.result, made, self.unfit)

    def close(self) -> None:
        """Give back what was made, for a call that failed."""
        with Release() as release:
            for link in self.links:
                release(link.part.exec.close)
                release(link.part.range.close)
            if not self.range.closed:
                release(self.range.close)

    def let_go(self) -> None:
        """Forget what the call made: from now on others say how long it lives."""
        self.forest.leases.crossed(self.made)
        self.made.clear()
        self.carried = self.order.plan.call.given
        # Else what was read would live until garbage is collected.
        self.session.between = None

    # One part.

    def _begin(self) -> None:
        """Look at all that the coming part may use."""
        adapter = self.forest.adapter
        self.before = self.order.survey(self.arguments)
        self.stirred |= bool(self.links) and self.before.key != self.first_key
        self.first_key = self.first_key if self.links else self.before.key
        self.ambient = self.before.guards(lambda _: True)
        self.arrays = look([slot.read() for slot in self.ambient.arrays], adapter)
        self.first_line = len(self.session.lines)
        self.first = self.capture.allocations.count()

    def _end(self, graph: GraphHandle, shown: Any, *, last: bool) -> Node:
        """Make a node of what was captured, and run it."""
        range_, adapter = self.range, self.forest.adapter
        survivors = self.capture.survivors(self.first)
        lines = self.session.lines[self.first_line :]
        try:
            bound = self._bound()
            outputs = self._outputs(shown, bound, survivors)
            new = _in_order(survivors, outputs)
            made = self._escaping(new)
            places = [
                *self.carried.places(adapter),
                *self.arrays.places(adapter),
                *(Place(s, s.address, Addr(s.address + s.size), ()) for s in made),
            ]
            recording = read(graph, lines, places, {}, range_, self.device)
        finally:
            self.device.driver.destroy_graph(graph)
        drawing = self._drawing(recording, outputs, places, len(made), last=last)
        node = build(drawing, range_, self.device)
        shared = sharing(self.arrays, self.carried)
        slots = tuple(change.slot for change in bound)
        self.links.append(Link(node, slots, shared, None))
        self._run(node, new)
        return node

    def _drawing(
        self,
        recording: Recording,
        outputs: Outputs,
        places: Sequence[Place],
        made: int,
        *,
        last: bool,
    ) -> Drawing:
        """Say what replays do with each place; the last ``made`` they allocate."""
        symbols, old = recording.symbols(), places[: len(places) - made]
        if self.links:
            first = self.links[0].part.places
            names, roles = self.roles.later(
                self.ambient, self.carried, old, symbols, first
            )
        else:
            names, roles = self.roles.first(self.ambient, old)
        roles += [Role.PATCHED] * made
        staged = [r if i in symbols else Role.PINNED for i, r in enumerate(roles, 1)]
        return Drawing(
            plan=self._plan(last=last),
            recording=recording,
            outputs=outputs,
            places=places,
            names=[*names, *(f"new array {i}" for i in range(made))],
            roles=roles,
            stages=late_stages(places, staged, {}, self.range, self.device),
            ambient=self.ambient,
            ambient_arrays=self.arrays,
            made=made,
        )

    def _escaping(self, new: Sequence[Storage]) -> Sequence[Storage]:
        """Return the new storages that replays allocate: all, or none are."""
        made = [storage for storage in new if not storage.captured]
        if self.order.plan.escapes and len(made) < len(new):
            self.unfit = "an array outlives its part that did not in the warm-up"
        return made

    def _bound(self) -> list[BoundArray]:
        """Return the arrays that the part bound; plain values are an error, later."""
        after = self.order.survey(self.arguments)
        changes = after.changes_since(self.before)
        self.error = self.error or plain_changes(changes)
        return [change for change in changes if isinstance(change, BoundArray)]

    def _plan(self, *, last: bool) -> Plan:
        """Return the plan of a part; only the last one may lose what was donated."""
        plan, number = self.order.plan, len(self.links)
        return replace(
            plan,
            label=f"{plan.label}/{number + 1}" if number else plan.label,
            call=plan.call._replace(given=self.carried),
            donated=plan.donated if last else frozenset(),
            escapes=plan.escapes and not self.unfit,
            candidates=self._candidates(),
        )

    def _candidates(self) -> list[Extent]:
        """Return what may still be shared: by no other part, and by nothing live."""
        pages, mine = self.device.pages, 0
        for link in self.links:
            mine |= link.part.clobbers
        taken, known = pages.live | mine, pages.extents
        return [
            each
            for each in self.order.plan.candidates
            if each in known and not each.mask & taken
        ]

    def _outputs(
        self, shown: Any, bound: Sequence[BoundArray], survivors: Sequence[Storage]
    ) -> Outputs:
        """Describe what the part shows; all that outlives it lies on output pages."""
        adapter = self.forest.adapter
        known = [*self.carried.arrays, *self.arrays.arrays]
        values = [change.new for change in bound]
        outputs = analyse(shown, values, known, adapter, self.made)
        made = {s.address: Bytes(s.address, s.size) for s in survivors}
        for storage in outputs.storages:
            if made.pop(storage.address, None) is None:
                raise stray(storage)
        leaves, _ = flatten((shown, values), adapter.is_array)
        arrays = filter(adapter.is_array, leaves)
        self.shown.update(id(adapter.storage(array)) for array in arrays)
        return replace(outputs, storages=(*outputs.storages, *made.values()))

    def _run(self, node: Node, new: Sequence[Storage]) -> None:
        """Launch a part; what outlives it is now leased, at the same address."""
        stream = self.device.stream()
        lows = prepare(node, self.carried, self.arrays, stream)
        made = [storage.address for storage in new if not storage.captured]
        lows = [*lows, *made]
        self.device.pages.claim(stream, node.clobbers)
        launch(node, lows, stream)
        leases = self.forest.leases
        leases.cross(new)
        self.made += new
        for storage, mask in zip(new, node.output_masks, strict=True):
            storage.writer, storage.readers = stream, ()
            if storage.captured:
                lease = Lease(leases, node.range, mask)
                storage.token, storage.captured = lease, False
                leases.begin(lease, storage)
            else:
                leases.begin_loose(storage)

    # Live parts.

    def _between(
        self, part: LivePart, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run what was captured so far, then a live part; then capture on."""
        passed = Passed(args, kwargs, self.forest.adapter)
        self.caught = caught_at(Capture.run.__code__)
        capture = self.capture
        try:
            graph = capture.pause()
            with collected(), capture.live():
                self._end(graph, (args, kwargs), last=False)
                result, raised = self._live(part, args, kwargs)
                self._carry(part, passed, result, raised)
                self.range = Range.reserve(self.device.pages)
                self._begin()
            capture.resume(self.range)
        except BaseException as failed:
            capture.failed = Caught(failed)
            raise
        if raised is not None:
            raised.reraise()
        return result

    def _live(
        self, part: LivePart, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, Caught | None]:
        """Run a live part, without the lock; return its result or its exception."""
        result, raised = None, None
        self.device.lock.release()
        try:
            result = part(*args, **kwargs)
        except BaseException as error:  # noqa: BLE001 - raised again in the function
            raised = Caught(error)
        finally:
            self.device.lock.acquire()
        check_open(self.device, part.name)
        return result, raised

    def _carry(
        self, part: LivePart, passed: Passed, result: Any, raised: Caught | None
    ) -> None:
        """Note what the next part may use of what there is now."""
        link, adapter = self.links[-1], self.forest.adapter
        crossing = self.made[len(self.made) - len(link.part.outputs.storages) :]
        self.carried = carry(self.carried, crossing, passed.arrays())
        self.roles.made(link.part.label, crossing)
        if raised is not None:
            self.unfit = f"the live part {part.name} raised {raised.text}"
            self.stirred = True
            return
        got = returned(part.name, result, passed, self.carried, adapter)
        self.session.broken(part, passed.text(), got.kind)
        self._check(part.name, got)
        live = Live(part.name, part.held(), got.key, got.shared, got.text, self.caught)
        link.part.outputs = hold_weakly(link.part.outputs)
        leaves, outputs = self.order.plan.call.leaves, link.part.outputs
        inside = made_inside(part.name, outputs, leaves, self.before)
        self.error = self.error or inside
        self.links[-1] = replace(link, live=live)
        known = len(self.carried.storages)
        self.carried = receive(self.carried, got)
        self.roles.returned(part.name, self.carried.places(adapter)[known:])

    def _check(self, name: str, got: Returned) -> None:
        """Refuse a result that no replay could take, or that differs from the last."""
        warm = self.order.group.warm
        then = () if warm is None else warm.breaks
        refused = got.refused or unlike(name, got, self.session.breaks, then)
        if refused and self.tolerant:
            self.error = self.error or CaptureError(refused, remedy=REMEDY)
        elif refused:
            self.session.refuse(refused, REMEDY)

    # The end.

    def _unheld(self) -> CaptureError | None:
        """Let go of what was made; return an error about what nothing accounts for."""
        lines = {
            address: line
            for link in self.links
            for address, _, line in link.part.range.taken()
        }
        others = [weakref.ref(s) for s in self.made if id(s) not in self.shown]
        self.let_go()
        if any(other() is not None for other in others):
            # Cycles keep arrays alive that nobody can reach.
            gc.collect()
        lost = [storage for other in others if (storage := other()) is not None]
        if not lost:
            return None
        return outliving([(s.address, s.size, lines.get(s.address)) for s in lost])


def _in_order(survivors: Sequence[Storage], outputs: Outputs) -> list[Storage]:
    by_address = {storage.address: storage for storage in survivors}
    return [by_address[made.address] for made in outputs.storages]
