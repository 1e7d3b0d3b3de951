"""Search for a plan below a height, for few buffers that hardly fit.

Each dive places buffers from the bottom up, in a ranking of its own, and goes back
where something can no longer fit: not to the last choice, but to the last one that
takes part in the conflict. Buffers that conflicts are about rank higher in the next.
"""

from __future__ import annotations

import itertools

from sapwood.memory.planner.dive import Dive
from sapwood.memory.planner.effort import Effort
from sapwood.memory.planner.instance import Instance, Wholes
from sapwood.memory.planner.learners import learners
from sapwood.memory.planner.sections import Sections

__all__ = ["FEW", "search"]

FEW = 1000
"""With more buffers than this, a search does not get far in any usual time."""

_NODES = 100
_SHARES = (0.0, 0.0, 0.9, 0.0, 0.5, 0.75)
"""How far above the goal dives aim, as parts of the way to the best height so far."""


def search(instance: Instance, begins: Wholes, effort: Effort, seed: int) -> Wholes:
    """Return the best plan found, at least as good as ``begins``, in grains.

    ``instance`` is exact, and has buffers. A step is a dive.
    """
    sections = Sections.of(instance)
    best, height = begins, instance.height(begins)
    ranked = learners(instance, seed)
    for turn in itertools.count():
        if not effort.step(height):
            return best
        learner = ranked[turn % len(ranked)]
        share = _SHARES[turn // len(ranked) % len(_SHARES)]
        aim = min(effort.enough + int((height - effort.enough) * share), height - 1)
        dive = Dive(sections, learner.ranking(), instance.top_within(aim))
        found = dive.run(_NODES + 2 * instance.count, effort.late)
        learner.learn(dive.blamed)
        if found is not None and instance.height(found) < height:
            best, height = found, instance.height(found)
    return best
