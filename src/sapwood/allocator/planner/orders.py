"""Packing in many orders, for as long as there is time."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from sapwood.allocator.planner.buffers import Buffer, check_alignment, check_buffers
from sapwood.allocator.planner.effort import Effort
from sapwood.allocator.planner.instance import Instance, Wholes

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


Gap = Literal["lowest", "tightest"]
"""Which of the gaps that suffice: the lowest one, or the one that leaves least over."""


def largest_first(buffers: Sequence[Buffer], alignment: int = 1) -> tuple[int, ...]:
    """Return an offset in bytes for each buffer, a multiple of ``alignment``.

    The largest is placed first, each in the tightest gap. There is no search and no
    clock: the same buffers get the same offsets. Raises `MisuseError` for impossible
    buffers, and alignments below 1.
    """
    check_buffers(buffers)
    check_alignment(alignment)
    instance = Instance.of(buffers, alignment)
    begins = fit(instance, size_order(instance))
    return instance.offsets(begins)


def size_order(instance: Instance) -> list[int]:
    """Return the buffers, the largest first."""
    sizes = instance.size.tolist()
    return sorted(range(len(sizes)), key=lambda n: (-sizes[n], n))


def fit(instance: Instance, order: Iterable[int], gap: Gap = "tightest") -> Wholes:
    """Return where each buffer begins, in grains, placed in ``order``."""
    placed = _Placed(instance, gap)
    for number in order:
        placed.add(number)
    return placed.begins


class _Placed:
    """The buffers that lie already, in the order of where they begin."""

    def __init__(self, instance: Instance, gap: Gap) -> None:
        count, kind = instance.count, instance.size.dtype
        self._instance, self._tightest = instance, gap == "tightest"
        self._lower = np.zeros(count, np.int32)
        self._upper = np.zeros(count, np.int32)
        self._begin: Wholes = np.zeros(count, kind)
        self._end: Wholes = np.zeros(count, kind)
        self._count = 0
        self.begins: Wholes = np.zeros(count, kind)

    def add(self, number: int) -> None:
        """Place a buffer."""
        lower, upper = self._instance.lower[number], self._instance.upper[number]
        size = self._instance.size[number]
        begin = self._find(lower, upper, size)
        count = self._count
        at = int(self._begin[:count].searchsorted(begin, "right"))
        for column, value in (
            (self._lower, lower),
            (self._upper, upper),
            (self._begin, begin),
            (self._end, begin + size),
        ):
            column[at + 1 : count + 1] = column[at:count]
            column[at] = value
        self._count = count + 1
        self.begins[number] = begin

    def _find(self, lower: int, upper: int, size: int) -> int:
        count = self._count
        beside = np.flatnonzero(
            (self._lower[:count] < upper) & (self._upper[:count] > lower)
        )
        if not len(beside):
            return 0
        begins, ends = self._begin[beside], np.maximum.accumulate(self._end[beside])
        gaps = begins.copy()
        gaps[1:] -= ends[:-1]
        fitting = np.flatnonzero(gaps >= size)
        if not len(fitting):
            return int(ends[-1])
        which = fitting[gaps[fitting].argmin()] if self._tightest else fitting[0]
        return int(ends[which - 1]) if which else 0


_FEW = 64
"""With fewer buffers than this, there is no use in leaving out those that lie."""

_CHECKED_EVERY = 64


def stack(
    instance: Instance,
    ranking: npt.NDArray[np.intp],
    late: Callable[[], bool],
) -> Wholes | None:
    """Return where each buffer begins, in grains; None once it is late.

    A buffer lies on the highest of those below it. Of several that can begin equally
    low, the first in ``ranking`` is next.
    """
    begins = np.zeros(instance.count, instance.size.dtype)
    pile = _Pile(instance, ranking)
    for turn in range(instance.count):
        if turn % _CHECKED_EVERY == 0 and late():
            return None
        number, begin = pile.place_next()
        begins[number] = begin
    return begins


class _Pile:
    """The buffers that are left, in their ranking, and where they could begin."""

    def __init__(self, instance: Instance, ranking: npt.NDArray[np.intp]) -> None:
        self._numbers = ranking
        self._lower = instance.lower[ranking]
        self._upper = instance.upper[ranking]
        self._size = instance.size[ranking]
        self._begin = np.zeros(len(ranking), instance.size.dtype)
        self._high = int(instance.size.sum()) + 1
        self._left = len(ranking)

    def place_next(self) -> tuple[int, int]:
        """Place the buffer that can begin lowest; return its number, and where."""
        if self._left < len(self._numbers) // 2 and self._left > _FEW:
            self._forget_placed()
        at = int(self._begin.argmin())
        begin = self._begin[at]
        end = begin + self._size[at]
        self._begin[at] = self._high
        raised = (
            (self._lower < self._upper[at])
            & (self._upper > self._lower[at])
            & (self._begin < end)
        )
        self._begin[raised] = end
        self._left -= 1
        return int(self._numbers[at]), begin

    def _forget_placed(self) -> None:
        left = self._begin < self._high
        self._numbers, self._size = self._numbers[left], self._size[left]
        self._lower, self._upper = self._lower[left], self._upper[left]
        self._begin = self._begin[left]


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
