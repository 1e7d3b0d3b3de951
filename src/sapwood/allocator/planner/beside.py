"""Which buffers are in use at once with one another, for many of them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sapwood.allocator.planner.instance import Instance

__all__ = ["Beside"]

_EVERY = 64
_KEPT = 1 << 24


@dataclass(slots=True, eq=False)
class Beside:
    """The buffers beside each one, found when first asked for.

    ``live`` are those in use just before every 64th begins, ``stops`` how many begin
    before each ends. ``room`` is how many more may be kept.
    """

    lower: npt.NDArray[np.int32]
    upper: npt.NDArray[np.int32]
    live: tuple[npt.NDArray[np.intp], ...]
    stops: tuple[int, ...]
    room: int = _KEPT
    _found: dict[int, npt.NDArray[np.intp]] = field(default_factory=dict)

    @classmethod
    def of(cls, instance: Instance) -> Beside:
        """Return the company of the buffers of an instance."""
        lower, upper = instance.lower, instance.upper
        live = [np.empty(0, np.intp)]
        for start in range(0, instance.count - _EVERY, _EVERY):
            begun = np.concatenate((live[-1], np.arange(start, start + _EVERY)))
            live.append(begun[upper[begun] > lower[start + _EVERY]])
        stops = lower.searchsorted(upper).tolist()
        return cls(lower, upper, tuple(live), tuple(stops))

    def __getitem__(self, number: int) -> npt.NDArray[np.intp]:
        """Return the others that are in use at any time of a buffer, in no order."""
        kept = self._found.get(number)
        if kept is not None:
            return kept
        at = number // _EVERY
        begun = np.arange(at * _EVERY, self.stops[number])
        some = np.concatenate((self.live[at], begun))
        in_use = self.upper[some] > self.lower[number]
        found: npt.NDArray[np.intp] = some[in_use & (some != number)]
        if len(found) <= self.room:
            self.room -= len(found)
            self._found[number] = found
        return found
