"""Rankings that learn: a fixed one to begin with, then by what was in the way."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sapwood.allocator.planner.instance import Instance, Wholes

__all__ = ["Learner", "learners"]

_ORDERS = ("TAL", "TLA", "LAT", "ALT", "ZTL", "OAT")
_KEPT = 0.98
_NOISE = 0.02


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


def learners(instance: Instance, seed: int) -> tuple[Learner, ...]:
    """Return learners that begin with the highest of some traits, then of others.

    The traits are the most that is in use at once during a buffer (T), its area (A),
    how long it is in use (L), its size (Z), and beside how many others (O). A seed of 0
    takes them as they are; with any other they are a little off.
    """
    traits = {
        "T": _crowds(instance).astype(np.float64),
        "A": instance.log_size + instance.log_span,
        "L": instance.log_span,
        "Z": instance.log_size,
        "O": _company(instance).astype(np.float64),
    }
    if seed:
        random = np.random.default_rng(seed)
        for trait, values in traits.items():
            traits[trait] = values * random.normal(1, _NOISE, len(values))
    return tuple(
        Learner(
            np.lexsort([-traits[trait] for trait in reversed(order)]),
            np.zeros(instance.count),
        )
        for order in _ORDERS
    )


def _company(instance: Instance) -> npt.NDArray[np.intp]:
    """Return beside how many each buffer is in use, itself among them."""
    begun = np.searchsorted(np.sort(instance.lower), instance.upper)
    ended = np.searchsorted(np.sort(instance.upper), instance.lower, side="right")
    return begun - ended


def _crowds(instance: Instance) -> Wholes:
    """Return the most that is in use at once during each buffer, in grains."""
    lower, upper = instance.lower, instance.upper
    changes = np.zeros(int(upper.max()) + 1, instance.size.dtype)
    np.add.at(changes, lower, instance.size)
    np.subtract.at(changes, upper, instance.size)
    level = np.cumsum(changes)
    crowds = np.zeros_like(instance.size)
    lengths = upper - lower
    longest = int(lengths.max())
    width = 1
    while width <= longest:
        # ``level`` holds the most in each stretch of ``width`` times, by its first.
        fits = (lengths >= width) & (lengths < 2 * width)
        crowds[fits] = np.maximum(level[lower[fits]], level[upper[fits] - width])
        level = np.maximum(level[:-width], level[width:])
        width *= 2
    return crowds
