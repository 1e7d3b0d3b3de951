"""Results that become arguments, of the same function and of others."""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.gpu

CALLS = 1_000


def advance(x):
    return torch.sin(x) * 1.5 + 0.1


def scaled_by(factor):
    return lambda x: x * factor


def test_a_thousand_times_itself(rt, same):
    """``x = f(x)``: at most 3 recordings, ``x`` copied at most every second call."""
    f = rt.graph(advance)
    x = y = torch.randn(16, device="cuda")
    for _ in range(CALLS):
        x, y = f(x), advance(y)
    same(x, y)
    stats = f.stats()
    assert stats.recordings <= 3
    assert stats.escaped == 0
    assert stats.passed_through == 0
    assert stats.copied_bytes <= x.nbytes * (CALLS // 2 + 3)


def test_two_generations_back(alike):
    """``x, old = f(x, old), x``: every state is the input of two calls."""

    def program(w):
        f = w.graph(lambda x, old: torch.sin(x) * 2 - old * 0.5)
        x, old = w.values(6), w.values(6)
        for _ in range(40):
            x, old = f(x, old), x
            yield x, old

    world = alike(program)
    assert world.count("passed_through") == 0
    assert world.count("recordings") <= 10


def test_a_result_that_is_rebound_settles_at_two(rt, same):
    """``y = f(x)`` in a loop alternates between two recordings, without a copy."""
    f, x = rt.graph(lambda x: x + 1), torch.randn(4, device="cuda")
    for _ in range(50):
        y = f(x)
        same(y, x + 1)
        x += 1
    stats = f.stats()
    assert (stats.warmups, stats.recordings) == (1, 2)
    assert stats.replays == 50 - 3
    assert stats.copied_bytes == stats.escaped == 0


def test_two_functions_in_a_loop_settle_at_two_each(rt, same):
    """``h = f(x); y = g(h)``: at most 2 recordings each, and ``h`` is never copied."""
    f, g = rt.graph(lambda x: x * 2), rt.graph(lambda h: h + 1)
    x = torch.randn(4, device="cuda")
    for _ in range(50):
        h = f(x)
        y = g(h)
        same((h, y), (x * 2, x * 2 + 1))
        x += 1
    for stats in (f.stats(), g.stats()):
        assert stats.recordings <= 2
        assert stats.passed_through == stats.escaped == 0
    assert g.stats().copied_bytes == 0


def test_nested_calls_settle(rt, same):
    """``g(f(x))`` where nothing is held needs no second variant of ``f``."""
    f, g = rt.graph(lambda x: x * 2), rt.graph(lambda h: h + 1)
    x = torch.randn(4, device="cuda")
    for _ in range(20):
        same(g(f(x)), x * 2 + 1)
    assert f.stats().recordings == 1
    assert g.stats().recordings <= 2
    assert g.stats().copied_bytes == 0


def test_four_producers_feed_one_consumer_at_random(rt, same):
    """The consumer's recordings are bounded, and every call finds one in the end."""
    draw = random.Random(11)
    producers = [rt.graph(scaled_by(k + 2)) for k in range(4)]
    consume = rt.graph(lambda h: h * 10 + 1)
    x, held = torch.randn(4, device="cuda"), []
    for i in range(400):
        if i == 300:
            settled = consume.stats()
        k = draw.randrange(4)
        h = producers[k](x)
        held = [*held, h][-draw.randrange(1, 4) :]
        same(consume(h), x * (k + 2) * 10 + 1)
    stats = consume.stats()
    assert stats.recordings <= 2 * (4 + 1)
    assert stats.recordings == settled.recordings
    assert stats.passed_through == settled.passed_through
    assert stats.warmups == 1


def test_a_child_reads_its_parent_without_a_copy(alike):
    """A chain of four functions copies nothing but what comes from outside."""

    def program(w):
        chain = [w.graph(scaled_by(k)) for k in (2, 3, 5, 7)]
        x = w.values(6)
        for _ in range(8):
            y = x
            for f in chain:
                y = f(y)
            yield y, x

    world = alike(program)
    assert world.count("copied_bytes") == 0
    assert world.count("recordings") <= 2 * 4


def test_branches_make_siblings(alike):
    """A Python ``if`` on a value between two functions takes the right way."""

    def program(w):
        head = w.graph(lambda x: (x - 1, x.sum()))
        left, right = w.graph(lambda h: h * 2), w.graph(lambda h: h - 100)
        tail = w.graph(lambda h: h + 0.5)
        x = w.values(4)
        for i in range(24):
            h, total = head(x)
            branch = left if float(total) > 0 else right
            x = tail(branch(h)) if i % 3 else branch(h)
            x = x if abs(float(x.sum())) < 1e6 else x * 1e-6
            yield x, h, total

    assert alike(program).count("passed_through") == 0


def test_called_twice_in_one_iteration(alike):
    """Two calls of one function, both results needed at once, in every iteration."""

    def program(w):
        f, join = w.graph(lambda x: x * 3), w.graph(lambda a, b: a - b)
        x, y = w.values(5), w.values(5)
        for _ in range(10):
            a, b = f(x), f(y)
            yield a, b, join(a, b), join(b, a), f(f(x))
            x, y = y, a * 0.1

    assert alike(program).count("passed_through") == 0


def test_after_different_parents(alike):
    """A function that follows now this and now that one is right after both."""

    def program(w):
        one, two = w.graph(lambda x: x + 1), w.graph(lambda x: (x * 2).flip(0))
        child, x = w.graph(lambda h, x: (h * x).cumsum(0)), w.values(7)
        for i in range(20):
            h = (one, two, one, one, two)[i % 5](x)
            yield child(h, x), child(x, x), h

    assert alike(program).count("replays") > 10


@pytest.mark.parametrize("hold", [True, False])
def test_a_parent_is_evicted_while_its_child_keeps_its_address(alike, hold):
    """Pages of an evicted parent are not confused with those that follow it."""

    def program(w):
        parent = w.graph(lambda x: x * 2, max_recordings=1)
        child = w.graph(lambda h: h + 1)
        small, large, kept = w.values(4), w.values(1 << 20), []
        for _ in range(4):
            for _ in range(5):
                h = parent(small)
                kept += [h] if hold else []
                yield child(h), h
            for _ in range(5):
                big = parent(large)
                yield big[::999], child(big)[::999]
        yield kept

    assert alike(program).count("evicted") > 0


def test_a_dropped_parent_function(alike):
    """A parent that is gone altogether leaves its children right."""

    def program(w):
        child, x = w.graph(lambda h: h - 1), w.values(4)
        for k in range(6):
            parent, h = w.graph(scaled_by(k)), None
            for _ in range(4):
                h = parent(x)
                yield child(h)
            del parent
            w.functions[:] = w.functions[:1]
            yield child(h), h

    assert alike(program).count("replays") > 0


def test_an_output_comes_back_much_later(alike):
    """An output held over many other calls is still a good argument."""

    def program(w):
        f, g = w.graph(lambda x: x + 1), w.graph(lambda a, b: a * b)
        x = w.values(4)
        old = f(x)
        for _ in range(12):
            new = f(x)
            yield g(old, new), g(new, old), old
            x += 1

    alike(program)


def test_all_outputs_of_one_call_go_into_the_next(alike):
    """A nest of outputs is a nest of arguments, in any order."""

    def f(state):
        a, b, c = state
        return [(b + c).sin(), c + a * 0.5, (a + b) * 0.5]

    def program(w):
        g, state = w.graph(f), [w.values(3), w.values(3), w.values(3)]
        for i in range(12):
            state = g(state[::-1] if i % 4 == 3 else state)
            state = [part * 0.5 for part in state] if i % 5 == 4 else state
            yield state

    assert alike(program).count("passed_through") == 0


def test_eager_work_between_two_recordings(alike):
    """What eager code does to an output in place is what the child reads."""

    def program(w):
        f, g, x = w.graph(lambda x: x * 2), w.graph(lambda h: h.sum()), w.values(4)
        for i in range(8):
            h = f(x)
            h += i
            h[1] = -1
            yield g(h), h, g(h.flip(0)), g(h[::2])

    alike(program)


# States that slots carry.


class Slots:
    def __init__(self, h, v):
        self.h, self.v = h, v
        self.items, self.table = [h], {"h": h}


def attribute(o, x):
    o.h = o.h * 0.5 + x


def two(o, x):
    o.v = o.v * 0.25 + x
    o.h = o.h * 0.5 - o.v


def item(o, x):
    o.items[0] = o.items[0] * 0.5 + x


def key(o, x):
    o.table["h"] = o.table["h"] * 0.5 + x


def old(o, x):
    o.h, o.v = o.h.sin() - o.v * 0.5 + x, o.h


CARRIED = {"attribute": attribute, "two": two, "item": item, "key": key}


CARRIED["two generations"] = old


@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize("how", CARRIED)
def test_a_state_carried_by_a_slot(alike, how, fresh):
    """``o.h = o.h + x`` goes on as eagerly, though every call reads another tensor."""

    def program(w):
        fn, o = CARRIED[how], Slots(w.values(8), w.values(8))
        f, x = w.graph(lambda x: fn(o, x)), w.values(8)
        for _ in range(12):
            x = w.values(8) if fresh else x
            f(x)
            yield o.h, o.v, o.items[0], o.table["h"]

    assert alike(program).count("passed_through") == 0


def test_a_slot_that_another_function_fills(rt, same):
    """``f`` binds ``o.h``, ``g`` reads it: at most 2 recordings each, never a copy."""
    x = torch.randn(4, device="cuda")
    o = Slots(x, x)
    f = rt.graph(lambda x: setattr(o, "h", x * 2))
    g = rt.graph(lambda: o.h + 1)
    for _ in range(50):
        f(x)
        same(g(), x * 2 + 1)
        x += 1
    for stats in (f.stats(), g.stats()):
        assert stats.recordings <= 2
        assert stats.passed_through == stats.escaped == stats.copied_bytes == 0
