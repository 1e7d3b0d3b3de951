"""A result that is kept is never changed by later calls, however many there are."""

from __future__ import annotations

import gc
import random

import pytest

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.gpu

CALLS = 1_000


def step(x, y):
    return (x * y).sum(), x + y


def given():
    return torch.arange(8.0, device="cuda"), torch.full((8,), 3.0, device="cuda")


def check(kept):
    """Have what is kept compared with what eager gave at that time."""
    for found, expected in kept:
        assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("max_variants", [1, 4])
def test_a_thousand_outputs_are_kept(rt, max_variants):
    """``losses.append(step(x))``: all of them stay, and recordings stay bounded.

    When they are dropped, nothing is copied out any more.
    """
    f, kept = rt.graph(step, max_variants=max_variants), []
    x, y = given()
    for _ in range(CALLS):
        kept.append((f(x, y), step(x, y)))
        x += 1
    check(kept)
    stats = f.stats()
    assert stats.recordings <= max_variants + 1
    assert stats.escaped >= CALLS - max_variants - 2
    assert stats.passed_through == 0
    kept.clear()
    gc.collect()
    for _ in range(20):
        kept.clear()
        kept.append((f(x, y), step(x, y)))
        check(kept)
        x += 1
    after = f.stats()
    assert after.escaped == stats.escaped, "nobody holds outputs: no copies"
    assert after.recordings <= max_variants + 1
    assert after.replays >= stats.replays + 19


def test_a_thousand_outputs_of_new_arguments_are_kept(rt):
    """The same where every call brings a new argument."""
    f, kept = rt.graph(step), []
    x, y = given()
    for i in range(CALLS):
        new = x + i
        kept.append((f(new, y), step(new, y)))
    check(kept)
    assert f.stats().recordings <= 6
    assert f.stats().passed_through == 0


def test_outputs_are_kept_at_random(rt):
    """Held for a random while, dropped in a random order, none is ever changed."""
    draw, f, kept = random.Random(5), rt.graph(step), []
    x, y = given()
    for _ in range(400):
        kept.append((f(x, y), step(x, y)))
        x += 1
        draw.shuffle(kept)
        del kept[draw.choice((1, 2, 5, 9)) :]
        check(kept)
    assert f.stats().recordings <= 5


def test_all_outputs_of_two_functions_are_kept(rt):
    """What one function leaves is not in the way of another, nor overwritten by it."""
    f, g = rt.graph(step), rt.graph(lambda x: (x - 1,))
    ours, theirs = [], []
    x, y = given()
    for _ in range(200):
        ours.append((f(x, y), step(x, y)))
        theirs.append((g(x), (x - 1,)))
        x += 1
    check(ours)
    check(theirs)
    assert f.stats().recordings <= 5
    assert g.stats().recordings <= 5


def part(y):
    return y.view(2, 4)[1, ::2]


@pytest.mark.parametrize("made", ["inside", "outside", "both"])
def test_only_views_are_kept(rt, made):
    """A view holds its whole storage, whoever made it, though nobody has the rest."""
    inside, outside = made != "outside", made != "inside"
    f = rt.graph(lambda x: part(x * 2) if inside else x * 2)
    x, kept = given()[0], []
    for _ in range(100):
        y = f(x)
        if outside:
            y = y[1:] if inside else part(y)
        expected = part(x * 2)
        kept.append(((y,), (expected[1:] if made == "both" else expected,)))
        del y
        x += 1
    check(kept)
    assert f.stats().recordings <= 5


def test_one_of_several_outputs_is_kept(rt):
    """Outputs of one call live and die apart."""
    f = rt.graph(lambda x: (x + 1, x + 2, x + 3))
    x, kept = given()[0], []
    for i in range(60):
        kept.append(((f(x)[i % 3],), (x + (i % 3 + 1),)))
        x += 1
        del kept[: max(0, len(kept) - 7)]
        check(kept)


def test_kept_in_a_cycle(rt):
    """An output that only the garbage collector can free is kept until it does."""
    f, x = rt.graph(lambda x: x + 1), given()[0]
    gc.disable()
    try:
        for _ in range(30):
            cycle = [f(x)]
            cycle.append(cycle)
            expected = x + 1
            x += 1
            f(x)
            assert torch.equal(cycle[0], expected)
    finally:
        gc.enable()
    del cycle
    gc.collect()
    before = f.stats()
    for _ in range(5):
        f(x)
    assert f.stats().escaped == before.escaped


def test_variants_are_tried_before_escape(rt):
    """With few outputs held, they alternate and nothing is copied out."""
    f, x = rt.graph(lambda x: x + 1), given()[0]
    held = []
    for _ in range(100):
        held.append(f(x))
        del held[:-3]
    assert f.stats().escaped == 0
    assert f.stats().recordings <= 4


def test_large_outputs_are_kept(rt):
    """Outputs of many pages, with a temporary between them, stay too."""

    def fn(x):
        return (x * 2)[5:], (x + 1).sum(), x - 1

    f, kept = rt.graph(fn), []
    x = torch.arange(float(5 << 18), device="cuda")
    for _ in range(12):
        kept.append((f(x), fn(x)))
        x += 1
    check(kept)


def test_kept_outputs_are_written_by_their_holder(alike):
    """Writing an output in place changes that output alone."""

    def program(w):
        f, x, kept = w.graph(lambda x: x * 2), w.values(4), []
        for i in range(20):
            kept.append(f(x))
            kept[-1] += i
            kept[i // 2] *= 1.5
            yield kept

    alike(program)


def test_nothing_of_what_was_kept_stays_in_memory(rt):
    """When a thousand outputs are dropped, all of their memory is given back."""
    f, x = rt.graph(lambda x: x * 2), torch.zeros(1 << 16, device="cuda")
    for _ in range(4):
        f(x)
    before = rt.memory_stats()
    kept = [f(x) for _ in range(CALLS // 4)]
    assert rt.memory_stats()["pages.live"] > 0
    kept.clear()
    gc.collect()
    f(x)
    after = rt.memory_stats()
    assert after["pages.live"] == before["pages.live"] == 0
    assert after["heap.bytes"] <= before["heap.bytes"]
    assert after["ranges"] <= before["ranges"] + 4
