"""One call recorded: what surrounds the capture, so that nothing is left behind."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

from sapwood.driver.release import Release
from sapwood.errors import CaptureError, DriverError
from sapwood.graphs.capture import touched
from sapwood.graphs.inspect import inspect
from sapwood.graphs.recording import Recording
from sapwood.memory.blocks import ALIGNMENT
from sapwood.memory.device import Device
from sapwood.memory.range import Range
from sapwood.memory.storage import Storage
from sapwood.tree.call.integration import Array, Integration
from sapwood.tree.call.roles import History, Role, assign
from sapwood.tree.call.signature import Arrays, Place, look
from sapwood.tree.choose.address_trace import AddressTrace, confirmed
from sapwood.tree.choose.recordings import Recordings
from sapwood.tree.guards import Ambient, Slot
from sapwood.tree.nests.containers import flatten
from sapwood.tree.node.node import Node
from sapwood.tree.node.outputs import Outputs, analyse, each_anew
from sapwood.tree.record.accounts import check_allocations, read
from sapwood.tree.record.build import LinkSpec, build
from sapwood.tree.record.repeated import concluded
from sapwood.tree.record.staging import landing, late_stages, reserved, stand_ins
from sapwood.tree.record.taking import RecordRequest, Taken, settled, take
from sapwood.tree.watch.placement import lay_out
from sapwood.tree.watch.session import Warm
from sapwood.tree.watch.watch import Capture, Captured, Caught, unrepeated
from sapwood.units import Addr, Size


def _repacked(
    recording: Recording,
    captured: Captured,
    addresses: Sequence[Addr],
    range_: Range,
    device: Device,
) -> Recording:
    """Return the recording, its temporaries planned anew if that saves pages.

    ``addresses`` are by symbol. Nothing of it has run. If it raises, the range must be
    closed.
    """
    driver = device.driver
    # Each op is known by its place in the order of those that were given.
    known = len(captured.session.lines) == len(recording.ops)
    if not known or not driver.abilities.exact_addresses:
        return recording
    if not range_.whole:
        return recording
    made = [each for each in captured.made if each.address < range_.base + range_.half]
    found = lay_out(recording, made, range_.kept(), range_.base, _packed)
    if found is None or not range_.loose(found[1])[1]:
        return recording
    moved, end = found
    moved = inspect(moved, addresses, driver, device.function)
    range_.cut(end)
    return moved


def _packed(lives: Sequence[tuple[int, int, int]]) -> Sequence[int]:
    from sapwood.allocator.planner import Buffer, largest_first

    buffers = [Buffer(lower, upper, Size(size)) for lower, upper, size in lives]
    return largest_first(buffers, ALIGNMENT)


@dataclass(frozen=True, slots=True)
class Recorded:
    """A node, what it reads now, what its replays bind, what went wrong in Python.

    ``error`` is an exception that the function raised, a `CaptureError` for what no
    replay could repeat, or what the next capture is held against; then the node is good
    for one launch, which does what the function did.
    """

    node: Node
    ambient: Arrays
    bound: tuple[Slot, ...]
    error: CaptureError | Caught | Warm | None


class RecordedParts(NamedTuple):
    """A call that was recorded in parts, and has run.

    ``made`` is the chain of them; ``unfit`` says why that is of no further use, if its
    error does not.
    """

    result: Any
    made: Recorded
    unfit: str


class Scene:
    """A call, its places and their roles, and what stands in for it in its capture.

    ``arrays`` are passed instead of the call's own; ``stages`` is the room, in the
    range of the recording, of those that others stand in for.
    """

    def __init__(
        self, order: RecordRequest, recordings: Recordings, range_: Range
    ) -> None:
        self.order, self.recordings, self.range = order, recordings, range_
        self.device, self.integration = recordings.device, recordings.integration
        self.places: Sequence[Place] = order.plan.call.given.places(self.integration)
        self.roles = argument_roles(order, self.places, recordings)
        self.stages, self.arrays = stand_ins(
            order.plan.call.given,
            self.places,
            self.roles,
            range_,
            self.device,
            self.integration,
        )

    def reads(
        self,
        taken: Taken,
        bound: Sequence[Array],
        spans: Sequence[tuple[Addr, Addr]] | None,
    ) -> tuple[Ambient, Arrays]:
        """Return what a captured function is guarded by, and the arrays in there.

        ``bound`` is what it has put into slots, ``spans`` what ops use: None where
        that may be anything.
        """
        used: Callable[[Array], bool] = _any_array
        if spans is not None:
            left = taken.captured.result, bound
            used = used_by(spans, left, self.integration)
        ambient = taken.before.guards(used)
        read = [slot.read() for slot in ambient.arrays]
        return ambient, look(read, self.integration)

    def outputs(self, taken: Taken, bound: Sequence[Array], read_by: Arrays) -> Outputs:
        """Describe what a captured call returned, and what it bound to slots."""
        known = [*self.arrays, *read_by.arrays]
        outputs = analyse(taken.captured.result, bound, known, self.integration)
        return each_anew(outputs, self.order.plan.call.leaves, taken.before.holds)


def record(order: RecordRequest, recordings: Recordings) -> Recorded:
    """Capture a call and build a node; nothing of it has run.

    Raises `CaptureError`, `DriverError` or `OutOfMemory`, and then no trace is left
    of it in what the function is known to reach.
    """
    range_ = reserved(order.specialization, order.plan.call.given, recordings)
    try:
        scene = Scene(order, recordings, range_)
        taken = _take(scene)
        with taken.or_nothing():
            return _built(scene, taken)
    except BaseException:
        with Release() as release:
            release(range_.close)
        raise


def _built(scene: Scene, taken: Taken) -> Recorded:
    """Build a node of what was captured."""
    order, recordings, range_ = scene.order, scene.recordings, scene.range
    device, captured = scene.device, taken.captured
    places, stages = scene.places, scene.stages
    try:
        bound, error = settled(taken, recordings)
        values = [change.new for change in bound]
        spans = [*touched(device.driver, captured.graph), *captured.session.spans]
        ambient, read_by = scene.reads(taken, values, spans)
        everything = [*places, *read_by.places(scene.integration)]
        lines = captured.session.lines
        recording = read(captured.graph, lines, everything, stages, range_, device)
    finally:
        device.driver.destroy_graph(captured.graph)
    outputs = scene.outputs(taken, values, read_by)
    names, more = ambient_roles(order, ambient, everything[len(places) :], recordings)
    starts = range_.base, *_starts(everything, stages)
    trace = AddressTrace(recording, (*order.names, *names), starts)
    roles = _of_what_is_known((*scene.roles, *more), trace, order, recordings)
    with unrepeated(error):
        stages |= late_stages(everything, roles, stages, range_, device)
        if captured.error is None:
            check_allocations(outputs, stages, range_, recordings)
            recording = _repacked(recording, captured, starts, range_, device)
        outcome = concluded(error, order.specialization.warm, captured.session, outputs)
        drawing = LinkSpec(
            plan=order.plan,
            recording=recording,
            outputs=outputs,
            places=everything,
            names=trace.names,
            roles=roles,
            stages=stages,
            ambient=ambient,
            ambient_arrays=read_by,
        )
        node = build(drawing, range_, device)
        if not _is_exact(recordings):
            # Only another capture shows what is an address.
            order.specialization.sketched(trace, node)
    return Recorded(node, read_by, tuple(change.slot for change in bound), outcome)


def _any_array(_: Array) -> bool:
    return True


def _starts(places: Sequence[Place], stages: Mapping[int, Storage]) -> Iterator[Addr]:
    """Yield where the ops find each place."""
    for i, place in enumerate(places):
        yield landing(stages[i], place) if i in stages else place.lo


def _is_exact(recordings: Recordings) -> bool:
    return recordings.device.driver.abilities.exact_addresses


def _of_what_is_known(
    roles: tuple[Role, ...],
    trace: AddressTrace,
    order: RecordRequest,
    recordings: Recordings,
) -> tuple[Role, ...]:
    """Pin what was to be patched, and of which not every address is known."""
    if _is_exact(recordings):
        return roles
    before = order.specialization.trace
    found = None if before is None else confirmed(roles, trace, before)
    if found is not None:
        return found
    return tuple(Role.PINNED if r is Role.PATCHED else r for r in roles)


def _patchable(
    order: RecordRequest, recordings: Recordings, places: Sequence[Place]
) -> list[bool]:
    """Say which places may be patched, as far as can be said before capture."""
    if _is_exact(recordings):
        return [place.hi - place.lo >= recordings.patch_from for place in places]
    # A copy is copied back there, too: for all that is known, it is written.
    return [order.specialization.hopeful] * len(places)


def argument_roles(
    order: RecordRequest,
    places: Sequence[Place],
    recordings: Recordings,
    hints: Sequence[Role] | None = None,
) -> tuple[Role, ...]:
    """Choose the roles of a call's places.

    ``hints`` are those of a recording from elsewhere, for a first call here.
    """
    steady = [hint.fixed for hint in hints or ()]
    roles = assign(
        order.specialization.places,
        [recordings.inherits(place.storage) for place in places],
        [
            i in order.pinned or (i < len(steady) and steady[i] and history.fresh)
            for i, history in enumerate(order.specialization.places)
        ],
        _patchable(order, recordings, places),
        anywhere=order.anywhere,
    )
    # A copy of what the function also reads by itself would go its own way.
    reached = {*map(recordings.integration.storage, order.before.arrays())}
    return tuple(
        Role.PINNED if place.storage in reached else role
        for place, role in zip(places, roles, strict=True)
    )


def _take(scene: Scene) -> Taken:
    recordings, warm = scene.recordings, scene.order.specialization.warm
    stays = frozenset() if warm is None else warm.stays
    stream = recordings.capture_stream()
    capture = Capture(scene.device, stream, scene.range, stays)
    try:
        return take(scene.order, recordings, capture, scene.arrays)
    except DriverError:
        recordings.renew_capture_stream()
        if capture.written is not None:
            # Another run, if only an eager one, would go on from there.
            raise capture.written.anew() from None
        raise


def used_by(
    spans: Sequence[tuple[Addr, Addr]], left: Any, integration: Integration
) -> Callable[[Array], bool]:
    """Return a test for arrays that ops use, or that are in what the call leaves."""
    leaves, _ = flatten(left, integration.is_array)
    shown = {integration.storage(leaf) for leaf in leaves if integration.is_array(leaf)}
    ordered = sorted(spans)
    starts = [start for start, _ in ordered]
    # How far any of those reaches that start no later.
    ends = [*accumulate((end for _, end in ordered), max)]

    def used(array: Array) -> bool:
        lo, hi = integration.span(array)
        before = bisect_left(starts, hi)
        overlaps = before > 0 and lo < ends[before - 1]
        return overlaps or integration.storage(array) in shown

    return used


def ambient_roles(
    order: RecordRequest,
    ambient: Ambient,
    places: Sequence[Place],
    recordings: Recordings,
    hints: Sequence[Role] | None = None,
) -> tuple[list[str], list[Role]]:
    """Name the places of ambient arrays and choose their roles, each by its history.

    ``hints`` as in `argument_roles`.
    """
    names = [ambient.arrays[place.arrays[0]].path for place in places]
    histories = [order.specialization.ambient.get(name, History()) for name in names]
    exact = _is_exact(recordings) or order.specialization.hopeful
    steady = [hint.fixed for hint in hints] if hints else [True] * len(places)
    roles = assign(
        histories,
        [recordings.inherits(place.storage) for place in places],
        # Only a device that knows every address can have one moved after capture.
        [
            not exact or (history.fresh and fixed)
            for history, fixed in zip(histories, steady, strict=True)
        ],
        _patchable(order, recordings, places),
        anywhere=order.anywhere and exact,
    )
    given = order.plan.call.given.storages
    return names, [
        Role.PINNED if place.storage in given else role
        for place, role in zip(places, roles, strict=True)
    ]
