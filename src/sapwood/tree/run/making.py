"""Recordings of one function's calls: made, taken from a store, and replayed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from sapwood.driver.results import Result
from sapwood.errors import CaptureError, DriverError, OutOfMemory
from sapwood.tree.call.miss import Why
from sapwood.tree.call.signature import Call
from sapwood.tree.choose.decide import Action, Step, next_step
from sapwood.tree.choose.function_cache import Found
from sapwood.tree.choose.origins import origins_of
from sapwood.tree.choose.skips import skip_of
from sapwood.tree.choose.specialization import WAYS, Specialization
from sapwood.tree.node.node import Node
from sapwood.tree.record.recorder import ReadsArguments, Recorded, record
from sapwood.tree.record.repeated import check_told
from sapwood.tree.record.taking import RecordRequest, is_doubtful
from sapwood.tree.regions.branches import join
from sapwood.tree.regions.chain import Passage
from sapwood.tree.regions.crossing import FEWER, told_later
from sapwood.tree.regions.parts import record_parts
from sapwood.tree.regions.rerun import Begun, Rerun, Strayed
from sapwood.tree.replay.binding import expect, write
from sapwood.tree.replay.fast_replays import FastReplays
from sapwood.tree.replay.replay import replay
from sapwood.tree.run.eagerly import Eagerly, Unfound
from sapwood.tree.run.source import Source
from sapwood.tree.run.verify import reachable
from sapwood.tree.watch.session import (
    Branched,
    Broken,
    Hopeless,
    Midway,
    Passing,
    Raised,
    Unready,
    Warm,
)
from sapwood.tree.watch.watch import Caught

_REPLACED: Final = "a newer recording of the function takes its place"
_PATIENCE: Final = 4
"""How often in a row a capture may be `Unready` before it is tried more seldom."""


class Making:
    """Makes the recordings of one function, of what its `Runner` has."""

    def __init__(self, eagerly: Eagerly, source: Source | None) -> None:
        self.eagerly, self.source = eagerly, source
        self.target, self.options = eagerly.target, eagerly.options
        self.recordings, self.cache = eagerly.recordings, eagerly.cache
        self.parameters, self.call_log = eagerly.parameters, eagerly.call_log
        self.fast_replays = FastReplays(
            self.recordings,
            self.cache,
            self.call_log,
            self.parameters,
            guarded=self.options.guarded,
        )
        self._unwritten: deque[Callable[[], None]] = deque()

    def replay(self, found: Found, call: Call, *, learns: bool = False) -> Any:
        """Replay a recording that fits, and return the result of the call.

        If it ``learns``, C may play calls like this one from now on.
        """
        node, ambient = found
        keep = self.fast_replays.keeper(node) if learns else bool
        done = replay(self.recordings, node, call.given, ambient, keep=keep)
        self.call_log.copied(node)
        if done.values:
            slots = self.cache.bound[node]
            write(slots, done.values, self.parameters, call.args, call.kwargs)
            expect(node, slots, done.values)
        if learns:
            self.fast_replays.learn(call, found, done.values)
        return done.result

    def replay_or_skip(
        self, found: Found, call: Call, *, learns: bool = False
    ) -> tuple[Any] | CaptureError:
        """Replay as `replay` does; return its result alone, or that memory is short.

        Then nothing of the call has run, and the recording has given back what it had.
        """
        try:
            return (self.replay(found, call, learns=learns),)
        except OutOfMemory as error:
            if self.options.fullgraph:
                raise
            skip = skip_of(error)
        _, specialization = self.cache.nodes[found.node]
        self.recordings.fell(found.node, skip.what)
        specialization.failed = skip
        return skip

    def decide(
        self, specialization: Specialization, reasons: Mapping[Node, Why]
    ) -> Step:
        """Decide about a call; ``reasons`` say why no node of its kind fits."""
        most = self.options.max_recordings
        nodes, crowded = [*self.cache.nodes], self.recordings.is_crowded()
        held = {} if crowded else self.recordings.held_of(nodes)
        return next_step(
            specialization, nodes, reasons, most, held=held, crowded=crowded
        )

    def record(
        self, unfound: Unfound, step: Step, rerun: Rerun | None = None
    ) -> tuple[Any] | CaptureError | Strayed:
        """Record a call and replay it; return its result alone, or why it was not.

        Then nothing of it has run, and what it wrote was put back. If it is a
        ``rerun``, regions that ran in the call are not run again.
        """
        call, warm = unfound.call, unfound.specialization.warm
        self._make_room(step)
        if warm is not None and warm.breaks:
            return self._record_parts(unfound, step, rerun)
        try:
            made = self._recorded(self._order(unfound, step))
        except (CaptureError, DriverError) as error:
            if not self._may_fail(error):
                raise
            return self._failed(error, unfound)
        found = self._plant(unfound, made)
        if made.error is not None:
            return (self._once(found, unfound, made.error),)
        self.call_log.recorded(call, made.node)
        self.eagerly.assigning = 0
        self._keep(unfound, made)
        return (self.replay(found, call),)

    def _recorded(self, order: RecordRequest) -> Recorded:
        """Have a call captured; where it reads its arguments by itself, once more."""
        recorder = self.recordings.recorder or record
        try:
            return recorder(order, self.recordings)
        except ReadsArguments:
            order.specialization.reads_arguments = True
        return recorder(order, self.recordings)

    def _keep(self, unfound: Unfound, made: Recorded) -> None:
        """Make a new recording ready to be kept, if it is one that can be.

        The first says all: those to come differ in roles and pages only.
        """
        call, specialization, before = unfound
        first = specialization.nodes == [made.node] and not made.node.ferries
        if self.source is None or not first:
            return
        sharing = self.cache.origins[made.node].sharing
        write = self.source.keep(self.options.name, call, before, made, sharing)
        if write is not None:
            self._unwritten.append(write)

    def write(self) -> None:
        """Give the source what is ready for it; to be called without the lock."""
        while self._unwritten:
            self._unwritten.popleft()()

    def _may_fail(self, error: Exception) -> bool:
        """Return whether a call runs eagerly whose recording ended like this."""
        if isinstance(error, Unready | Raised):
            return True
        if self.options.fullgraph or isinstance(error, Midway):
            return False
        return not _hides_interrupt(error)

    def _failed(
        self, error: CaptureError | DriverError, unfound: Unfound
    ) -> CaptureError:
        """Return why an attempt at recording failed, and remember for how long."""
        (call, specialization, _), skip = unfound, skip_of(error)
        if isinstance(error, Unready):
            specialization.unready += not error.moved
            warm = specialization.warm
            if warm is not None and warm.asks and specialization.unready > 1:
                # The function prepares something in captures alone: another warm-up
                # would not help.
                self.eagerly.cannot(specialization, skip, call)
            again = error.moved or specialization.unready < _PATIENCE
            lasts = not (again or self.options.fullgraph)
            specialization.failed = skip if lasts else None
        elif isinstance(error, DriverError):
            specialization.failed = skip
        elif not isinstance(error, Raised):
            self.eagerly.cannot(specialization, skip, call)
        return skip

    def _record_parts(
        self, unfound: Unfound, step: Step, rerun: Rerun | None
    ) -> tuple[Any] | CaptureError | Strayed:
        """Record a call around its eager regions, and so run it; else as `_record`."""
        call, specialization, before = unfound
        warm = specialization.warm
        bind = partial(self.parameters.bind, call.args, call.kwargs)
        begun = Begun(self.recordings.device, (), warm, bind)
        try:
            order = self._order(unfound, step)
            arrays = [*call.given.arrays, *before.arrays()]
            reached = reachable(call, before, self.recordings)
            small = sum(each.size for each in reached) <= Begun.MOST
            nest, integration = (call.args, call.kwargs), self.recordings.integration
            begun.watch(nest, arrays, reached, integration, few=small)
            made = record_parts(order, self.recordings, begun, rerun)
        except CaptureError as error:
            if self._may_fail(error):
                return self._failed(error, unfound)
            if isinstance(error, Midway) and not self.options.fullgraph:
                self.eagerly.cannot(specialization, told_later(error), call)
                return Strayed(error, begun)
            raise
        except BaseException:
            # The traceback of what a region raised holds this frame. Arrays that it
            # names would live as long as the user keeps the exception.
            begun.forget()
            raise
        return self._ended(unfound, made, begun)

    def _ended(
        self, unfound: Unfound, made: Recorded, begun: Begun
    ) -> tuple[Any] | Strayed:
        """Keep a recording in parts, if it is good for more; return the result."""
        (call, specialization, _), warm = unfound, unfound.specialization.warm
        result = made.result
        unfit = made.unfit or (
            "" if made.error else self._no_room(specialization, made.node)
        )
        if made.error is None and not unfit:
            self._plant(unfound, made)
            if specialization.branching:
                join(specialization.nodes)
            self.call_log.recorded(call, made.node)
            begun.forget()
            return (result,)
        self.recordings.discard(made.node)
        if made.branched is not None and specialization.captured_astray():
            fewer = CaptureError(unfit, where=made.branched, remedy=FEWER)
            self.eagerly.cannot(specialization, fewer, call)
        asks = warm is not None and warm.asks
        # What no warm-up has raised may hold arrays of the recording.
        is_new = made.branched is not None
        if isinstance(made.error, Caught) and (
            is_new or self._doubts(made.error, asks=asks)
        ):
            return Strayed(made.error, begun)
        begun.forget()  # as above: the error may be raised from here
        if made.error is not None:
            self.eagerly.once(unfound, made.error)
        else:
            self.call_log.passed_through(call, unfit)
        return (result,)

    def _doubts(self, error: Caught, *, asks: bool) -> bool:
        own = not self.options.fullgraph
        return own and is_doubtful(error, self.recordings, asks=asks)

    def strayed(self, passage: Passage, error: Midway, call: Call) -> Strayed:
        """Have nobody find a recording that a call strayed from; return how it ended.

        Calls to come run eagerly, rather than stray again, but where it is `Passing`.
        Raises the error of a function with ``fullgraph=True``.
        """
        node, begun, branch = passage.node, passage.begun, None
        if begun is None:
            raise error
        with self.recordings.device.lock:
            if node in self.recordings.nodes:
                _, specialization = self.cache.nodes[node]
                over, nodes = not isinstance(error, Passing), [node]
                if isinstance(error, Branched):
                    over, nodes = specialization.strays(), specialization.nodes
                    branch = None if over else specialization
                    # No call could go on with one that was made before.
                    nodes = [each for each in nodes if over or not each.escapes]
                elif not over:
                    nodes = []
                for each in nodes:
                    self.recordings.fell(each, error.what)
                if over:
                    self.eagerly.cannot(specialization, told_later(error), call)
        return Strayed(error, begun, branch, passage.breaks)

    def rerun(self, strayed: Strayed, call: Call) -> Any:
        """Run a call that has strayed as if nothing of it had run.

        Where it went a new way, by a value that a region returned, it is a warm-up, or
        recorded. Raises what it ended with where that cannot be.
        """
        begun, specialization = strayed.begun, strayed.branch
        if specialization is None or begun.warm is None:
            return self.eagerly.rerun(strayed, call)
        rerun = self.eagerly.rerun_of(begun)
        try:
            if not rerun.put_back():
                return self.eagerly.rerun(strayed, call)
            unfound = Unfound(call, specialization, self.eagerly.look(call))
            ran = self._again(unfound, strayed.ran, rerun)
        except BaseException as error:
            if isinstance(error, Exception | Hopeless) and rerun.gave_up():
                return self.eagerly.rerun(strayed, call)
            begun.forget()
            raise
        if isinstance(ran, tuple) and rerun.gave_up():
            return self.eagerly.rerun(strayed, call)
        if isinstance(ran, tuple) or (isinstance(ran, Strayed) and not rerun.answers()):
            begun.forget()
            return ran[0] if isinstance(ran, tuple) else self.eagerly.rerun(ran, call)
        if isinstance(ran, Strayed):
            is_put_back = ran.begun.put_back() is not None
            ran.begun.forget()
            if not is_put_back:
                begun.forget()
                ran.reraise()
        return self.eagerly.rerun(strayed, call, rerun.again())

    def _again(
        self, unfound: Unfound, ran: tuple[Broken, ...], rerun: Rerun
    ) -> tuple[Any] | CaptureError | Strayed | None:
        """Warm up, or record, a call in which regions ``ran`` already.

        None where there is no room for another recording.
        """
        call, specialization, before = unfound
        warm, slots = specialization.on_way(ran), before.array_slots()
        with self.recordings.device.lock:
            self.cache.saw(call, specialization, slots, self.recordings.inherits)
        if warm is None:
            return (self.eagerly.warm_up(unfound, rerun),)
        with self.recordings.device.lock:
            specialization.warm = warm
            step = self.decide(specialization, {})
            full = len(specialization.nodes) >= WAYS
            if full or step.action is not Action.RECORD:
                return None
            return self.record(unfound, step, rerun)

    def _no_room(self, specialization: Specialization, node: Node) -> str:
        """Say why there is no room for a node that other calls came before, if so."""
        step = self.decide(specialization, {})
        full = step.escapes and not node.escapes
        variants = sum(not each.escapes for each in specialization.nodes)
        spare = variants < specialization.max_variants
        room = spare and not self.recordings.is_crowded()
        if step.action is Action.RECORD and (room or not (step.evict or full)):
            return ""
        return "calls that were recorded meanwhile took its place"

    def restored(self, unfound: Unfound, step: Step) -> Found | None:
        """Build what the source has for a call; None, and none is left, if it fails."""
        call, specialization, before = unfound
        if specialization.link is None:
            return None
        self._make_room(step)
        order = self._order(unfound, step)
        try:
            made = specialization.link(order, before, self.recordings)
        except DriverError as error:
            if error.name != Result.OUT_OF_MEMORY.name:
                raise
            made = str(error)
        if isinstance(made, str):
            specialization.link = None
            self.call_log.unfit(call, made)
            return None
        self.call_log.restored(call, made.node)
        return self._plant(unfound, made)

    def _make_room(self, step: Step) -> None:
        for victim in step.evict:
            self.recordings.fell(victim, _REPLACED)

    def _plant(self, unfound: Unfound, made: Recorded) -> Found:
        call, specialization, _ = unfound
        warm = specialization.warm
        made.node.apart = warm is not None and warm.captured
        names, integration = self.parameters.names(call), self.recordings.integration
        origins = origins_of(made.node, call, made.ambient, names, integration)
        self.cache.plant(call, specialization, made.node, made.bound, origins)
        self.recordings.plant(made.node, self._forget)
        if not isinstance(made.error, Warm):  # of which the next capture is to be ready
            specialization.failed, specialization.unready = None, 0
        return Found(made.node, made.ambient)

    def _once(
        self, found: Found, unfound: Unfound, error: CaptureError | Caught | Warm
    ) -> Any:
        """Do what the function did before its error, once, and forget it."""
        try:
            result = self.replay(found, unfound.call)
        finally:
            self.recordings.fell(found.node, None)
        self.eagerly.once(unfound, error)
        return result

    def _order(self, unfound: Unfound, step: Step) -> RecordRequest:
        call, specialization, before = unfound
        if not self.recordings.tells:
            check_told(specialization.warm)
        recordings, parameters = self.recordings, self.parameters
        names, groups = parameters.names(call), call.given.groups()
        number = recordings.number("recording")
        # Whatever went before, each of them is to be what a call goes on with.
        branches = specialization.branching
        return RecordRequest(
            fn=self.target(),
            call=call,
            label=f"{self.options.name}#{number}",
            number=number,
            parent=None if recordings.last is None else recordings.last.label,
            names=[" and ".join(map(names.__getitem__, each)) for each in groups],
            donated=parameters.declared(call, self.options.donate),
            pinned=parameters.declared(call, self.options.pinned),
            specialization=specialization,
            anywhere=step.anywhere or branches,
            escapes=step.escapes or branches,
            copies=step.copies,
            candidates=self.cache.candidates(call),
            before=before,
            bind=parameters.bind,
            survey=self.eagerly.surveyor.survey,
            tolerant=not self.options.fullgraph,
        )

    def _forget(self, node: Node, reason: str | None) -> None:
        self.cache.remove(node)
        self.fast_replays.forget(node)
        if reason is not None:
            self.call_log.evicted(node, reason)


def _hides_interrupt(error: BaseException | None) -> bool:
    """Return whether an error came while an interrupt was on its way.

    Cleaning up behind Control-C may fail. The call must end then, and not run eagerly.
    """
    while error is not None:
        if not isinstance(error, Exception):
            return True
        error = error.__context__
    return False
