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

from sapwood.driver.results import Result
from sapwood.errors import CaptureError, DriverError, MisuseError
from sapwood.graphs.adopt import Adopted, Owner
from sapwood.memory.device import Device
from sapwood.memory.range import LENT
from sapwood.memory.storage import Storage
from sapwood.tree.call.integration import Integration
from sapwood.tree.choose.recordings import Recordings
from sapwood.tree.nests.containers import arrays_in
from sapwood.tree.node.outputs import Outputs
from sapwood.tree.record.accounts import Lost, check_lost, check_outputs, memos_of
from sapwood.tree.record.build import LinkSpec
from sapwood.tree.record.recorder import Recorded, Scene, built
from sapwood.tree.record.repeated import code_of
from sapwood.tree.record.staging import reserved, spoil
from sapwood.tree.record.taking import (
    RecordRequest,
    Taken,
    plain_changes,
    take,
    undo,
    with_leaves,
)
from sapwood.tree.watch.capturer import (
    Adopting,
    GraphCapturer,
    lasting,
    told_of,
)
from sapwood.tree.watch.session import Unready
from sapwood.tree.watch.watch import Capture, Captured
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

    def check_room(self, taken: Taken) -> None:
        """Raise where more room may be enough, or the function goes on without."""
        if not self.owner.short:
            return
        error, most, order = taken.captured.error, self.room == LENT, self.order
        if error is not None and (most or not error.is_ordinary):
            return
        undo(taken.before, taken.states)
        if most:
            raise CaptureError(
                f"the function allocates more than {size_text(LENT)} while it is "
                "captured",
                remedy="Graph a part of it that needs less",
            )
        if error is not None:
            error.taken()
        arguments = order.bind(*with_leaves(order.call, self.arrays))
        left = order.survey(arguments).changes_since(taken.before)
        _check_unwritten(plain_changes(left))
        # Owner.refusal also takes gradients off the arguments: they lie in this range,
        # which is about to be closed.
        self.owner.refusal(taken.captured.result, self.own_arrays())
        raise Short

    def check_code(self, taken: Taken, error: object) -> None:
        """Raise `Unready` where torch ran code that it has for other calls."""
        warm, code = self.order.specialization.warm, code_of(taken.captured.session)
        other = warm is not None and not warm.asks and warm.code != code
        if error is None and other:
            raise Unready("torch runs code that it has compiled for other calls")

    def spans(self, captured: Captured) -> list[tuple[Addr, Addr]] | None:
        """Return what ops use; None where that may be anything.

        What is no op's uses what it names: where that begins, or where it ends.
        """
        spans = list(captured.session.spans)
        if captured.session.untold:
            words = self.device.driver.words(captured.graph)
            if words is None:
                return None
            spans += [(Addr(word - 1), Addr(word + 1)) for word in words]
        return spans

    def describe(self, taken: Taken, outputs: Outputs) -> LinkSpec:
        """Say what is to be built: the graph, as it is."""
        owner, device = self.owner, self.device
        session, graph = taken.captured.session, taken.captured.graph
        # Captured work that no op was told of may use a stage until the very end.
        followed = [] if session.untold else _followed(self.rooms(), device)
        memos, _ = memos_of(taken.before, self.integration, device.framework)
        code = (*(each for _, each in session.code), *session.constants)
        return self.spec(
            told_of(session, self.places, self.stages, self.range, memos),
            outputs,
            lives=owner.lives(followed),
            link=partial(Adopted, device.driver, graph, owner=owner, code=code),
            memos=[memos[each] for each in session.used if each in memos],
        )

    def check(self, taken: Taken, outputs: Outputs, error: object) -> None:
        """Raise `CaptureError` where something outlives the function, or is refused."""
        if error is not None:
            return
        left = arrays_in(self.left, self.integration.is_array)
        graded = [*self.own_arrays(), *left]
        refusal = self.owner.refusal(taken.captured.result, graded)
        if refusal is not None:
            raise refusal
        named = check_outputs(outputs, self.range)
        if not self._lost(named):
            return
        # A container that was empty, and was replaced, is held by the surveys alone. So
        # are the arrays that the function has put in there: they are not lost.
        renewed = taken.after.renewed_since(taken.before)
        named |= _addresses(renewed, self.integration)
        check_lost(lasting(partial(self._lost, named)), outputs, self.integration)

    def _lost(self, named: set[Addr]) -> list[Lost]:
        alive = self.owner.survivors()
        return [(*each, None) for each in alive if each[0] not in named]


def _record_into(scene: _Lent, capturer: GraphCapturer) -> Recorded:
    owner, rooms = scene.owner, scene.rooms()
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
            made = built(scene, _taken(scene, capture))
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


def _check_unwritten(written: CaptureError | None) -> None:
    """Raise where plain values would have another capture do something else."""
    if written is not None:
        # A copy: the traceback of `written` would hold frames that name arrays.
        raise written.anew()


def _followed(rooms: list[Storage], device: Device) -> list[Storage]:
    """Return the stages, if what they hold could be held in the pages of others."""
    return rooms if any(each.size >= device.pages.page for each in rooms) else []


def _addresses(values: Any, integration: Integration) -> set[Addr]:
    with suppress(MisuseError):
        arrays = arrays_in(values, integration.is_array)
        return {integration.look(each).storage.address for each in arrays}
    return set()  # it is no nest: then what is in there is lost, and refused
