"""Families of allocation traces, as programs of several kinds would leave them.

Each is made from a seed and a rough number of buffers, the same on every machine.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import count
from random import Random

from sapwood.allocator.simulate import Trace
from sapwood.allocator.simulate.reading import Log

_KIB = 1 << 10
_MIB = 1 << 20


class _Pen(Log):
    """Writes buffers down, each at a time of its own."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers = count()

    def begin(self, size: float, stream: int = 0) -> int:
        """Begin a buffer, and return its number."""
        number = next(self._numbers)
        self.allocate(number, max(1, int(size)), stream)
        return number


def make_trace(family: str, seed: int, buffers: int) -> Trace:
    """Return a trace of one of the `FAMILIES` with about that many buffers."""
    pen = _Pen()
    random = Random(f"{family} {seed}")  # noqa: S311  nothing is kept secret
    FAMILIES[family](pen, random, buffers)
    return pen.trace(f"{family}-{seed}")


def _training(pen: _Pen, random: Random, buffers: int) -> None:
    """Training steps: weights stay, activations nest, gradients take their place."""
    layers = max(2, buffers // 60)
    width = random.choice([1, 4, 12]) * _MIB
    for _ in range(layers * 3):
        pen.begin(width * random.choice([0.001, 0.5, 1, 4]))
    for _ in range(4):
        saved = [_forward(pen, random, width) for _ in range(layers)]
        gradient = pen.begin(width)
        for layer in reversed(saved):
            following = pen.begin(width)
            scratch = pen.begin(width * random.uniform(0.1, 3))
            pen.free(gradient)
            gradient = following
            for number in layer:
                pen.free(number)
            pen.free(scratch)
        pen.free(gradient)


def _forward(pen: _Pen, random: Random, width: int) -> list[int]:
    kept = []
    for factor in (1, 4, 0.002, 1):
        scratch = pen.begin(width * random.uniform(0.05, 2))
        kept.append(pen.begin(width * factor))
        pen.free(scratch)
    return kept


def _serving(pen: _Pen, random: Random, buffers: int) -> None:
    """Inference at mixed batch sizes, beside caches that requests keep for a while."""
    hidden = random.choice([64, 256, 1024]) * _KIB
    caches: list[int] = []
    for _ in range(max(1, buffers // 12)):
        batch = random.choice([1, 2, 3, 4, 6, 8, 13, 16])
        caches.append(pen.begin(hidden * random.randint(4, 64)))
        if len(caches) > 24:
            pen.free(caches.pop(random.randrange(len(caches))))
        flow = pen.begin(batch * hidden)
        for factor in (3, 1, 4, 1, 0.01):
            following = pen.begin(batch * hidden * factor)
            pen.free(flow)
            flow = following
        pen.free(flow)


def _network(pen: _Pen, random: Random, buffers: int) -> None:
    """Operations of a graph, one after another: results live until their last use."""
    sizes = [2 ** random.uniform(10, 25) for _ in range(12)]
    ends: dict[int, list[int]] = {}
    for step in range(buffers):
        size = random.choice(sizes) * random.choice([1, 1, 1, 0.5, 2])
        result = pen.begin(size)
        far = random.random() < 0.05
        last = step + int(random.expovariate(1 / (buffers / 8 if far else 6)))
        ends.setdefault(last, []).append(result)
        for number in ends.pop(step, []):
            pen.free(number)


def _drift(pen: _Pen, random: Random, buffers: int) -> None:
    """Sizes that grow a little at every step, results kept for one step longer."""
    size = random.uniform(1, 6) * _MIB
    before: list[int] = []
    for _ in range(max(1, buffers // 6)):
        size *= random.uniform(0.995, 1.02) if size < 16 * _MIB else 0.25
        results = []
        for factor in (1.0, 0.4, 2.2):
            scratch = pen.begin(size * factor * random.uniform(0.8, 1.1))
            results.append(pen.begin(size * factor))
            pen.free(scratch)
        for number in before:
            pen.free(number)
        before = results


def _churn(pen: _Pen, random: Random, buffers: int, streams: int = 1) -> None:
    """Sizes of every magnitude, lifetimes without any order."""
    live: list[int] = []
    target = random.randint(50, 600)
    for _ in range(buffers):
        while live and random.random() < len(live) / (2 * target):
            pen.free(live.pop(random.randrange(len(live))))
        size = 2 ** random.uniform(8, 26)
        live.append(pen.begin(size, random.randrange(streams)))


def _small(pen: _Pen, random: Random, buffers: int) -> None:
    """Many buffers below 1 MiB, few above it."""
    live: list[int] = []
    for _ in range(buffers):
        if len(live) > 1500 or (live and random.random() < 0.4):
            pen.free(live.pop(int(len(live) * random.random() ** 2)))
        power = random.uniform(20, 23) if random.random() < 0.02 else None
        live.append(pen.begin(2 ** (power or random.uniform(6, 19))))


def _shapes(pen: _Pen, random: Random, buffers: int) -> None:
    """A program whose shapes change from step to step, within a few buckets."""
    shapes = [random.uniform(0.3, 9) * _MIB for _ in range(6)]
    kept: list[int] = []
    for _ in range(max(1, buffers // 6)):
        scale = random.choice([1, 1.07, 1.5, 2])
        held = []
        for shape in random.sample(shapes, 5):
            held.append(pen.begin(shape * scale))
            if random.random() < 0.5:
                pen.free(held.pop(random.randrange(len(held))))
        kept.append(pen.begin(random.choice(shapes) * 0.3))
        if len(kept) > 8:
            pen.free(kept.pop(0))
        random.shuffle(held)
        for number in held:
            pen.free(number)


FAMILIES: dict[str, Callable[[_Pen, Random, int], None]] = {
    "churn": _churn,
    "drift": _drift,
    "network": _network,
    "serving": _serving,
    "shapes": _shapes,
    "small": _small,
    # As churn, on four streams.
    "streams": partial(_churn, streams=4),
    "training": _training,
}
"""The kinds of programs, by name."""
