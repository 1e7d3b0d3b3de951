"""Law 3: an output that is kept is never changed by later calls."""

from __future__ import annotations

import gc
import random
from itertools import pairwise

import numpy as np
import pytest

from tests.support.frameworks import on_host

CALLS = 1_000


def _step(x, y):
    return (x * y).sum(), x + y


def _expected(i):
    x = np.arange(8.0) + i
    return (x * 3.0).sum(), x + 3.0


def _check(kept):
    for i, (loss, out) in kept:
        expected = _expected(i)
        assert float(loss) == expected[0], i
        assert on_host(out).tobytes() == expected[1].tobytes(), i


@pytest.mark.every_framework
@pytest.mark.parametrize("max_variants", [1, 4])
def test_a_thousand_outputs_are_kept(rt, framework, max_variants):
    """``losses.append(step(x))``: all of them stay, and recordings stay bounded."""
    f = rt.graph(_step, max_variants=max_variants)
    y, kept = rt.array(np.full(8, 3.0)), []
    x = rt.array(np.arange(8.0))
    for i in range(CALLS):
        kept.append((i, f(x, y)))
        x += 1
    _check(kept)
    stats = f.stats()
    assert stats.recordings <= max_variants + 1
    assert stats.escaped >= CALLS - max_variants - 2
    assert stats.passed_through == 0
    kept.clear()
    gc.collect()
    for i in range(CALLS, CALLS + 20):
        kept.clear()
        kept.append((i, f(x, y)))
        _check(kept)
        x += 1
    after = f.stats()
    assert after.escaped == stats.escaped, "nobody holds outputs: no copies"
    assert after.recordings <= max_variants + 1
    assert 0 <= stats.replays + 20 - after.replays <= framework.settling


@pytest.mark.every_framework
def test_a_thousand_outputs_of_new_arguments_are_kept(rt):
    """The same where every call brings a new argument."""
    f = rt.graph(_step)
    y = rt.array(np.full(8, 3.0))
    kept = [(i, f(rt.array(np.arange(8.0) + i), y)) for i in range(CALLS)]
    _check(kept)
    assert f.stats().recordings <= 6
    assert f.stats().passed_through == 0


@pytest.mark.every_framework
def test_what_is_kept_of_one_shape_is_kept_of_the_next(rt):
    """It takes a recording less to find out, and none is ever changed."""
    f, made, kept = rt.graph(lambda x: x * 2), [0], []
    for size in (4, 5, 6):
        values = [rt.array(np.full(size, float(i))) for i in range(8)]
        kept += [(i, size, f(x)) for i, x in enumerate(values)]
        made.append(f.stats().recordings)
    for i, size, out in kept:
        assert on_host(out).tobytes() == np.full(size, 2.0 * i).tobytes()
    first, second, third = (now - then for then, now in pairwise(made))
    assert second == third == first - 1


@pytest.mark.every_framework
def test_outputs_are_kept_at_random(rt):
    """Held for a random while, dropped in a random order, none is ever changed."""
    draw = random.Random(5)
    f, y = rt.graph(_step), rt.array(np.full(8, 3.0))
    x, kept = rt.array(np.arange(8.0)), []
    for i in range(400):
        kept.append((i, f(x, y)))
        x += 1
        draw.shuffle(kept)
        del kept[draw.choice((1, 2, 5, 9)) :]
        _check(kept)
    assert f.stats().recordings <= 5


@pytest.mark.every_framework
def test_all_outputs_of_two_functions_are_kept(rt):
    """What one function leaves is not in the way of another, nor overwritten by it."""
    f, g = rt.graph(_step), rt.graph(lambda x: x - 1)
    y, x = rt.array(np.full(8, 3.0)), rt.array(np.arange(8.0))
    ours, theirs = [], []
    for i in range(200):
        ours.append((i, f(x, y)))
        theirs.append(g(x))
        x += 1
    _check(ours)
    for i, out in enumerate(theirs):
        assert on_host(out).tobytes() == (np.arange(8.0) + i - 1).tobytes()
    assert f.stats().recordings <= 5
    assert g.stats().recordings <= 5


def _part(y):
    return y.reshape(2, 4)[1, ::2]


@pytest.mark.every_framework
@pytest.mark.parametrize("made", ["inside", "outside", "both"])
def test_only_views_are_kept(rt, made):
    """A view holds its whole storage, whoever made it, though nobody has the rest."""
    inside, outside = made != "outside", made != "inside"
    f = rt.graph(lambda x: _part(x * 2) if inside else x * 2)
    x, kept = rt.array(np.arange(8.0)), []
    for _ in range(100):
        y = f(x)
        if outside:
            y = y[1:] if inside else _part(y)
        kept.append(y)
        del y
        x += 1
    for i, view in enumerate(kept):
        expected = _part((np.arange(8.0) + i) * 2)[int(made == "both") :]
        assert on_host(view).tobytes() == expected.tobytes()
    assert f.stats().recordings <= 5


@pytest.mark.every_framework
def test_one_of_several_outputs_is_kept(rt):
    """Outputs of one call live and die apart."""
    f = rt.graph(lambda x: (x + 1, x + 2, x + 3))
    x, kept = rt.array(np.arange(4.0)), []
    for i in range(60):
        kept.append((i, i % 3, f(x)[i % 3]))
        x += 1
        del kept[: max(0, len(kept) - 7)]
        for when, which, out in kept:
            expected = np.arange(4.0) + when + which + 1
            assert on_host(out).tobytes() == expected.tobytes()


