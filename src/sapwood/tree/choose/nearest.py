"""Why a call has no recording to be admitted: what is new about it. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

from sapwood.tree.call.miss import Miss, Why
from sapwood.tree.choose.decide import Action, Step
from sapwood.tree.choose.specialization import Specialization

__all__ = ["unfound", "unlike"]


def unfound(
    specialization: Specialization, step: Step, *, known: bool, about: str
) -> tuple[Miss, ...]:
    """Return why a call has nothing to be replayed, by what is done with it instead.

    ``known`` says whether the signature was seen before, ``about`` what is `unlike`.
    """
    if step.action is Action.PASS_THROUGH:
        refused = specialization.unrecordable is not None
        return (Miss(Why.EAGER, "it cannot be recorded" if refused else step.reason),)
    if step.action is Action.WARM_UP:
        return (Miss(Why.AMBIENT),) if known else (Miss(Why.UNSEEN, about),)
    if specialization.nodes:
        return ()
    return (Miss(Why.WARMED if step.action is Action.RECORD else Why.STORED),)


def unlike(key: Hashable, others: Iterable[Hashable], names: Sequence[str]) -> str:
    """Say how a call's key differs from the nearest of others, if there are any.

    ``names`` are those of the leaves. Of equally near ones the last counts.
    """
    structure, parts, _ = _taken_apart(key)
    nearest: list[str] | None = None
    said = ""
    for other in others:
        shape, leaves, _ = _taken_apart(other)
        if shape != structure:
            said = said or "arguments are passed or nested otherwise"
            continue
        pairs = zip(names, parts, leaves, strict=True)
        differ = [name for name, now, then in pairs if now != then]
        if nearest is None or len(differ) <= len(nearest):
            nearest = differ
    if nearest is None:
        return said
    if not nearest:
        return "other arrays share memory, or are one"
    return f"{' and '.join(nearest)} differ{'s' if len(nearest) == 1 else ''}"


def _taken_apart(key: Hashable) -> tuple[Hashable, Sequence[Hashable], Hashable]:
    parts: Any = key
    structure, leaves, sharing = parts
    return structure, leaves, sharing
