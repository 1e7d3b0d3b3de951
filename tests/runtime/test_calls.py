"""Graphed functions are called in C, or in Python: nobody can tell which."""

from __future__ import annotations

import copy
import gc
import inspect
import os
import subprocess
import sys
import threading
import weakref
from itertools import pairwise
from time import monotonic, sleep

import numpy as np
import pytest

import sapwood as sw
from sapwood import _fast
from sapwood.runtime import graphed
from sapwood.runtime.graphed import Graphed
from sapwood.tree.tell.explain import explain_function
from tests.support.rig import IN_C, Rig

WAYS = ("C", "Python")
MANY = 40
"""Calls after which fast replays are played in C."""


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    """Have the class called in one of the two ways."""
    if _fast.native() is None:
        pytest.skip("nothing in C here")
    graphed._take_calls()
    if request.param == "Python":
        monkeypatch.setattr(Graphed, "__call__", Graphed.__call__)
    return request.param


@pytest.fixture
def rig(way):
    assert way in WAYS
    made = Rig(IN_C)
    yield made
    gc.collect()
    made.finish()


def numbers(rig):
    return rig.runtime.array(np.arange(4.0))


def settled(f, *args):
    """Call till fast replays are played in C, and return the function."""
    for _ in range(MANY):
        f(*args)
    return f


def told(found):
    return np.asarray(found).tolist()


def test_most_calls_are_replays_in_c(rig):
    """Whichever way the class is called."""
    x = numbers(rig)
    f = settled(rig.runtime.graph(lambda x: x + 1.0), x)
    before, players = rig.lending.launches, f.runner().fast_replays.players
    references = sys.getrefcount(players)
    replays, (node,) = f.stats().replays, f.runner().cache.nodes
    hits, timed = node.hits, node.timed
    for _ in range(MANY):
        assert told(f(x)) == [1.0, 2.0, 3.0, 4.0]
    assert rig.lending.launches == before + MANY
    assert f.stats().replays == replays + MANY
    assert (node.hits, node.timed) == (hits + MANY, timed + MANY)
    assert sys.getrefcount(players) == references


def test_keywords_and_wrong_calls(rig):
    """What is no plain call is as ever, and so is what a function refuses."""
    x = numbers(rig)
    f = settled(rig.runtime.graph(lambda x, by=1.0: x * by), x)
    before = rig.lending.launches
    for _ in range(3):
        assert told(f(x=x)) == told(f(x, by=1.0)) == told(f(*[x])) == told(x)
        assert told(f(x, 2.0)) == told(f(x, by=2.0)) == [0.0, 2.0, 4.0, 6.0]
        for args, kwargs in [((), {}), ((x, 1.0, 2), {}), ((x,), {"to": 1})]:
            with pytest.raises(TypeError):
                f(*args, **kwargs)
    assert told(settled(f, x)(x)) == told(x)
    assert rig.lending.launches > before


def test_disabled_and_nested_calls_are_plain(rig):
    """There the function itself runs."""
    x = numbers(rig)
    inner = settled(rig.runtime.graph(lambda x: x + 1.0), x)
    outer = rig.runtime.graph(lambda x: inner(x) * 2.0)
    before = inner.stats(), rig.lending.launches
    with sw.disabled():
        for _ in range(3):
            assert told(inner(x)) == [1.0, 2.0, 3.0, 4.0]
            assert told(outer(x)) == [2.0, 4.0, 6.0, 8.0]
    assert (inner.stats(), rig.lending.launches) == before
    settled(outer, x)
    assert told(outer(x)) == [2.0, 4.0, 6.0, 8.0]
    assert inner.stats() == before[0]
    assert outer.stats().recordings == 1


def test_other_runtimes_are_asked_for(rig):
    """The runtime is asked at every call; its errors come out."""
    x = numbers(rig)
    other, place = Rig(IN_C), [rig.runtime]

    def runtime():
        if place[0] is None:
            raise LookupError("none")
        return place[0]

    f = settled(graphed.graphed(runtime, lambda x: x + 1.0, {"fullgraph": True}), x)
    first, launches = f.stats(), rig.lending.launches
    place[0] = other.runtime
    with pytest.raises(sw.MisuseError, match="of another runtime"):
        f(x)
    assert rig.lending.launches == launches
    y = other.runtime.array(np.zeros(3))
    assert told(settled(f, y)(y)) == [1.0] * 3
    assert f.stats().warmups == 1
    assert other.lending.launches > 0
    place[0] = None
    with pytest.raises(LookupError):
        f(y)
    place[0] = rig.runtime
    assert told(f(x)) == [1.0, 2.0, 3.0, 4.0]
    assert first.replays > 0
    del f, y
    gc.collect()
    other.finish()


