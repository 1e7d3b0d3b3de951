"""One call recorded: what surrounds the capture, so that nothing is left behind."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, NamedTuple

from sapwood.driver.release import Release
from sapwood.errors import CaptureError, DriverError
from sapwood.graphs.capture import touched
from sapwood.memory.range import Range
from sapwood.memory.storage import Storage
from sapwood.tree.accounts import check_allocations, read
from sapwood.tree.adapter import Adapter, Array
from sapwood.tree.ambient import (
    Ambient,
    BoundArray,
    Change,
    Slot,
    Survey,
    undo_bound,
)
from sapwood.tree.apart import outcome_of
from sapwood.tree.build import Drawing, Plan, build
from sapwood.tree.confirm import Sketch, confirmed
from sapwood.tree.containers import flatten, unflatten
from sapwood.tree.forest import Forest
from sapwood.tree.group import Group, Warm
from sapwood.tree.node import Node
from sapwood.tree.outputs import Outputs, analyse, each_anew
from sapwood.tree.refill import refilled
from sapwood.tree.repack import repacked
from sapwood.tree.roles import History, Role, assign
from sapwood.tree.session import Session, Unready
from sapwood.tree.signature import Arrays, Call, Place, look
from sapwood.tree.stage import landing, late_stages, stand_ins
from sapwood.tree.uncollected import uncollected
from sapwood.tree.watch import Capture, Captured, Caught
from sapwood.units import Addr

__all__ = [
    "Order",
    "Recorded",
    "RecordedParts",
    "Taken",
    "ambient_roles",
    "argument_roles",
    "plain_changes",
    "record",
    "settled",
    "take",
    "used_by",
    "with_leaves",
]


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be recorded, and how.

    ``names`` are those of the call's places; ``pinned`` the places that the user
    declared so; ``anywhere`` as in `Step`. ``before`` is the survey of the call.
    """

    fn: Callable[..., Any]
    plan: Plan
    names: Sequence[str]
    pinned: frozenset[int]
    group: Group
    anywhere: bool
    before: Survey
    bind: Callable[[tuple[Any, ...], Mapping[str, Any]], Mapping[str, object]]
    survey: Callable[[Mapping[str, object]], Survey]

    def check_same(self, now: Survey) -> None:
        """Raise `Unready` where other arrays are one than when the order was made."""
        given, nests = self.plan.call.given.arrays, self.plan.call.nests
        key = self.before.key_with(given, nests)
        if now.key_with(given, nests)[1:] != key[1:]:
            raise Unready("another thread has bound a slot meanwhile", moved=True)


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


def record(order: Order, forest: Forest) -> Recorded:
    """Capture a call and build a node; nothing of it has run.

    Raises `CaptureError`, `DriverError` or `OutOfMemory`, and then no trace is left
    but what the function's own Python did to plain values.
    """
    device = forest.device
    range_ = Range.reserve(device.pages)
    try:
        return _record_into(range_, order, forest)
    except BaseException:
        with Release() as release:
            release(range_.close)
        raise


def _outputs(
    order: Order,
    taken: Taken,
    bound: Sequence[Array],
    known: Sequence[Array],
    adapter: Adapter,
) -> Outputs:
    """Describe what a captured call returned, and what it bound to slots."""
    outputs = analyse(taken.captured.result, bound, known, adapter)
    return each_anew(outputs, order.plan.call.leaves, taken.before.holds)


def _record_into(range_: Range, order: Order, forest: Forest) -> Recorded:
    device, adapter, given = forest.device, forest.adapter, order.plan.call.given
    places = given.places(adapter)
    roles = argument_roles(order, places, forest)
    stages, arrays = stand_ins(given, places, roles, range_, device, adapter)
    taken = _take(order, forest, range_, arrays)
    captured, lines = taken.captured, taken.captured.session.lines
    try:
        bound, error = settled(taken)
        values = [change.new for change in bound]
        ambient = _ambient(taken, values, forest)
        read_by = look([slot.read() for slot in ambient.arrays], adapter)
        everything = [*places, *read_by.places(adapter)]
        recording = read(captured.graph, lines, everything, stages, range_, device)
    finally:
        device.driver.destroy_graph(captured.graph)
    outputs = _outputs(order, taken, values, [*arrays, *read_by.arrays], adapter)
    names, more = ambient_roles(order, ambient, everything[len(places) :], forest)
    starts = range_.base, *_starts(everything, stages)
    sketch = Sketch(recording, (*order.names, *names), starts)
    roles = _of_what_is_known((*roles, *more), sketch, order, forest)
    stages |= late_stages(everything, roles, stages, range_, device)
    if captured.error is None:
        check_allocations(outputs, stages, range_, forest)
        recording = repacked(recording, captured, starts, range_, device)
    drawing = Drawing(
        plan=order.plan,
        recording=recording,
        outputs=outputs,
        places=everything,
        names=sketch.names,
        roles=roles,
        stages=stages,
        ambient=ambient,
        ambient_arrays=read_by,
    )
    node = build(drawing, range_, device)
    _sketched(order, sketch, node, forest)
    outcome = error or outcome_of(order.group.warm, captured.session, outputs)
    return Recorded(node, read_by, tuple(change.slot for change in bound), outcome)


