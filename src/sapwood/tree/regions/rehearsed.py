"""A warm-up of a function with eager regions, which are watched apart."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from sapwood.errors import CaptureError
from sapwood.memory.device import routed
from sapwood.tree.call.signature import NONE, Call
from sapwood.tree.choose.recordings import Recordings
from sapwood.tree.guards import Slot, Survey, lists_added_to
from sapwood.tree.guards.changes import BoundArray, Change
from sapwood.tree.regions.crossing import (
    REMEDY,
    Passed,
    Ran,
    changed_by,
    only_returns,
    refuse_manner,
    returned,
    told_later,
)
from sapwood.tree.regions.flow import passed_on
from sapwood.tree.regions.rerun import Begun, Rerun
from sapwood.tree.watch.session import (
    Between,
    EagerRegion,
    Session,
    Warm,
    current,
    entered,
    run_live,
)
from sapwood.tree.watch.watch import Allocations, Watched, warm_up


class Rehearsed:
    """Runs a warm-up and the eager regions in it, whose writes are their own affair.

    ``changes`` are those that recorded parts made, ``crossing`` the allocations, by
    their order, that were alive when a region ran. What a recording in parts would meet
    behind an eager region, when it is too late, is refused here.
    """

    def __init__(
        self,
        session: Session,
        recordings: Recordings,
        look: Callable[[], Survey],
        before: Survey,
    ) -> None:
        self._session, self._integration = session, recordings.integration
        self._look, self._before = look, before
        self._device = recordings.device
        self._outside = self._device.framework.manner()
        self.allocations = Allocations(self._device)
        self._told: int = 0
        self.changes: list[Change] = []
        self.crossing: set[int] = set()
        self.acts = False

    def failed(self) -> Warm:
        """Return what a run has shown that has failed."""
        self._settle()
        session = self._session
        ops, breaks = session.digests(), tuple(session.breaks)
        wrote, seen = session.writes, session.sees
        return Warm(ops, frozenset(), (), breaks, writes=wrote, sees=seen)

    def run(
        self,
        fn: Callable[..., Any],
        call: Call,
        begun: Begun | None = None,
        rerun: Rerun | None = None,
    ) -> Watched:
        """Run a function as a warm-up; its exceptions pass.

        Eager regions that run are noted in ``begun``. Those that ran before, of a
        ``rerun``, do not run again.
        """
        session, args, kwargs = self._session, call.args, call.kwargs
        asked = Passed(args, kwargs, self._integration)
        answers = rerun and partial(rerun.answer, session)
        session.between = partial(self._between, asked, begun, answers or run_live)
        if begun is not None:
            begun.appends(lists_added_to(self._before))
            begun.reads(self._before.guards(lambda _: True))
        del asked
        try:
            made = self.allocations
            with (
                self._before.listening() as session.exactly,
                self._before.acting(self._refuse_act),
            ):
                watched = warm_up(fn, args, kwargs, self._device, session, made)
        finally:
            # Else all that was read would live until garbage is collected.
            session.between = None
        self._settle()
        return watched

    def _refuse_act(self, what: str, where: str | None) -> None:
        """Refuse what the function does outside, where no eager region does it."""
        heard = current() is self._session
        # Of what is not of the function's, who asks for a full graph is not told.
        if heard or (where is None and self._session.tolerant):
            self.acts = True
            self._session.refuse(
                f"it {what}, and no replay would do that again",
                "Do that outside the graphed function, or in a function of its own "
                "with @sw.eager, which runs in every call",
                where,
            )

    def _between(
        self,
        asked: Passed,
        begun: Begun | None,
        answer: Between,
        part: EagerRegion,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Run an eager region of a call that was ``asked`` so, and note it."""
        session, framework = self._session, self._device.framework
        refuse_manner(part.name, framework.manner(), self._outside, session)
        returns = only_returns(warm_up.__code__)
        goes = passed_on(part, session, warm_up.__code__)
        with framework.resting():
            found = None
            if part.sees:
                with self._outside():
                    self._settle()
                found = self._before.guards(lambda _: True)
            self.crossing |= self.allocations.alive().keys()
            passed = Passed(args, kwargs, self._integration)
            if begun is not None:
                begun.binds(self.bound())
                begun.enters(passed, session, writes=part.writes, found=found)
            try:
                with entered(None), routed(None):
                    result = answer(part, args, kwargs)
            except Exception as error:
                if begun is not None:
                    begun.leaves(Ran(part.name, passed, None, error))
                raise
            finally:
                if part.sees:
                    with self._outside():
                        self._before = self._look()
                if begun is not None:
                    begun.reads(
                        self._before.guards(lambda _: True) if part.sees else None
                    )
            if begun is not None:
                begun.leaves(Ran(part.name, passed, result))
            goes = goes and goes.settled(result)
            got = returned(
                part.name,
                result,
                passed,
                NONE,
                self._integration,
                is_last=returns,
                strict=not session.tolerant,
                passed_on=goes,
            )
        if got.refused:
            self._refuse(CaptureError(got.refused, remedy=REMEDY))
        changed = None if returns else changed_by(asked, part.name)
        if changed is not None:
            self._refuse(changed)
        session.broken(
            part,
            passed.text(),
            got.kind,
            branches=got.branches,
            passed_on=(goes, result),
        )
        return result

    def bound(self) -> list[tuple[Slot, Any]]:
        """Return what was bound since the last eager region."""
        new, self._told = self.changes[self._told :], len(self.changes)
        return [(x.slot, x.new) for x in new if isinstance(x, BoundArray)]

    def _refuse(self, error: CaptureError) -> None:
        # Where the call goes on, nobody asks what is undone.
        error = told_later(error) if self._session.tolerant else error
        self._session.refuse(error.what, error.remedy)

    def _settle(self) -> None:
        """Note what was written since the last eager region."""
        after = self._look()
        self.changes += after.changes_since(self._before)
        self._before = after
