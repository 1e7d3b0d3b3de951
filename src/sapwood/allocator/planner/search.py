"""Search for a plan below a height, for few buffers that hardly fit.

Each dive places buffers from the bottom up, in a ranking of its own, and goes back
where something can no longer fit: not to the last choice, but to the last one that
takes part in the conflict. Buffers that conflicts are about rank higher in the next.
"""

from __future__ import annotations

from sapwood.allocator.planner.dive import Dive
from sapwood.allocator.planner.effort import Effort
from sapwood.allocator.planner.instance import Instance, Wholes
from sapwood.allocator.planner.learners import learners
from sapwood.allocator.planner.sections import Sections

__all__ = ["FEW", "Search"]

FEW = 1000
"""With more buffers than this, a search does not get far in any usual time."""

_NODES = 100
_WORK = 1 / 400
_SHARES = (0.0, 0.0, 0.9, 0.0, 0.5, 0.75)
"""How far above the goal dives aim, as parts of the way to the best height so far."""


class Search:
    """Dives for plans of an exact instance with buffers; each learns for the next.

    ``work`` is about how long they took so far, to compare with that of a `Mend`; as
    that is scaled, dives get most of the time.
    """

    def __init__(self, instance: Instance, seed: int) -> None:
        self._instance = instance
        self._sections = Sections.of(instance)
        self._learners = learners(instance, seed)
        self._turn = 0
        self.work = 0.0

    def improve(self, begins: Wholes, effort: Effort) -> Wholes:
        """Dive once. Return what it found if that is lower, else ``begins``."""
        instance, height = self._instance, self._instance.height(begins)
        learner = self._learners[self._turn % len(self._learners)]
        share = _SHARES[self._turn // len(self._learners) % len(_SHARES)]
        self._turn += 1
        aim = min(effort.enough + int((height - effort.enough) * share), height - 1)
        dive = Dive(self._sections, learner.ranking(), instance.top_within(aim))
        found = dive.run(_NODES + 2 * instance.count, effort.late)
        self.work += dive.tries * instance.count * _WORK
        learner.learn(dive.blamed)
        return begins if found is None or instance.height(found) >= height else found
