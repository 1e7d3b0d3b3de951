"""One call captured by a framework that captures by itself, and says what it uses.

Everything but the capture is as in `recorder`: which places there are, and their roles,
what the function may not do, and what its replays bind. A capture may be spoilt by
others, and nobody knows beforehand how much it allocates. Nothing of a failed attempt
has run, and nothing is left of it: another one may follow.
"""

from __future__ import annotations

import gc
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any, Final

from sapwood.driver.api import Driver
from sapwood.driver.results import Result
from sapwood.errors import CaptureError, DriverError, MisuseError
from sapwood.graphs.adopt import Owner, adopt
from sapwood.memory.device import Device
from sapwood.memory.range import LENT
from sapwood.memory.storage import Storage
from sapwood.tree.call.integration import Integration
from sapwood.tree.choose.recordings import Recordings
from sapwood.tree.nests.containers import arrays_in
from sapwood.tree.node.outputs import Outputs, keeping
from sapwood.tree.record.accounts import memos_of, outliving, stray
from sapwood.tree.record.build import LinkSpec, build
from sapwood.tree.record.recorder import Recorded, Scene
from sapwood.tree.record.repeated import code_of, concluded
from sapwood.tree.record.staging import reserved, spoil
from sapwood.tree.record.taking import (
    RecordRequest,
    Taken,
    added,
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
from sapwood.tree.watch.session import Unready
from sapwood.tree.watch.watch import Capture, Captured, unrepeated
from sapwood.units import Addr, Size, size_text

ROOM: Final = Size(128 << 20)
"""What there is to allocate from beyond what the warm-up has allocated: what it found
ready, such as the workspaces of libraries, is made anew in a capture, and allocators
round up. cuBLAS wants 32 MiB on an H200, for each stream."""

MORE: Final = 8
"""How many times as much there is when it was not enough."""

TRIES: Final = 4
"""How often a function is captured before what spoils it is taken to be its own."""


class Short(Exception):
    """There was too little room: what the function did then is not what it does."""


def record_adopted(
    order: RecordRequest, recordings: Recordings, capturer: GraphCapturer
) -> Recorded:
    """Have a call captured and build a node; nothing of it has run.

    Whatever waits for the whole device, on any thread, spoils a capture; and there may
    have been too little room. Then the function is captured again, unless it has
    changed something that cannot be put back. Raises `CaptureError`, `DriverError` or
    `OutOfMemory`, and then no trace is left of it in what it is known to reach.
    """
    for _ in range(TRIES - 1):
        try:
            return _record(order, recordings, capturer)
        except DriverError as error:
            if not is_spoilt(error):
                raise
    return _record(order, recordings, capturer)


def _record(
    order: RecordRequest, recordings: Recordings, capturer: GraphCapturer
) -> Recorded:
    warm = order.specialization.warm
    room = Size(ROOM + warm.room) if warm else Size(MORE * ROOM)
    while room < LENT:
        with suppress(Short):
            return attempt(room, order, recordings, capturer)
        room = Size(MORE * room)
    return attempt(LENT, order, recordings, capturer)


def attempt(
    room: Size, order: RecordRequest, recordings: Recordings, capturer: GraphCapturer
) -> Recorded:
    """Capture a call once, with so much room, and build a node; nothing of it has run.

    Raises `Short` where more room may be enough, `CaptureError`, `DriverError` or
    `OutOfMemory`, and then no trace is left of it in what the function is known to
    reach; before a `Short`, and where the capture was spoilt, nor in anything else.
    """
    # Ranges of failed captures, which waited for tensors that an exception held.
    recordings.device.pages.close_lingering()
    with ExitStack() as failed:
        range_ = reserved(order.specialization, order.call.given, recordings, room)
        failed.callback(range_.close)
        warm = order.specialization.is_warm_here()
        owner = capturer.owner(range_, room, warm=warm)
        failed.callback(owner.close)
        # Runs before the two above: tensors of the failed capture may be in cycles, and
        # have to go before their range does.
        failed.callback(gc.collect)
        scene = _Lent(order, recordings, range_)
        scene.owner, scene.room = owner, room
        made = _record_into(scene, capturer)
        failed.pop_all()
    return made


def is_spoilt(error: DriverError) -> bool:
    """Return whether a capture has ended because of what somebody else did."""
    return error.name == Result.STREAM_CAPTURE_INVALIDATED.name


class _Lent(Scene):
    """A call that an ``owner`` captures, allocating from so much ``room``."""

    owner: Owner
    room: Size


def _record_into(scene: _Lent, capturer: GraphCapturer) -> Recorded:
    owner, driver, rooms = scene.owner, scene.device.driver, scene.rooms()
    capture = Adopting(scene.device, capturer, scene.range, owner)
    owner.follow(_followed(rooms, scene.device))
    with ExitStack() as failed:
        failed.callback(
            spoil,
            rooms,
            "it stood in for an argument while the function was captured",
            "Look at the argument that was passed",
        )
        with owner.holding([*scene.own_arrays(), *scene.order.before.arrays()]):
            taken = _taken(scene, capture)
            # The graph stays the owner's. Our handle of it goes once the node is made.
            graph = taken.captured.graph
            with forgotten(driver, graph) as nodes, taken.or_nothing():
                made = _built(scene, taken)
                nodes.append(made.node)
        if made.error is None:
            failed.pop_all()
    return made


def _taken(scene: _Lent, capture: Capture) -> Taken:
    owner = scene.owner
    try:
        return take(scene.order, scene.recordings, capture, scene.arrays, scene.slots)
    except DriverError as error:
        short = owner.short and scene.room < LENT
        if short or is_spoilt(error) or error.name == Result.OUT_OF_MEMORY.name:
            _check_unwritten(capture.written)
        if short:
            owner.refusal(None, scene.own_arrays())
            raise Short from None
        raise


def _built(scene: _Lent, taken: Taken) -> Recorded:
    order, owner = scene.order, scene.owner
    captured, session = taken.captured, taken.captured.session
    if owner.short:
        _check_room(scene, taken)
    bound, error = settled(taken, scene.recordings)
    warm = order.specialization.warm
    other = warm is not None and not warm.asks and warm.code != code_of(session)
    if error is None and other:
        raise Unready("torch runs code that it has compiled for other calls")
    values = [change.new for change in bound]
    spans = _spans(captured, scene.device.driver)
    scene.reads(taken, values, spans)
    outputs = scene.outputs(taken, values)
    drawing = _drawn(scene, taken, outputs)
    if error is None:
        _check(outputs, scene, taken)
    sums = added(bound, scene.integration.is_array)
    outcome = concluded(error, warm, session, outputs, sums)
    with unrepeated(outcome):
        node = build(drawing, scene.range, scene.device)
    return Recorded(node, scene.read, tuple(change.slot for change in bound), outcome)


def _check_room(scene: _Lent, taken: Taken) -> None:
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
    arguments = order.bind(*with_leaves(order.call, scene.arrays))
    left = order.survey(arguments).changes_since(taken.before)
    _check_unwritten(plain_changes(left))
    # Owner.refusal also takes gradients off the arguments: they lie in this range,
    # which is about to be closed.
    scene.owner.refusal(taken.captured.result, scene.own_arrays())
    raise Short


def _check_unwritten(written: CaptureError | None) -> None:
    """Raise where plain values would have another capture do something else."""
    if written is not None:
        # A copy: the traceback of `written` would hold frames that name arrays.
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


def _drawn(scene: _Lent, taken: Taken, outputs: Outputs) -> LinkSpec:
    captured, device, owner = taken.captured, scene.device, scene.owner
    session = captured.session
    # Captured work that no op was told of may use a stage until the very end.
    followed = [] if session.untold else _followed(scene.rooms(), device)
    memos, _ = memos_of(taken.before, scene.integration, scene.device.framework)
    code = (*(each for _, each in session.code), *session.constants)
    return scene.spec(
        told_of(session, scene.places, scene.stages, scene.range, memos),
        outputs,
        lives=owner.lives(followed),
        link=partial(adopt, device.driver, captured.graph, owner=owner, code=code),
        memos=[memos[each] for each in session.used if each in memos],
    )


def _followed(rooms: list[Storage], device: Device) -> list[Storage]:
    """Return the stages, if what they hold could be held in the pages of others."""
    return rooms if any(each.size >= device.pages.page for each in rooms) else []


def _check(outputs: Outputs, scene: _Lent, taken: Taken) -> None:
    """Raise where something outlives the function that no replay could give."""
    range_, owner = scene.range, scene.owner
    refusal = owner.refusal(taken.captured.result, scene.own_arrays())
    if refusal is not None:
        raise refusal
    for storage in outputs.storages:
        if storage.size and not range_.holds(storage.address):
            raise stray(storage)
    named = {storage.address for storage in outputs.storages}
    if not _lost(owner, named):
        return
    # A container that was empty, and was replaced, is held by the two surveys alone.
    # So are the arrays that the function has put in there: they are not lost.
    renewed = taken.after.renewed_since(taken.before)
    named |= _addresses(renewed, scene.integration)
    lost = lasting(partial(_lost, owner, named))
    if lost:
        addresses = {address for address, _ in lost}
        kept = keeping(outputs, addresses, scene.integration, None)
        raise kept or outliving([(address, size, None) for address, size in lost])


def _addresses(values: Any, integration: Integration) -> set[Addr]:
    with suppress(MisuseError):
        arrays = arrays_in(values, integration.is_array)
        return {integration.look(each).storage.address for each in arrays}
    return set()  # it is no nest: then what is in there is lost, and refused


def _lost(owner: Owner, named: set[Any]) -> list[tuple[Any, Size]]:
    return [each for each in owner.survivors() if each[0] not in named]
