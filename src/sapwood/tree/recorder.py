"""One call recorded: what surrounds the capture, so that nothing is left behind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sapwood.driver.release import Release
from sapwood.errors import CaptureError, DriverError
from sapwood.graph.capture import touched
from sapwood.memory.pages import Extent
from sapwood.memory.range import Range
from sapwood.tree.accounts import check_allocations, read
from sapwood.tree.adapter import Adapter, Array
from sapwood.tree.ambient import Ambient, BoundArray, Change, Slot, survey
from sapwood.tree.build import Drawing, build
from sapwood.tree.containers import flatten, unflatten
from sapwood.tree.forest import Forest
from sapwood.tree.group import Group, Warm
from sapwood.tree.node import Node
from sapwood.tree.outputs import Outputs, analyse
from sapwood.tree.roles import History, Role, assign
from sapwood.tree.session import Session
from sapwood.tree.signature import Arrays, Call, Place, look
from sapwood.tree.stage import stage, stand_ins
from sapwood.tree.watch import Captured, capture
from sapwood.units import Addr

__all__ = ["Order", "Recorded", "plain_changes", "record"]


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be recorded, and how.

    ``names`` are those of the call's places; ``pinned`` and ``donated`` the places
    that the user declared so; ``candidates`` output extents that may be shared;
    ``reached`` the identities of storages that the function reaches by itself;
    ``anywhere`` and ``escapes`` as in `Step`.
    """

    fn: Callable[..., Any]
    label: str
    parent: str | None
    call: Call
    names: Sequence[str]
    pinned: frozenset[int]
    donated: frozenset[int]
    group: Group
    anywhere: bool
    escapes: bool
    candidates: Sequence[Extent]
    reached: frozenset[int]
    bind: Callable[[tuple[Any, ...], Mapping[str, Any]], Mapping[str, object]]


@dataclass(frozen=True, slots=True)
class Recorded:
    """A node, the slots that its replays bind, and what went wrong in Python.

    ``error`` is the exception that the function raised, or a `CaptureError` for what
    no replay could repeat; then the node is good for one launch, which does what the
    function did.
    """

    node: Node
    bound: tuple[Slot, ...]
    error: BaseException | None


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


def _record_into(range_: Range, order: Order, forest: Forest) -> Recorded:
    device, adapter, call = forest.device, forest.adapter, order.call
    places = call.given.places(adapter)
    roles = _roles(order, places, forest)
    stages, arrays = stand_ins(call.given, places, roles, range_, device, adapter)
    args, kwargs = _with_leaves(call, arrays)
    arguments = order.bind(args, kwargs)
    before = survey(order.fn, arguments, adapter)
    try:
        captured = _capture(order, forest, range_, args, kwargs)
    except BaseException:
        changes = survey(order.fn, arguments, adapter).changes_since(before)
        _restore([c for c in changes if isinstance(c, BoundArray)])
        raise
    bound: tuple[BoundArray, ...] = ()
    try:
        changes = survey(order.fn, arguments, adapter).changes_since(before)
        bound = tuple(c for c in changes if isinstance(c, BoundArray))
        # The replay binds them; until then all is as before the call.
        _restore(bound)
        error = _error(captured, changes)
        spans = touched(device.driver, captured.graph)
        ambient = before.guards(_used(spans, captured.result, adapter))
        read_by = look([slot.read() for slot in ambient.arrays], adapter)
        everything = [*places, *read_by.places(adapter)]
        recording = read(
            captured.graph, captured.session, everything, stages, range_, device
        )
    finally:
        device.driver.destroy_graph(captured.graph)
    known = [*arrays, *read_by.arrays]
    values = [change.new for change in bound]
    outputs = analyse(captured.result, values, known, adapter)
    names, more = _ambient_roles(order, ambient, read_by, forest)
    for i, (place, role) in enumerate(zip(everything, (*roles, *more), strict=True)):
        if role is Role.COPIED and i not in stages:
            stages[i] = stage(place, range_, device, late=True)
    if captured.error is None:
        check_allocations(outputs, stages, range_, device)
    drawing = Drawing(
        label=order.label,
        parent=order.parent,
        call=call,
        recording=recording,
        outputs=outputs,
        places=everything,
        names=[*order.names, *names],
        roles=[*roles, *more],
        stages=stages,
        ambient=ambient,
        ambient_arrays=read_by,
        donated=order.donated,
        escapes=order.escapes,
        candidates=order.candidates,
    )
    node = build(drawing, range_, device)
    warm = order.group.warm
    if error is None and warm is not None:
        error = _differs(warm, captured.session, outputs)
    return Recorded(node, tuple(change.slot for change in bound), error)


