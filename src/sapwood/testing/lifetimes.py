"""Long tables of lifetimes for the planner, of many kinds, tight ones among them.

Each is made from a seed and a rough number of buffers, the same on every machine. Those
of `PERFECT` are cut from a rectangle, so some plan of them reaches the lower bound.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random

from sapwood.allocator.planner import Buffer
from sapwood.units import Size

_KIB = 1 << 10
_MIB = 1 << 20

Rows = list[tuple[int, int, int]]
Box = tuple[int, int, int, int]
"""A part of the rectangle: its first time, its last, its lower end, its upper end."""
Kind = Callable[[Random, int], Rows]


def make_lifetimes(kind: str, seed: int, buffers: int) -> tuple[Buffer, ...]:
    """Return a table of one of the `KINDS` with about that many buffers."""
    random = Random(f"{kind} {seed}")  # noqa: S311  nothing is kept secret
    rows = KINDS[kind](random, buffers)
    return tuple(Buffer(lower, upper, Size(size)) for lower, upper, size in rows)


def _cut(random: Random, box: Box, pieces: int, grain: int, *, pinwheels: bool) -> Rows:
    """Cut a box, the largest piece next as a rule; none is thinner than a grain."""
    heap = [(0.0, box)]
    done: list[Box] = []
    while heap and len(heap) + len(done) < pieces:
        _, box = heapq.heappop(heap)
        parts = _pinwheel if pinwheels and random.random() < 0.5 else _halves
        cut = parts(random, box, grain)
        if not cut:
            done.append(box)
        for part in cut:
            area = (part[1] - part[0]) * (part[3] - part[2])
            heapq.heappush(heap, (-area * 4 ** random.random(), part))
    done += [box for _, box in heap]
    return [(begin, end, high - low) for begin, end, low, high in done]


def _between(random: Random, low: int, high: int, grain: int) -> int:
    """Return a place to cut, nearer to neither end than a fifth, on a grain."""
    return round(low + (high - low) * random.uniform(0.2, 0.8)) // grain * grain


def _halves(random: Random, box: Box, grain: int) -> list[Box]:
    begin, end, low, high = box
    if random.random() < 0.5:
        at = _between(random, begin, end, 1)
        return [(begin, at, low, high), (at, end, low, high)] * (begin < at < end)
    at = _between(random, low, high, grain)
    return [(begin, end, low, at), (begin, end, at, high)] * (low < at < high)


def _pinwheel(random: Random, box: Box, grain: int) -> list[Box]:
    """Cut a box into four around a fifth, which no cuts from side to side can do."""
    begin, end, low, high = box
    first, second = sorted(_between(random, begin, end, 1) for _ in range(2))
    below, above = sorted(_between(random, low, high, grain) for _ in range(2))
    if not (begin < first < second < end and low < below < above < high):
        return []
    return [
        (begin, second, low, below),
        (second, end, low, above),
        (first, end, above, high),
        (begin, first, below, high),
        (first, second, below, above),
    ]


def _guillotine(random: Random, buffers: int) -> Rows:
    """A rectangle cut from side to side, at any byte."""
    return _cut(random, (0, _MIB, 0, _MIB), buffers, 1, pinwheels=False)


def _pinwheels(random: Random, buffers: int) -> Rows:
    """A rectangle cut in any way, at multiples of 2 KiB."""
    box = 0, _MIB, 0, 4 * _MIB
    return _cut(random, box, buffers, 2 * _KIB, pinwheels=True)


def _episodes(random: Random, buffers: int) -> Rows:
    """Rectangles of up to 300 pieces, each over when the next begins."""
    rows: Rows = []
    for number in range(max(1, buffers // 200)):
        box = number * _MIB, (number + 1) * _MIB, 0, _MIB
        pieces = random.randint(100, 300)
        rows += _cut(random, box, pieces, _KIB, pinwheels=True)
    return rows


def _crumbs(random: Random, buffers: int) -> Rows:
    """A cut rectangle of which a tenth of the pieces is gone."""
    rows = _cut(random, (0, _MIB, 0, _MIB), buffers * 10 // 9, 64, pinwheels=True)
    return random.sample(rows, min(buffers, len(rows)))


def _arrivals(
    size: Callable[[Random, float], float], span: Callable[[Random, int], float]
) -> Kind:
    """Return buffers that begin at any time.

    Their size depends on how much of the time is over, how long they last on how many
    there are.
    """

    def make(random: Random, buffers: int) -> Rows:
        rows: Rows = []
        now = 0.0
        for number in range(buffers):
            now += random.expovariate(1 / 1000)
            end = int(now) + max(1, int(1000 * span(random, buffers)))
            rows.append((int(now), end, max(1, int(size(random, number / buffers)))))
        return rows

    return make


def _mixed(random: Random, buffers: int) -> Rows:
    """A large one among twenty small ones; the large ones last longer."""
    rows: Rows = []
    for lower, upper, _ in _arrivals(lambda *_: 1, lambda *_: 1)(random, buffers):
        if random.random() < 0.05:
            span, size = random.expovariate(1 / 400_000), random.uniform(1, 32) * _MIB
        else:
            span, size = random.expovariate(1 / 60_000), 2 ** random.uniform(8, 17)
        rows.append((lower, upper + int(span), int(size)))
    return rows


def _scopes(random: Random, buffers: int) -> Rows:
    """Calls within calls: locals end with their call, results in the caller's."""
    rows: Rows = []
    now = 0
    calls: list[list[tuple[int, int]]] = [[]]
    while len(rows) + sum(map(len, calls)) < buffers or len(calls) > 1:
        now += 1
        full = len(rows) + sum(map(len, calls)) >= buffers
        if full or (len(calls) > 1 and random.random() < 0.02 * len(calls)):
            rows += [(lower, now, size) for lower, size in calls.pop()]
            calls[-1].append((now, int(2 ** random.uniform(12, 22))))
        elif random.random() < 0.3:
            calls.append([])
        else:
            calls[-1].append((now, int(2 ** random.uniform(8, 24))))
    return rows + [(lower, now + 1, size) for lower, size in calls.pop()]


