"""One call recorded: what surrounds the capture, so that nothing is left behind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sapwood.driver.api import GraphHandle
from sapwood.driver.release import Release
from sapwood.errors import CaptureError, DriverError
from sapwood.graph.capture import touched
from sapwood.memory.pages import Extent
from sapwood.memory.range import Range
from sapwood.tree.adapter import Array
from sapwood.tree.ambient import Ambient, BoundArray, Change, Survey, survey
from sapwood.tree.containers import flatten, unflatten
from sapwood.tree.forest import Forest
from sapwood.tree.group import Group, Warm
from sapwood.tree.node import Node
from sapwood.tree.record import Drawing, build, placeholders
from sapwood.tree.roles import History, Role, assign
from sapwood.tree.session import Session
from sapwood.tree.signature import Call, Place
from sapwood.tree.watch import Captured, capture
from sapwood.units import Addr, Size

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
    bound: tuple[BoundArray, ...]
    error: BaseException | None


def record(order: Order, forest: Forest) -> Recorded:
    """Capture a call and build a node; nothing of it has run.

    Raises `CaptureError`, `DriverError` or `OutOfMemory`, and then no trace is left
    but what the function's own Python did to plain values.
    """
    device, adapter = forest.device, forest.adapter
    range_ = device.retrying(lambda: Range.reserve(device.pages))
    places = order.call.given.places(adapter)
    roles = _roles(order, places, forest)
    graph: GraphHandle | None = None
    bound: tuple[BoundArray, ...] = ()
    try:
        stages, arrays = placeholders(
            order.call.given, places, roles, range_, device, adapter
        )
        args, kwargs = _stand_ins(order.call, arrays)
        arguments = order.bind(args, kwargs)
        before = survey(order.fn, arguments, adapter)
        captured = _capture(order, forest, range_, args, kwargs)
        graph = captured.graph
        after = survey(order.fn, arguments, adapter)
        changes = after.changes_since(before)
        bound = tuple(c for c in changes if isinstance(c, BoundArray))
        error = _error(order, captured, changes)
        ambient, read = _ambient(order, captured, before, forest)
        drawing = Drawing(
            label=order.label,
            parent=order.parent,
            call=order.call,
            places=places,
            names=order.names,
            donated=order.donated,
            roles=roles,
            stages=stages,
            stand_ins=arrays,
            ambient=ambient,
            ambient_arrays=read,
            ambient_names=[slot.path for slot in ambient.arrays],
            ambient_roles=_ambient_roles(order, ambient, read, forest),
            bound=[change.new for change in bound],
            escapes=order.escapes,
            candidates=order.candidates,
        )
        node = build(drawing, captured, range_, device, adapter)
    except BaseException:
        with Release() as release:
            if graph is not None:
                release(device.driver.destroy_graph, graph)
            release(range_.close)
        raise
    finally:
        _restore(bound)
    try:
        device.driver.destroy_graph(graph)
    except DriverError:
        with Release() as release:
            release(node.exec.close)
            release(range_.close)
        raise
    warm = order.group.warm
    if error is None and warm is not None:
        error = _differs(warm, captured, node)
    return Recorded(node, bound, error)


def _roles(order: Order, places: Sequence[Place], forest: Forest) -> tuple[Role, ...]:
    exact = forest.device.driver.abilities.exact_addresses
    return assign(
        order.group.places,
        order.call.given.lows,
        [forest.inherits(place.storage) for place in places],
        [
            # Copies of what the function also reads by itself would go apart.
            i in order.pinned or id(place.storage) in order.reached
            for i, place in enumerate(places)
        ],
        [exact and place.hi - place.lo >= forest.patch_from for place in places],
        anywhere=order.anywhere,
    )


def _stand_ins(
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


def _error(
    order: Order, captured: Captured, changes: Sequence[Change]
) -> BaseException | None:
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
                f"the function writes {change.path} ({change}), which no replay "
                "would repeat",
                remedy="Return the value, keep it in a device array, or write it "
                "outside the graphed function",
            )
    return None


def _differs(warm: Warm, captured: Captured, node: Node) -> CaptureError | None:
    """Return an error where a capture did other things than its warm-up."""
    session = captured.session
    ops = tuple(map(hash, session.ops))
    what, where = None, None
    for i, (now, then) in enumerate(zip(ops, warm.ops, strict=False)):
        if now != then:
            what, where = f"op {i}, {session.ops[i][0]},", session.lines[i]
            break
    else:
        if len(ops) != len(warm.ops):
            what = f"the number of ops ({len(warm.ops)}, then {len(ops)})"
        elif node.outputs.constants() != warm.constants:
            what = "a plain value in the result"
    if what is None:
        return None
    return CaptureError(
        f"{what} differs between two calls with the same arguments: it depends on "
        "something that the function makes itself (time, a random number, a counter)",
        where=where,
        remedy="Pass that value as an argument, or draw it from a device generator",
    )


def _ambient(
    order: Order, captured: Captured, before: Survey, forest: Forest
) -> tuple[Ambient, list[Array]]:
    """Return the guards, and the arrays that the captured ops or the result use."""
    adapter = forest.adapter
    spans = touched(forest.device.driver, captured.graph)
    arguments = set(map(id, order.call.given.storages))

    def used(array: Array) -> bool:
        lo, hi = adapter.span(array)
        return id(adapter.storage(array)) not in arguments and (
            any(a < hi and lo < b for a, b in spans) or returned(array)
        )

    result = _storages(captured.result, forest)

    def returned(array: Array) -> bool:
        return id(adapter.storage(array)) in result

    ambient = before.guards(used)
    return ambient, [slot.read() for slot in ambient.arrays]


def _storages(result: Any, forest: Forest) -> set[int]:
    leaves, _ = flatten(result, forest.adapter.is_array)
    return {
        id(forest.adapter.storage(leaf))
        for leaf in leaves
        if forest.adapter.is_array(leaf)
    }


def _ambient_roles(
    order: Order, ambient: Ambient, arrays: Sequence[Array], forest: Forest
) -> dict[str, Role]:
    """Choose the roles of ambient arrays, each by its own history."""
    roles: dict[str, Role] = {}
    exact = forest.device.driver.abilities.exact_addresses
    for slot, array in zip(ambient.arrays, arrays, strict=True):
        storage = forest.adapter.storage(array)
        lo, hi = forest.adapter.span(array)
        inherits = forest.inherits(storage)
        history = order.group.ambient.setdefault(slot.path, History())
        history.saw(lo, inherited=inherits, max_variants=order.group.max_variants)
        (role,) = assign(
            [history],
            [Addr(lo)],
            [inherits],
            [not exact],
            [exact and Size(hi - lo) >= forest.patch_from],
            anywhere=order.anywhere,
        )
        # The first time, there is no call before to have moved since.
        roles[slot.path] = role if history.varied or inherits else Role.PINNED
    return roles


def _restore(bound: Sequence[BoundArray]) -> None:
    for change in reversed(bound):
        change.undo()
