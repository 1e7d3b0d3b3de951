"""Lowering a plan where it is highest, for many buffers.

The height to get below comes down in steps, as large as they succeed: whatever ends
above it is moved down, one buffer after the other. Most of a plan stays as it is.
"""

from __future__ import annotations

import numpy as np

from sapwood.memory.planner.beside import Beside
from sapwood.memory.planner.effort import Effort
from sapwood.memory.planner.instance import Instance, Wholes
from sapwood.memory.planner.layout import Layout

__all__ = ["mend"]

_PACE = 0.3
_PACES = 0.02, 0.5
"""How far down to aim, as parts of the way to the goal: at first; least and most."""

_MOVES = 300, 20_000
"""How many moves one buffer may cause: at first, which is also the least, and most."""


def mend(instance: Instance, begins: Wholes, effort: Effort, seed: int) -> Wholes:
    """Return the best plan found, at least as good as ``begins``, in grains.

    ``instance`` is exact, and has buffers. A step lowers what ends above one height.
    """
    random = np.random.default_rng(seed)
    layout = Layout(instance, Beside.of(instance), begins, random)
    pace, moves = _PACE, _MOVES[0]
    while effort.step(layout.height):
        aim = effort.enough + int((layout.height - effort.enough) * (1 - pace))
        if _lower(layout, aim, moves, effort):
            pace, moves = min(pace * 1.2, _PACES[1]), max(moves // 2, _MOVES[0])
        else:
            pace, moves = max(pace * 0.7, _PACES[0]), min(moves * 2, _MOVES[1])
    return layout.begins


def _lower(layout: Layout, aim: int, moves: int, effort: Effort) -> bool:
    """Lower each buffer that ends above ``aim`` if that can be; return whether all."""
    down = True
    for number in layout.above(aim):
        if effort.late():
            return False
        down = layout.lower(number, aim, moves, effort.late) and down
    return down
