"""Views, layouts and kinds of values that cross an eager region."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

import sapwood as sw

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.gpu,
    # Torch's own, where it imports parts of itself.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


class Pair(NamedTuple):
    a: Any
    b: Any


def test_views_cross_a_break(alike, replayed):
    """Transposed, strided and expanded views are one memory before and behind it."""

    def program(w):
        @sw.eager
        def touch(t, rows, wide):
            rows += float(t[0, 0])
            t[-1].zero_()
            return t[:2], wide.clone()

        def fn(x):
            h = x * 2
            t, rows, wide = h.t(), h[1:, ::2], h[:1].expand(4, 6)
            rows.mul_(3)
            back, copied = touch(t, rows, wide)
            back[0] += 1
            rows.sub_(x[1:, ::2])
            return h, t, wide + copied, x[1:].t(), back

        f = w.graph(fn)
        for i in range(12):
            x = w.values(6, 4).t() if i % 3 == 2 else w.values(4, 6)
            yield f(x), x

    replayed(alike(program))


def test_arguments_of_all_layouts(alike):
    """One tensor twice, transposed, interleaved, expanded, and overlapping ones."""

    def program(w):
        seen = []
        note = sw.eager(lambda *each: seen.extend(v.sum().item() for v in each))

        def fn(a, b):
            h = a * b
            note(h, b)
            a += 1
            note(a, b)
            b = b * 2
            return h + b, a

        f = w.graph(fn)
        for _ in range(5):
            x, y, z = w.values(4, 4), w.values(5, 4), w.values(8, 4)
            yield f(x, x), x
            yield f(x.t(), x.t()), x
            yield f(x, x.t()), x
            yield f(y[:-1], y[1:]), y
            yield f(y[1:], y[:-1]), y
            yield f(z[::2], z[1::2]), z
            yield f(x, y[:1].expand(4, 4)), x, y
            yield f(x, y[0, 0]), list(seen)

    assert alike(program).count("replays") >= 3


def test_an_argument_that_the_function_knows(alike):
    """One that is also read by a name, written behind a break, in some calls only."""

    def program(w):
        weight, seen = w.values(6), []
        note = sw.eager(lambda *each: seen.extend(v.sum().item() for v in each))

        def fn(x):
            h = x * 2
            note(h)
            x += 1
            note(x, weight)
            return h + weight

        f = w.graph(fn)
        for i in range(16):
            x = w.values(6)
            yield f(weight if i % 3 == 1 else x), x, weight, list(seen)
            if i % 5 == 4:
                yield f(weight), weight

    assert alike(program).count("replays") >= 3


def test_results_that_lie_in_each_other(alike, replayed):
    """An eager region returns memory of its own, twice; what is written there stays."""

    def program(w):
        table = w.values(6)

        @sw.eager
        def look(x):
            table.mul_(0.5 if float(x[0]) > 0 else -1)
            return table, {"tail": table[1:], "same": table}, table[:2].clone()

        def fn(x):
            a, rest, c = look(x)
            a += x
            rest["tail"].mul_(2)
            return rest["same"] + 1, a - 1, c

        f = w.graph(fn)
        for _ in range(8):
            yield f(w.values(6)), table

    replayed(alike(program))


def test_conjugates_cross_a_break(alike, replayed):
    """Lazy conjugates and negatives are passed, written, and returned as such."""

    def program(w):
        @sw.eager
        def spin(c, i):
            c.mul_(2 if float(i[0]) > 0 else 3j)
            return c.conj(), i

        def fn(x):
            z = x * 1j
            c = z.conj()
            back, i = spin(c, c.imag)
            c += 1
            return back + c, z * 1, i * 2

        f = w.graph(fn)
        for _ in range(8):
            x = w.values(4, dtype=torch.complex64)
            yield f(x), x

    replayed(alike(program))


DTYPES = "bool", "uint8", "int64", "float16", "bfloat16", "float64", "complex64"


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(alike, dtype, replayed):
    """All kinds of values cross breaks, and are written behind them."""

    def program(w):
        @sw.eager
        def turn(h, part):
            return h.roll(int(part.count_nonzero()) % 3 + 1)

        def fn(x):
            h = torch.cat([x, x.flip(0)])
            y = turn(h, h[1:-1])
            h.copy_(y)
            return h, y[::2], x[1:]

        f = w.graph(fn)
        for _ in range(7):
            x = w.values(5, dtype=getattr(torch, dtype))
            yield f(x), x

    replayed(alike(program))


def test_nothing_and_single_values(alike, replayed):
    """Tensors of no elements, and of no dimensions, are passed and returned."""

    def program(w):
        seen = []

        @sw.eager
        def measure(n, s):
            seen.append((n.shape, s.item()))
            s += 1
            return n.clone(), torch.full((), seen[-1][1], device="cuda"), s

        def fn(x):
            n, s = x[:0] * 2, x.sum()
            e, t, same = measure(n, s)
            same *= 2
            return e, t, t + x, torch.cat([e, x, n]), s

        f = w.graph(fn)
        for i in range(16):
            yield f(w.values(0 if i % 2 else 5)), f(w.values(0, 3)), list(seen)

    replayed(alike(program))


def test_kinds_of_results(alike, replayed):
    """One region returns None, a dict, a named tuple or a part, by its argument."""

    def program(w):
        @sw.eager
        def make(h, kind):
            n = float(h[0])
            if kind == "none":
                return None
            if kind == "dict":
                return {"a": h * n, "b": [h[1:], None, ()]}
            return Pair(h + n, b=(h, {})) if kind == "pair" else h

        def fn(x):
            h = x + 1
            assert make(h, "none") is None
            found, pair = make(h, "dict"), make(h, kind="pair")
            found["b"][0].mul_(2)
            same = make(h, "self")
            same -= 1
            assert found["b"][1] is None
            assert type(pair) is Pair
            return found["a"] + pair.a, pair.b[0], same

        f = w.graph(fn)
        for _ in range(8):
            yield f(w.values(4))

    replayed(alike(program))