def _starts(places: Sequence[Place], stages: Mapping[int, Storage]) -> Iterator[Addr]:
    """Yield where the ops find each place."""
    for i, place in enumerate(places):
        yield landing(stages[i], place) if i in stages else place.lo


def _sketched(order: Order, sketch: Sketch, node: Node, forest: Forest) -> None:
    """Remember a capture where only another one shows what is an address."""
    if not _is_exact(forest):
        order.group.sketched(sketch, node)


def _is_exact(forest: Forest) -> bool:
    return forest.device.driver.abilities.exact_addresses


def _of_what_is_known(
    roles: tuple[Role, ...], sketch: Sketch, order: Order, forest: Forest
) -> tuple[Role, ...]:
    """Pin what was to be patched, and of which not every address is known."""
    if _is_exact(forest):
        return roles
    before = order.group.sketch
    found = None if before is None else confirmed(roles, sketch, before)
    if found is not None:
        return found
    return tuple(Role.PINNED if r is Role.PATCHED else r for r in roles)


def _patchable(order: Order, forest: Forest, places: Sequence[Place]) -> list[bool]:
    """Say which places may be patched, as far as can be said before capture."""
    if _is_exact(forest):
        return [place.hi - place.lo >= forest.patch_from for place in places]
    # A copy is copied back there, too: for all that is known, it is written.
    return [order.group.hopeful] * len(places)


@dataclass(frozen=True, slots=True)
class Taken:
    """A captured call, and what the function read before and after it."""

    captured: Captured
    before: Survey
    after: Survey


def take(
    order: Order, forest: Forest, capture: Capture, arrays: Sequence[Array]
) -> Taken:
    """Have a call captured with other arrays in it; slots are not restored yet."""
    args, kwargs = with_leaves(order.plan.call, arrays)
    arguments = order.bind(args, kwargs)
    # Not that of the order: others may have bound slots since it was made.
    before = order.survey(arguments)
    order.check_same(before)
    session = Session(tolerant=False, holds=before.holds)
    try:
        with uncollected():
            captured = capture.run(order.fn, args, kwargs, session)
    except BaseException:
        changes = order.survey(arguments).changes_since(before)
        undo_bound(changes)
        capture.written = plain_changes(changes)
        raise
    try:
        after = order.survey(arguments)
        try:
            shown = _as_it_is(captured.result, forest.adapter)
        except BaseException:
            undo_bound(after.changes_since(before))
            raise
        return Taken(replace(captured, result=shown), before, after)
    except BaseException:
        forest.device.driver.destroy_graph(captured.graph)
        raise


def _as_it_is(result: Any, adapter: Adapter) -> Any:
    """Return a result of which nothing changes when what it bound is unbound."""
    leaves, structure = flatten(result, adapter.is_array)
    return unflatten(structure, leaves)


def settled(
    taken: Taken,
) -> tuple[Sequence[BoundArray], CaptureError | Caught | None]:
    """Unbind what the function bound, and say what went wrong in its Python.

    The replay binds again; until then all is as before the call.
    """
    changes = taken.after.changes_since(taken.before)
    undo_bound(changes)
    bound = [change for change in changes if isinstance(change, BoundArray)]
    return bound, _error(taken.captured, changes)


def _ambient(taken: Taken, bound: Sequence[Any], forest: Forest) -> Ambient:
    captured = taken.captured
    spans = touched(forest.device.driver, captured.graph)
    used = used_by(
        [*spans, *captured.session.spans], (captured.result, bound), forest.adapter
    )
    return taken.before.guards(used)