def _roles(order: Order, places: Sequence[Place], forest: Forest) -> tuple[Role, ...]:
    exact = forest.device.driver.abilities.exact_addresses
    roles = assign(
        order.group.places,
        [forest.inherits(place.storage) for place in places],
        [i in order.pinned for i in range(len(places))],
        [exact and place.hi - place.lo >= forest.patch_from for place in places],
        anywhere=order.anywhere,
    )
    # A copy of what the function also reads by itself would go its own way.
    return tuple(
        Role.PINNED if id(place.storage) in order.reached else role
        for place, role in zip(places, roles, strict=True)
    )


def _with_leaves(
    call: Call, arrays: Sequence[Array]
) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    leaves = list(call.leaves)
    for position, array in zip(call.positions, arrays, strict=True):
        leaves[position] = array
    args, kwargs = unflatten(call.structure, leaves)
    return args, kwargs


def _capture(
    order: Order,
    forest: Forest,
    range_: Range,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Captured:
    warm = order.group.warm
    try:
        return capture(
            order.fn,
            args,
            kwargs,
            forest.device,
            Session(tolerant=False),
            stream=forest.capture_stream(),
            range_=range_,
            stays=frozenset() if warm is None else warm.stays,
        )
    except DriverError:
        forest.renew_capture_stream()
        raise


def _error(captured: Captured, changes: Sequence[Change]) -> BaseException | None:
    if captured.session.unrecordable is not None:
        # The function did not get any further, whatever it made of the exception.
        raise captured.session.unrecordable
    if captured.error is not None:
        return captured.error
    return plain_changes(changes)


def plain_changes(changes: Sequence[Change]) -> CaptureError | None:
    """Return an error that names the first slot bound to a plain value, if any."""
    for change in changes:
        if not isinstance(change, BoundArray):
            return CaptureError(
                f"{change}: the function writes {change.path}, which no replay "
                "would repeat",
                remedy="Return the value, keep it in a device array, or write it "
                "outside the graphed function",
            )
    return None


def _differs(warm: Warm, session: Session, outputs: Outputs) -> CaptureError | None:
    """Return an error where a capture did other things than its warm-up."""
    ops = tuple(map(hash, session.ops))
    what, where = None, None
    for i, (now, then) in enumerate(zip(ops, warm.ops, strict=False)):
        if now != then:
            what, where = f"op {i}, {session.ops[i][0]},", session.lines[i]
            break
    else:
        if len(ops) != len(warm.ops):
            what = f"the number of ops ({len(warm.ops)}, then {len(ops)})"
        elif outputs.constants() != warm.constants:
            what = "a plain value in the result"
    if what is None:
        return None
    return CaptureError(
        f"{what} differs between two calls with the same arguments: it depends on "
        "something that the function makes itself (time, a random number, a counter)",
        where=where,
        remedy="Pass that value as an argument, or draw it from a device generator",
    )


def _used(
    spans: Sequence[tuple[Addr, Addr]], result: Any, adapter: Adapter
) -> Callable[[Array], bool]:
    """Return a test for arrays that the captured ops, or the result, use."""
    leaves, _ = flatten(result, adapter.is_array)
    shown = {adapter.storage(leaf) for leaf in leaves if adapter.is_array(leaf)}

    def used(array: Array) -> bool:
        lo, hi = adapter.span(array)
        return adapter.storage(array) in shown or any(
            start < hi and lo < end for start, end in spans
        )

    return used


def _ambient_roles(
    order: Order, ambient: Ambient, arrays: Arrays, forest: Forest
) -> tuple[list[str], list[Role]]:
    """Name the places of ambient arrays and choose their roles, each by its history."""
    names: list[str] = []
    roles: list[Role] = []
    exact = forest.device.driver.abilities.exact_addresses
    for place in arrays.places(forest.adapter):
        name = ambient.arrays[place.arrays[0]].path
        inherits = forest.inherits(place.storage)
        history = order.group.ambient.setdefault(name, History())
        known = history.last is not None
        history.saw(place.lo, inherited=inherits, max_variants=order.group.max_variants)
        (role,) = assign(
            [history],
            [inherits],
            # The first time, there is no call before to have moved since. And only a
            # device that knows every address can have one moved after capture.
            [not (known and exact)],
            [exact and place.hi - place.lo >= forest.patch_from],
            anywhere=order.anywhere and exact,
        )
        shared = place.storage in order.call.given.storages
        names.append(name)
        roles.append(Role.PINNED if shared else role)
    return names, roles


def _restore(bound: Sequence[BoundArray]) -> None:
    for change in reversed(bound):
        change.undo()
