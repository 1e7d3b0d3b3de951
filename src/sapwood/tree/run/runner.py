"""One graphed function: each call is replayed, or warmed up, recorded, passed through.

Finding a recording that fits is the hot path, and stands here whole; what to do
otherwise is decided in `decide`, and recording is done in `recorder`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import perf_counter_ns
from typing import Any, NamedTuple

from sapwood.errors import (
    CaptureError,
    InternalError,
    OutOfMemory,
    StaleOutput,
)
from sapwood.surroundings import Surroundings
from sapwood.tree.call.miss import Miss, Why
from sapwood.tree.call.options import Options
from sapwood.tree.call.parameters import Parameters
from sapwood.tree.call.signature import Call
from sapwood.tree.call.stats import Stats
from sapwood.tree.choose.decide import Deed, Step
from sapwood.tree.choose.function_cache import Families, Found
from sapwood.tree.choose.recordings import Forest
from sapwood.tree.choose.skips import Skips, skip_of
from sapwood.tree.choose.specialization import Group
from sapwood.tree.guards import AmbientKey, Survey, Surveyor, put_back
from sapwood.tree.node.leases import rehearsal
from sapwood.tree.node.node import Node
from sapwood.tree.persist.recall import Recall
from sapwood.tree.persist.source import Source
from sapwood.tree.record.preserve import Preserved
from sapwood.tree.regions.chain import Passage
from sapwood.tree.replay.fast_replays import Encores
from sapwood.tree.run.eagerly import Eagerly
from sapwood.tree.run.making import Making
from sapwood.tree.run.verify import distrust, reachable, verified
from sapwood.tree.tell.call_log import Diary
from sapwood.tree.tell.explain import explain_function
from sapwood.tree.watch.session import Midway

__all__ = ["Runner"]


class Missed(NamedTuple):
    """A call that no recording fits, what it reads, and what that is told by."""

    call: Call
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    before: Survey
    key: AmbientKey
    slots: Mapping[str, Any]


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
        self.skips = Skips(options, forest.adapter.is_array)
        self.diary = Diary(options.name, self.parameters, forest, self.skips)
        self.families = Families(
            forest.adapter,
            forest.device.pages,
            limit=max(1024, 4 * options.max_recordings),
        )
        self.encores = Encores(forest, self.families, self.diary, self.parameters)
        self.surveyor = Surveyor(target, forest.adapter)
        self.recall = Recall(options.name, source, forest.adapter)
        self.eagerly = Eagerly(
            target,
            options,
            self.parameters,
            self.surveyor,
            self.diary,
            forest,
            self.families,
        )
        self.making = Making(
            target,
            options,
            forest,
            self.parameters,
            self.surveyor,
            self.families,
            self.encores,
            self.diary,
            self.recall,
            self.eagerly,
        )

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one call, however it is best run."""
        if self.forest.device.is_mine():  # by a finaliser, in the middle of another
            return self.target()(*args, **kwargs)
        skips, beside = self.skips, bool(self.families.nodes)
        if skips.is_known() and skips.passes(args, kwargs, beside=beside):
            return self.eagerly.plainly(args, kwargs)
        if self.forest.device.framework.included():  # it becomes a part of that
            return self.target()(*args, **kwargs)
        began = perf_counter_ns()
        try:
            again = self.encores.play(began, args, kwargs)
        except OutOfMemory:  # nothing has run, and more is known below
            again = None
        if again is not None:
            return again[0]
        try:
            call = self.encores.recognise(args, kwargs)
            if call is None:
                call = self.parameters.describe(args, kwargs, self.forest.adapter)
        except Exception as error:
            if not self._is_borne(error):
                raise
            skip = skip_of(error)
        else:
            return self._described(began, call, args, kwargs)
        return self._unreadable(skip, None, args, kwargs)

    def _is_borne(self, error: Exception) -> bool:
        """Return whether a call runs eagerly that could not even be understood."""
        grave = isinstance(error, InternalError | StaleOutput)
        return not (grave or self.options.fullgraph)

    def _unreadable(
        self,
        skip: CaptureError,
        call: Call | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Run a call eagerly whose arguments, or what it reaches, are not known."""
        self.forest.device.check_open(f"the runtime of {self.options.name}")
        fn = self.target()  # which may be gone
        if not self.parameters.fits(args, kwargs):
            return fn(*args, **kwargs)  # which says so
        if self.skips.learn(str(skip), args, kwargs):
            self.skips.failed(skip, hopeless=not self.families.nodes)
        return self.eagerly.skip(skip, call, args, kwargs, lasts=True)

    def _described(
        self, began: int, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        surroundings = Surroundings()
        try:
            return self._decided(began, call, args, kwargs)
        except BaseException:
            surroundings.restore()
            raise

    def _decided(
        self, began: int, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        with self.forest.device.lock:
            self._begin()
            found, passage, ran = self.families.find(call), None, None
            if found is not None and not found.node.chain:
                ran = self._found(began, found, call, args, kwargs)
            else:
                passage = self._started(found, call, args, kwargs)
        if isinstance(ran, tuple):
            return ran[0]
        if ran is not None:
            return self.eagerly.skip(ran, call, args, kwargs, lasts=False)
        if passage is None or found is None:
            if self.skips.holds(call.key):
                return self.eagerly.plainly(args, kwargs)
            result = self._missed(call, args, kwargs)
            self.diary.ended(began)
            return result
        try:
            result = passage.finish()
        except Midway as error:
            self.making.strayed(found.node, error)
            raise
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
    ) -> tuple[Any] | CaptureError:
        """Replay a recording without live parts; return its result alone.

        Or why it was not replayed; then nothing of the call has run.
        """
        verify = self.options.verify
        if found.node.doubtful:
            return self._again(found, call, args, kwargs)
        if verify and (self.diary.tally["replays"] + 1) % verify == 0:
            ran: tuple[Any] | CaptureError = (
                self._verified(found, call, args, kwargs),
            )
        else:
            ran = self.making.replay_or_skip(found, call, args, kwargs)
        if isinstance(ran, tuple):
            self.diary.replayed(began, found.node)
            if not verify:
                self.encores.learn(call, found)
        return ran

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

    # Everything else.

    def _missed(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            if not (call.is_flat or call.containers):  # it was recognised
                call = self.parameters.describe(args, kwargs, self.forest.adapter)
            before = self._look(args, kwargs)
            key = before.key_with(call.given.arrays, call.nests)
            slots = before.array_slots()
        except Exception as error:
            if not self._is_borne(error):
                raise
            skip = skip_of(error)
        else:
            return self._unfound(Missed(call, args, kwargs, before, key, slots))
        return self._unreadable(skip, call, args, kwargs)

    def _unfound(self, missed: Missed) -> Any:
        """Run a call that no recording fits, as is decided now."""
        forest, call, args, kwargs, before, key, slots = self.forest, *missed
        ran = None
        with forest.device.lock:
            known = self.families.known(call, key)
        asked = self.recall.ask(call, before, known)
        with forest.device.lock:
            forest.device.check_open(f"the runtime of {self.options.name}")
            # Another thread may have recorded it meanwhile.
            found = self.families.find(call)
            if found is not None and not found.node.chain:
                again = self.making.replay_or_skip(found, call, args, kwargs)
                if isinstance(again, tuple):
                    self.diary.tally["replays"] += 1
                    return again[0]
            group = self.families.group(call, key, self.options.max_variants)
            self.families.saw(call, group, slots, forest.inherits)
            step, reasons = self._noted(call, group, self.recall.note(group, asked))
            if step.deed is Deed.RESTORE:
                found = self.making.restored(call, group, step, before)
                if found is not None:
                    self.skips.recorded(args, kwargs)
                    return self.making.replay(found, call, args, kwargs)
                step = self.making.decide(group, reasons)
            if step.deed is Deed.RECORD:
                ran = self.making.record(call, args, kwargs, group, step, before)
        if isinstance(ran, tuple):
            self.skips.recorded(args, kwargs)
            self.recall.flush()
            return ran[0]
        return self.eagerly.run(step, ran, call, args, kwargs, group, before)

    def _noted(
        self, call: Call, group: Group, absent: tuple[Miss, ...]
    ) -> tuple[Step, dict[Node, Why]]:
        """Decide about a call that no recording fits; note why, and return it."""
        group.missed(self.forest.tick())
        misses = self.families.misses(call)
        reasons = {node: miss.why for node, miss in misses.items()}
        step = self.making.decide(group, reasons)
        new = self.families.unfound(call, group, step, self.parameters)
        self.diary.missed(call, misses, (*new, *absent))
        return step, reasons

    def _again(
        self, found: Found, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any] | CaptureError:
        """Record a call that is recorded: so every address in it may become known."""
        group = self.families.nodes[found.node][1]
        useless = group.again(found.node)
        escapes, copies = found.node.escapes, found.node.copied()
        step = Step(Deed.RECORD, anywhere=True, escapes=escapes, copies=copies)
        before = self._look(args, kwargs)
        ran = self.making.record(call, args, kwargs, group, step, before)
        if not isinstance(ran, tuple):
            return self.making.replay_or_skip(found, call, args, kwargs)
        self.forest.fell_all(useless())
        return ran

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
                lambda: self.making.replay(found, call, args, kwargs),
            )
        except InternalError:
            distrust(forest, self.families.nodes[found.node][1], found.node)
            raise

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
            put_back(looked)
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
            told = self.families.nodes, tuple(self.diary.misses)
            return explain_function(self.options.name, self.stats(), *told)
