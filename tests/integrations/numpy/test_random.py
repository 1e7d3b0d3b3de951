"""The device generator draws what NumPy's Philox draws."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sapwood.integrations.numpy import Generator, make_generator

SIZES = (None, 0, 1, 3, (2, 3), (0, 2), 101)
DRAWS = (
    lambda g, n: g.random(n),
    lambda g, n: g.random(n, dtype=np.float32),
    lambda g, n: g.standard_normal(n),
    lambda g, n: g.standard_normal(n, dtype=np.float32),
    lambda g, n: g.standard_exponential(n, np.float32),
    lambda g, n: g.normal(1.0, 2.5, n),
    lambda g, n: g.uniform(-1, 1, n),
    lambda g, n: g.exponential(2.0, size=n),
    lambda g, n: g.integers(10, size=n),
    lambda g, n: g.integers(-5, 5, n, np.int8),
    lambda g, n: g.integers(0, 2**40, n, endpoint=True),
    lambda g, n: g.integers(0, 2, n, dtype=np.uint16),
    lambda g, n: g.permutation(n if isinstance(n, int) else 7),
    lambda g, n: g.binomial(10, 0.3, n),
    lambda g, n: g.gamma(2.0, scale=3.0, size=n),
    lambda g, n: g.poisson(4.0, n),
    lambda g, n: g.standard_t(3, size=n),
    lambda g, n: g.zipf(a=2.5, size=n),
    lambda g, n: g.choice(9, n),
    lambda g, n: g.choice(5, n, p=[0.1, 0.2, 0.3, 0.2, 0.2]),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**64),
    draws=st.lists(st.tuples(st.sampled_from(DRAWS), st.sampled_from(SIZES))),
)
def test_any_sequence_of_draws_equals_numpy(lab, seed, draws):
    """Mixed draws of all kinds and sizes equal those of ``Generator(Philox(seed))``."""
    ours = make_generator(lab.device, seed)
    numpys = np.random.Generator(np.random.Philox(seed))
    for draw, size in draws:
        lab.same(draw(ours, size), draw(numpys, size))


def test_the_state_is_all_on_the_device(lab):
    """A copy of the state goes on with the same numbers."""
    first = make_generator(lab.device, 5)
    first.integers(9, size=3, dtype=np.int32)
    second = Generator(first.state.copy())
    third = Generator(first.state)
    drawn = np.asarray(first.standard_normal(7))
    assert drawn.tobytes() == np.asarray(second.standard_normal(7)).tobytes()
    assert drawn.tobytes() != np.asarray(third.standard_normal(7)).tobytes()


def test_misuse_is_named(lab):
    """A wrong state and arrays as parameters say what to do instead."""
    with pytest.raises(TypeError, match="13 words of uint64"):
        Generator(lab.up(np.zeros(3)))
    generator = make_generator(lab.device, 1)
    with pytest.raises(TypeError, match=r"normal takes a plain number for loc"):
        generator.normal(lab.up(np.zeros(3)))
    with pytest.raises(TypeError, match=r"gamma takes plain numbers"):
        generator.gamma(lab.up(np.zeros(3)))
    with pytest.raises(TypeError):
        generator.random(3, dtype=np.int32)
    assert "Philox" in repr(generator)


def test_a_place_that_numpy_never_gives_is_the_nearest_that_it_does(lab):
    """Of the four words of a block, the first is drawn with the block itself."""
    drawn = []
    for place, nearest in ((0, 1), (1, 1), (4, 4), (5, 4), (2**64 - 1, 4)):
        words = np.arange(13, dtype=np.uint64) << np.uint64(40)
        for each in (place, nearest):
            words[10] = each
            drawn.append(np.asarray(Generator(lab.up(words)).random(3)).tobytes())
        assert drawn[-1] == drawn[-2]
    assert len(set(drawn)) == 2


def test_every_place_that_numpy_gives_is_kept(lab):
    """A generator goes on from a state of NumPy's as NumPy does."""
    numpys = np.random.Generator(np.random.Philox(3))
    ours = make_generator(lab.device, 3)
    for _ in range(9):
        assert 1 <= numpys.bit_generator.state["buffer_pos"] <= 4
        assert (
            int(np.asarray(ours.state)[10]) == numpys.bit_generator.state["buffer_pos"]
        )
        lab.same(ours.random(1), numpys.random(1))


def test_elements_of_an_array_are_chosen(lab):
    """The places are drawn, and the elements taken on the device."""
    host, x = lab.pair("d", (5, 2))
    ours, numpys = make_generator(lab.device, 3), np.random.Philox(3)
    chosen = np.random.Generator(numpys).choice(host, 4, replace=False)
    lab.same(ours.choice(x, 4, replace=False), chosen)
