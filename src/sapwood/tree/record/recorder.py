"""One call recorded: what surrounds the capture, so that nothing is left behind."""

from __future__ import annotations

import gc
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any

from sapwood.errors import CaptureError, DriverError
from sapwood.graphs.capture import GraphOps, ops_of
from sapwood.graphs.exec import forgotten, instantiate
from sapwood.graphs.recording import Recording
from sapwood.memory.range import Range
from sapwood.memory.storage import Storage
from sapwood.tree.call.integration import Array, Integration
from sapwood.tree.call.roles import History, Role, assign
from sapwood.tree.call.signature import Arrays, Place, look
from sapwood.tree.choose.recordings import Recordings
from sapwood.tree.guards import Ambient, Slot, Survey
from sapwood.tree.nests.containers import arrays_in
from sapwood.tree.node.node import Node
from sapwood.tree.node.outputs import Outputs, analyse, each_anew
from sapwood.tree.record.accounts import Lost, check_lost, check_outputs, memos_of, read
from sapwood.tree.record.build import LinkSpec, build
from sapwood.tree.record.repeated import concluded
from sapwood.tree.record.staging import (
    SlotStandIns,
    apart_from,
    moving,
    put_back,
    reserved,
    stand_ins,
)
from sapwood.tree.record.taking import RecordRequest, Taken, added, settled, take
from sapwood.tree.watch.session import Warm
from sapwood.tree.watch.watch import Capture, Captured, Caught, unrepeated
from sapwood.units import Addr


@dataclass(frozen=True, slots=True)
class Recorded:
    """A node, what it reads now, what its replays bind, what went wrong in Python.

    ``error`` is an exception that the function raised, a `CaptureError` for what no
    replay could repeat, or what the next capture is held against; then the node is good
    for one launch, which does what the function did. A chain of parts has run already:
    this is its ``result``, and why it is ``unfit`` for more, if its error does not say;
    it has ``branched`` at a line, where that is a value which a region returned.
    """

    node: Node
    ambient: Arrays
    bound: tuple[Slot, ...]
    error: CaptureError | Caught | Warm | None
    result: Any = None
    unfit: str = ""
    branched: str | None = None


class ReadsArguments(Exception):
    """A function reads by itself what it is also passed, and what was copied."""


