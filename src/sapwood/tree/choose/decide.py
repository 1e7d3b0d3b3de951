"""What to do with a call that no recording fits. Pure."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sapwood.errors import CaptureError
from sapwood.tree.call.miss import Why
from sapwood.tree.choose.skips import is_due
from sapwood.tree.choose.specialization import Specialization, least_recent
from sapwood.tree.node.node import Node
from sapwood.units import Size

_SMALL: Final = Size(16 << 20)
"""Up to this size, to copy outputs out costs no more than a launch (10 us)."""

_NOBODY: Final[Mapping[Node, frozenset[int]]] = {}


class Action(enum.Enum):
    """How a call is run that is not replayed."""

    WARM_UP = "warm up"
    RESTORE = "restore"
    RECORD = "record"
    PASS_THROUGH = "pass through"  # noqa: S105 - passes no word


@dataclass(frozen=True, slots=True)
class Step:
    """An action, the recordings to evict first, and how the new one is to be made.

    With ``anywhere``, places that ever moved may be at any address. With ``escapes``,
    all outputs are copied out, so that no page of it is ever live; else those numbered
    in ``copies`` are. ``skips`` is the error of a call that is passed through because
    it cannot be recorded.
    """

    action: Action
    evict: tuple[Node, ...] = ()
    anywhere: bool = False
    escapes: bool = False
    copies: frozenset[int] = frozenset()
    reason: str = ""
    skips: CaptureError | None = None


def next_step(
    specialization: Specialization,
    nodes: Sequence[Node],
    reasons: Mapping[Node, Why],
    max_recordings: int,
    *,
    held: Mapping[Node, frozenset[int]] = _NOBODY,
    crowded: bool = False,
) -> Step:
    """Decide for a call in ``specialization``; ``nodes`` are all of the function.

    ``reasons`` say why its own do not fit, ``held`` which of their outputs
    somebody has; it is ``crowded`` where outputs hold more beyond their own bytes than
    they may. At ``max_recordings`` a newcomer evicts the recording used longest ago,
    and only if it was itself missed twice since then: so a cycle through more shapes
    than fit replays what it has. What failed for a reason that may pass is tried
    again, each time after twice as many calls.
    """
    skips = specialization.unrecordable or (
        None if is_due(specialization.missing) else specialization.failed
    )
    if skips is not None:
        return Step(Action.PASS_THROUGH, reason=str(skips), skips=skips)
    if specialization.link is None and (
        specialization.warm is None or specialization.wants_another
    ):
        return Step(Action.WARM_UP)
    others = [node for node in nodes if node not in specialization.nodes]
    evict, escapes, copies = _make_room(
        specialization, others, reasons, held, crowded=crowded
    )
    full = bool(evict) or escapes
    if len(nodes) - len(evict) >= max_recordings:
        victim = least_recent(n for n in nodes if n not in evict)
        if victim is None or specialization.missed_since(victim.last_used) < 2:
            return Step(
                Action.PASS_THROUGH,
                reason=f"max_recordings={max_recordings}, and all that there are were "
                "replayed since this call was last missed",
            )
        evict.append(victim)
    action = Action.RECORD if specialization.link is None else Action.RESTORE
    return Step(action, tuple(evict), anywhere=full, escapes=escapes, copies=copies)


def _make_room(
    specialization: Specialization,
    others: Sequence[Node],
    reasons: Mapping[Node, Why],
    held: Mapping[Node, frozenset[int]],
    *,
    crowded: bool,
) -> tuple[list[Node], bool, frozenset[int]]:
    """Return the variants to evict for another one, and which outputs it copies out.

    The second value says whether all are, the third which are, if not all. ``others``
    are the recordings of other specializations.
    """
    evict = specialization.outdated()
    variants = [n for n in specialization.nodes if not n.escapes and n not in evict]
    copied = frozenset[int]().union(*(node.copied() for node in variants))
    kept = _kept(variants, others, held)
    full = len(variants) >= specialization.max_variants
    if not (full or crowded or _are_small(kept, variants)):
        return evict, False, copied
    # A variant that was missed for an address is replaced by one that takes any.
    stale = least_recent(n for n in variants if reasons.get(n) is Why.MOVED)
    if stale is not None and (full or crowded):
        return [*evict, stale], crowded, copied
    evict += [n for n in specialization.nodes if n.escapes and n not in evict]
    most = max((len(node.output_masks) for node in variants), default=0)
    live = specialization.warm is not None and bool(specialization.warm.breaks)
    # A recording with eager regions copies all of its outputs out, or none.
    whole = crowded or live or len(kept) == most
    some = frozenset[int]() if whole else copied | kept
    stuck = [node for node in variants if not node.copied() >= some]
    return [*evict, *stuck], not stuck, some if stuck else frozenset()


def _are_small(kept: frozenset[int], variants: Sequence[Node]) -> bool:
    """Return whether outputs are kept, and so small that they are copied at once."""
    if not kept:
        return False
    made = (node.made() for node in variants)
    sizes = (sum(each[k].size for k in kept if k < len(each)) for each in made)
    return max(sizes) <= _SMALL


def _kept(
    variants: Sequence[Node],
    others: Sequence[Node],
    held: Mapping[Node, frozenset[int]],
) -> frozenset[int]:
    """Return which outputs of ``variants`` are kept.

    An output that is held of several recordings at once is kept by the user, whichever
    calls they are of. Of one recording alone, any output may be held until a name is
    bound anew, unless it is one that ``others`` copy out.
    """
    usual = frozenset[int]().union(*(node.copied() for node in others))
    counts = Counter(k for node in (*variants, *others) for k in held.get(node, ()))
    mine = frozenset[int]().union(*(held.get(node, ()) for node in variants))
    return frozenset(k for k in mine if counts[k] > 1 or k in usual)
