"""Calls of a graphed function that run eagerly: as a warm-up, or without a recording.

As of replays, a later `step` ends their outputs, and the leases of donated arguments
end with the call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import UnionType
from typing import Any, Final, NamedTuple

from sapwood.errors import CaptureError
from sapwood.tree.call.options import Options
from sapwood.tree.call.parameters import Parameters
from sapwood.tree.call.signature import Call, Unread
from sapwood.tree.choose.decide import Action, Step
from sapwood.tree.choose.function_cache import FunctionCache
from sapwood.tree.choose.recordings import Recordings
from sapwood.tree.choose.skips import Skips
from sapwood.tree.choose.specialization import Specialization
from sapwood.tree.guards import Survey, Surveyor, changes, kept_states
from sapwood.tree.nests.containers import arrays_in, taken_apart
from sapwood.tree.node.node import Node
from sapwood.tree.node.objects import told
from sapwood.tree.node.outputs import analyse
from sapwood.tree.node.passed_on import left_of
from sapwood.tree.record import taking
from sapwood.tree.record.host_data import lasting
from sapwood.tree.record.repeated import Reordered
from sapwood.tree.regions.crossing import told_later
from sapwood.tree.regions.rehearsed import Rehearsed
from sapwood.tree.regions.rerun import Begun, Rerun, Strayed
from sapwood.tree.run.verify import reachable
from sapwood.tree.tell.call_log import CallLog
from sapwood.tree.watch.capturer import GoesBack, Undetached
from sapwood.tree.watch.session import Raised, Session, Unready, Warm
from sapwood.tree.watch.watch import Caught, Watched, warm_up
from sapwood.units import Size

_ANY: Final = Size(1 << 62)
_REORDERS: Final = 4
_ASSIGNING: Final = 8
"""In so many warm-ups, plain values that are assigned may be others each time. Of as
many kinds of calls, torch.compile compiles each: its ``recompile_limit``."""

_ACTS: Final = 4
"""So many kinds of calls may do something outside in one warm-up, and not again."""


class Unfound(NamedTuple):
    """A call that no recording fits, and a survey of what it reaches before it runs."""

    call: Call
    specialization: Specialization
    before: Survey


class Eagerly:
    """Runs calls of one function eagerly, and holds what is known of the function.

    ``target`` returns the function. Of a method whose object is gone it raises.
    ``assigning`` counts the warm-ups that assigned plain values since a call was
    recorded, ``acted`` the first ones of their kind that did something outside.
    ``goes_back`` says that a result required grad; not of one that runs
    calls ``of`` another, with gradients, and has counts and skips in common with it.
    """

    def __init__(
        self,
        target: Callable[[], Callable[..., Any]],
        options: Options,
        recordings: Recordings,
        of: Eagerly | None = None,
    ) -> None:
        self.target, self.options, self.recordings = target, options, recordings
        integration = recordings.integration
        self._is_array, self._of, self.goes_back = integration.is_array, of, False
        self.parameters: Parameters = (
            of.parameters if of else Parameters(target(), options.name)
        )
        limit = max(1024, 4 * options.max_recordings)
        self.cache = FunctionCache(recordings, limit=limit)
        self.skips: Skips = (
            of.skips if of else Skips(options, recordings, self.cache.nodes, target)
        )
        self.call_log: CallLog = (
            of.call_log
            if of
            else CallLog(options.name, self.parameters, recordings, self.skips)
        )
        if of:
            self.skips.shared(self.cache.nodes)
        self.surveyor = Surveyor(of.target if of else target, integration)
        self.assigning = self.acted = 0

    def warm_up(self, unfound: Unfound, rerun: Rerun | None = None) -> Any:
        """Run a call eagerly and watch what it does.

        If it is a ``rerun``, regions that ran in the call are not run again.
        """
        call, specialization, before = unfound
        recordings, strict = self.recordings, self.options.fullgraph
        cached = before.cached()
        apart = specialization.apart if rerun else specialization.wants_another
        watching = Session(
            tolerant=not strict,
            rehearses=not apart,
            splits=not strict,
            decides=specialization.reads_decide,
            as_captured=apart,
            holds=before.holds,
            guarded=before.guards_hosts,
            reads=before.arrays,
        )
        capturer = recordings.capturer
        histories = capturer.histories(call.given.arrays) if capturer else {}
        live = Rehearsed(watching, recordings, lambda: self.look(call), before)
        if apart and rerun is None:
            watched = self._as_captured(live, call, before)
            if isinstance(watched, Strayed):
                return self._strayed(watched, unfound)
        else:
            watched = live.run(self.target(), call, rerun=rerun)
        self.assigning += _assigns(live)
        # Once only: a cache that is emptied at each call would be filled at each, and
        # the function never be recorded. Then it computes in captures, too.
        if not specialization.remembers and (cached.fuller() or self._fills(live)):
            watching.prepares = specialization.remembers = True
        left = left_of(watched.result, live.changes, watching.passed_on)
        found = self._found(watching, watched, live, before, histories)
        error = found or self._clock(before)
        if left is None:
            specialization.is_unclear()
            watching.prepares = True
        if error is None and self._shows(watched.result, before):
            watching.prepares = True
        if self.notes(error) and not watching.breaks:
            self.call_log.warmed_up(call)
            return watched.result
        with recordings.device.lock:
            self._lease_loosely(watched, watching)
            specialization.warm = None
            if error is None and not watching.prepares:
                specialization.warmed(self._shown(watching, watched, live, left))
            if error is None:
                self.call_log.warmed_up(call)
                self.skips.settled(call)
            bound = [x.new for x in live.changes if isinstance(x, changes.Repeated)]
            self._donate(call, (watched.result, [*filter(self._is_array, bound)]))
        if error is not None:
            self._refused(specialization, error, call, live)
        return watched.result

    def _refused(
        self,
        specialization: Specialization,
        error: CaptureError,
        call: Call,
        live: Rehearsed,
    ) -> None:
        """Note why a warm-up shows that such calls cannot be recorded.

        What was done outside may have been done once and for all: one more shows that.
        """
        if live.acts and not specialization.acted and self.acted < _ACTS:
            specialization.acted, self.acted = True, self.acted + 1
        else:
            self.cannot(specialization, error, call, settles=_assigns(live))
        self.call_log.passed_through(call, str(error))

    def notes(self, error: Exception | None) -> bool:
        """Note whether calls can be recorded with the way back, and only so."""
        only_back = isinstance(error, GoesBack | Undetached)
        found = only_back and self._of is None and not self.options.donate
        self.goes_back |= found
        return found

    def _as_captured(
        self, live: Rehearsed, call: Call, before: Survey
    ) -> Watched | Strayed:
        """Run a call whose code is told that a capture is on.

        Some raises for that alone. Then the call has strayed: nothing of it counts.
        """
        device, integration = self.recordings.device, self.recordings.integration
        reached, bind = reachable(call, before, self.recordings), self.parameters.bind
        arguments = partial(bind, call.args, call.kwargs)
        begun = Begun(device, reached, None, arguments, most=_ANY)
        begun.watch((call.args, call.kwargs), (), (), integration, few=True)
        states = kept_states(before)
        try:
            watched = live.run(self.target(), call, begun)
        except Exception as error:  # noqa: BLE001 - raised again if it still comes
            caught = Caught(error)
        else:
            begun.forget()
            return watched
        begun.warm = live.failed()
        begun.binds(live.bound())
        if not begun.warm.writes:
            begun.drop_regions()
        if not begun.ran:
            taking.undo(before, states)
        return Strayed(caught, begun)

    def _strayed(self, strayed: Strayed, unfound: Unfound) -> Any:
        """Run a call eagerly that has strayed, and remember if only captures raise."""
        call, specialization, _ = unfound
        result = self.rerun(strayed, call)
        if isinstance(strayed.error, Caught):
            self.cannot(specialization, taking.raised_within(strayed.error), call)
        return result

    def _found(
        self,
        watching: Session,
        watched: Watched,
        live: Rehearsed,
        before: Survey,
        histories: Mapping[int, object],
    ) -> CaptureError | None:
        """Return what a warm-up found that no replay could repeat."""
        capturer = self.recordings.capturer
        error = watching.unrecordable or taking.endless(watched.result, self._is_array)
        error = error or self._keyed(watched.result, live, before)
        error = error or lasting(watching)
        if error is None and not watching.prepares:
            repeats = self._repeats(watching, live, before)
            error = taking.plain_changes(live.changes, but=repeats, looked=before)
            error = error or taking.also_returned(
                live.changes, watched.result, self._is_array
            )
        if error is None and self._of is None and capturer is not None:
            # Refused now: when a capture finds it, eager regions have already run.
            error = capturer.refusal(watched.result, histories)
        return error

    def _keyed(
        self, result: Any, live: Rehearsed, before: Survey
    ) -> CaptureError | None:
        """Refuse arrays that are keys of what a call returns, binds or appends."""
        items = (
            each.item for each in live.changes if isinstance(each, changes.Repeated)
        )
        nests = [taken_apart(result, self._is_array)[1]]
        nests += [each.structure for each in items if each is not None]
        return taking.keyed(nests, self._is_array, before.arrays)

    def _repeats(
        self, watching: Session, live: Rehearsed, before: Survey
    ) -> type[changes.Repeated] | UnionType:
        """Return which writes replays are to repeat."""
        apart = watching.asks and not watching.as_captured
        if watching.sees and not apart:
            # Behind an eager region, nobody would know how to take back a sum. One in
            # front of a question may be none of the capture's.
            return changes.BoundArray
        follows = changes.Assigned | changes.Rebound
        if not any(isinstance(each, follows) for each in live.changes):
            return changes.Repeated
        # A recording is replayed only where an earlier value comes again. What a clock
        # has told may be the same in the warm-up and in the capture, and not later.
        lasts = self.assigning <= _ASSIGNING and before.clock() is None
        return changes.Repeated if lasts else changes.BoundArray | changes.Added

    def _shows(self, result: Any, before: Survey) -> bool:
        """Return whether a result has objects of the program's, not read in whole.

        A replay makes them anew of what is in them: that is to be guarded first.
        """
        containers = taken_apart(result, self._is_array)[2]
        # Those of arguments are compared by the signature.
        reached = (each for each in containers if before.number_of(each) >= 0)
        return self.surveyor.shows(reached)

    def _fills(self, live: Rehearsed) -> bool:
        """Return whether later calls may find ready what a warm-up has written.

        Of what else it has written these calls tell. Who asks for the full graph is
        told at once, for this call was none.
        """
        filled = any(isinstance(each, changes.Filled) for each in live.changes)
        return filled and self.assigning <= _ASSIGNING and not self.options.fullgraph

    def _clock(self, before: Survey) -> CaptureError | None:
        """Refuse a clock where nobody tells what ops are made of."""
        path = None if self.recordings.tells else before.clock()
        if path is None:
            return None
        return CaptureError(
            f"the function may read a clock, {path}, which no replay would read again",
            remedy="Read it outside the graphed function, or in one emptied with "
            "@sw.eager",
        )

    def _shown(
        self,
        watching: Session,
        watched: Watched,
        live: Rehearsed,
        left: tuple[Any, Sequence[changes.Change]] | None,
    ) -> Warm:
        result, written = left or (watched.result, live.changes)
        # Only constants means that nobody tells warm-ups of ops. Digests of them would
        # never agree with those of a capture, which is told of all.
        return Warm(
            watching.digests() if watching.has_ops() else (),
            watched.stays | live.crossing,
            told(result, self._is_array),
            tuple(watching.breaks),
            watching.room,
            frozenset(name for name, _ in watching.code),
            asks=watching.asks,
            captured=watching.as_captured,
            branches=watching.branches,
            writes=watching.writes,
            sees=watching.sees,
            added=taking.added(written, self._is_array),
        )

    def run(
        self, step: Step, failed: CaptureError | Strayed | None, unfound: Unfound
    ) -> Any:
        """Run a call eagerly, as a step says, or as its recording has ``failed``.

        Nothing of it has run, unless it has strayed.
        """
        if isinstance(failed, Strayed):
            return self._strayed(failed, unfound)
        (call, specialization, before), skips = unfound, step.skips
        if failed is not None:
            skips = specialization.unrecordable or specialization.failed
        if skips is not None:
            lasts = specialization.unrecordable is not None
            if lasts and self.cache.nodes and not self.options.donate:
                guards = before.guards(lambda _: False)
                self.skips.guard(call, guards, str(skips))
            return self.skip(skips, call, lasts=lasts)
        again = isinstance(failed, Unready) and not failed.moved
        if again or step.action is Action.WARM_UP:
            return self.warm_up(unfound)
        reason = step.reason if failed is None else str(failed)
        result = self.pass_through(call, reason)
        if isinstance(failed, Raised):  # and an eager run has not
            specialization.unrecordable = failed.anew()
            self.skips.failed(failed, call)
        return result

    def once(self, unfound: Unfound, outcome: CaptureError | Caught | Warm) -> None:
        """Note the outcome of a recording that was launched for one call alone.

        Raises the exception of the function, if it had one.
        """
        call, specialization, _ = unfound
        if isinstance(outcome, Warm):
            specialization.launched(outcome)
            self.call_log.warmed_up(call)
            return
        if isinstance(outcome, Caught):
            outcome.reraise()
        if isinstance(outcome, Reordered) and specialization.reorders < _REORDERS:
            specialization.reorders += 1
            specialization.warm = None
        else:
            self.cannot(specialization, outcome, call)
        self.call_log.passed_through(call, str(outcome))

    def rerun_of(self, begun: Begun) -> Rerun:
        """Return what runs a call again that has begun in parts."""
        recordings = self.recordings
        integration, tells = recordings.integration, recordings.tells
        return Rerun(begun, integration, recordings.device, tells=tells)

    def rerun(self, strayed: Strayed, call: Call, run: Rerun | None = None) -> Any:
        """Run a call eagerly that has strayed, as if nothing of it had run.

        Where it was tried already, by ``run``, all has been put back. Raises what it
        ended with where that cannot be: then all is as it was left.
        """
        recordings, error, begun = self.recordings, strayed.error, strayed.begun
        watched = None
        if isinstance(error, Caught):
            error.forget_frames()
        try:
            if run is None and begun.warm is not None:
                made = self.rerun_of(begun)
                run = made if made.put_back() else None
            if run is not None:
                watched = run.run(self.target(), call, self.look(call))
        except BaseException:
            if isinstance(error, Caught):
                error.taken()  # it may be the same, and names these frames
            raise
        finally:
            # The traceback of what a region raised holds frames of this call. Arrays in
            # `begun` would live as long as the user keeps the exception.
            strayed.begun.forget()
        if watched is None:
            strayed.reraise()
        why = (
            taking.raised_within(error)
            if isinstance(error, Caught)
            else told_later(error)
        )
        with recordings.device.lock:
            self._lease_loosely(watched, run.session if run else None)
            self._donate(call, watched.result)
            self.call_log.passed_through(call, str(why))
        return watched.result

    def as_recorded(self, node: Node, call: Call) -> Any:
        """Run a call eagerly, with the work that a recording of it is of."""
        session = Session(tolerant=True, as_captured=True) if node.apart else None
        return warm_up(
            self.target(), call.args, call.kwargs, self.recordings.device, session
        ).result

    def cannot(
        self,
        specialization: Specialization,
        error: CaptureError,
        call: Call,
        *,
        settles: bool = False,
    ) -> None:
        """Remember that calls of a specialization are never recorded, or raise why.

        ``settles``: what calls find differs from one to the next, and later may not.
        """
        if self.options.fullgraph:
            raise error.anew()
        specialization.unrecordable = error.anew()
        note = self.skips.may_settle if settles else self.skips.failed
        note(error, call)

    def skip(self, error: CaptureError, call: Call | Unread, *, lasts: bool) -> Any:
        """Run a call eagerly that cannot be recorded, and say so before it runs.

        If that ``lasts``, calls that look like it are not looked at for a while.
        """
        if self.options.fullgraph:
            raise error.anew()
        if lasts:
            self.skips.learn(str(error), call)
        self.skips.warn(error)
        return self.pass_through(call, str(error))

    def pass_through(self, call: Call | Unread, reason: str) -> Any:
        """Run a call eagerly that is not recorded, for a reason."""
        device, known = self.recordings.device, call if isinstance(call, Call) else None
        watched = warm_up(self.target(), call.args, call.kwargs, device, None)
        with device.lock:
            self._lease_loosely(watched, None)
            if known is not None:
                self._donate(known, watched.result)
            self.call_log.passed_through(known, reason)
        return watched.result

    def plainly(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run a call eagerly that was counted, and of which nothing more is known.

        Steps end what it makes where its memory is asked of this device.
        """
        device = self.recordings.device
        if device.closed:
            device.check_open(f"the runtime of {self.options.name}")
        if not self.recordings.steps_end():
            return self.target()(*args, **kwargs)
        watched = warm_up(self.target(), args, kwargs, device, None)
        with device.lock:
            self._lease_loosely(watched, None)
        return watched.result

    def _lease_loosely(self, watched: Watched, watching: Session | None) -> None:
        """Have a later step end what the function made, as far as that is known."""
        integration, made = self.recordings.integration, [*watched.storages]
        result, is_array = watched.result, integration.is_array
        if watching and watching.made and not taking.endless(result, is_array):
            arrays = arrays_in(result, is_array)
            shown = (look.storage for look in map(integration.look, arrays))
            made += watching.made.intersection(shown)
        for storage in made:
            self.recordings.leases.begin_loose(storage)

    def _donate(self, call: Call, result: Any) -> None:
        """End the leases of donated arguments, as a replay does."""
        given, integration = call.given, self.recordings.integration
        declared = self.parameters.declared(call, self.options.donate)
        if not declared or taking.endless(result, self._is_array):
            return  # of a result that has no end nobody can say what it shows
        outputs = analyse(result, (), given.arrays, integration)
        for i in declared - outputs.shown(given, integration):
            self.recordings.leases.donate(call.given.storages[i], self.options.name)

    def look(self, call: Call) -> Survey:
        """Survey what the function reaches in a call."""
        return self.surveyor.survey(self.parameters.bind(call.args, call.kwargs))


def _assigns(live: Rehearsed) -> bool:
    """Return whether a warm-up has bound what the next one may find, or be without."""
    return any(
        isinstance(each, changes.Assigned | changes.Filled)
        or (isinstance(each, changes.Rebound) and not each.alike)
        for each in live.changes
    )
