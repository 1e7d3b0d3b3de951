"""Packing in many orders, for as long as there is time."""

from __future__ import annotations

import itertools

import numpy as np

from sapwood.allocator.planner.effort import Effort
from sapwood.allocator.planner.fit import fit, size_order
from sapwood.allocator.planner.instance import Instance, Wholes
from sapwood.allocator.planner.learners import learners
from sapwood.allocator.planner.skyline import stack

__all__ = ["pack"]


def pack(
    instance: Instance, effort: Effort, seed: int, rounds: int | None = None
) -> Wholes:
    """Return the best of several packings, in grains: the largest first, to begin with.

    It ends with the effort, or after ``rounds`` others; a step is one of these. The
    first one takes the time it needs. ``instance`` has buffers.
    """
    best = fit(instance, size_order(instance))
    height = instance.height(best)
    ranked = itertools.cycle(learners(instance, seed))
    for learner in itertools.islice(ranked, rounds):
        if not effort.step(height):
            break
        found = stack(instance, learner.ranking(), effort.late)
        if found is None:
            break
        ends = (found + instance.size) * instance.grain
        learner.learn((ends > effort.enough).astype(np.float64))
        if instance.height(found) < height:
            best, height = found, instance.height(found)
    return best
