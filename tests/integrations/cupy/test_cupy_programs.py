"""Programs as people write them with CuPy: ten calls each, replayed and plain.

Both run from values of their own that are drawn alike. What they return and what they
write is compared bit for bit, as it comes, and once more when all calls are over.
"""

from __future__ import annotations

import dataclasses
import re
import struct
import warnings

import numpy as np
import pytest

import sapwood as sw
from tests.integrations.cupy import (
    programs_arrays,
    programs_kernels,
    programs_learning,
    programs_refused,
    programs_simulation,
)
from tests.integrations.cupy.programs_base import PROGRAMS

KINDS = (
    programs_arrays,
    programs_kernels,
    programs_learning,
    programs_refused,
    programs_simulation,
)
CALLS, SEED = 10, 5
REPLAYS = 3
ON_THE_HOST = {name: each for name, each in PROGRAMS.items() if not each.gpu_only}


def _leaves(value):
    """Yield the arrays and plain values of a nest."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield key
            yield from _leaves(each)
    elif isinstance(value, (list, tuple)):
        yield type(value).__name__, len(value)
        for each in value:
            yield from _leaves(each)
    elif dataclasses.is_dataclass(value):
        yield type(value).__name__
        yield from _leaves(vars(value))
    else:
        yield value


def _is_array(value):
    return hasattr(value, "dtype") and hasattr(value, "tobytes")


def _arrays(*nest):
    return [each for each in _leaves(nest) if _is_array(each)]


def _first_byte(array):
    if isinstance(array, np.ndarray):
        return array.ctypes.data
    return array.data.ptr if hasattr(array, "data") and array.ndim else None


def _place(array, given):
    """Return which of the given arrays it is or is a view of, and where it begins."""
    at = getattr(array, "size", 0) and _first_byte(array)
    for i, each in enumerate(given):
        if array is each:
            return i, "itself"
        if at and each.size and 0 <= at - _first_byte(each) < each.nbytes:
            return i, at - _first_byte(each)
    return None


def _picture(nest, given=()):
    """Return what must be the same of all that a nest holds: types, bits, places."""
    told = []
    for leaf in _leaves(nest):
        if _is_array(leaf):
            steps = zip(getattr(leaf, "strides", ()), leaf.shape, strict=True)
            strides = [step for step, size in steps if size > 1]
            about = type(leaf), leaf.dtype.str, leaf.shape, strides
            told.append((*about, _place(leaf, given), leaf.tobytes()))
        elif isinstance(leaf, float):
            told.append((float, struct.pack("<d", leaf)))
        else:
            told.append((type(leaf), leaf))
    return told


def _made(program, xp):
    fn, arguments, *state = program.make(xp, np.random.default_rng(SEED))
    return fn, arguments, state


def _called(fn, args):
    return fn(**args) if isinstance(args, dict) else fn(*args)


def _pictures(found, args, state):
    """Return what came back, and what the call may have written."""
    given = [each for each in _arrays(args) if each.ndim]
    return _picture(found, given), _picture([args, state])


def _check(found, expected, what):
    """Fail with the first leaf that differs; bits are no reading for anybody."""
    if found == expected:
        return
    pairs = zip(found, expected, strict=False)
    one, other = next((p for p in pairs if p[0] != p[1]), (len(found), len(expected)))
    if isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
        bits = f"{_of_bits(one)}, expected {_of_bits(other)}"
        one, other = (each[:-1] for each in (one, other))
        pytest.fail(f"{what}: {one}, expected {other}; values {bits}")
    pytest.fail(f"{what}: {one}, expected {other}")


def _of_bits(leaf):
    """Return the first values that a leaf's bits are, if it is an array's."""
    return np.frombuffer(leaf[-1], leaf[1])[:8] if len(leaf) == 6 else leaf[-1]


@pytest.mark.gpu
@pytest.mark.parametrize("name", PROGRAMS)
def test_it_is_what_it_is_without_a_graph(rt, cp, name):
    """Ten calls give and write what plain calls do, and later ones change no result."""
    program, kept = PROGRAMS[name], []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of cupyx.jit
        fn, arguments, state = _made(program, cp)
        plain, plain_arguments, plain_state = _made(program, cp)
    f = rt.graph(fn)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of cupyx.jit
        if program.skips or program.decides:
            warnings.simplefilter("ignore", sw.GraphSkipWarning)
        for i in range(CALLS):
            args, plain_args = arguments(i), plain_arguments(i)
            found, expected = _called(f, args), _called(plain, plain_args)
            pictures = _pictures(expected, plain_args, plain_state)
            for one, other in zip(_pictures(found, args, state), pictures, strict=True):
                _check(one, other, f"call {i}\n{f.explain()}")
            kept.append((found, expected))
    for i, (found, expected) in enumerate(kept):
        _check(_picture(found), _picture(expected), f"result {i} at the end")
    recorded = f.stats().replays >= REPLAYS
    if program.decides:
        return
    if program.skips is None or (program.either and recorded):
        assert recorded, f.explain()
    else:
        assert re.search(program.skips, f.explain()), f.explain()
        assert f.stats().passed_through, f.explain()


@pytest.mark.parametrize("name", ON_THE_HOST)
def test_it_runs_on_the_host_alike_every_time(name):
    """NumPy runs it, twice from one seed to the same bits, and they say something."""
    shown = []
    for _ in range(2):
        fn, arguments, state = _made(ON_THE_HOST[name], np)
        calls = [_called(fn, arguments(i)) for i in range(2)]
        shown.append(_picture([calls, state]))
    _check(shown[1], shown[0], "the second time")
    arrays = _arrays(calls, state)
    assert any(each.any() for each in arrays), "all of it is nothing"
    assert all(np.isfinite(each).all() for each in arrays), "a NaN hides what differs"


def test_there_are_programs_enough():
    """Eighty at least, of which four in five are expected to be recorded."""
    skipping = [name for name, each in PROGRAMS.items() if each.skips is not None]
    assert len(PROGRAMS) >= 80
    assert {each.make.__module__ for each in PROGRAMS.values()} == {
        kind.__name__ for kind in KINDS
    }
    assert len(skipping) <= len(PROGRAMS) / 5, skipping
    assert all(re.compile(PROGRAMS[name].skips) for name in skipping)
