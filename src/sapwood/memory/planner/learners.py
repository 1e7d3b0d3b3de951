"""Rankings that learn: a fixed one to begin with, then by what was in the way."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sapwood.memory.planner.instance import Instance
from sapwood.memory.planner.rankings import crowds
from sapwood.memory.planner.sections import Sections

__all__ = ["Learner", "learners"]

_ORDERS = ("TAL", "TLA", "LAT", "ALT", "ZTL", "OAT")
_KEPT = 0.98


@dataclass(slots=True, eq=False)
class Learner:
    """The buffers ranked by blame; those that have as much of it, as in ``first``.

    Conflicts count less the longer ago they are.
    """

    first: npt.NDArray[np.intp]
    blame: npt.NDArray[np.float64]

    def ranking(self) -> npt.NDArray[np.intp]:
        """Return the buffers, the most important first."""
        return self.first[np.argsort(-self.blame[self.first], kind="stable")]

    def learn(self, blamed: npt.NDArray[np.float64]) -> None:
        """Rank buffers higher from now on, by how many conflicts each was in."""
        self.blame *= _KEPT
        self.blame += blamed


def learners(instance: Instance, sections: Sections) -> tuple[Learner, ...]:
    """Return learners that begin with the highest of some traits, then of others.

    The traits are the most that is in use at once during a buffer (T), its area (A),
    how long it is in use (L), its size (Z), and beside how many others (O).
    """
    traits = {
        "T": crowds(instance).astype(np.float64),
        "A": instance.log_size + instance.log_span,
        "L": instance.log_span,
        "Z": instance.log_size,
        "O": np.array([len(others) for others in sections.beside], np.float64),
    }
    return tuple(
        Learner(
            np.lexsort([-traits[trait] for trait in reversed(order)]),
            np.zeros(instance.count),
        )
        for order in _ORDERS
    )
