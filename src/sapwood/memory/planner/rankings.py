"""Which buffers matter most: by what makes them hard to place, and by experience."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sapwood.memory.planner.instance import Instance, Wholes

__all__ = ["Rankings", "crowds"]

_WEIGHTS = (1.0, 1.0, 1.0, 30.0)
_NOISE = 0.1
_KEPT = 0.98
_BLAME = 10.0


class Rankings:
    """Rankings without end, each by a mixture of four traits, noise, and blame.

    The traits are how long a buffer is in use, its size, how many begin or end
    meanwhile, and the most that is in use at once meanwhile. The mixture is renewed,
    and the blame forgotten, after every ``lasting`` rankings.
    """

    def __init__(self, instance: Instance, seed: int, lasting: int) -> None:
        lengths = (instance.upper - instance.lower).astype(np.float64)
        crowded = crowds(instance).astype(np.float64)
        self._traits = np.array(
            [
                instance.log_span,
                instance.log_size,
                np.log(lengths),
                np.log(crowded),
            ]
        )
        self._random = np.random.default_rng(seed)
        self._lasting = lasting
        self.renew()

    def renew(self) -> None:
        """Draw another mixture, and forget the blame."""
        self._mixture = self._random.uniform(size=len(_WEIGHTS)) * _WEIGHTS
        self._blame = np.zeros(self._traits.shape[1])
        self._made = 0

    def draw(self) -> npt.NDArray[np.intp]:
        """Return the buffers, the most important first."""
        if self._made == self._lasting:
            self.renew()
        self._made += 1
        noise = _NOISE * self._random.uniform()
        keys = (
            self._mixture @ self._traits
            + noise * self._random.normal(size=len(self._blame))
            + np.log1p(self._blame)
        )
        return np.argsort(-keys, kind="stable")

    def blame(self, counts: npt.NDArray[np.float64]) -> None:
        """Rank buffers higher from now on, by how much each was in the way."""
        self._blame *= _KEPT
        self._blame += counts * (_BLAME / max(1.0, counts.max(initial=0.0)))


def crowds(instance: Instance) -> Wholes:
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