def test_a_runtime_that_is_closed_is_told_of(rig):
    """No fast replay outlives it."""
    x = numbers(rig)
    f = settled(rig.runtime.graph(lambda x: x + 1.0), x)
    rig.runtime.close()
    with pytest.raises(sw.MisuseError, match="closed"):
        f(x)


def test_methods_and_objects_of_their_own(rig):
    """Of an instance each, bound to it, through the class, and when it is gone."""
    x = numbers(rig)

    class Model:
        def __init__(self, by):
            self.by = by

        @rig.runtime.graph
        def scaled(self, x):
            return x * self.by

    one, two = Model(2.0), Model(3.0)
    for _ in range(MANY):
        assert told(one.scaled(x)) == [0.0, 2.0, 4.0, 6.0]
        assert told(two.scaled(x)) == [0.0, 3.0, 6.0, 9.0]
    assert rig.lending.launches > MANY
    held = two.scaled._method
    settled(held, x)
    del two
    gc.collect()
    with pytest.raises(sw.MisuseError, match="is gone"):
        settled(held, rig.runtime.array(np.zeros(7)))
    assert Model.scaled.__name__ == "scaled"
    assert one.scaled.__wrapped__(x) is not None


def test_bound_methods_are_like_plain_ones(rig):
    """Equal, with a hash, held weakly, and with the attributes of the function."""
    x = numbers(rig)

    class Model:
        @rig.runtime.graph
        def scaled(self, x, by=2.0):
            """Scale it."""
            return x * by

    one, two = Model(), Model()
    hooks = [one.scaled]
    assert one.scaled == one.scaled
    assert one.scaled not in {two.scaled, Model.scaled}
    assert {one.scaled: 1}[one.scaled] == 1
    hooks.remove(one.scaled)
    assert not hooks
    assert weakref.WeakMethod(one.scaled)() == one.scaled
    assert one.scaled.__self__ is one
    assert told(one.scaled.__func__(one, x)) == told(Model.scaled(self=one, x=x))
    assert one.scaled.__name__ == "scaled"
    assert Model.scaled.__code__.co_varnames == ("self", "x", "by")
    assert one.scaled.__defaults__ == (2.0,)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = one.scaled.nothing


def test_it_looks_like_the_function(rig):
    """Its name, signature, text and what else there is to look at."""
    x = numbers(rig)

    def scaled(x, /, by: float = 1.0):
        """Scale it."""
        return x * by

    scaled.mark = 3
    f = settled(rig.runtime.graph(scaled), x)
    assert inspect.signature(f) == inspect.signature(scaled)
    assert (f.__name__, f.__doc__, f.mark) == ("scaled", "Scale it.", 3)
    assert f.__wrapped__ is inspect.unwrap(f) is scaled
    assert repr(f).startswith("<graphed test_it_looks_like_the_function.")
    assert callable(f)
    assert weakref.ref(f)() is f
    assert told(f.__call__(x)) == told(Graphed.__call__(f, x)) == told(x)
    kinds = [each.kind for each in inspect.signature(f.__call__).parameters.values()]
    assert kinds == [inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD]
    assert Graphed.__call__.__name__ == "__call__"
    assert Graphed.__call__.__qualname__ == "Graphed.__call__"
    assert told(copy.copy(f)(x)) == told(x)
    with pytest.raises((AttributeError, TypeError)):
        Graphed.__call__(scaled, x)


def test_subclasses_may_call_otherwise(rig):
    """A method of theirs comes first, and may go on to this one."""
    x = numbers(rig)

    class Counted(Graphed):
        calls = 0

        def __call__(self, *args, **kwargs):
            self.calls += 1
            return super().__call__(*args, **kwargs)

    plain = rig.runtime.graph(lambda x: x + 1.0)
    f = settled(Counted(plain.__wrapped__, plain._options, lambda: rig.runtime), x)
    assert told(f(x)) == [1.0, 2.0, 3.0, 4.0]
    assert f.calls == MANY + 1
    assert rig.lending.launches > 0


@pytest.mark.usefixtures("way")
def test_what_was_not_initialised_refuses():
    """An empty object has nothing to call."""
    with pytest.raises(AttributeError):
        Graphed.__new__(Graphed)(1)


