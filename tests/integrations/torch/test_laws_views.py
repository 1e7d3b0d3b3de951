"""Results that are views of arguments, of each other, or the arguments themselves."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.gpu

VIEWS = {
    "itself": lambda x: x,
    "tail": lambda x: x[1:],
    "transposed": lambda x: x.t(),
    "reshaped": lambda x: x.view(2, 8),
    "element": lambda x: x[1, 2],
    "broadcast": lambda x: x[0].expand(3, 4),
    "other dtype": lambda x: x.view(torch.int16),
    "nothing": lambda x: x[:0],
    "view of a view": lambda x: x[1:].t()[::2],
    "complex": lambda x: torch.view_as_complex(x.view(4, 2, 2)),
    "conjugate": lambda x: torch.view_as_complex(x.view(4, 2, 2)).conj(),
    "negative": lambda x: torch.view_as_complex(x.view(4, 2, 2)).conj().imag,
    "windows": lambda x: x.unfold(1, 2, 1),
}


@pytest.mark.parametrize("view", VIEWS)
def test_an_output_may_be_a_view_of_an_input(agrees, view):
    """The result shares the caller's own memory, copied in or not."""
    agrees(lambda x, y: (VIEWS[view](x), x + y), lambda w: (w.values(4, 4), w.values()))


@pytest.mark.parametrize("view", VIEWS)
def test_an_output_may_be_a_view_of_a_written_input(agrees, view):
    """A view of an argument that was written in place shows what was written."""

    def f(x, y):
        x += y
        return VIEWS[view](x)

    agrees(f, lambda w: (w.values(4, 4), w.values(4)))


@pytest.mark.parametrize("view", VIEWS)
def test_outputs_may_be_views_of_each_other(agrees, view):
    """Outputs over one storage come back over one storage."""

    def f(x):
        y = x * 2
        return VIEWS[view](y), y, (VIEWS[view](y),)

    agrees(f, lambda w: (w.values(4, 4),))


@pytest.mark.parametrize("view", VIEWS)
def test_only_a_view_may_be_returned(agrees, view):
    """The storage behind a returned view lives though nobody has all of it."""
    agrees(lambda x: VIEWS[view](x * 2 + 1), lambda w: (w.values(4, 4),))


def test_views_of_different_arguments_stay_apart(agrees):
    """Views of two inputs and of a new tensor, shuffled, each keep their owner."""

    def f(x, y):
        z = x + y
        return z[1:], y[:2], x[1:], z[:1], y.t(), x, [z.t()]

    agrees(f, lambda w: (w.values(3, 3), w.values(3, 3)))


def test_views_of_overlapping_arguments(agrees):
    """One storage under two arguments is one storage under their views."""

    def make(w):
        x = w.values(6)
        return x[:4], x[2:]

    agrees(lambda a, b: (b[1:], a[::2], a + b), make)


def test_views_of_closed_over_tensors(alike):
    """A view of what the function closes over shares that tensor's memory."""

    def program(w):
        weight = w.values(4, 4)
        f = w.graph(lambda x: (weight[1:], weight, weight * x, weight.t()))
        x = w.values(4)
        for _ in range(6):
            views = f(x)
            views[0][0, 0] += 1
            yield views, weight

    # The views of one call are held while the next runs: there are two variants.
    assert alike(program).count("replays") == 3


def three(x):
    y = x * 2
    return y[1:4], y, x[2:]


@pytest.mark.parametrize("max_variants", [1, 4])
def test_writing_through_a_view_is_seen_by_its_owner(alike, max_variants):
    """Aliasing is more than a pattern: writes through any name reach all others."""

    def program(w):
        f = w.graph(three, max_variants=max_variants)
        x, held = w.values(6), []
        for i in range(8):
            part, whole, mine = f(x)
            part[0] = 100 + i
            mine[1] = -i
            yield part, whole, mine, x
            held.append((part, whole))
        yield held

    alike(program)


@pytest.mark.parametrize("max_variants", [1, 2])
def test_aliases_survive_escape(alike, max_variants):
    """Escaped outputs: views are rebuilt, aliases of inputs are still aliases."""

    def f(x):
        y = x + 1
        return {"y": y, "rows": [y[i] for i in range(3)], "x": x[1:], "t": y.t()}

    def program(w):
        g = w.graph(f, max_variants=max_variants)
        x, held = w.values(3, 3), []
        for _ in range(9):
            held.append(g(x))
            yield held[-1], x
        for made in held:
            made["rows"][1][:] = 7
        x += 1
        yield held, x

    assert alike(program).count("escaped") > 0


def test_a_view_of_an_inherited_output_keeps_it(alike):
    """A child's view of its parent's output holds that output, whoever drops it."""

    def program(w):
        f, g = w.graph(lambda x: x * 2), w.graph(lambda h: (h[1:], h.sum()))
        x = w.values(5)
        for _ in range(6):
            view, _ = g(f(x))
            x += 1
            for _ in range(3):
                f(x)
            yield view, f(x), view

    alike(program)


def test_an_input_handed_through_a_chain_is_still_the_input(alike):
    """``g(f(x))`` where both hand their argument on returns the caller's tensor."""

    def program(w):
        f, g = w.graph(lambda x: (x, x + 1)), w.graph(lambda x, y: (y, x[1:]))
        for _ in range(6):
            x = w.values(4)
            same, more = f(x)
            assert same is x
            out = g(same, more)
            assert out[0] is more
            out[1][0] = 5
            yield x, same, more, out

    assert alike(program).count("replays") > 0


def test_a_swap_of_arguments(alike):
    """``a, b = f(a, b)`` that returns them crossed goes on swapping."""

    def program(w):
        f = w.graph(lambda a, b: (b, a + 0, a))
        a, b = w.values(3), w.values(3)
        for _ in range(9):
            a, extra, b = f(a, b)
            yield a, b, extra

    alike(program)


def test_views_outlive_everything(rt, same):
    """A view is readable when its function, its owner and its runtime are gone."""
    f = rt.graph(lambda x: (x * 3).view(2, 3)[1:])
    x = torch.randn(6, device="cuda")
    views, expected = [f(x) for _ in range(7)], (x * 3).view(2, 3)[1:]
    del f, x
    rt.close()
    for view in views:
        same(view, expected)
