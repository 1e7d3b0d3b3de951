"""Packing in many orders, for as long as there is time."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sapwood.allocator.planner.buffers import Buffer, check_buffers, check_count
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
    ranked = (np.lexsort([-traits[each] for each in order[::-1]]) for order in _ORDERS)
    return tuple(Learner(first, np.zeros(instance.count)) for first in ranked)


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


def largest_first(buffers: Sequence[Buffer], alignment: int = 1) -> tuple[int, ...]:
    """Return an offset in bytes for each buffer, a multiple of ``alignment``.

    The largest is placed first, each in the tightest gap. There is no search and no
    clock: the same buffers get the same offsets. Raises `MisuseError` for impossible
    buffers, and alignments below 1.
    """
    check_buffers(buffers)
    check_count("alignment", alignment)
    instance = Instance.of(buffers, alignment)
    return instance.offsets(fit(instance, size_order(instance)))


def size_order(instance: Instance) -> list[int]:
    """Return the buffers, the largest first."""
    sizes = instance.size.tolist()
    return sorted(range(len(sizes)), key=lambda n: (-sizes[n], n))


_UNASKED = 1024
"""So many buffers are placed at once: that takes less than anybody waits for."""

_CHECKED_EVERY = 64


def fit(
    instance: Instance, order: Iterable[int], late: Callable[[], bool] | None = None
) -> Wholes:
    """Return where each buffer begins, in grains, placed in ``order``.

    Raises TimeoutError where many are left once it is late.
    """
    count, kind = instance.count, instance.size.dtype
    begins: Wholes = np.zeros(count, kind)
    # Of those that lie already, in the order of where they begin.
    lower, upper = np.zeros(count, np.int32), np.zeros(count, np.int32)
    begin, end = np.zeros(count, kind), np.zeros(count, kind)
    for placed, number in enumerate(order):
        if late and placed >= _UNASKED and placed % _CHECKED_EVERY == 0 and late():
            raise TimeoutError(
                f"there is no plan yet: {placed:,} of {count:,} buffers are placed. "
                "Give it more seconds"
            )
        first, last = instance.lower[number], instance.upper[number]
        size = instance.size[number]
        beside = np.flatnonzero((lower[:placed] < last) & (upper[:placed] > first))
        place = _tightest(begin[beside], end[beside], size)
        at = int(begin[:placed].searchsorted(place, "right"))
        rows = (lower, first), (upper, last), (begin, place), (end, place + size)
        for column, value in rows:
            column[at + 1 : placed + 1] = column[at:placed]
            column[at] = value
        begins[number] = place
    return begins


def _tightest(begins: Wholes, ends: Wholes, size: int) -> int:
    """Return a place in the smallest gap between others, in the order of their begins.

    Where none suffices, it is above all of them.
    """
    tops = np.maximum.accumulate(ends)
    gaps = begins.copy()
    gaps[1:] -= tops[:-1]
    fitting = np.flatnonzero(gaps >= size)
    if not len(fitting):
        return int(ends.max(initial=0))
    which = fitting[gaps[fitting].argmin()]
    return int(tops[which - 1]) if which else 0


_FEW = 64
"""With fewer buffers than this, there is no use in leaving out those that lie."""


def stack(
    instance: Instance, ranking: npt.NDArray[np.intp], late: Callable[[], bool]
) -> Wholes | None:
    """Return where each buffer begins, in grains; None once it is late.

    A buffer lies on the highest of those below it. Of several that can begin equally
    low, the first in ``ranking`` is next.
    """
    begins = np.zeros(instance.count, instance.size.dtype)
    # The buffers that are left, and where they could begin.
    numbers, begin = ranking, begins.copy()
    lower, upper = instance.lower[ranking], instance.upper[ranking]
    size, placed = instance.size[ranking], int(instance.size.sum()) + 1
    for turn in range(instance.count):
        if turn % _CHECKED_EVERY == 0 and late():
            return None
        if _FEW < instance.count - turn < len(numbers) // 2:
            left = begin < placed
            numbers, begin, size = numbers[left], begin[left], size[left]
            lower, upper = lower[left], upper[left]
        at = int(begin.argmin())
        begins[numbers[at]] = begin[at]
        end = begin[at] + size[at]
        begin[at] = placed
        begin[(lower < upper[at]) & (upper > lower[at]) & (begin < end)] = end
    return begins


def pack(
    instance: Instance, effort: Effort, seed: int, rounds: int | None = None
) -> Wholes:
    """Return the best of several packings, in grains: the largest first, to begin with.

    It ends with the effort, or after ``rounds`` others; a step is one of these. Raises
    TimeoutError where the effort ends before the first. ``instance`` has buffers.
    """
    best = fit(instance, size_order(instance), effort.late)
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
