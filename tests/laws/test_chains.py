"""Laws 4 and 5: outputs that become arguments, of the same function and of others."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tests.support.frameworks import on_host

CALLS = 1_000


@pytest.mark.every_framework
def test_a_thousand_times_itself(rt):
    """``x = f(x)``: at most 3 recordings, ``x`` copied at most every second call."""
    f, x = rt.graph(lambda x: x * 0.5 + 1), rt.array(np.arange(16.0))
    expected = np.arange(16.0)
    size = x.nbytes
    for _ in range(CALLS):
        x, expected = f(x), expected * 0.5 + 1
    assert on_host(x).tobytes() == expected.tobytes()
    stats = f.stats()
    assert stats.recordings <= 3
    assert stats.escaped == 0
    assert stats.passed_through == 0
    assert stats.copied_bytes <= size * (CALLS // 2 + 3)


def _two_generations(w):
    f = w.graph(lambda x, old: x * 2 - old)
    x, old = w.values(6), w.values(6)
    for _ in range(40):
        x, old = f(x, old), x
        yield x, old


@pytest.mark.every_framework
def test_two_generations_back(agree):
    """``x, old = f(x, old), x``: every state is the input of two calls."""
    world = agree(_two_generations)
    assert world.count("passed_through") == 0
    assert world.count("recordings") <= 10


@pytest.mark.minimal
@pytest.mark.every_framework
def test_a_result_that_is_rebound_settles_at_two(rt):
    """``y = f(x)`` in a loop alternates between two recordings, without a copy."""
    f, x = rt.graph(lambda x: x + 1), rt.array(np.arange(4.0))
    for i in range(50):
        y = f(x)
        x += 1
        assert on_host(y).tobytes() == (np.arange(4.0) + i + 1).tobytes()
    stats = f.stats()
    assert (stats.warmups, stats.recordings) == (1, 2)
    assert stats.replays == 50 - 3
    assert stats.copied_bytes == stats.escaped == 0


@pytest.mark.every_framework
def test_two_functions_in_a_loop_settle_at_two_each(rt):
    """``h = f(x); y = g(h)``: at most 2 recordings each, and ``h`` is never copied."""
    f, g = rt.graph(lambda x: x * 2), rt.graph(lambda h: h + 1)
    x = rt.array(np.arange(4.0))
    for i in range(50):
        h = f(x)
        y = g(h)
        x += 1
        assert on_host(h).tobytes() == ((np.arange(4.0) + i) * 2).tobytes()
        assert on_host(y).tobytes() == ((np.arange(4.0) + i) * 2 + 1).tobytes()
    for stats in (f.stats(), g.stats()):
        assert stats.recordings <= 2
        assert stats.passed_through == stats.escaped == 0
    assert g.stats().copied_bytes == 0


@pytest.mark.every_framework
def test_nested_calls_settle_at_one_each(rt):
    """``g(f(x))`` where nothing is held needs no second variant."""
    f, g = rt.graph(lambda x: x * 2), rt.graph(lambda h: h + 1)
    x = rt.array(np.arange(4.0))
    for _ in range(20):
        assert on_host(g(f(x))).tobytes() == (np.arange(4.0) * 2 + 1).tobytes()
    assert f.stats().recordings == 1
    assert g.stats().recordings <= 2
    assert g.stats().copied_bytes == 0


@pytest.mark.every_framework
def test_four_producers_feed_one_consumer_at_random(rt):
    """D test_graph_three_successive: in any order, results are the last one's."""
    draw = random.Random(11)
    producers = [rt.graph(_scaled_by(k + 2)) for k in range(4)]
    consume = rt.graph(lambda h: h * 10 + 1)
    x, held = rt.array(np.arange(4.0)), []
    for i in range(400):
        if i == 300:
            settled = consume.stats()
        k = draw.randrange(4)
        h = producers[k](x)
        held = [*held, h][-draw.randrange(1, 4) :]
        y = consume(h)
        expected = np.arange(4.0) * (k + 2) * 10 + 1
        assert on_host(y).tobytes() == expected.tobytes()
    stats = consume.stats()
    assert stats.recordings <= 2 * (4 + 1)
    assert stats.recordings == settled.recordings
    assert stats.passed_through == settled.passed_through
    assert stats.warmups == 1


