"""A stack that has no more room is a `RecursionError`, wherever the room ends."""

from __future__ import annotations

import sys

import numpy as np
import pytest


def _deep(x, n):
    return x if n == 0 else _deep(x + 1, n - 1)


@pytest.mark.parametrize("graphed", [False, True], ids=["eager", "graphed"])
def test_a_function_that_calls_itself_without_end(rt, graphed):
    """As the plain function; and the next call is as good as any."""
    f, x, limit = rt.graph(_deep) if graphed else _deep, rt.array(np.ones(2)), 0
    frame = sys._getframe()
    while frame is not None:
        frame, limit = frame.f_back, limit + 1
    usual = sys.getrecursionlimit()
    # The heap has room: growing is not proof against that. On GPUs, where eager arrays
    # are CuPy's, the first call sees to it.
    f(x, 250)
    _deep(x, 250)
    for more in range(150, 250, 4):
        sys.setrecursionlimit(limit + more)
        try:
            with pytest.raises(RecursionError):
                f(x, 3000)
        finally:
            sys.setrecursionlimit(usual)
    assert np.asarray(f(x, 3)).tolist() == [4, 4]