def _transformer(random: Random, buffers: int) -> Rows:
    """Training on batches of any length; gradients are kept until the next step."""
    layers, rows, now = 24, Rows(), 0
    weights = [random.choice([1, 3, 4, 4]) * 4 * _MIB for _ in range(layers)]
    steps = max(1, buffers // (layers * 16))
    for _ in range(steps):
        tokens = random.randint(256, 4096) * _KIB
        start, middle = now, now + layers * 10
        over = middle + layers * 10
        for layer, weight in enumerate(weights):
            back = over - 10 * (layer + 1)
            for place, factor in enumerate((1, 3, 1, 0.03, 1, 4, 4)):
                at = start + 10 * layer + place
                rows.append((at, back + 9 - place, int(tokens * factor)))
            for place, factor in enumerate((2, 1.5, 6)):
                at = start + 10 * layer + 2 * place
                rows.append((at, at + 2, int(tokens * random.uniform(0.5, factor))))
            for place in range(5):
                at = back + 2 * place
                rows.append((at, at + 3, int(tokens * random.choice([1, 1, 3, 4]))))
            rows.append((back + 5, over + 10, weight))
        now = over + 10
    return rows + [(0, now, weight) for weight in weights for _ in range(3)]


def _caches(random: Random, buffers: int) -> Rows:
    """Answers whose cache doubles when it is full: a new one, and the old one ends."""
    rows: Rows = []
    now = 0.0
    while len(rows) < buffers:
        now += random.expovariate(1 / 4000)
        at, size = int(now), random.choice([16, 24, 40]) * _KIB
        lasts = 1000 * random.lognormvariate(5, 1)
        stretch = 8_000.0
        while lasts > 0:
            end = at + int(min(stretch, lasts)) + 200
            rows.append((at, end, size))
            rows.append((at, at + random.randint(1, 2000), size // 3))
            at, size, lasts = end - 200, size * 2, lasts - stretch
            stretch *= 2
    return rows


PERFECT: dict[str, Kind] = {
    "episodes": _episodes,
    "guillotine": _guillotine,
    "pinwheels": _pinwheels,
}
"""The kinds that some plan packs without a gap, by name."""

KINDS: dict[str, Kind] = PERFECT | {
    "caches": _caches,
    "crumbs": _crumbs,
    "mixed": _mixed,
    # Sizes that are powers of two, 150 at once.
    "powers": _arrivals(
        lambda random, _: 1 << random.randint(9, 24),
        lambda random, _: random.expovariate(1 / 150),
    ),
    # Sizes that grow fourfold until half of the time is over, then shrink again.
    "ramp": _arrivals(
        lambda random, over: (
            _MIB * (1 + 6 * min(over, 1 - over)) * random.gauss(1, 0.1)
        ),
        lambda random, _: random.lognormvariate(4, 0.8),
    ),
    # Requests of every size, 200 at once.
    "requests": _arrivals(
        lambda random, _: 2 ** random.uniform(10, 24),
        lambda random, _: random.expovariate(1 / 200),
    ),
    "scopes": _scopes,
    # Most last for moments, few for nearly all of the time.
    "tails": _arrivals(
        lambda random, _: 2 ** random.uniform(8, 22),
        lambda random, buffers: min(10 * random.paretovariate(0.9), buffers),
    ),
    "transformer": _transformer,
}
"""All kinds, by name."""
