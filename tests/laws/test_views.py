"""Law 2: outputs that are views of inputs, of each other, or the inputs themselves."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.frameworks import on_host

VIEWS = {
    "itself": lambda x: x,
    "tail": lambda x: x[1:],
    "reversed": lambda x: x[::-1],
    "transposed": lambda x: x.T,
    "reshaped": lambda x: x.reshape(2, 8),
    "element": lambda x: x[1, 2],
    "broadcast": lambda x: np.broadcast_to(x[0], (3, 4)),
    "other dtype": lambda x: x.view(np.int32),
    "nothing": lambda x: x[:0],
    "view of a view": lambda x: x[1:].T[::2],
    "complex": lambda x: x.view(np.complex128),
    "conjugate": lambda x: x.view(np.complex128).conj(),
    "negative": lambda x: x.view(np.complex128).conj().imag,
    "windows": lambda x: x[:, 1:3],
}


def _views_of_torch(torch):
    """Return the views that torch has other names for; some are but marked as done."""
    of_pairs = torch.view_as_complex
    return {
        "reversed": lambda x: x.flip(0),
        "reshaped": lambda x: x.view(2, 8),
        "broadcast": lambda x: x[0].expand(3, 4),
        "other dtype": lambda x: x.view(torch.int16),
        "complex": lambda x: of_pairs(x.view(4, 2, 2)),
        "conjugate": lambda x: of_pairs(x.view(4, 2, 2)).conj(),
        "negative": lambda x: of_pairs(x.view(4, 2, 2)).conj().imag,
        "windows": lambda x: x.unfold(1, 2, 1),
    }


@pytest.fixture(params=VIEWS)
def view(request, framework):
    """Return what makes one kind of view."""
    own = _views_of_torch(framework.torch) if hasattr(framework, "torch") else {}
    return own.get(request.param, VIEWS[request.param])


@pytest.mark.every_framework
def test_an_output_may_be_a_view_of_an_input(same, view):
    """The result shares the caller's own memory, copied in or not."""
    same(lambda x, y: (view(x), x + y), lambda w: (w.values(4, 4), w.values()))


@pytest.mark.every_framework
def test_an_output_may_be_a_view_of_a_written_input(same, view):
    """A view of an argument that was written in place shows what was written."""

    def f(x, y):
        x += y
        return view(x)

    same(f, lambda w: (w.values(4, 4), w.values(4)))


@pytest.mark.every_framework
def test_outputs_may_be_views_of_each_other(same, view):
    """Outputs over one storage come back over one storage."""

    def f(x):
        y = x * 2
        return view(y), y, (view(y),)

    same(f, lambda w: (w.values(4, 4),))


@pytest.mark.every_framework
def test_only_a_view_may_be_returned(same, view):
    """The storage behind a returned view lives though nobody has all of it."""
    same(lambda x: view(x * 2 + 1), lambda w: (w.values(4, 4),))


@pytest.mark.every_framework
def test_views_of_different_arguments_stay_apart(same):
    """Views of two inputs and of a new array, shuffled, each keep their owner."""

    def f(x, y):
        z = x + y
        return z[1:], y[:2], x[1:], z[:1], y.T, x, [z.T]

    same(f, lambda w: (w.values(3, 3), w.values(3, 3)))


@pytest.mark.every_framework
def test_views_of_overlapping_arguments(same, framework):
    """One storage under two arguments is one storage under their views."""
    turned = framework.turned

    def make(w):
        x = w.values(6)
        return x[:4], x[2:]

    same(lambda a, b: (b[1:], a[::2], turned(a), a + b), make)


@pytest.mark.parametrize("order", ["C", "F", "A", "K"])
def test_one_dimension_is_a_view_where_numpy_has_one(agree, order):
    """Elements that lie in order, however the steps over single ones are signed."""

    def program(w):
        f = w.graph(lambda x: x.ravel(order))
        for part in (
            lambda x: x[:1, ::-1].T,
            lambda x: x[::-1][:1, :1],
            lambda x: x[::-1][:1],
            lambda x: x.T[:, ::-1],
            lambda x: x[:, 1:2],
        ):
            for _ in range(4):
                whole = w.values(3, 4)
                x = part(whole)
                flat = f(x)
                flat += 1
                yield whole, x, flat, x.ravel(order)

    agree(program)