def argument_roles(
    order: Order,
    places: Sequence[Place],
    forest: Forest,
    hints: Sequence[Role] | None = None,
) -> tuple[Role, ...]:
    """Choose the roles of a call's places.

    ``hints`` are those of a recording from elsewhere, for a first call here.
    """
    steady = [hint.fixed for hint in hints or ()]
    roles = assign(
        order.group.places,
        [forest.inherits(place.storage) for place in places],
        [
            i in order.pinned or (i < len(steady) and steady[i] and history.fresh)
            for i, history in enumerate(order.group.places)
        ],
        _patchable(order, forest, places),
        anywhere=order.anywhere,
    )
    # A copy of what the function also reads by itself would go its own way.
    reached = {*map(forest.adapter.storage, order.before.arrays())}
    return tuple(
        Role.PINNED if place.storage in reached else role
        for place, role in zip(places, roles, strict=True)
    )


def with_leaves(
    call: Call, arrays: Sequence[Array]
) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Return the arguments of a call with other arrays in it."""
    leaves = list(call.leaves)
    for position, array in zip(call.positions, arrays, strict=True):
        leaves[position] = array
    args, kwargs = refilled(call.structure, leaves, call.leaves, call.containers)
    return args, kwargs


def _take(
    order: Order, forest: Forest, range_: Range, arrays: Sequence[Array]
) -> Taken:
    warm = order.group.warm
    stays = frozenset() if warm is None else warm.stays
    capture = Capture(forest.device, forest.capture_stream(), range_, stays)
    try:
        return take(order, forest, capture, arrays)
    except DriverError:
        forest.renew_capture_stream()
        raise


def _error(
    captured: Captured, changes: Sequence[Change]
) -> CaptureError | Caught | None:
    if captured.session.unrecordable is not None:
        if captured.error is not None:
            captured.error.taken()
        # The function did not get any further, whatever it made of the exception.
        raise captured.session.unrecordable.anew()
    captured.check_raised()
    return captured.error or plain_changes(changes)


def plain_changes(changes: Sequence[Change]) -> CaptureError | None:
    """Return an error that names the first slot bound to a plain value, if any."""
    for change in changes:
        if not isinstance(change, BoundArray):
            return CaptureError(
                f"{change}: the function writes {change.path}, which no replay "
                "would repeat",
                remedy=change.remedy,
            )
    return None


def used_by(
    spans: Sequence[tuple[Addr, Addr]], left: Any, adapter: Adapter
) -> Callable[[Array], bool]:
    """Return a test for arrays that ops use, or that are in what the call leaves."""
    leaves, _ = flatten(left, adapter.is_array)
    shown = {adapter.storage(leaf) for leaf in leaves if adapter.is_array(leaf)}
    ordered = sorted(spans)
    starts = [start for start, _ in ordered]
    # How far any of those reaches that start no later.
    ends = [*accumulate((end for _, end in ordered), max)]

    def used(array: Array) -> bool:
        lo, hi = adapter.span(array)
        before = bisect_left(starts, hi)
        overlaps = before > 0 and lo < ends[before - 1]
        return overlaps or adapter.storage(array) in shown

    return used


def ambient_roles(
    order: Order,
    ambient: Ambient,
    places: Sequence[Place],
    forest: Forest,
    hints: Sequence[Role] | None = None,
) -> tuple[list[str], list[Role]]:
    """Name the places of ambient arrays and choose their roles, each by its history.

    ``hints`` as in `argument_roles`.
    """
    names = [ambient.arrays[place.arrays[0]].path for place in places]
    histories = [order.group.ambient.get(name, History()) for name in names]
    exact = _is_exact(forest) or order.group.hopeful
    steady = [hint.fixed for hint in hints] if hints else [True] * len(places)
    roles = assign(
        histories,
        [forest.inherits(place.storage) for place in places],
        # Only a device that knows every address can have one moved after capture.
        [
            not exact or (history.fresh and fixed)
            for history, fixed in zip(histories, steady, strict=True)
        ],
        _patchable(order, forest, places),
        anywhere=order.anywhere and exact,
    )
    given = order.plan.call.given.storages
    return names, [
        Role.PINNED if place.storage in given else role
        for place, role in zip(places, roles, strict=True)
    ]
