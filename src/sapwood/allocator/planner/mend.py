"""Lowering a plan where it is highest.

The height to get below comes down in steps, as large as they succeed: whatever ends
above it is moved down, one buffer after the other. Most of a plan stays as it is.
"""

from __future__ import annotations

import numpy as np

from sapwood.allocator.planner.effort import Effort
from sapwood.allocator.planner.instance import Instance, Wholes
from sapwood.allocator.planner.layout import Layout

__all__ = ["Mend"]

_PACE = 0.3
_PACES = 0.02, 0.5
"""How far down to aim, as parts of the way to the goal: at first; least and most."""

_MOVES = 300, 20_000
"""How many moves one buffer may cause: at first, which is also the least; and most."""

_MOVES_EACH = 20
"""How many moves it may cause at most for each buffer there is."""


class Mend:
    """Makes plans of an exact instance with buffers lower; it learns what is hard."""

    def __init__(self, instance: Instance, begins: Wholes, seed: int) -> None:
        self._layout = Layout(instance, begins, np.random.default_rng(seed))
        self._pace, self._moves = _PACE, _MOVES[0]
        self._most = max(_MOVES[0], min(_MOVES_EACH * instance.count, _MOVES[1]))

    @property
    def work(self) -> float:
        """How many moves it took so far."""
        return self._layout.moves

    def improve(self, begins: Wholes, effort: Effort) -> Wholes:
        """Lower what ends above one height; return a plan as high as before, or lower.

        ``begins`` is what it returned last, or a lower plan.
        """
        layout = self._layout
        layout.adopt(begins)
        aim = effort.enough + int((layout.height - effort.enough) * (1 - self._pace))
        down = True
        for number in layout.above(aim):
            down = layout.lower(number, aim, self._moves, effort.late) and down
            if effort.late():
                return layout.begins
        if down:
            self._pace = min(self._pace * 1.2, _PACES[1])
            self._moves = max(self._moves // 2, _MOVES[0])
        else:
            self._pace = max(self._pace * 0.7, _PACES[0])
            self._moves = min(self._moves * 2, self._most)
        return layout.begins
