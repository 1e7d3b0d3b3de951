"""One call captured by a framework that captures by itself, and says what it uses.

Everything but the capture is as in `recorder`: which places there are, and their roles,
what the function may not do, and what its replays bind.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sapwood.driver.api import Driver
from sapwood.driver.release import Release
from sapwood.driver.results import Result
from sapwood.errors import CaptureError, DriverError, MisuseError
from sapwood.graphs.adopt import Owner, adopt
from sapwood.memory.device import Device
from sapwood.memory.range import LENT, Range
from sapwood.memory.storage import Storage
from sapwood.tree.call.integration import Array, Integration
from sapwood.tree.call.roles import Role
from sapwood.tree.call.signature import Arrays, Place, look
from sapwood.tree.choose.recordings import Recordings
from sapwood.tree.guards import Ambient
from sapwood.tree.nests.containers import flatten
from sapwood.tree.node.opaque import keeping
from sapwood.tree.node.outputs import Outputs, analyse, each_anew
from sapwood.tree.record.accounts import outliving, stray
from sapwood.tree.record.build import LinkSpec, build
from sapwood.tree.record.recorder import (
    Recorded,
    ambient_roles,
    argument_roles,
    used_by,
)
from sapwood.tree.record.repeated import code_of, concluded
from sapwood.tree.record.staging import reserved, spoil, stand_ins
from sapwood.tree.record.taking import (
    RecordRequest,
    Taken,
    plain_changes,
    settled,
    take,
    undo,
    with_leaves,
)
from sapwood.tree.watch.capturer import (
    Adopting,
    GraphCapturer,
    forgotten,
    lasting,
    told_of,
)
from sapwood.tree.watch.session import Session, Unready
from sapwood.tree.watch.warm import Warm
from sapwood.tree.watch.watch import Capture, Captured, unrepeated
from sapwood.units import Addr, Size, size_text

__all__ = ["Short", "attempt", "is_spoilt"]


class Short(Exception):
    """There was too little room: what the function did then is not what it does."""


def attempt(
    room: Size, order: RecordRequest, recordings: Recordings, capturer: GraphCapturer
) -> Recorded:
    """Capture a call once, with so much room, and build a node; nothing of it has run.

    Raises `Short` where more room may be enough, `CaptureError`, `DriverError` or
    `OutOfMemory`, and then no trace is left of it in what the function is known to
    reach; before a `Short`, and where the capture was spoilt, nor in anything else.
    """
    # Of captures that failed, whose tensors lived on in an exception.
    recordings.device.pages.close_lingering()
    range_ = reserved(order.specialization, order.plan.call.given, recordings, room)
    try:
        warm = order.specialization.is_warm_here()
        owner = capturer.owner(range_, room, capturer.stream(), warm=warm)
    except BaseException:
        range_.close()
        raise
    try:
        return _record_into(range_, order, recordings, capturer, owner, room)
    except BaseException:
        # What the function made is garbage by now, or lives in its exception.
        gc.collect()
        with Release() as release:
            release(owner.close)
            release(range_.close)
        raise


def is_spoilt(error: DriverError) -> bool:
    """Return whether a capture has ended because of what somebody else did."""
    return error.name == Result.STREAM_CAPTURE_INVALIDATED.name


@dataclass(frozen=True, slots=True)
class _Scene:
    """A call, its places, and what stands in for them while it is captured."""

    order: RecordRequest
    recordings: Recordings
    range: Range
    owner: Owner
    places: Sequence[Place]
    roles: tuple[Role, ...]
    stages: dict[int, Storage]
    arrays: Sequence[Array]
    room: Size


def _record_into(
    range_: Range,
    order: RecordRequest,
    recordings: Recordings,
    capturer: GraphCapturer,
    owner: Owner,
    room: Size,
) -> Recorded:
    device, integration, given = (
        recordings.device,
        recordings.integration,
        order.plan.call.given,
    )
    places = given.places(integration)
    roles = argument_roles(order, places, recordings)
    stages, arrays = stand_ins(given, places, roles, range_, device, integration)
    scene = _Scene(
        order, recordings, range_, owner, places, roles, stages, arrays, room
    )
    capture = Adopting(device, capturer, range_, owner)
    owner.follow(_followed(stages, device))
    try:
        made = _captured(scene, capture)
    except BaseException:
        _spoil(stages)
        raise
    if made.error is not None:
        _spoil(stages)
    return made


def _spoil(stages: Mapping[int, Storage]) -> None:
    spoil(
        stages.values(),
        "it stood in for an argument while the function was captured",
        "Look at the argument that was passed",
    )


def _captured(scene: _Scene, capture: Adopting) -> Recorded:
    order, recordings, owner = scene.order, scene.recordings, scene.owner
    device = recordings.device
    with owner.holding([*scene.arrays, *order.before.arrays()]):
        taken = _taken(scene, capture)
        # It stays the owner's, and is known as long as what was made of it.
        graph = taken.captured.graph
        with forgotten(device.driver, graph) as nodes, taken.or_nothing():
            made = _built(scene, taken)
            nodes.append(made.node)
        return made


def _taken(scene: _Scene, capture: Capture) -> Taken:
    owner = scene.owner
    try:
        return take(scene.order, scene.recordings, capture, scene.arrays)
    except DriverError as error:
        short = owner.short and scene.room < LENT
        if short or is_spoilt(error) or error.name == Result.OUT_OF_MEMORY.name:
            _check_unwritten(capture.written)
        if short:
            owner.refusal(None, scene.arrays)
            raise Short from None
        raise


def _built(scene: _Scene, taken: Taken) -> Recorded:
    order, owner, integration = scene.order, scene.owner, scene.recordings.integration
    captured, session = taken.captured, taken.captured.session
    if owner.short:
        _check_room(scene, taken)
    bound, error = settled(taken, scene.recordings)
    if error is None:
        _check_code(order.specialization.warm, session)
    values = [change.new for change in bound]
    spans = _spans(captured, scene.recordings.device.driver)
    if spans is None:
        ambient = taken.before.guards(_any_array)
    else:
        used = used_by(spans, (captured.result, values), integration)
        ambient = taken.before.guards(used)
    read_by = look([slot.read() for slot in ambient.arrays], integration)
    known = [*scene.arrays, *read_by.arrays]
    outputs = analyse(captured.result, values, known, integration)
    outputs = each_anew(outputs, order.plan.call.leaves, taken.before.holds)
    drawing = _drawn(scene, captured, outputs, ambient, read_by)
    if error is None:
        _check(owner.refusal(captured.result, scene.arrays), outputs, scene, taken)
    marks = integration.marks(read_by.arrays)
    outcome = concluded(error, order.specialization.warm, session, outputs)
    with unrepeated(outcome):
        node = build(drawing, scene.range, scene.recordings.device)
    node.whereabouts.others = () if marks is None else marks[1]
    return Recorded(node, read_by, tuple(change.slot for change in bound), outcome)


def _check_room(scene: _Scene, taken: Taken) -> None:
    """Raise where more room may be enough, or where the function goes on without."""
    error, most, order = taken.captured.error, scene.room == LENT, scene.order
    if error is not None and (most or not error.is_ordinary):
        return
    undo(taken.before, taken.states)
    if most:
        raise CaptureError(
            f"the function allocates more than {size_text(LENT)} while it is captured",
            remedy="Graph a part of it that needs less",
        )
    if error is not None:
        error.taken()
    arguments = order.bind(*with_leaves(order.plan.call, scene.arrays))
    left = order.survey(arguments).changes_since(taken.before)
    _check_unwritten(plain_changes(left))
    # That has arguments let go of gradients, which lie in this range.
    scene.owner.refusal(taken.captured.result, scene.arrays)
    raise Short


def _check_unwritten(written: CaptureError | None) -> None:
    """Raise where plain values would have another capture do something else."""
    if written is not None:
        # Not that one: an error that frames name keeps alive what they name besides.
        raise written.anew()


def _spans(captured: Captured, driver: Driver) -> list[tuple[Addr, Addr]] | None:
    """Return what ops use; None where it may be anything.

    What is no op's uses what it names: where that begins, or where it ends.
    """
    spans = list(captured.session.spans)
    if captured.session.untold:
        words = driver.words(captured.graph)
        if words is None:
            return None
        spans += [(Addr(word - 1), Addr(word + 1)) for word in words]
    return spans


def _any_array(_: Array) -> bool:
    return True


def _check_code(warm: Warm | None, session: Session) -> None:
    """Raise where other compiled code ran than in the warm-up."""
    if warm is not None and not warm.asks and warm.code != code_of(session):
        raise Unready("torch runs code that it has compiled for other calls")


def _drawn(
    scene: _Scene,
    captured: Captured,
    outputs: Outputs,
    ambient: Ambient,
    read_by: Arrays,
) -> LinkSpec:
    order, recordings, session = scene.order, scene.recordings, captured.session
    # Whatever is no op's may use an input to the end.
    untold = session.untold
    followed = [] if untold else _followed(scene.stages, recordings.device)
    ambient_places = read_by.places(recordings.integration)
    places = [*scene.places, *ambient_places]
    names, roles = ambient_roles(order, ambient, ambient_places, recordings)
    linked = partial(
        adopt,
        recordings.device.driver,
        captured.graph,
        owner=scene.owner,
        code=(*(each for _, each in session.code), *session.constants),
    )
    return LinkSpec(
        plan=order.plan,
        recording=told_of(session, places, scene.stages, scene.range),
        outputs=outputs,
        places=places,
        names=[*order.names, *names],
        roles=(*scene.roles, *roles),
        stages=scene.stages,
        ambient=ambient,
        ambient_arrays=read_by,
        lives=scene.owner.lives(followed),
        link=linked,
    )


def _followed(stages: Mapping[int, Storage], device: Device) -> list[Storage]:
    """Return the stages, if what they hold could be held in the pages of others."""
    found = list(stages.values())
    return found if any(each.size >= device.pages.page for each in found) else []


def _check(
    refusal: CaptureError | None, outputs: Outputs, scene: _Scene, taken: Taken
) -> None:
    """Raise where something outlives the function that no replay could give."""
    range_, owner = scene.range, scene.owner
    if refusal is not None:
        raise refusal
    for storage in outputs.storages:
        if storage.size and not range_.holds(storage.address):
            raise stray(storage)
    named = {storage.address for storage in outputs.storages}
    if not _lost(owner, named):
        return
    # Only the surveys of this recording hold those any more.
    renewed = taken.after.renewed_since(taken.before)
    named |= _addresses(renewed, scene.recordings.integration)
    lost = lasting(partial(_lost, owner, named))
    if lost:
        addresses = {address for address, _ in lost}
        kept = keeping(outputs, addresses, scene.recordings.integration, None)
        raise kept or outliving([(address, size, None) for address, size in lost])


def _addresses(values: Any, integration: Integration) -> set[Addr]:
    try:
        leaves, _ = flatten(values, integration.is_array)
    except MisuseError:
        return set()  # it is no nest: then what is in there is lost, and refused
    return {
        integration.storage(leaf).address
        for leaf in leaves
        if integration.is_array(leaf)
    }


def _lost(owner: Owner, named: set[Any]) -> list[tuple[Any, Size]]:
    return [each for each in owner.survivors() if each[0] not in named]
