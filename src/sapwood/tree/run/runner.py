"""One graphed function: each call is replayed, or warmed up, recorded, passed through.

Finding a recording that fits is the hot path, and stands here whole; what to do
otherwise is decided in `decide`, and recording is done in `recorder`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from time import perf_counter_ns
from typing import Any, Final

from sapwood.errors import CaptureError, InternalError, OutOfMemory, StaleOutput
from sapwood.surroundings import Surroundings
from sapwood.tree.call.miss import Miss, Why
from sapwood.tree.call.options import Options
from sapwood.tree.call.signature import Call, Unread
from sapwood.tree.call.stats import Stats
from sapwood.tree.choose.decide import Action, Step
from sapwood.tree.choose.function_cache import Found
from sapwood.tree.choose.recordings import Recordings
from sapwood.tree.choose.skips import skip_of
from sapwood.tree.guards import AmbientKey, Survey, put_back
from sapwood.tree.node.leases import rehearsal
from sapwood.tree.node.node import Node
from sapwood.tree.record.preserve import Preserved
from sapwood.tree.regions.chain import Passage
from sapwood.tree.regions.rerun import Strayed
from sapwood.tree.replay.compiled import MISS
from sapwood.tree.run.eagerly import Eagerly, Unfound
from sapwood.tree.run.making import Making
from sapwood.tree.run.source import Link, Source
from sapwood.tree.run.verify import distrust, reachable, verified
from sapwood.tree.tell.explain import explain_function
from sapwood.tree.watch.capturer import Graded, Hosted
from sapwood.tree.watch.session import Midway, served

_NEVER_ALIKE: Final = CaptureError(
    "four calls by warm() were each the first of their kind",
    remedy="Pass what is new in each call as an array",
)


class Runner:
    """Runs one function; ``groups`` are its recordings by signature.

    ``target`` gives the function: one that is a method may be gone by now.
    """

    def __init__(
        self,
        target: Callable[[], Callable[..., Any]],
        options: Options,
        recordings: Recordings,
        source: Source | None = None,
        of: Eagerly | None = None,
    ) -> None:
        self.target, self.options, self.recordings = target, options, recordings
        self.eagerly = eagerly = Eagerly(target, options, recordings, of)
        self._grades: Graded | None = None
        self._hosts: Hosted | None = None
        self.behind: weakref.WeakSet[Runner] = weakref.WeakSet()
        self.parameters, self.skips = eagerly.parameters, eagerly.skips
        self.call_log, self.cache = eagerly.call_log, eagerly.cache
        self.making = Making(eagerly, source)
        self.fast_replays, self.source = self.making.fast_replays, source

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one call, however it is best run."""
        if self.recordings.device.is_mine():  # by a finaliser, in the middle of another
            return self.target()(*args, **kwargs)
        if self.skips.is_known() and self.skips.passes(args, kwargs):
            return self.eagerly.plainly(args, kwargs)
        if self.recordings.device.framework.included():  # it becomes a part of that
            return self.target()(*args, **kwargs)
        graded = self._graded()
        if graded is not None:
            return graded.call(args, kwargs)
        return self._called(args, kwargs)

    def _called(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one call from which no gradient is sent back, as far as is known."""
        began = perf_counter_ns()
        try:
            again = self.fast_replays.play(args, kwargs)
        except OutOfMemory:  # nothing has run, and more is known below
            again = None
        if again is not None:
            return again[0]
        try:
            last_call = self.fast_replays.last_call
            call = None if last_call is None else last_call.recognise(args, kwargs)
            if call is None:
                call = self.parameters.describe(
                    args, kwargs, self.recordings.integration
                )
        except Exception as error:
            if not (self.eagerly.notes(error) or self._is_borne(error)):
                raise
            skip = skip_of(error)
        else:
            return self._described(began, call)
        graded = self._graded()
        if graded is not None:
            return graded.call(args, kwargs)
        hosted = self._hosted()
        found = None if hosted is None else hosted.call(args, kwargs)
        if found is not None:
            return found[0]
        return self._unreadable(skip, Unread(args, kwargs))

    def _graded(self) -> Graded | None:
        """Return what runs calls whose results require grad; None where none does."""
        capturer = self.recordings.capturer
        if not self.eagerly.goes_back or capturer is None:
            return None
        if self._grades is None:
            self._grades = capturer.graded(self.target, self._graph)
        return self._grades if self._grades.applies() else None

    def _hosted(self) -> Hosted | None:
        """Return what runs calls with arrays of the host; None where nothing does."""
        capturer = self.recordings.capturer
        if self._hosts is None and capturer is not None:
            self._hosts = capturer.hosted(self.target, self._graph)
        return self._hosts

    def _graph(
        self, target: Callable[[], Callable[..., Any]], *, back: bool
    ) -> Callable[..., Any]:
        """Graph what runs this one's calls, or goes ``back`` through one."""
        options, of = self.options, None if back else self.eagerly
        name = f"{options.name}, backward" if back else options.name
        # An eager run and a replay differ in what they save.
        options = replace(options, name=name, verify=0)
        runner = Runner(target, options, self.recordings, of=of)
        self.behind.add(runner)
        return partial(_played, runner)

    def _is_borne(self, error: Exception) -> bool:
        """Return whether a call runs eagerly that could not even be understood."""
        grave = isinstance(error, InternalError | StaleOutput)
        return not (grave or self.options.fullgraph)

    def _unreadable(self, skip: CaptureError, call: Call | Unread) -> Any:
        """Run a call eagerly whose arguments, or what it reaches, are not known."""
        self.recordings.device.check_open(f"the runtime of {self.options.name}")
        fn = self.target()  # which may be gone
        if not self.parameters.fits(call.args, call.kwargs):
            return fn(*call.args, **call.kwargs)  # which says so
        if self.skips.learn(str(skip), call):
            self.skips.failed(skip, call)
        return self.eagerly.skip(skip, call, lasts=True)

    def _described(self, began: int, call: Call) -> Any:
        surroundings = Surroundings()
        try:
            return self._decided(began, call)
        except BaseException:
            surroundings.restore()
            raise

    def _decided(self, began: int, call: Call) -> Any:
        with self.recordings.device.lock:
            self._begin()
            found = self.cache.find(call)
            ran: tuple[Any] | CaptureError | Passage | None = None
            if found is not None and not found.node.chain:
                ran = self._found(began, found, call)
            elif found is not None:
                ran = self._started(found, call)
        if isinstance(ran, tuple):
            return ran[0]
        if isinstance(ran, CaptureError):
            return self.eagerly.skip(ran, call, lasts=False)
        if ran is None or found is None:
            if self.skips.holds(call.key):
                return self.eagerly.plainly(call.args, call.kwargs)
            result = self._missed(call)
            self.call_log.ended(began)
            return result
        strayed = None
        try:
            result = ran.finish()
        except Midway as error:
            strayed = self.making.strayed(ran, error, call)
        if strayed is not None:
            result = self.making.rerun(strayed, call)
            # Its error's traceback leads to this frame: what a region was passed would
            # hold pages until garbage is collected.
            strayed = None
            self.call_log.ended(began)
            return result
        with self.recordings.device.lock:
            self.call_log.replayed(began, found.node)
            taken = Found(ran.node, found.ambient)
            self.fast_replays.learn(call, taken, ran.values)
            if found.node in self.cache.nodes:
                self.cache.nodes[found.node][1].went()
        return result

    def _begin(self) -> None:
        recordings, device = self.recordings, self.recordings.device
        if device.closed:
            device.check_open(f"the runtime of {self.options.name}")
        if device.returns:
            device.returns.drain_dropped()
        if recordings.quiet:
            recordings.settle()
        if recordings.before_call is not None:
            recordings.before_call()

    def _found(self, began: int, found: Found, call: Call) -> tuple[Any] | CaptureError:
        """Replay a recording without eager regions; return its result alone.

        Or why it was not replayed; then nothing of the call has run.
        """
        verify = self.options.verify
        if verify and (self.call_log.tally["replays"] + 1) % verify == 0:
            ran: tuple[Any] | CaptureError = (self._verified(found, call),)
        else:
            ran = self.making.replay_or_skip(found, call, learns=not verify)
        if isinstance(ran, tuple):
            self.call_log.replayed(began, found.node)
        return ran

    def _started(self, found: Found, call: Call) -> Passage | CaptureError:
        """Replay the first part of a recording with eager regions.

        Return why not, where that could not be put back.
        """
        self.fast_replays.before(call, found)
        passage = Passage(self.recordings, found, call, self.parameters, self.cache)
        if not self.options.fullgraph:
            error = passage.prepare()
            if error is not None:
                return error
        passage.start()
        self.call_log.copied(found.node)
        return passage

    def __del__(self) -> None:
        # Nobody can call the function any more. A finaliser must not evict by itself,
        # inside whatever lock, so the next call does. An __init__ that raised made no
        # cache.
        if (cache := getattr(self, "cache", None)) and cache.nodes:
            item = (self.recordings.fell_all, tuple(cache.nodes))
            self.recordings.device.returns.append(item)

    # Everything else.

    def _missed(self, call: Call) -> Any:
        try:
            if not (call.is_flat or call.containers):  # it was recognised
                call = self.parameters.describe(
                    call.args, call.kwargs, self.recordings.integration
                )
            before = self.eagerly.look(call)
            key = before.key_with(call.given.arrays, call.nests)
            slots = before.array_slots()
        except Exception as error:
            if not self._is_borne(error):
                raise
            skip = skip_of(error)
        else:
            return self._unfound(call, before, key, slots)
        return self._unreadable(skip, call)

    def _unfound(
        self, call: Call, before: Survey, key: AmbientKey, slots: Mapping[str, Any]
    ) -> Any:
        """Run a call that no recording fits, as is decided now."""
        recordings = self.recordings
        ran: tuple[Any] | CaptureError | Strayed | None = None
        with recordings.device.lock:
            known = self.cache.known(call, key)
        answer: Link | str | None = None
        if self.source is not None and (known is None or not known.asked):
            answer = self.source.find(self.options.name, call, before)
        with recordings.device.lock:
            recordings.device.check_open(f"the runtime of {self.options.name}")
            # The lock was free while the source was asked: another thread may have
            # recorded the call.
            found = self.cache.find(call)
            if found is not None and not found.node.chain:
                again = self.making.replay_or_skip(found, call)
                if isinstance(again, tuple):
                    self.call_log.tally["replays"] += 1
                    return again[0]
            specialization = self.cache.specialization(
                call, key, self.options.max_variants
            )
            self.cache.saw(call, specialization, slots, recordings.inherits)
            unfound = Unfound(call, specialization, before)
            step, misses = self._noted(unfound, answer)
            if step.action is Action.RESTORE:
                found = self.making.restored(unfound, step)
                if found is not None:
                    self._recorded(call, misses, restored=True)
                    return self.making.replay(found, call)
                step = self.making.decide(specialization, _whys(misses))
            if step.action is Action.RECORD:
                ran = self.making.record(unfound, step)
        if isinstance(ran, tuple):
            self._recorded(call, misses)
            self.making.write()
            return ran[0]
        return self.eagerly.run(step, ran, unfound)

    def _recorded(
        self, call: Call, misses: Mapping[Node, Miss], *, restored: bool = False
    ) -> None:
        self.fast_replays.tell()
        replays, why = self.call_log.tally["replays"], [*misses.values()]
        self.skips.recorded(call, replays, why, restored=restored)

    def _noted(
        self, unfound: Unfound, answer: Link | str | None
    ) -> tuple[Step, Mapping[Node, Miss]]:
        """Decide about a call that no recording fits; note why, and return it.

        ``answer`` is what the source has said, where it was asked.
        """
        call, specialization, before = unfound
        specialization.told(answer)
        absent = (Miss(Why.ABSENT, answer),) if isinstance(answer, str) else ()
        specialization.missed(self.recordings.tick())
        misses = self.cache.misses(call)
        step = self.making.decide(specialization, _whys(misses))
        new = self.cache.unfound(call, specialization, step, self.parameters, before)
        self.call_log.missed(call, misses, (*new, *absent))
        if step.action is Action.WARM_UP:
            self.fast_replays.tell()
            about = "; ".join(miss.about for miss in new)
            replays, is_new = (
                self.call_log.tally["replays"],
                specialization.missing == 1,
            )
            self.skips.watched(about, replays, new=is_new)
        return step, misses

    def _verified(self, found: Found, call: Call) -> Any:
        recordings, look = self.recordings, partial(self.eagerly.look, call)
        eager = partial(self.eagerly.as_recorded, found.node, call)
        replayed = partial(self.making.replay, found, call)
        try:
            storages = reachable(call, look(), recordings)
            label = found.node.label
            return verified(recordings, label, storages, eager, look, replayed)
        except InternalError:
            distrust(recordings, self.cache.nodes[found.node][1], found.node)
            raise

    # What users ask for.

    def warm(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Warm up and record for such arguments; arrays are left as they are."""
        recordings = self.recordings
        recordings.device.check_open(f"the runtime of {self.options.name}")
        try:
            call = self.parameters.describe(args, kwargs, recordings.integration)
            looked = self.eagerly.look(call)
        except Exception as error:
            if not (self._is_borne(error) and self.parameters.fits(args, kwargs)):
                raise
            if not self.eagerly.notes(error):
                self.skips.warn(skip_of(error))
            return
        storages = reachable(call, looked, recordings)
        before = Preserved(recordings.device, storages).save()
        rewind = recordings.device.framework.chance()
        tally, made = self.call_log.tally, self.call_log.tally["recordings"]
        skipped = self.skips.counts.total()
        try:
            with rehearsal():
                # At most four calls: a warm-up that compiles, a warm-up, a capture that
                # the next one is held against, and the recording.
                for _ in range(4):
                    if tally["recordings"] == made and not self._is_warm(call):
                        self.call(args, kwargs)
        finally:
            put_back(looked)
            before.restore()
            rewind()
        said = self.skips.counts.total() > skipped
        if tally["recordings"] == made and not said and not self._is_warm(call):
            self.skips.warn(_NEVER_ALIKE)

    def _is_warm(self, call: Call) -> bool:
        with self.recordings.device.lock:
            return self.cache.find(call) is not None

    def has_replayed(self) -> bool:
        """Return whether a call was replayed, as far as one knows without a lock."""
        return bool(self.call_log.tally["replays"] or self.fast_replays.players)

    def stats(self) -> Stats:
        """Return what has happened to the calls so far."""
        with self.recordings.device.lock:
            self.recordings.settle()
        return self.call_log.stats()

    def explain(self) -> str:
        """Return the recordings and the recent misses, as text."""
        with self.recordings.device.lock:
            behind = (each.cache.nodes for each in self.behind)
            nodes = [*self.cache.nodes, *chain.from_iterable(behind)]
            told = nodes, tuple(self.call_log.misses)
            return explain_function(self.options.name, self.stats(), *told)


def _whys(misses: Mapping[Node, Miss]) -> dict[Node, Why]:
    return {node: miss.why for node, miss in misses.items()}


def _played(runner: Runner, *args: Any, **kwargs: Any) -> Any:
    """Call a function that has no more than its runner."""
    if served() is not None:
        return runner.target()(*args, **kwargs)
    for play in runner.fast_replays.players:
        result = play(*args, **kwargs)
        if result is not MISS:
            return result
    return runner.call(args, kwargs)