def _scaled_by(factor):
    return lambda x: x * factor


@pytest.mark.every_framework
def test_a_child_reads_its_parent_without_a_copy(agree):
    """A chain of four functions copies nothing but what comes from outside."""

    def program(w):
        chain = [w.graph(_scaled_by(k)) for k in (2, 3, 5, 7)]
        x = w.values(6)
        for _ in range(8):
            y = x
            for f in chain:
                y = f(y)
            yield y, x

    world = agree(program)
    assert world.count("copied_bytes") == 0
    assert world.count("recordings") <= 2 * 4


@pytest.mark.every_framework
def test_branches_make_siblings(agree):
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

    world = agree(program)
    assert world.count("passed_through") == 0


@pytest.mark.every_framework
def test_called_twice_in_one_iteration(agree):
    """Two calls of one function, both results needed at once, in every iteration."""

    def program(w):
        f, join = w.graph(lambda x: x * 3), w.graph(lambda a, b: a - b)
        x, y = w.values(5), w.values(5)
        for _ in range(10):
            a, b = f(x), f(y)
            yield a, b, join(a, b), join(b, a), f(f(x))
            x, y = y, a * 0.1

    world = agree(program)
    assert world.count("passed_through") == 0


@pytest.mark.every_framework
def test_after_different_parents(agree):
    """A function that follows now this and now that one is right after both."""

    def program(w):
        turned = w.framework.turned
        one, two = w.graph(lambda x: x + 1), w.graph(lambda x: turned(x * 2))
        child = w.graph(lambda h, x: h @ x)
        x = w.values(7)
        for i in range(20):
            h = (one, two, one, one, two)[i % 5](x)
            yield child(h, x), child(x, x), h

    assert agree(program).count("replays") > 10


@pytest.mark.every_framework
@pytest.mark.parametrize("hold", [True, False])
def test_a_parent_is_evicted_while_its_child_keeps_its_address(agree, hold):
    """Pages of an evicted parent are not confused with those that follow it."""

    def program(w):
        parent = w.graph(lambda x: x * 2, max_recordings=1)
        child = w.graph(lambda h: h + 1)
        small, large = w.values(4), w.values(w.framework.many)
        kept = []
        for _ in range(4):
            for _ in range(5):
                h = parent(small)
                kept += [h] if hold else []
                yield child(h), h
            for _ in range(5):
                big = parent(large)
                yield big[::999], child(big)[::999]
        yield kept

    world = agree(program)
    assert world.count("evicted") > 0


@pytest.mark.every_framework
def test_a_dropped_parent_function(agree):
    """A parent that is gone altogether leaves its children right."""

    def program(w):
        child = w.graph(lambda h: h - 1)
        x = w.values(4)
        for k in range(6):
            parent = w.graph(_scaled_by(k))
            h = None
            for _ in range(4):
                h = parent(x)
                yield child(h)
            del parent
            w.functions[:] = w.functions[:1]
            yield child(h), h

    assert agree(program).count("replays") > 0


@pytest.mark.minimal
@pytest.mark.every_framework
def test_an_output_comes_back_much_later(agree):
    """An output held over many other calls is still a good argument."""

    def program(w):
        f, g = w.graph(lambda x: x + 1), w.graph(lambda a, b: a * b)
        x = w.values(4)
        old = f(x)
        for _ in range(12):
            new = f(x)
            yield g(old, new), g(new, old), old
            x += 1

    agree(program)


@pytest.mark.minimal
@pytest.mark.every_framework
def test_all_outputs_of_one_call_go_into_the_next(agree):
    """A nest of outputs is a nest of arguments, in any order."""

    def f(state):
        a, b, c = state
        return [b + c, c + a, a + b]

    def program(w):
        g = w.graph(f)
        state = [w.values(3), w.values(3), w.values(3)]
        for i in range(12):
            state = g(state[::-1] if i % 4 == 3 else state)
            state = [part * 0.5 for part in state] if i % 5 == 4 else state
            yield state

    assert agree(program).count("passed_through") == 0


