"""What to do with a call that no recording fits. Pure."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from sapwood.tree.group import Group, least_recent
from sapwood.tree.node import Node

__all__ = ["Deed", "Step", "next_step"]


class Deed(enum.Enum):
    """How a call is run that is not replayed."""

    WARM_UP = "warm up"
    RECORD = "record"
    PASS_THROUGH = "pass through"


@dataclass(frozen=True, slots=True)
class Step:
    """A deed; the recordings to evict first; whether the new one must fit always."""

    deed: Deed
    evict: tuple[Node, ...] = ()
    universal: bool = False
    reason: str = ""


def next_step(group: Group, nodes: Sequence[Node], max_recordings: int) -> Step:
    """Decide for a call in ``group``; ``nodes`` are all recordings of the function.

    At ``max_recordings`` a newcomer evicts the recording whose last use is longest
    ago, and only if it was itself missed twice since then: so a cycle through more
    shapes than fit replays what it has and runs the rest eagerly.
    """
    if group.unrecordable is not None:
        return Step(Deed.PASS_THROUGH, reason=str(group.unrecordable))
    if group.warm is None:
        return Step(Deed.WARM_UP)
    evict = group.outdated()
    universal = sum(
        not n.escapes and n not in evict for n in group.nodes
    ) >= group.max_variants
    if universal:
        evict += [n for n in group.nodes if n.escapes and n not in evict]
    if len(nodes) - len(evict) >= max_recordings:
        victim = least_recent(n for n in nodes if n not in evict)
        if victim is None or group.missed_since(victim.last_used) < 2:
            return Step(
                Deed.PASS_THROUGH,
                reason=f"{max_recordings} recordings are in use, and all were "
                "replayed since this call was last missed",
            )
        evict.append(victim)
    return Step(Deed.RECORD, tuple(evict), universal)