class Scene:
    """A call, its places and their roles, and what stands in for it in its capture.

    ``arrays`` are passed instead of the call's own; ``stages`` is the room, in the
    range of the recording, of those that others stand in for. Once it is known what
    the function ``reads`` by itself, as far as it is guarded, that has places, too:
    it is ``ambient``, and ``read`` are the arrays in there. ``left`` is what it has
    returned and bound.
    """

    ambient: Ambient
    read: Arrays
    left: tuple[Any, Sequence[Array]]
    ops: GraphOps

    def __init__(
        self, order: RecordRequest, recordings: Recordings, range_: Range
    ) -> None:
        self.order, self.recordings, self.range = order, recordings, range_
        self.device = recordings.device
        self.integration = integration = recordings.integration
        self.places = order.call.given.places(self.integration)
        self.names = [*order.names]
        # A stand-in is another object than the array in a slot. Code that compares the
        # two would take the wrong branch.
        asks = order.before.which(order.call.given.arrays)
        apart = not (asks or order.specialization.reads_arguments)
        self.roles = argument_roles(order, self.places, recordings, apart=apart)
        given = order.call.given
        self.stages, self.arrays = stand_ins(given, self.roles, range_, recordings)
        if not asks:
            reached = order.before.arrays()
            self.arrays = apart_from(reached, order.call, self.arrays, integration)
        stays = partial(is_to_stay, order, recordings)
        slots = moving(order.before, given.storages, stays, self.integration)
        self.slots = SlotStandIns(slots, range_, recordings)

    def rooms(self) -> list[Storage]:
        """Return the room of all that others stand in for."""
        rooms = (*self.stages.values(), *self.slots.stages.values())
        return [*{id(room): room for room in rooms}.values()]

    def own_arrays(self) -> list[Array]:
        """Return what the function is passed, and what it finds in slots instead."""
        return [*self.arrays, *self.slots.arrays()]

    def give_back(self, after: Survey) -> None:
        """Have slots hold the call's own arrays where what stood in for them is left.

        That is so behind what no replay could repeat, which stays as it was done.
        """
        given, call = self.order.call.given.arrays, self.order.call
        pairs = [*zip(self.arrays, given, strict=True), *self.slots.pairs()]
        theirs = {id(own): each for own, each in pairs if own is not each}
        arguments = self.order.bind(call.args, call.kwargs)
        for slot, array in after.slots_of_arrays():
            if id(array) in theirs:
                put_back(slot, array, theirs[id(array)], arguments)

    def reads(
        self,
        taken: Taken,
        bound: Sequence[Array],
        spans: Sequence[tuple[Addr, Addr]] | None,
    ) -> None:
        """Note what a captured function is guarded by, and the arrays in there.

        ``bound`` is what it has put into slots, ``spans`` what ops use: None where
        that may be anything.
        """
        self.left, integration = (taken.captured.result, bound), self.integration
        used: Callable[[Array], bool] = lambda _: True  # noqa: E731
        if spans is not None:
            used = used_by(spans, self.left, integration)
        used = self._used(used, taken.before)
        self.ambient = ambient = taken.before.guards(used)
        # Not by the slots: what is on the way there may be another thing by now.
        self.read = look([*filter(used, taken.before.arrays())], self.integration)
        places = self.read.places(self.integration)
        names, roles = ambient_roles(self.order, ambient, places)
        for i, place in enumerate(places):
            stage = self.slots.stages.get(place.storage)
            if stage is not None:
                self.stages[len(self.places) + i], roles[i] = stage, Role.COPIED
        self.places, self.names = [*self.places, *places], [*self.names, *names]
        self.roles = (*self.roles, *roles)

    def _used(
        self, used: Callable[[Array], bool], before: Survey
    ) -> Callable[[Array], bool]:
        """Return a test for arrays of which those that stand in for them are used.

        Of several that share a storage all are, for they have one room together.
        Raises `ReadsArguments`.
        """
        own = self.slots.own
        roles = zip(self.places, self.roles, strict=True)
        copied = {place.storage for place, role in roles if role is Role.COPIED}
        reached = [(each, self._storage(each)) for each in before.arrays()]
        if any(storage in copied and used(each) for each, storage in reached):
            raise ReadsArguments
        untold = frozenset[Storage]()
        if not self.recordings.tells:
            untold = self._shared(before) - copied
        rooms = {
            storage
            for each, storage in reached
            if storage in self.slots.stages and used(own(each))
        }
        rooms |= untold
        return lambda array: self._storage(array) in rooms or used(own(array))

    def _storage(self, array: Array) -> Storage:
        return self.integration.look(array).storage

    def _shared(self, before: Survey) -> frozenset[Storage]:
        """Return the storages that several arrays have, of what is given and reached.

        A framework leaves out what would write an array to itself; if nobody says so,
        the recording is of calls alone in which they are one.
        """
        arrays = [*self.order.call.given.arrays, *before.arrays()]
        counts = Counter(map(self._storage, arrays))
        return frozenset(storage for storage, count in counts.items() if count > 1)

    def outputs(self, taken: Taken, bound: Sequence[Array]) -> Outputs:
        """Describe what a captured call returned, and what it bound to slots."""
        known = [*self.arrays, *map(self.slots.own, self.read.arrays)]
        outputs = analyse(taken.captured.result, bound, known, self.integration)
        return each_anew(outputs, self.order.call.leaves, taken.before.holds)

    def check_room(self, taken: Taken) -> None:
        """Raise where more room may be enough: here there is as much as is asked."""

    def check_code(self, taken: Taken, error: object) -> None:
        """Raise `Unready` where code of other calls ran: here nobody compiles."""

    def spans(self, captured: Captured) -> list[tuple[Addr, Addr]] | None:
        """Return what ops use; None where that may be anything."""
        device = self.device
        self.ops = ops_of(device.driver, captured.graph, device.name_of)
        return [*self.ops.touched(), *captured.session.spans]

    def describe(self, taken: Taken, outputs: Outputs) -> LinkSpec:
        """Say what is to be built. Raises `CaptureError` for a foreign address."""
        device, places, stages = self.device, self.places, self.stages
        known, memos = memos_of(taken.before, self.integration, device.framework)
        graph, lines = taken.captured.graph, taken.captured.session.lines
        recording = read(self.ops, lines, places, stages, self.range, device, known)
        link = partial(instantiate, device.driver, graph)
        return self.spec(recording, outputs, memos=memos, link=link)

    def check(self, taken: Taken, outputs: Outputs, error: object) -> None:
        """Raise `CaptureError` where an allocation outlives the function unexplained.

        Nothing need explain ``rooms``, where others stand in for arrays.
        """
        del error  # a plain write is told of once this has been launched
        if taken.captured.error is not None:
            return
        named = check_outputs(outputs, self.range)
        named.update(storage.address for storage in self.rooms())
        if self._lost(named):
            # An array in a cycle of garbage is still alive, but nobody can reach it.
            gc.collect()
        check_lost(self._lost(named), outputs, self.integration)

    def _lost(self, named: set[Addr]) -> list[Lost]:
        self.device.returns.drain()
        return [each for each in self.range.taken() if each[0] not in named]

    def spec(self, recording: Recording, outputs: Outputs, **more: Any) -> LinkSpec:
        """Return what is known of the call, and ``more``, for its node."""
        return LinkSpec(
            order=self.order.showing(outputs, self.integration),
            recording=recording,
            outputs=outputs,
            places=self.places,
            names=self.names,
            roles=self.roles,
            stages=self.stages,
            ambient=self.ambient,
            ambient_arrays=self.read,
            **more,
        )


