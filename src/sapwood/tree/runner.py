"""One graphed function: each call is replayed, or warmed up, recorded, passed through.

Finding a recording that fits is the hot path, and stands here whole; what to do
otherwise is decided in `decide`, and recording is done in `recorder`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter_ns
from typing import Any

from sapwood.errors import CaptureError, InternalError, OutOfMemory
from sapwood.tree.ambient import Survey, Surveyor, undo_bound
from sapwood.tree.archive.library import Source
from sapwood.tree.archive.recall import Recall
from sapwood.tree.archive.restore import restore
from sapwood.tree.archive.saving import origins_of
from sapwood.tree.binding import bind
from sapwood.tree.decide import Deed, Step, next_step
from sapwood.tree.diary import Diary
from sapwood.tree.eagerly import Eagerly
from sapwood.tree.encores import Encores
from sapwood.tree.explain import explain_function
from sapwood.tree.families import Families, Found
from sapwood.tree.forest import Forest
from sapwood.tree.group import Group, Warm
from sapwood.tree.leases import rehearsal
from sapwood.tree.live.chain import Passage
from sapwood.tree.live.parts import Asked
from sapwood.tree.live.record import record_parts
from sapwood.tree.miss import Miss, Why
from sapwood.tree.node import Node
from sapwood.tree.options import Options
from sapwood.tree.order import place_order
from sapwood.tree.parameters import Parameters
from sapwood.tree.preserve import Preserved
from sapwood.tree.recorder import Order, Recorded, record
from sapwood.tree.replay import replay
from sapwood.tree.session import Unready
from sapwood.tree.signature import Call
from sapwood.tree.stats import Stats
from sapwood.tree.verify import reachable, verified
from sapwood.tree.watch import Caught

__all__ = ["Runner"]


class Runner:
    """Runs one function; ``groups`` are its recordings by signature.

    ``target`` gives the function: one that is a method may be gone by now.
    """

    def __init__(
        self,
        target: Callable[[], Callable[..., Any]],
        options: Options,
        forest: Forest,
        source: Source | None = None,
    ) -> None:
        self.target, self.options, self.forest = target, options, forest
        self.parameters = Parameters(target(), options.name)
        self.diary = Diary(options.name, self.parameters, forest)
        self.families = Families(
            forest.adapter,
            forest.device.pages,
            limit=max(1024, 4 * options.max_recordings),
        )
        self.encores = Encores(forest, self.families, self.diary, self.parameters)
        self.surveyor = Surveyor(target, forest.adapter)
        self.recall = Recall(options.name, source, forest.adapter)
        self.eagerly = Eagerly(
            target, options, self.parameters, self.surveyor, self.diary, forest
        )

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one call, however it is best run."""
        if self.forest.device.is_mine():  # by a finaliser, in the middle of another
            return self.target()(*args, **kwargs)
        began = perf_counter_ns()
        again = self.encores.play(began, args, kwargs)
        if again is not None:
            return again[0]
        call = self.encores.recognise(args, kwargs)
        if call is None:
            call = self.parameters.describe(args, kwargs, self.forest.adapter)
        with self.forest.device.lock:
            self._begin()
            found = self.families.find(call)
            if found is not None and not found.node.chain:
                return self._found(began, found, call, args, kwargs)
            passage = self._started(found, call, args, kwargs)
        if passage is None or found is None:
            result = self._missed(call, args, kwargs)
            self.diary.ended(began)
            return result
        result = passage.finish()
        with self.forest.device.lock:
            self.diary.replayed(began, found.node)
            self.encores.learn(call, found)
        return result

    def _begin(self) -> None:
        forest, device = self.forest, self.forest.device
        if device.closed:
            device.check_open(f"the runtime of {self.options.name}")
        if device.returns or forest.kept:
            device.returns.drain()
        if forest.quiet:
            forest.settle()
        if forest.before_call is not None:
            forest.before_call()

    def _found(
        self,
        began: int,
        found: Found,
        call: Call,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Replay a recording without live parts."""
        verify = self.options.verify
        if found.node.doubtful:
            return self._again(found, call, args, kwargs)
        if verify and (self.diary.tally["replays"] + 1) % verify == 0:
            result = self._verified(found, call, args, kwargs)
        else:
            result = self._replay(found, call, args, kwargs)
        self.diary.replayed(began, found.node)
        if not verify:
            self.encores.learn(call, found)
        return result

    def _started(
        self,
        found: Found | None,
        call: Call,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Passage | None:
        """Replay the first part of a recording with live parts, if one was found."""
        if found is None:
            return None
        passage = Passage(self.forest, found, call, args, kwargs, self.parameters)
        passage.start()
        self.diary.chained(found.node)
        return passage

    def __del__(self) -> None:
        # Nobody can call the function any more: its recordings go, if it was ever made.
        if (families := getattr(self, "families", None)) and families.nodes:
            item = (self.forest.fell_all, tuple(families.nodes))
            self.forest.device.returns.append(item)

    def _replay(
        self,
        found: Found,
        call: Call,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        node, ambient = found
        result, values, _ = replay(self.forest, node, call.given, ambient)
        self.diary.tally["copied_bytes"] += node.copied_bytes
        if node.escapes:
            self.diary.escaped(node)
        if values:
            slots = self.families.bound[node]
            bind(node, slots, values, self.parameters, args, kwargs)
        return result

    # Everything else.

    def _missed(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        forest = self.forest
        if not (call.is_flat or call.containers):  # it was recognised
            call = self.parameters.describe(args, kwargs, forest.adapter)
        before = self._look(args, kwargs)
        key = before.key_with(call.given.arrays, call.nests)
        with forest.device.lock:
            known = self.families.known(call, key)
        asked = self.recall.ask(call, before, known)
        with forest.device.lock:
            forest.device.check_open(f"the runtime of {self.options.name}")
            # Another thread may have recorded it meanwhile.
            found = self.families.find(call)
            if found is not None and not found.node.chain:
                result = self._replay(found, call, args, kwargs)
                self.diary.tally["replays"] += 1
                return result
            group = self.families.group(call, key, self.options.max_variants)
            self.families.saw(call, group, before.array_slots(), forest.inherits)
            step, reasons = self._noted(call, group, self.recall.note(group, asked))
            if step.deed is Deed.RESTORE:
                found = self._restored(call, group, step, before)
                if found is not None:
                    return self._replay(found, call, args, kwargs)
                step = self._decide(group, reasons)
            if step.deed is Deed.RECORD:
                result = self._record(call, args, kwargs, group, step, before)
        if step.deed is Deed.RECORD:
            self.recall.flush()
            return result
        if step.deed is Deed.WARM_UP:
            return self.eagerly.warm_up(call, args, kwargs, group, before)
        return self.eagerly.pass_through(call, args, kwargs, step.reason)

    def _decide(self, group: Group, reasons: Mapping[Node, Why]) -> Step:
        most = self.options.max_recordings
        return next_step(group, [*self.families.nodes], reasons, most)

    def _noted(
        self, call: Call, group: Group, absent: tuple[Miss, ...]
    ) -> tuple[Step, dict[Node, Why]]:
        """Decide about a call that no recording fits; note why, and return it."""
        group.missed(self.forest.tick())
        misses = self.families.misses(call)
        reasons = {node: miss.why for node, miss in misses.items()}
        step = self._decide(group, reasons)
        new = self.families.unfound(call, group, step, self.parameters)
        self.diary.missed(call, misses, (*new, *absent))
        return step, reasons

    def _record(
        self,
        call: Call,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        group: Group,
        step: Step,
        before: Survey,
    ) -> Any:
        self._make_room(step)
        if group.warm is not None and group.warm.breaks:
            return self._record_parts(call, args, kwargs, group, step, before)
        try:
            order = self._order(call, group, step, before)
            made = (self.forest.recorder or record)(order, self.forest)
        except Unready as error:
            return self.eagerly.unready(error, call, args, kwargs, group, before)
        except CaptureError as error:
            if not self.options.tolerant:
                raise
            self.eagerly.cannot(group, error)
            made, reason = None, str(error)
        if made is None:
            return self.eagerly.pass_through(call, args, kwargs, reason)
        found = self._plant(call, group, made)
        if made.error is not None:
            return self._once(found, call, args, kwargs, group, made.error)
        self.diary.recorded(call, made.node)
        sharing = self.families.origins[made.node].sharing
        self.recall.pack(call, before, group, made.node, made.bound, sharing)
        return self._replay(found, call, args, kwargs)

    def _record_parts(
        self,
        call: Call,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        group: Group,
        step: Step,
        before: Survey,
    ) -> Any:
        """Record a call around its live parts, and so run it."""
        order, tolerant = self._order(call, group, step, before), self.options.tolerant
        try:
            recorded = record_parts(Asked(order, args, kwargs, self.forest, tolerant))
        except Unready as error:
            return self.eagerly.unready(error, call, args, kwargs, group, before)
        result, made, unfit = recorded
        unfit = unfit or ("" if made.error else self._no_room(group, made.node))
        if made.error is None and not unfit:
            self._plant(call, group, made)
            self.diary.recorded(call, made.node)
            return result
        self.forest.discard(made.node)
        if made.error is not None:
            self.eagerly.once(call, group, made.error)
        else:
            self.diary.passed_through(call, unfit)
        return result

    def _no_room(self, group: Group, node: Node) -> str:
        """Say why there is no room for a node that other calls came before, if so."""
        step = self._decide(group, {})
        full = step.escapes and not node.escapes
        if step.deed is Deed.RECORD and not step.evict and not full:
            return ""
        return "calls that were recorded meanwhile took its place"

    def _restored(
        self, call: Call, group: Group, step: Step, before: Survey
    ) -> Found | None:
        """Link the group's archive for a call; None, and none is left, if it fails."""
        if group.archive is None:
            return None
        self._make_room(step)
        order = self._order(call, group, step, before)
        try:
            made = restore(group.archive, order, before, self.forest)
        except OutOfMemory as error:
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
            result = self._replay(found, call, args, kwargs)
        finally:
            self.forest.fell(found.node, None)
        self.eagerly.once(call, group, error)
        return result

    def _again(
        self, found: Found, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Record a call that is recorded: so every address in it may become known."""
        group = self.families.nodes[found.node][1]
        useless = group.again(found.node)
        step = Step(Deed.RECORD, anywhere=True, escapes=found.node.escapes)
        before = self._look(args, kwargs)
        result = self._record(call, args, kwargs, group, step, before)
        self.forest.fell_all(useless())
        return result

    def _order(self, call: Call, group: Group, step: Step, before: Survey) -> Order:
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

    def _verified(
        self,
        found: Found,
        call: Call,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        forest = self.forest
        try:
            return verified(
                forest,
                found.node.label,
                reachable(call, self._look(args, kwargs), forest.adapter),
                lambda: self.eagerly.as_recorded(found.node, args, kwargs),
                lambda: self._look(args, kwargs),
                lambda: self._replay(found, call, args, kwargs),
            )
        except InternalError:
            self._distrust(found.node)
            raise

    def _distrust(self, node: Node) -> None:
        """Forget what was recorded under the same values as a node that was wrong."""
        _, group = self.families.nodes[node]
        group.warm = group.archive = None
        for each in list(group.nodes):
            self.forest.fell(each, f"a replay of {node.label} was not as an eager run")

    # What users ask for.

    def warm(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Warm up and record for such arguments; arrays are left as they are."""
        forest = self.forest
        forest.device.check_open(f"the runtime of {self.options.name}")
        call = self.parameters.describe(args, kwargs, forest.adapter)
        looked = self._look(args, kwargs)
        storages = reachable(call, looked, forest.adapter)
        before = Preserved(forest.device, storages).save()
        rewind = forest.device.framework.chance()
        tally, made = self.diary.tally, self.diary.tally["recordings"]
        try:
            with rehearsal():
                # A warm-up, or two where the first compiles, a capture to hold others
                # against, where captures are apart, and a recording.
                for _ in range(4):
                    if tally["recordings"] == made and not self._is_warm(call):
                        self.call(args, kwargs)
        finally:
            undo_bound(self._look(args, kwargs).changes_since(looked))
            before.restore()
            rewind()

    def _is_warm(self, call: Call) -> bool:
        with self.forest.device.lock:
            return self.families.find(call) is not None

    def _look(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Survey:
        return self.surveyor.survey(self.parameters.bind(args, kwargs))

    def stats(self) -> Stats:
        """Return what has happened to the calls so far."""
        self.encores.tell()
        return self.diary.stats()

    def explain(self) -> str:
        """Return the recordings and the recent misses, as text."""
        self.encores.tell()
        with self.forest.device.lock:
            families, misses = self.families, tuple(self.diary.misses)
            told = families.nodes, misses, families.refusals()
            return explain_function(self.options.name, self.stats(), *told)