@pytest.mark.every_framework
def test_views_of_closed_over_arrays(agree):
    """A view of what the function closes over shares that array's memory."""

    def program(w):
        weight = w.values(4, 4)
        f = w.graph(lambda x: (weight[1:], weight, weight @ x, weight.T))
        x = w.values(4)
        for _ in range(6):
            views = f(x)
            views[0][0, 0] += 1
            yield views, weight

    # The views of one call are held while the next runs: there are two variants.
    assert agree(program).count("replays") == 3


@pytest.mark.every_framework
@pytest.mark.parametrize("max_variants", [1, 4])
def test_writing_through_a_view_is_seen_by_its_owner(agree, max_variants):
    """Aliasing is more than a pattern: writes through any name reach all others."""

    def program(w):
        f = w.graph(lambda x: _three(x), max_variants=max_variants)
        x, held = w.values(6), []
        for i in range(8):
            part, whole, mine = f(x)
            part[0] = 100 + i
            mine[1] = -i
            yield part, whole, mine, x
            held.append((part, whole))
        yield held

    agree(program)


def _three(x):
    y = x * 2
    return y[1:4], y, x[2:]


@pytest.mark.every_framework
@pytest.mark.parametrize("max_variants", [1, 2])
def test_aliases_survive_escape(agree, max_variants):
    """Escaped outputs: views are rebuilt, aliases of inputs are still aliases."""

    def f(x):
        y = x + 1
        return {"y": y, "rows": [y[i] for i in range(3)], "x": x[1:], "t": y.T}

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

    assert agree(program).count("escaped") > 0


@pytest.mark.every_framework
def test_a_view_of_an_inherited_output_keeps_it(agree):
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

    agree(program)


@pytest.mark.every_framework
def test_an_input_handed_through_a_chain_is_still_the_input(agree):
    """``g(f(x))`` where both hand their argument on returns the caller's array."""

    def program(w):
        turned = w.framework.turned
        f = w.graph(lambda x: (x, x + 1))
        g = w.graph(lambda x, y: (y, x[1:], turned(x)))
        for _ in range(6):
            x = w.values(4)
            same, more = f(x)
            assert same is x
            out = g(same, more)
            assert out[0] is more
            out[1][0] = 5
            out[2][0] = 6
            yield x, same, more, out

    assert agree(program).count("replays") > 0


@pytest.mark.every_framework
def test_a_swap_of_arguments(agree):
    """``a, b = f(a, b)`` that returns them crossed goes on swapping."""

    def program(w):
        f = w.graph(lambda a, b: (b, a + 0, a))
        a, b = w.values(3), w.values(3)
        for _ in range(9):
            a, extra, b = f(a, b)
            yield a, b, extra

    agree(program)


@pytest.mark.every_framework
def test_views_outlive_everything(rig):
    """A view is readable when its function, its owner and its runtime are gone."""
    rt = rig.runtime
    f = rt.graph(lambda x: (x * 3).reshape(2, 3)[1:])
    x = rt.array(np.arange(6.0))
    views = [f(x) for _ in range(7)]
    del f, x
    rt.close()
    expected = np.arange(6.0).reshape(2, 3)[1:] * 3
    for view in views:
        assert on_host(view).tobytes() == expected.tobytes()


def test_one_array_twice_is_one_to_the_function(agree):
    """It may ask; and two arrays over the same bytes are two."""

    def program(w):
        f = w.graph(lambda a, b: a + 1 if a is b else a - 1)
        x = w.values(3)
        for i in range(12):
            if i % 5 == 4:
                x = w.values(3)
            yield f(x, x if i % 3 else x[:])

    assert agree(program).count("replays") >= 4
