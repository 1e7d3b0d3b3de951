"""What to do with a call that no recording fits. Pure."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sapwood.errors import CaptureError
from sapwood.tree.group import Group, least_recent
from sapwood.tree.miss import Why
from sapwood.tree.node import Node
from sapwood.tree.skips import is_due

__all__ = ["Deed", "Step", "next_step"]


class Deed(enum.Enum):
    """How a call is run that is not replayed."""

    WARM_UP = "warm up"
    RESTORE = "restore"
    RECORD = "record"
    PASS_THROUGH = "pass through"  # noqa: S105 - passes no word


@dataclass(frozen=True, slots=True)
class Step:
    """A deed; the recordings to evict first; and what the new one must put up with.

    ``anywhere``: places that ever moved may be at any address; ``escapes``: outputs
    are copied out, so that no page of it is ever live. ``skips`` is why a call that is
    passed through cannot be recorded, where that is so.
    """

    deed: Deed
    evict: tuple[Node, ...] = ()
    anywhere: bool = False
    escapes: bool = False
    reason: str = ""
    skips: CaptureError | None = None


def next_step(
    group: Group,
    nodes: Sequence[Node],
    reasons: Mapping[Node, Why],
    max_recordings: int,
) -> Step:
    """Decide for a call in ``group``; ``nodes`` are all recordings of the function.

    ``reasons`` say why those of the group do not fit. At ``max_recordings`` a
    newcomer evicts the recording whose last use is longest ago, and only if it was
    itself missed twice since then: so a cycle through more shapes than fit replays
    what it has and runs the rest eagerly. What failed for a reason that may pass is
    tried again, each time after twice as many calls.
    """
    skips = group.unrecordable or (None if is_due(group.missing) else group.failed)
    if skips is not None:
        return Step(Deed.PASS_THROUGH, reason=str(skips), skips=skips)
    if group.warm is None and group.archive is None:
        return Step(Deed.WARM_UP)
    if group.is_wasteful():
        return Step(
            Deed.PASS_THROUGH,
            reason="its recordings wait for arrays at addresses that do not come again",
        )
    evict, escapes = _make_room(group, reasons)
    full = bool(evict) or escapes
    if len(nodes) - len(evict) >= max_recordings:
        victim = least_recent(n for n in nodes if n not in evict)
        if victim is None or group.missed_since(victim.last_used) < 2:
            return Step(
                Deed.PASS_THROUGH,
                reason=f"max_recordings={max_recordings}, and all that there are were "
                "replayed since this call was last missed",
            )
        evict.append(victim)
    deed = Deed.RECORD if group.archive is None else Deed.RESTORE
    return Step(deed, tuple(evict), anywhere=full, escapes=escapes)


def _make_room(group: Group, reasons: Mapping[Node, Why]) -> tuple[list[Node], bool]:
    """Return the variants to evict for another one, and whether it must escape."""
    evict = group.outdated()
    variants = [n for n in group.nodes if not n.escapes and n not in evict]
    if len(variants) < group.max_variants:
        return evict, False
    # One that waits for an address gives way to one that takes any.
    stale = least_recent(n for n in variants if reasons.get(n) is Why.MOVED)
    if stale is not None:
        return [*evict, stale], False
    return [*evict, *(n for n in group.nodes if n.escapes and n not in evict)], True
