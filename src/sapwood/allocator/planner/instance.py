"""Buffers as a packer sees them: times by rank, sizes in grains, in one fixed order.

Only the order of times matters, so they are numbered; and what divides all sizes
divides all offsets. The order of the buffers is that of their values, so plans do not
depend on how the input is sorted.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sapwood.allocator.planner.buffers import Buffer
from sapwood.units import align_up

Wholes = npt.NDArray[Any]
"""64-bit integers, or Python's where the sizes add up to more."""

_EXACT = 1 << 62


@dataclass(frozen=True, slots=True, eq=False)
class Instance:
    """``count`` buffers with bytes: ``lower``, ``upper`` and ``size`` of each.

    A grain is ``grain`` bytes; ``spare`` are those of each that only alignment adds.
    ``log_size`` and ``log_span`` are logarithms of the size in bytes, and of how long
    it is in use in the times of the input. ``numbers`` is where each is in the input,
    of ``total`` buffers.
    """

    lower: npt.NDArray[np.int32]
    upper: npt.NDArray[np.int32]
    size: Wholes
    spare: Wholes
    log_size: npt.NDArray[np.float64]
    log_span: npt.NDArray[np.float64]
    numbers: tuple[int, ...]
    grain: int
    total: int

    @classmethod
    def of(cls, buffers: Sequence[Buffer], alignment: int) -> Instance:
        """Return the instance of valid buffers; those of no bytes are left out."""
        taken = [align_up(buffer.size, alignment) for buffer in buffers]
        numbers = sorted(
            (n for n, size in enumerate(taken) if size), key=lambda n: (*buffers[n], n)
        )
        kept = [buffers[n] for n in numbers]
        grain = math.gcd(*taken) or 1
        kind: type[Any] = np.int64 if sum(taken) < _EXACT else np.object_
        times = sorted({time for b in kept for time in (b.lower, b.upper)})
        ranks = {time: number for number, time in enumerate(times)}
        return cls(
            lower=np.array([ranks[b.lower] for b in kept], np.int32),
            upper=np.array([ranks[b.upper] for b in kept], np.int32),
            size=np.array([taken[n] // grain for n in numbers], kind),
            spare=np.array([taken[n] - buffers[n].size for n in numbers], kind),
            log_size=np.array([math.log(b.size) for b in kept]),
            log_span=np.array([math.log(b.upper - b.lower) for b in kept]),
            numbers=tuple(numbers),
            grain=grain,
            total=len(buffers),
        )

    @property
    def count(self) -> int:
        """How many buffers have bytes."""
        return len(self.numbers)

    @property
    def is_exact(self) -> bool:
        """Whether its sizes are 64-bit integers."""
        return self.size.dtype != np.object_

    def parts(self) -> list[tuple[int, Instance]]:
        """Return what it falls apart into where no buffer is in use, in order.

        Each comes with its first buffer, and there is one. Its ``numbers`` are those
        within the part.
        """
        over = np.maximum.accumulate(self.upper)[:-1]
        cuts = np.flatnonzero(self.lower[1:] >= over) + 1
        bounds = itertools.pairwise([0, *cuts.tolist(), self.count])
        return [(start, self._part(start, stop)) for start, stop in bounds]

    def _part(self, start: int, stop: int) -> Instance:
        first = self.lower[start]
        return replace(
            self,
            lower=self.lower[start:stop] - first,
            upper=self.upper[start:stop] - first,
            size=self.size[start:stop],
            spare=self.spare[start:stop],
            log_size=self.log_size[start:stop],
            log_span=self.log_span[start:stop],
            numbers=tuple(range(stop - start)),
            total=stop - start,
        )

    def height(self, begins: Wholes) -> int:
        """Return where the topmost buffer ends, in bytes."""
        return int(max((begins + self.size) * self.grain - self.spare, default=0))

    def top_within(self, height: int) -> int:
        """Return up to where, in grains, buffers may reach in plans of a height."""
        return (height + int(max(self.spare, default=0))) // self.grain

    def offsets(self, begins: Wholes) -> tuple[int, ...]:
        """Return offsets in bytes, in the order of the input."""
        offsets = [0] * self.total
        for number, begin in zip(self.numbers, begins.tolist(), strict=True):
            offsets[number] = begin * self.grain
        return tuple(offsets)


_EVERY = 64
_KEPT = 1 << 24
"""How many more of the buffers that are beside others may be kept."""


class Beside:
    """The buffers beside each one of an instance, found when first asked for."""

    def __init__(self, instance: Instance) -> None:
        self._lower, self._upper = lower, upper = instance.lower, instance.upper
        # Those in use just before every 64th begins; how many begin before each ends.
        self._live = [np.empty(0, np.intp)]
        for start in range(0, instance.count - _EVERY, _EVERY):
            begun = np.concatenate((self._live[-1], np.arange(start, start + _EVERY)))
            self._live.append(begun[upper[begun] > lower[start + _EVERY]])
        self._stops: list[int] = lower.searchsorted(upper).tolist()
        self._room = _KEPT
        self._found: dict[int, npt.NDArray[np.intp]] = {}

    def __getitem__(self, number: int) -> npt.NDArray[np.intp]:
        """Return the others that are in use at any time of a buffer, in no order."""
        kept = self._found.get(number)
        if kept is not None:
            return kept
        at = number // _EVERY
        begun = np.arange(at * _EVERY, self._stops[number])
        some = np.concatenate((self._live[at], begun))
        in_use = self._upper[some] > self._lower[number]
        found: npt.NDArray[np.intp] = some[in_use & (some != number)]
        if len(found) <= self._room:
            self._room -= len(found)
            self._found[number] = found
        return found
