"""A capture held against what was seen before: does the same come again?

Some functions do other work in captures, because what they call asks whether one is on:
libraries leave out what waits for the device, for example. Such a capture is not held
against the warm-up, but launched once; the next one is held against it.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeAlias

from sapwood.errors import CaptureError
from sapwood.tree.node.objects import agree, are_others, first_other
from sapwood.tree.node.outputs import Outputs, made_anew
from sapwood.tree.watch.session import Session, Unready, Warm
from sapwood.tree.watch.watch import Caught

Added: TypeAlias = tuple[Hashable, ...]
"""What tells what a function has added to numbers and lists."""


def code_of(session: Session) -> frozenset[str]:
    """Return what tells apart the compiled code that a function has run."""
    return frozenset(name for name, _ in session.code)


def check_told(warm: Warm | None) -> None:
    """Raise `CaptureError` where nobody could tell if a capture did other work.

    That is where somebody asks whether one is on, and nobody says what is launched.
    """
    if warm is not None and warm.asks and not warm.ops:
        raise CaptureError(
            "it asks whether a capture is on, and nobody tells what it does else",
            remedy="Decide that outside the graphed function, or in one marked with "
            "@sw.eager",
        )


def concluded(
    error: CaptureError | Caught | None,
    warm: Warm | None,
    session: Session,
    outputs: Outputs,
    added: Added = (),
) -> CaptureError | Caught | Warm | None:
    """Return an error there was, or else the outcome of a capture that is not run yet.

    Raises `CaptureError` where the result holds an object that it made: nobody can take
    that apart, and if it holds what stood in for an argument, that is refused from then
    on. `Unready`, where a warm-up that does the work of captures may tell more.
    """
    if error is not None:
        return error
    outcome = outcome_of(warm, session, outputs, added)
    sealed = sealed_in(outputs, outcome, warm)
    if session.stands_in and isinstance(outcome, CaptureError):
        raise outcome
    if sealed is None:
        return outcome
    raise outcome if isinstance(outcome, CaptureError) else Unready(sealed.what)


def sealed_in(
    outputs: Outputs, outcome: CaptureError | Warm | None, warm: Warm | None
) -> CaptureError | None:
    """Return an error about an object in a result that is another than in the warm-up.

    Nobody can take it apart: if it holds what the capture has made, or what stood in
    for an argument, that is not to come to the user.
    """
    if outcome is None or warm is None or not are_others(outputs.told(), warm.told):
        return None
    anew = first_other(outputs.told(), warm.told)
    if anew is not None:
        return made_anew(anew)
    return CaptureError(
        "an object in the result holds something else in a capture",
        remedy="Return arrays and plain values",
    )


def outcome_of(
    warm: Warm | None, session: Session, outputs: Outputs, added: Added = ()
) -> CaptureError | Warm | None:
    """Say whether a capture is what comes again, as far as that is known.

    That is an error where it is not, and where only another capture can show it, what
    to hold that one against.
    """
    error, code = _differs(warm, session, outputs, added), code_of(session)
    # Without ops from the warm-up, only another capture can show whether host data
    # that the function made is the same each time.
    told = warm is not None and session.hosts and not (warm.ops or warm.captured)
    asks = warm is not None and (warm.asks or told)
    if warm is None or not asks or (error is None and warm.code == code):
        return error
    return Warm(
        session.digests(),
        warm.stays,
        outputs.told(),
        tuple(session.breaks),
        warm.room,
        code,
        captured=True,
        branches=session.branches,
        writes=session.writes,
        sees=session.sees,
        added=added,
    )


class Reordered(CaptureError):
    """A capture did the work of its warm-up in another order.

    It may be as before in the next: torch runs what two passes back have in common in
    the order of numbers that two threads count by themselves.
    """


def _differs(
    warm: Warm | None, session: Session, outputs: Outputs, added: Added
) -> CaptureError | None:
    """Return an error where a capture did other things than its warm-up."""
    if warm is None:
        return None
    ops = session.digests()
    what, where = None, None
    for i, (now, then) in enumerate(zip(ops, warm.ops, strict=False)):
        if now != then:
            what, where = f"op {i}, {session.ops[i][0]},", session.where(i)
            break
    else:
        if len(ops) != len(warm.ops):
            what = f"the number of ops ({len(warm.ops)}, then {len(ops)})"
        elif tuple(session.breaks) != warm.breaks:
            what = "what an eager region is passed, or returns,"
        elif not agree(outputs.told(), warm.told):
            anew = first_other(outputs.told(), warm.told)
            if anew is not None:
                return made_anew(anew)
            what = "a plain value in the result"
        elif added != warm.added:
            what = "what it assigns, or adds to a number or list that it keeps,"
    if what is None:
        return None
    same = len(ops) == len(warm.ops) and sorted(ops) == sorted(warm.ops)
    kind = Reordered if ops != warm.ops and same else CaptureError
    return kind(
        f"{what} differs between two calls with the same arguments: it depends on "
        "something that the function makes itself (time, a random number, a counter)",
        where=where,
        remedy="Pass that value as an argument, or draw it from a device generator",
    )