def record(order: RecordRequest, recordings: Recordings) -> Recorded:
    """Capture a call and build a node; nothing of it has run.

    Raises `CaptureError`, `DriverError` or `OutOfMemory`, and then no trace is left
    of it in what the function is known to reach.
    """
    range_ = reserved(order.specialization, order.call.given, recordings)
    try:
        scene = Scene(order, recordings, range_)
        return built(scene, _take(scene))
    except BaseException:
        range_.close()
        raise


def built(scene: Scene, taken: Taken) -> Recorded:
    """Build a node of what was captured; nothing is left of it where that fails."""
    captured, recordings = taken.captured, scene.recordings
    with forgotten(scene.device.driver, captured.graph) as made, taken.or_nothing():
        scene.check_room(taken)
        bound, error = settled(taken, recordings)
        values = [change.new for change in bound]
        if error is not None:
            scene.give_back(taken.after)
        scene.check_code(taken, error)
        scene.reads(taken, values, scene.spans(captured))
        outputs = scene.outputs(taken, values)
        drawing = scene.describe(taken, outputs)
        with unrepeated(error):
            scene.check(taken, outputs, error)
        sums = added(bound, scene.integration.is_array)
        warm = scene.order.specialization.warm
        outcome = concluded(error, warm, captured.session, outputs, sums)
        with unrepeated(outcome):
            node = build(drawing, scene.range)
        made.append(node.exec)
    return Recorded(node, scene.read, tuple(change.slot for change in bound), outcome)


def is_to_stay(
    order: RecordRequest, recordings: Recordings, path: str, storage: Storage
) -> bool:
    """Return whether the array in a slot is to be where it is now."""
    history = order.specialization.ambient.get(path, History())
    if history.fresh:
        return True
    inherits = recordings.inherits(storage)
    return assign(history, inherits, False, anywhere=order.anywhere).fixed


def argument_roles(
    order: RecordRequest,
    places: Sequence[Place],
    recordings: Recordings,
    hints: Sequence[Role] | None = None,
    *,
    apart: bool = False,
) -> tuple[Role, ...]:
    """Choose the roles of a call's places.

    ``hints`` are those of a recording from elsewhere, for a first call here. If the
    function is taken to use its arguments ``apart`` from what it reads by itself, one
    that it could also read may be copied.
    """
    histories = order.specialization.places
    fixed = [hint.fixed for hint in hints] if hints else [False] * len(places)
    pinned = [
        i in order.pinned or (fixed[i] and history.fresh)
        for i, history in enumerate(histories)
    ]
    roles = [
        assign(
            history,
            recordings.inherits(place.storage),
            is_pinned,
            anywhere=order.anywhere,
        )
        for place, history, is_pinned in zip(places, histories, pinned, strict=True)
    ]
    # A copy of what the function also reads by itself would go its own way.
    looks = map(recordings.integration.look, order.before.arrays())
    reached = {look.storage for look in looks}
    copied = [not hint.fixed for hint in hints] if hints else [apart] * len(places)
    found = zip(places, roles, copied, strict=True)
    return tuple(
        role
        if place.storage not in reached
        else (Role.COPIED if may_be and not role.fixed else Role.PINNED)
        for place, role, may_be in found
    )


def _take(scene: Scene) -> Taken:
    recordings, warm = scene.recordings, scene.order.specialization.warm
    stays = frozenset() if warm is None else warm.stays
    stream = recordings.capture_stream()
    capture = Capture(scene.device, stream, scene.range, stays)
    try:
        return take(scene.order, recordings, capture, scene.arrays, scene.slots)
    except DriverError:
        recordings.renew_capture_stream()
        if capture.written is not None:
            # Plain values were written and could not be put back: to run the function
            # again, even eagerly, would start from the wrong state.
            raise capture.written.anew() from None
        raise


def used_by(
    spans: Sequence[tuple[Addr, Addr]], left: Any, integration: Integration
) -> Callable[[Array], bool]:
    """Return a test for arrays that ops use, or that are in what the call leaves."""
    arrays = arrays_in(left, integration.is_array)
    shown = {integration.look(each).storage for each in arrays}
    ordered = sorted(spans)
    starts = [start for start, _ in ordered]
    # ends[i]: the furthest end among the first i + 1 spans.
    ends = [*accumulate((end for _, end in ordered), max)]

    def used(array: Array) -> bool:
        look = integration.look(array)
        lo, hi = look.span
        before = bisect_left(starts, hi)
        overlaps = before > 0 and lo < ends[before - 1]
        return overlaps or look.storage in shown

    return used


def ambient_roles(
    order: RecordRequest,
    ambient: Ambient,
    places: Sequence[Place],
    hints: Sequence[Role] | None = None,
) -> tuple[list[str], list[Role]]:
    """Name the places of ambient arrays, and say which role each has.

    Each is where it is, unless something stands in for it. ``hints`` are the roles in
    a recording from elsewhere, whose ops are given the addresses of what stood in.
    """
    names = [ambient.arrays[place.arrays[0]].path for place in places]
    given, hints = order.call.given.storages, hints or [Role.PINNED] * len(places)
    return names, [
        Role.COPIED
        if hint is Role.COPIED and place.storage not in given
        else Role.PINNED
        for place, hint in zip(places, hints, strict=True)
    ]
