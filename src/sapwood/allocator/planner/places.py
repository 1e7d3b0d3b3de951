"""Where one buffer can lie among those beside it, and what it would push out there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sapwood.allocator.planner.instance import Wholes

__all__ = ["Places"]


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """The places next to an end of another buffer, and the lowest and the highest.

    ``begins`` and ``ends`` are those of the others, each in rising order, which are
    ``by_begin`` and ``by_end``. At ``places[k]`` a buffer lies above the first
    ``below[k]`` of ``ends``, and below the others than the first ``under[k]`` of
    ``begins``.
    """

    begins: Wholes
    ends: Wholes
    by_begin: npt.NDArray[np.intp]
    by_end: npt.NDArray[np.intp]
    places: Wholes
    below: npt.NDArray[np.intp]
    under: npt.NDArray[np.intp]

    @classmethod
    def among(cls, begins: Wholes, ends: Wholes, size: int, top: int) -> Places:
        """Return the places of a buffer of ``size`` that ends at ``top`` or below."""
        by_begin, by_end = begins.argsort(), ends.argsort()
        begins, ends = begins[by_begin], ends[by_end]
        highest = top - size
        first, last = begins.searchsorted(size), begins.searchsorted(top, "right")
        places = np.concatenate(
            (
                np.array([0, highest]),
                ends[: ends.searchsorted(highest, "right")],
                begins[first:last] - size,
            )
        )
        return cls(
            begins=begins,
            ends=ends,
            by_begin=by_begin,
            by_end=by_end,
            places=places,
            below=ends.searchsorted(places, "right"),
            under=begins.searchsorted(places + size),
        )

    def tightest(self, top: int) -> int | None:
        """Return the free place in the smallest gap below ``top``; None without one."""
        free = np.flatnonzero(self.below == self.under)
        if not len(free):
            return None
        floors = np.concatenate(([0], self.ends))[self.below[free]]
        roofs = np.concatenate((self.begins, [top]))[self.under[free]]
        gaps = np.minimum(roofs, top) - floors
        return int(self.places[free[gaps.argmin()]])

    def cheapest(
        self, weights: npt.NDArray[np.float64], random: np.random.Generator
    ) -> int:
        """Return the place where the others that are in the way weigh least.

        ``random`` makes each place up to twice as dear as that.
        """
        before = np.concatenate(([0.0], weights[self.by_begin].cumsum()))
        over = np.concatenate(([0.0], weights[self.by_end].cumsum()))
        cost = before[self.under] - over[self.below]
        cost *= 1 + random.random(len(cost))
        return int(self.places[cost.argmin()])