def test_nothing_grows(rig):
    """Neither references nor memory, whether a call fits or not."""
    x = numbers(rig)
    f = settled(rig.runtime.graph(lambda x, by=1.0: x * by), x)
    watched = (x, f, f._runtime, rig.runtime, f.runner().fast_replays)

    def counts():
        rig.runtime.synchronize()
        gc.collect()
        references = [sys.getrefcount(each) for each in (*watched, f.__wrapped__)]
        return references, len(gc.get_objects())

    settled(f, x)
    before, launches = counts(), rig.lending.launches
    for _ in range(300):
        f(x)
    after = counts()
    assert rig.lending.launches > launches + 280
    assert after[0] == before[0]
    assert abs(after[1] - before[1]) < 100
    for _ in range(100):
        f(x, by=2.0)
        with pytest.raises(TypeError):
            f(x, 1.0, 2.0)
    assert counts()[0] == before[0]


def wait_until(happened):
    """Wait for something that takes a while on a busy machine."""
    deadline = monotonic() + 60
    while not happened() and monotonic() < deadline:
        sleep(0.02)


def test_recordings_that_go_while_others_call(rig):
    """Threads call, each with its arrays, while all recordings are evicted at times."""
    f = rig.runtime.graph(lambda x: x + 1.0)
    wrong, over = [], threading.Event()

    def call(k):
        try:
            given = rig.runtime.array(np.full(4 + k, float(k)))
            while not over.is_set():
                if told(f(given)) != [k + 1.0] * (4 + k):
                    wrong.append(k)
        except BaseException as error:  # noqa: BLE001 - shown by the assertion
            wrong.append(error)

    threads = [threading.Thread(target=call, args=(k,)) for k in range(3)]
    for each in threads:
        each.start()
    recordings = rig.runtime._recordings
    try:
        wait_until(lambda: rig.lending.launches or wrong)
        for _ in range(40):
            over.wait(0.02)
            with recordings.device.lock:
                for node in [*recordings.nodes]:
                    if not node.running:
                        recordings.fell(node, "for this test")
    finally:
        over.set()
        for each in threads:
            each.join()
    assert wrong == []
    assert rig.lending.launches > 0


def test_what_lost_a_slot_refuses(rig):
    """As any object that lost an attribute."""
    x = numbers(rig)
    f = settled(rig.runtime.graph(lambda x: x + 1.0), x)
    del f._runtime
    with pytest.raises(AttributeError):
        f(x)


def test_whoever_has_replaced_the_call_is_not_replaced(monkeypatch):
    """Calls that somebody watches stay watched."""
    if _fast.native() is None:
        pytest.skip("nothing in C here")
    seen, rig, plain = [], Rig(IN_C), Graphed.__call__

    def watched(self, *args, **kwargs):
        seen.append(self)
        return plain(self, *args, **kwargs)

    monkeypatch.setattr(Graphed, "__call__", watched)
    x = numbers(rig)
    f = settled(rig.runtime.graph(lambda x: x + 1.0), x)
    assert seen == [f] * MANY
    assert rig.lending.launches > 0
    del x
    rig.abandon()


TWICE = """
import sys
import numpy as np
import sapwood as sw
from tests.support.rig import IN_C, Rig

def made():
    import sapwood as sw
    from tests.support.rig import IN_C, Rig
    rig = Rig(IN_C)
    f, x = rig.runtime.graph(lambda x: x + 1.0), rig.runtime.array(np.zeros(4))
    for _ in range(40):
        f(x)
    return rig, f, x, sw.disabled

first = made()
for name in [*sys.modules]:
    if name.startswith(("sapwood", "tests.support")):
        del sys.modules[name]
second = made()
assert type(first[1]) is not type(second[1])
for (rig, f, x, disabled), (_, _, _, other) in (first, second), (second, first):
    before = rig.lending.launches
    with disabled():
        f(x)
    assert rig.lending.launches == before
    with other():
        for _ in range(40):
            f(x)
    assert rig.lending.launches > before
"""


