"""Recordings of one function's calls: made, taken from a store, and replayed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from sapwood.driver.results import Result
from sapwood.errors import CaptureError, DriverError, OutOfMemory
from sapwood.tree.call.miss import Why
from sapwood.tree.call.options import Options
from sapwood.tree.call.parameters import Parameters
from sapwood.tree.call.signature import Call
from sapwood.tree.choose.decide import Deed, Step, next_step
from sapwood.tree.choose.function_cache import Families, Found
from sapwood.tree.choose.recordings import Forest
from sapwood.tree.choose.skips import skip_of
from sapwood.tree.choose.specialization import Group
from sapwood.tree.guards import Survey, Surveyor
from sapwood.tree.node.node import Node
from sapwood.tree.persist.recall import Recall
from sapwood.tree.persist.restore import restore
from sapwood.tree.persist.saving import origins_of
from sapwood.tree.record.recorder import Recorded, record
from sapwood.tree.record.repeated import check_told
from sapwood.tree.record.request import place_order
from sapwood.tree.record.taking import (
    Order,
)
from sapwood.tree.regions.parts import Asked
from sapwood.tree.regions.passed import told_later
from sapwood.tree.regions.record import record_parts
from sapwood.tree.replay.binding import bind
from sapwood.tree.replay.fast_replays import Encores
from sapwood.tree.replay.replay import replay
from sapwood.tree.run.eagerly import Eagerly
from sapwood.tree.tell.call_log import Diary
from sapwood.tree.watch.session import Midway, Raised, Unready
from sapwood.tree.watch.warm import Warm
from sapwood.tree.watch.watch import Caught

__all__ = ["Making"]

_PATIENCE: Final = 4
"""So often in a row a call may not be ready, before it is tried only now and then."""


class Making:
    """Makes the recordings of one function, of what its `Runner` has."""

    def __init__(
        self,
        target: Callable[[], Callable[..., Any]],
        options: Options,
        forest: Forest,
        parameters: Parameters,
        surveyor: Surveyor,
        families: Families,
        encores: Encores,
        diary: Diary,
        recall: Recall,
        eagerly: Eagerly,
    ) -> None:
        self.target, self.options, self.forest = target, options, forest
        self.parameters, self.surveyor, self.families = parameters, surveyor, families
        self.encores, self.diary = encores, diary
        self.recall, self.eagerly = recall, eagerly

    def replay(
        self,
        found: Found,
        call: Call,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        """Replay a recording that fits, and return the result of the call."""
        node, ambient = found
        result, values, _ = replay(self.forest, node, call.given, ambient)
        self.diary.tally["copied_bytes"] += node.copied_bytes
        self.diary.escaped(node)
        if values:
            slots = self.families.bound[node]
            bind(node, slots, values, self.parameters, args, kwargs)
        return result

    def replay_or_skip(
        self,
        found: Found,
        call: Call,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> tuple[Any] | CaptureError:
        """Replay as `replay` does; return its result alone, or that memory is short.

        Then nothing of the call has run, and the recording has given back what it had.
        """
        try:
            return (self.replay(found, call, args, kwargs),)
        except OutOfMemory as error:
            if self.options.fullgraph:
                raise
            skip = skip_of(error)
        _, group = self.families.nodes[found.node]
        self.forest.fell(found.node, skip.what)
        group.failed = skip
        return skip

    def decide(self, group: Group, reasons: Mapping[Node, Why]) -> Step:
        """Decide about a call in a group; ``reasons`` say why its nodes do not fit."""
        most = self.options.max_recordings
        nodes, crowded = [*self.families.nodes], self.forest.is_crowded()
        held = {} if crowded else self.forest.held_of(group.nodes)
        return next_step(group, nodes, reasons, most, held=held, crowded=crowded)

    def record(
        self,
        call: Call,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        group: Group,
        step: Step,
        before: Survey,
    ) -> tuple[Any] | CaptureError:
        """Record a call and replay it; return its result alone, or why it was not.

        Then nothing of it has run, and what it wrote was put back.
        """
        self._make_room(step)
        if group.warm is not None and group.warm.breaks:
            return self._record_parts(call, args, kwargs, group, step, before)
        try:
            order = self._order(call, group, step, before)
            made = (self.forest.recorder or record)(order, self.forest)
        except (CaptureError, DriverError) as error:
            if not self._may_fail(error):
                raise
            return self._failed(error, group)
        found = self._plant(call, group, made)
        if made.error is not None:
            return (self._once(found, call, args, kwargs, group, made.error),)
        self.diary.recorded(call, made.node)
        sharing = self.families.origins[made.node].sharing
        self.recall.pack(call, before, group, made.node, made.bound, sharing)
        return (self.replay(found, call, args, kwargs),)

    def _may_fail(self, error: Exception) -> bool:
        """Return whether a call runs eagerly whose recording ended like this."""
        if isinstance(error, Unready | Raised):
            return True
        if self.options.fullgraph or isinstance(error, Midway):
            return False
        return not _hides_interrupt(error)

    def _failed(self, error: CaptureError | DriverError, group: Group) -> CaptureError:
        """Return why an attempt at recording failed, and remember for how long."""
        skip = skip_of(error)
        if isinstance(error, Unready):
            group.unready += not error.moved
            if group.warm is not None and group.warm.asks and group.unready > 1:
                # What only captures do is prepared by no warm-up.
                self.eagerly.cannot(group, skip)
            again = self.options.fullgraph or error.moved or group.unready < _PATIENCE
            group.failed = None if again else skip
        elif isinstance(error, DriverError):
            group.failed = skip
        elif not isinstance(error, Raised):
            self.eagerly.cannot(group, skip)
        return skip

    def _record_parts(
        self,
        call: Call,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        group: Group,
        step: Step,
        before: Survey,
    ) -> tuple[Any] | CaptureError:
        """Record a call around its live parts, and so run it; else as `_record`."""
        tolerant = not self.options.fullgraph
        try:
            order = self._order(call, group, step, before)
            recorded = record_parts(Asked(order, args, kwargs, self.forest, tolerant))
        except CaptureError as error:
            if self._may_fail(error):
                return self._failed(error, group)
            if isinstance(error, Midway):
                self._leave_alone(group, error)
            raise
        result, made, unfit = recorded
        unfit = unfit or ("" if made.error else self._no_room(group, made.node))
        if made.error is None and not unfit:
            self._plant(call, group, made)
            self.diary.recorded(call, made.node)
            return (result,)
        self.forest.discard(made.node)
        if made.error is not None:
            self.eagerly.once(call, group, made.error)
        else:
            self.diary.passed_through(call, unfit)
        return (result,)

    def strayed(self, node: Node, error: Midway) -> None:
        """Remember that a call went another way behind a live part than its recording.

        It ends in that error. Those to come run eagerly, rather than end like it.
        """
        if self.options.fullgraph:
            return
        with self.forest.device.lock:
            if node in self.forest.nodes:
                _, group = self.families.nodes[node]
                self.forest.fell(node, error.what)
                self._leave_alone(group, error)

    def _leave_alone(self, group: Group, error: Midway) -> None:
        if not self.options.fullgraph:
            self.eagerly.cannot(group, told_later(error))

    def _no_room(self, group: Group, node: Node) -> str:
        """Say why there is no room for a node that other calls came before, if so."""
        step = self.decide(group, {})
        full = step.escapes and not node.escapes
        if step.deed is Deed.RECORD and not step.evict and not full:
            return ""
        return "calls that were recorded meanwhile took its place"

    def restored(
        self, call: Call, group: Group, step: Step, before: Survey
    ) -> Found | None:
        """Link the group's archive for a call; None, and none is left, if it fails."""
        if group.archive is None:
            return None
        self._make_room(step)
        order = self._order(call, group, step, before)
        try:
            made = restore(group.archive, order, before, self.forest)
        except DriverError as error:
            if error.name != Result.OUT_OF_MEMORY.name:
                raise
            made = str(error)
        if isinstance(made, str):
            group.archive = None
            self.diary.unfit(call, made)
            return None
        self.diary.restored(call, made.node)
        return self._plant(call, group, made)

    def _make_room(self, step: Step) -> None:
        for victim in step.evict:
            self.forest.fell(
                victim, "a newer recording of the function takes its place"
            )

    def _plant(self, call: Call, group: Group, made: Recorded) -> Found:
        made.node.apart = group.warm is not None and group.warm.captured
        names, adapter = self.parameters.names(call), self.forest.adapter
        origins = origins_of(made.node, call, made.ambient, names, adapter)
        self.families.plant(call, group, made.node, made.bound, origins)
        self.forest.plant(made.node, self._forget)
        if not isinstance(made.error, Warm):  # of which the next capture is to be ready
            group.failed, group.unready = None, 0
        return Found(made.node, made.ambient)

    def _once(
        self,
        found: Found,
        call: Call,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        group: Group,
        error: CaptureError | Caught | Warm,
    ) -> Any:
        """Do what the function did before its error, once, and forget it."""
        try:
            result = self.replay(found, call, args, kwargs)
        finally:
            self.forest.fell(found.node, None)
        self.eagerly.once(call, group, error)
        return result

    def _order(self, call: Call, group: Group, step: Step, before: Survey) -> Order:
        if not self.forest.tells:
            check_told(group.warm)
        return place_order(
            call,
            group,
            step,
            before,
            fn=self.target(),
            name=self.options.name,
            parameters=self.parameters,
            surveyor=self.surveyor,
            pinned=self.parameters.declared(call, self.options.pinned),
            donated=self.parameters.declared(call, self.options.donate),
            candidates=self.families.candidates(call),
            forest=self.forest,
        )

    def _forget(self, node: Node, reason: str | None) -> None:
        self.families.remove(node)
        self.encores.forget(node)
        if reason is not None:
            self.diary.evicted(node, reason)


def _hides_interrupt(error: BaseException | None) -> bool:
    """Return whether an error came while an interrupt was on its way.

    Cleaning up behind Control-C may fail. The call must end then, and not run eagerly.
    """
    while error is not None:
        if not isinstance(error, Exception):
            return True
        error = error.__context__
    return False
