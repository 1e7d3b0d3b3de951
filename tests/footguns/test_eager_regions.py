"""What happens around eager regions: what runs when, and what may come back."""

from __future__ import annotations

import numpy as np
import pytest

import sapwood as sw


def test_prints_repeat_only_in_eager_regions(rt):
    """A print in a graphed function happens twice; one in a region, on every call.

    Put what is to happen on every call into a function with `@sw.eager`.
    """
    always = []

    @sw.eager
    def report(h):
        always.append(float(h.sum()))

    def fn(x):
        h = x * 2
        report(h)
        return h

    f, x = rt.graph(fn), rt.array(np.ones(3))
    for _ in range(5):
        f(x)
    assert always == [6.0] * 5


def test_an_eager_region_gives_few_numbers(rt):
    """For each Python number that it returns the function is recorded once more.

    Of always others none comes again, and the function runs eagerly: return a device
    array, `return h.max()` instead of `return float(h.max())`, or `rt.array(...)` for
    what was computed on the host. With `fullgraph=True` a number is refused at once.
    """

    @sw.eager
    def largest(h):
        return float(h.max())

    @sw.eager
    def largest_array(h):
        return rt.array(np.float64(float(h.max())))

    x = rt.array(np.arange(3.0))
    with pytest.raises(sw.CaptureError, match=r"returned a float"):
        rt.graph(lambda x: x / largest(x * 2), fullgraph=True)(x)
    f = rt.graph(lambda x: x / largest_array(x * 2), fullgraph=True)
    for _ in range(4):
        assert np.asarray(f(x)).tolist() == [0, 0.25, 0.5]
        x *= 2


def test_an_eager_region_gives_the_same_shape_each_time(rt):
    """A result of another shape stops the call in the middle: the first part has run.

    Return arrays of one shape, padded if need be, or end the graphed function there.
    """
    lengths = [3, 3, 3, 2]

    @sw.eager
    def chosen(h):
        return h[: lengths.pop(0)] * 1

    f, x = rt.graph(lambda x: chosen(x * 2) + 1, fullgraph=True), rt.array(np.ones(3))
    for _ in range(3):
        f(x)
    with pytest.raises(sw.CaptureError, match="first part has run"):
        f(x)


def test_values_for_what_follows_go_through_arrays(rt):
    """An attribute that an eager region sets, and the rest reads, must not change.

    What follows was recorded under the old value, and the first part has run by then:
    the call ends with a `CaptureError`. Keep such values in device arrays.
    """

    class Scaler:
        def __init__(self):
            self.scale, self.array = 2.0, rt.array(np.full((), 2.0))

        @sw.eager
        def halve(self, h):
            if float(h[0]) > 3:
                self.scale /= 2
                self.array[...] = self.scale

    s = Scaler()

    def plain(x):
        s.halve(x * 1)
        return x * s.scale

    def careful(x):
        s.halve(x * 1)
        return x * s.array

    x = rt.array(np.ones(3))
    f, g = rt.graph(plain, fullgraph=True), rt.graph(careful, fullgraph=True)
    for _ in range(3):
        f(x)
        assert np.asarray(g(x)).tolist() == [2] * 3
    x[...] = 4
    with pytest.raises(sw.CaptureError, match=r"scale was 2.0, is 1.0"):
        f(x)
    s.scale = 2.0
    assert np.asarray(g(x)).tolist() == [4] * 3


def test_catching_exceptions_of_an_eager_region(rt):
    """A `try` around a region is not in a replay: catch inside the eager region."""
    bad = [False]

    @sw.eager
    def check(h):
        if bad[0]:
            raise ValueError(h)

    def fn(x):
        try:
            check(x * 1)
        except ValueError:
            return x * 0
        return x * 2

    f, x = rt.graph(fn, fullgraph=True), rt.array(np.ones(3))
    for _ in range(3):
        f(x)
    bad[0] = True
    with pytest.raises(sw.CaptureError, match="no replay runs"):
        f(x)
