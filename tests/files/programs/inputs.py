"""What each program of the corpus is called with, in whichever process.

``make(host)`` makes an array; ``make.kept(name, host)`` is the same one in every
call, whose contents go into the file.
"""

from __future__ import annotations

import numpy as np

CALLS = 5
"""Each program is called so often after it was saved, and in the other process."""


def _values(k, *shape, dtype=np.float64):
    rng = np.random.default_rng([7, k])
    host = np.asarray(rng.integers(-9, 9, shape)).astype(dtype)
    if host.dtype.kind == "c":
        host += 1j * rng.standard_normal(shape)
    return host / 2.0 if host.dtype == np.float64 else host


def _one(*shape, dtype=np.float64):
    return lambda make, k: ((make(_values(k, *shape, dtype=dtype)),), {})


def _kept(make, k):
    return (make.kept("w", _values(0, 4, 3)), make(_values(k, 4, 3))), {}


def _signatures(make, k):
    shapes = [(3,), (4,), (2, 2), (3,), (3,)]
    scale = [2.0, 2.0, 2.0, 2, True][k % 5]
    dtype = [np.float64, np.float32, np.float64, np.float64, np.float64][k % 5]
    return (make(_values(k, *shapes[k % 5], dtype=dtype)), scale), {}


def _odd(make, k):
    base = make(_values(k, 6, 4))
    return (
        make(_values(k)),
        make(np.empty((0, 3))),
        base.T[::2, ::-1],
        np.broadcast_to(make(_values(k, 3)), (2, 3)),
    ), {}


def _nest(make, k):
    x, y = make(_values(k, 5)), make(_values(k + 9, 5))
    return ({"w": [x, (y, 1.5)], "n": None, "é": "text"},), {"flag": k % 2 < 9, "z": x}


def _overlapping(make, k):
    x = make(_values(k, 8))
    return (x, x[1:], x[::2]), {}


def _dtypes(make, k):
    return tuple(make(_values(k, 5, dtype=t)) for t in "?bBhHiIlLefdgFD"), {}


def _kept_twice(make, k):
    name, n = ("w", 3) if k % 2 == 0 else ("w (2)", 4)
    return (make.kept(name, _values(0, n)), make(_values(k, n))), {}


def _kept_generator(make, k):
    return (make.generator("rng"), make(_values(k, 5))), {}


def _donated(make, k):
    return (make(_values(k, 7)), make(_values(k + 1, 7))), {}


INPUTS = {
    "views": _one(6, 4),
    "in_place": _kept,
    "copied_back": lambda make, k: ((make(_values(k, 6)), make(_values(k, 6))), {}),
    "rebound": _one(5),
    "lazily": _one(5),
    "generator": _one(5),
    "passed_generator": _kept_generator,
    "nests": _one(4),
    "constants": _one(3),
    "signatures": _signatures,
    "odd": _odd,
    "nested_arguments": _nest,
    "overlapping": _overlapping,
    "dtypes": _dtypes,
    "large": _one(400_000),
    "layers": _one(8, 6),
    "functions": _one(6, 6),
    "method": _one(3),
    "nothing": lambda *_: ((), {}),
    "only_aliases": _one(3),
    "donated": _donated,
    "many_outputs": _one(300),
    "bound_only": _one(3),
    "kept_twice": _kept_twice,
    "long_keys": _one(3),
    "several_orders": lambda make, k: (
        (make(_values(k, 3)), ("ac", "abc", "bc")[k % 3]),
        {},
    ),
}

ONLY_HERE = {"odd", "overlapping", "passed_generator", "nested_arguments"}
"""What no .npy files can say: views, overlap, an object, one array in two places."""