@pytest.mark.every_framework
def test_eager_work_between_two_recordings(agree):
    """What eager code does to an output in place is what the child reads."""

    def program(w):
        f, g = w.graph(lambda x: x * 2), w.graph(lambda h: h.sum())
        x = w.values(4)
        for i in range(8):
            h = f(x)
            h += i
            h[1] = -1
            yield g(h), h, g(w.framework.turned(h)), g(h[::2])

    agree(program)


class Slots:
    def __init__(self, *states):
        self.h, self.v = states
        self.items, self.table = [states[0]], {"h": states[0]}


def _attribute(o, x):
    o.h = o.h * 0.5 + x


def _two(o, x):
    o.v = o.v * 0.25 + x
    o.h = o.h - o.v


def _item(o, x):
    o.items[0] = o.items[0] * 0.5 + x


def _key(o, x):
    o.table["h"] = o.table["h"] * 0.5 + x


def _old(o, x):
    o.h, o.v = o.h * 2 - o.v + x, o.h


CARRIED = {"attribute": _attribute, "two": _two, "item": _item, "key": _key}


@pytest.mark.parametrize("read", [True, False])
@pytest.mark.parametrize("how", CARRIED)
def test_a_state_carried_by_a_slot(rt, how, read):
    """``o.h = o.h + x`` settles as ``h = f(h)`` does, with as few copies."""
    fn, host = CARRIED[how], np.arange(8.0)
    o, plain = Slots(rt.array(host), rt.array(host)), Slots(host, host)
    f, x, y = rt.graph(lambda x: fn(o, x)), rt.array(host), host
    for _ in range(CALLS // 4):
        f(x)
        fn(plain, y)
        if read:
            seen = o.h, o.v, o.items, o.table["h"]
            wanted = plain.h, plain.v, plain.items, plain.table["h"]
            for a, b in zip(seen, wanted, strict=True):
                assert on_host(a[0]).tobytes() == on_host(b[0]).tobytes()
            del seen, a
    stats = f.stats()
    assert stats.recordings <= 3
    assert stats.passed_through == stats.escaped == 0
    states = 2 if how == "two" else 1
    assert stats.copied_bytes <= host.nbytes * states * (CALLS // 8 + 3)


@pytest.mark.every_framework
@pytest.mark.parametrize("fresh", [True, False])
@pytest.mark.parametrize("how", [*CARRIED, "two generations"])
def test_a_slot_carries_a_state(agree, how, fresh):
    """``o.h = o.h + x`` goes on as eagerly, though every call reads another array."""

    def program(w):
        fn, o = CARRIED.get(how, _old), Slots(w.values(8), w.values(8))
        f, x = w.graph(lambda x: fn(o, x)), w.values(8)
        for _ in range(12):
            x = w.values(8) if fresh else x
            f(x)
            yield o.h, o.v, o.items[0], o.table["h"]

    assert agree(program).count("passed_through") == 0


def test_two_generations_in_slots(agree):
    """``o.h, o.v = new, o.h``: every state is read by two calls."""

    def program(w):
        o = Slots(w.values(6), w.values(6))
        f, x = w.graph(lambda x: _old(o, x)), w.values(6)
        for _ in range(40):
            f(x)
            yield o.h, o.v

    world = agree(program)
    assert world.count("passed_through") == 0
    assert world.count("recordings") <= 10


@pytest.mark.every_framework
def test_a_slot_that_another_function_fills(rt):
    """``f`` binds ``o.h``, ``g`` reads it: at most 2 recordings each, never a copy."""
    x = rt.array(np.arange(4.0))
    o = Slots(x, x)
    f = rt.graph(lambda x: setattr(o, "h", x * 2))
    g = rt.graph(lambda: o.h + 1)
    for i in range(50):
        f(x)
        y = g()
        x += 1
        assert on_host(y).tobytes() == ((np.arange(4.0) + i) * 2 + 1).tobytes()
    for stats in (f.stats(), g.stats()):
        assert stats.recordings <= 2
        assert stats.passed_through == stats.escaped == stats.copied_bytes == 0