@pytest.mark.every_framework
def test_kept_in_a_cycle(rt):
    """An output that only the garbage collector can free is kept until it does."""
    f, x = rt.graph(lambda x: x + 1), rt.array(np.arange(4.0))
    gc.disable()
    try:
        for _ in range(30):
            cycle = [f(x)]
            cycle.append(cycle)
            expected = on_host(x).copy() + 1
            x += 1
            f(x)
            assert on_host(cycle[0]).tobytes() == expected.tobytes()
    finally:
        gc.enable()
    del cycle
    gc.collect()
    before = f.stats()
    for _ in range(5):
        f(x)
    assert f.stats().escaped == before.escaped


@pytest.mark.every_framework
def test_variants_are_tried_before_escape(rt):
    """With one output held, two alternate and nothing is copied out."""
    f, x = rt.graph(lambda x: x + 1), rt.array(np.arange(4.0))
    for _ in range(100):
        y = f(x)
    assert on_host(y).tolist() == [1, 2, 3, 4]
    assert f.stats().escaped == 0
    assert f.stats().recordings == 2


@pytest.mark.every_framework
def test_small_outputs_that_are_kept_are_copied_out_soon(rt):
    """The third recording copies them; large ones may have as many as are allowed."""
    x, large = rt.array(np.arange(4.0)), rt.array(np.zeros(3 << 20))
    f, g = rt.graph(lambda x: x + 1), rt.graph(lambda x: x + 1)
    kept = [f(x) for _ in range(10)]
    assert all(on_host(y).tolist() == [1, 2, 3, 4] for y in kept)
    assert (f.stats().recordings, f.stats().replays) == (3, 6)
    kept = [g(large) for _ in range(5)]
    assert g.stats().escaped == 0
    assert g.stats().recordings == 4


@pytest.mark.every_framework
def test_large_outputs_are_kept(rig):
    """Outputs of many pages, with a temporary between them, stay too."""
    rt, words = rig.runtime, 3 * rig.checked.abilities.page // 8
    f = rt.graph(lambda x: ((x * 2)[5:], (x + 1).sum(), x - 1))
    x, kept = rt.array(np.arange(float(words))), []
    for _ in range(12):
        kept.append(f(x))
        x += 1
    for i, (tail, total, less) in enumerate(kept):
        host = np.arange(float(words)) + i
        assert on_host(tail).tobytes() == (host * 2)[5:].tobytes()
        assert float(total) == (host + 1).sum()
        assert on_host(less).tobytes() == (host - 1).tobytes()


@pytest.mark.parametrize("pages", [33, 75])
@pytest.mark.every_kind
def test_one_of_several_large_outputs_is_kept(rig, pages):
    """Pages of one extent hold several outputs: those of the kept one stay."""
    rt, words = rig.runtime, pages * rig.checked.abilities.page // 8 - 100
    f = rt.graph(lambda x: (x + 1, x + 2, x + 3))
    x, kept = rt.array(np.zeros(words)), []
    for i in range(9):
        kept.append((i, i % 3, f(x)[i % 3]))
        x += 1
        del kept[:-2]
        for when, which, out in kept:
            host = np.full(words, when + which + 1.0)
            assert on_host(out).tobytes() == host.tobytes(), (i, when, which)


@pytest.mark.minimal
@pytest.mark.every_framework
def test_kept_outputs_are_written_by_their_holder(agree):
    """Writing an output in place changes that output alone."""

    def program(w):
        f, x, kept = w.graph(lambda x: x * 2), w.values(4), []
        for i in range(20):
            kept.append(f(x))
            kept[-1] += i
            kept[i // 2] *= 1.5
            yield kept

    agree(program)


def test_warm_up_outputs_count_too(rt):
    """The output of the warm-up is as safe as those of recordings."""
    f, x = rt.graph(lambda x: x + 1), rt.array(np.zeros(4))
    first, second = f(x), f(x)
    for _ in range(10):
        x += 1
        f(x)
    assert on_host(first).tolist() == on_host(second).tolist() == [1] * 4


def _drawn(draw, loss, out):
    return draw.choice([(loss, None), (None, out), (loss, out), (None, None)])


@pytest.mark.parametrize("seed", range(3))
def test_some_outputs_are_kept_at_random(rt, seed):
    """Each for a random while, whichever was kept before: none is ever changed."""
    draw = random.Random(seed)
    f, y = rt.graph(_step), rt.array(np.full(8, 3.0))
    x, kept = rt.array(np.arange(8.0)), []
    for i in range(300):
        if i % 50 == 0:
            habit = draw.choice([0, 1, None])
        loss, out = f(x, y)
        some = (loss, out) if habit is None else ((loss, None), (None, out))[habit]
        if draw.random() < 0.1:
            some = _drawn(draw, loss, out)
        kept.append((i, some))
        x += 1
        if draw.random() < 0.2:
            draw.shuffle(kept)
            del kept[draw.randrange(len(kept)) :]
        for k, (one, two) in kept:
            expected = _expected(k)
            assert one is None or float(one) == expected[0]
            assert two is None or on_host(two).tobytes() == expected[1].tobytes()
    assert f.stats().passed_through == 0