def test_a_module_that_is_imported_anew_has_a_class_of_its_own():
    """What functions of the one ask is not what those of the other do."""
    if _fast.native() is None:
        pytest.skip("nothing in C here")
    found = {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", TWICE], check=True, env=os.environ | found)


def test_all_replays_are_counted(rig):
    """By the runtime as by the function, whoever is asked first."""
    x = numbers(rig)
    f = settled(rig.runtime.graph(lambda x: x + 1.0), x)
    assert rig.lending.launches > 0
    assert rig.runtime.stats() == f.stats()
    assert f.stats().replays + f.stats().warmups == MANY - 1


def test_a_snapshot_counts_all_replays(rig):
    """Of functions and of recordings, whether or not anybody asked before."""
    x = numbers(rig)
    f = settled(rig.runtime.graph(lambda x: x + 1.0), x)
    picture = rig.runtime.snapshot()
    replays = f.stats().replays
    assert rig.lending.launches > 0
    assert [each["replays"] for each in picture["functions"]] == [replays]
    assert [each["hits"] for each in picture["recordings"]] == [replays]


def test_memory_over_time_ends_with_what_is_in_use_now(rig):
    """Its moments come in order, no two on end are alike, and the last one is now."""
    rt, shares = rig.runtime, ("recordings", "outputs", "eager")
    f = rt.graph(lambda x: x * 2.0)
    kept = [f(rt.array(np.ones(n << 12))) for n in (1, 2, 3) for _ in range(5)]
    for _ in range(2):
        found, stats = rt.snapshot()["memory_over_time"], rt.memory_stats()
        counts = [tuple(each[share] for share in shares) for each in found]
        page = stats["page.bytes"]
        live, mapped = stats["pages.live"], stats["pages.mapped"]
        assert counts[-1] == (
            (mapped - live) * page,
            live * page,
            stats["heap.pages"] * page,
        )
        assert all(a != b for a, b in pairwise(counts))
        assert sorted(each["at_us"] for each in found) == [x["at_us"] for x in found]
        kept.clear()
    assert len(found) >= 4
    assert max(outputs for _, outputs, _ in counts) > counts[-1][1]


def test_what_runs_calls_with_gradients_is_shown_as_the_function(rig):
    """It has its counts and misses; what goes back has a name of its own."""
    rt = rig.runtime
    f = rt.graph(lambda x: x + 1, name="f")
    runner = f.runner()
    twice, thrice = (lambda x: x * 2), (lambda x: x * 3)
    forward = runner._graph(lambda: twice, back=False)
    back = runner._graph(lambda: thrice, back=True)
    x = rt.array(np.ones(4))
    for fn in (f, forward, back):
        for _ in range(4):
            fn(x)
    found = rt.snapshot()
    assert [each["name"] for each in found["functions"]] == ["f", "f, backward"]
    assert [each["recordings"] for each in found["functions"]] == [2, 1]
    named = sorted(each["function"] for each in found["recordings"])
    assert named == ["f", "f", "f, backward"]
    assert f.stats().recordings == 2
    assert f.explain().count("f, backward") >= 1


def test_explain_says_once_what_holds_of_several_calls():
    """Of calls one after another that look alike, and were missed for one reason."""
    with sw.Runtime() as rt:
        stats = rt.graph(lambda x: x).stats()
    missed = [(i, f"x: {x}", [(None, "it is new")]) for i, x in enumerate("aaba")]
    told = explain_function("f", stats, [], missed).splitlines()
    why = "      it is new"
    calls = ["    (x: a), 2 times", why, "    (x: b)", why, "    (x: a)", why]
    assert told[-6:] == calls


@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
def test_values_that_last_for_two_calls_are_not_recorded_for_ever():
    """A recording that is never replayed costs more than the call: it is told, once."""
    with sw.Runtime() as rt:
        f, x = rt.graph(lambda x, k: x * k), rt.array(np.ones(4))
        for i in range(600):
            f(x, float(i // 2))
        stats = f.stats()
    assert stats.recordings < 150
    assert stats.passed_through > 200


def test_what_is_kept_behind_a_region_is_copied_out_soon():
    """After two recordings, as without one; however many kinds of calls there are."""

    @sw.eager
    def region(_):
        return None

    def fn(x, k):
        y = x * k
        region(y)
        return (y + 1).sum(), y * 2

    for kinds, most in ((1, 3), (2, 4)):
        with sw.Runtime() as rt:
            f, xs = rt.graph(fn), [rt.array(np.full(4, float(i))) for i in range(12)]
            kept = [f(x, 2.0 + i % kinds) for i, x in enumerate(xs)]
            for i, (total, doubled) in enumerate(kept):
                k = 2.0 + i % kinds
                assert float(total) == 4 * (i * k + 1)
                assert np.asarray(doubled).tolist() == [2.0 * i * k] * 4
            assert f.stats().recordings <= most
            assert f.stats().replays >= 6


def test_whose_arrays_a_function_has_is_asked_until_it_is_known(monkeypatch):
    """By its first call, whatever was asked before; but no more than twice."""
    asked, answers = [], [None, None]

    def beside(self, *_):
        asked.append(self)
        return answers.pop(0) if answers else self

    monkeypatch.setattr(sw.Runtime, "beside", beside)
    with sw.Runtime("emulated") as rt, sw.Runtime("emulated") as other:
        f, x = rt.graph(lambda x: x + 1), rt.array(np.ones(2))
        for _ in range(6):
            f(x)
        assert len(asked) == 2
        assert f.stats().replays == 4
        answers[:] = [other]
        g, y = rt.graph(lambda x: x + 1), other.array(np.ones(2))
        assert g.stats().replays == 0
        for _ in range(6):
            g(y)
        assert len(asked) == 3
        assert g.stats().replays == 4
