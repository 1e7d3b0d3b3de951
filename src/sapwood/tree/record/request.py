"""What the recorder is told of a call that is to be recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sapwood.memory.pages import Extent
from sapwood.tree.call.parameters import Parameters
from sapwood.tree.call.signature import Call
from sapwood.tree.choose.decide import Step
from sapwood.tree.choose.recordings import Recordings
from sapwood.tree.choose.specialization import Specialization
from sapwood.tree.guards import Survey, Surveyor
from sapwood.tree.record.build import Plan
from sapwood.tree.record.taking import (
    RecordRequest,
)

__all__ = ["place_order"]


def place_order(
    call: Call,
    specialization: Specialization,
    step: Step,
    before: Survey,
    *,
    fn: Callable[..., Any],
    name: str,
    parameters: Parameters,
    surveyor: Surveyor,
    pinned: frozenset[int],
    donated: frozenset[int],
    candidates: Sequence[Extent],
    recordings: Recordings,
) -> RecordRequest:
    """Return the order for a recording of ``fn``, which is called ``name``.

    ``before`` surveys the call; ``pinned`` and ``donated`` places were declared so.
    """
    names, number = parameters.names(call), recordings.number("recording")
    return RecordRequest(
        fn=fn,
        plan=Plan(
            label=f"{name}#{number}",
            number=number,
            parent=None if recordings.last is None else recordings.last.label,
            call=call,
            donated=donated,
            escapes=step.escapes,
            candidates=candidates,
            copies=step.copies,
        ),
        names=[
            " and ".join(names[k] for k in specialization)
            for specialization in call.given.groups()
        ],
        pinned=pinned,
        specialization=specialization,
        anywhere=step.anywhere,
        before=before,
        bind=parameters.bind,
        survey=surveyor.survey,
    )
