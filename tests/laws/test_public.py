"""The public surface: the default runtime, `sw.graph`, containers, counts, closing."""

from __future__ import annotations

import dataclasses
import json
import pickle

import numpy as np
import pytest

import sapwood as sw
from sapwood import knobs
from sapwood.memory.validate import validate


class Pair:
    """A container that only its registration can take apart."""

    def __init__(self, left, right, tag):
        self.left, self.right, self.tag = left, right, tag


sw.register_container(
    Pair,
    lambda pair: ((pair.left, pair.right), pair.tag),
    lambda tag, children: Pair(*children, tag),
)


@pytest.fixture
def default():
    """Return the process's runtime, and close it afterwards."""
    with knobs.scope(emulated_memory=1 << 28):
        runtime = sw.default_runtime()
    yield runtime
    runtime.close()


def test_the_default_runtime_is_one(default):
    """Asked again it is the same, until it is closed: then it is a new one."""
    assert sw.default_runtime() is default
    default.close()
    assert default.closed
    another = sw.default_runtime()
    assert another is not default
    assert not another.closed
    another.close()


def test_graph_is_a_decorator_with_and_without_arguments(default):
    """``@sw.graph``, ``@sw.graph()`` and ``@sw.graph(name=…)`` make the same kind."""

    def plain(x):
        """Say what."""
        return x * 2

    x, host = default.array(np.arange(3.0)), np.arange(3.0) * 2
    made = (
        sw.graph(plain),
        sw.graph()(plain),
        sw.graph(name="named", max_variants=2)(plain),
        default.graph()(plain),
    )
    for f in made:
        assert f.__wrapped__ is plain
        assert (f.__name__, f.__doc__) == ("plain", "Say what.")
        for _ in range(4):
            assert np.asarray(f(x)).tolist() == host.tolist()
        stats = f.stats()
        assert (stats.warmups, stats.recordings, stats.replays) == (1, 1, 2)
    assert "named" in repr(made[2])
    assert made[2].explain().startswith("named")
    assert default.stats().replays >= 8


def test_decorating_makes_no_runtime(default):
    """A function graphed at import works on whatever the default runtime is then."""
    f = sw.graph(lambda x: x + 1)
    default.close()
    for _ in range(2):
        runtime = sw.default_runtime()
        x = runtime.array(np.zeros(2))
        for _ in range(3):
            assert np.asarray(f(x)).tolist() == [1, 1]
        assert f.stats().recordings == 1
        assert runtime.stats().recordings == 1
        runtime.close()


def test_a_decorated_method_binds(default):
    """So does one that was decorated with arguments."""

    class Layer:
        def __init__(self, k):
            self.w = default.array(np.full(2, k))

        @sw.graph
        def once(self, x):
            return x * self.w

        @sw.graph(max_variants=2)
        def twice(self, x):
            return self.once(x) * self.w

    x = default.array(np.ones(2))
    for _ in range(4):
        assert np.asarray(Layer(3.0).twice(x)).tolist() == [9, 9]
        assert np.asarray(Layer(2.0).once(x)).tolist() == [2, 2]


def test_registered_containers_go_in_and_out(agree):
    """They are taken apart, rebuilt fresh, and their tag is part of the signature."""

    def program(w):
        def fn(pair):
            scale = 2 if pair.tag == "two" else 3
            return Pair(pair.left * scale, [pair.right, pair.right[1:]], pair.tag)

        f = w.graph(fn)
        right = w.values(4)
        for i in range(9):
            given = Pair(w.values(4), right, "two" if i % 3 else "three")
            made = f(given)
            assert type(made) is Pair
            assert made is not given
            made.right.append(i)
            yield made.left, made.right, made.tag

    world = agree(program)
    assert world.count("replays") >= 3


def test_registered_containers_are_read_as_ambient(agree):
    """Closed over, their arrays are found and their tags are guarded."""

    def program(w):
        pair = Pair(w.values(4), w.values(4), 2)
        f = w.graph(lambda x: x * pair.left * pair.tag + pair.right)
        for i in range(12):
            if i % 4 == 2:
                pair.tag += 1
            if i % 4 == 3:
                pair.left = w.values(4)
            yield (f(w.values(4)),)

    agree(program)


KEYS = {
    *("pages.mapped", "pages.scratch", "pages.output", "pages.live"),
    *("ranges", "ranges.pages", "limit", "page.bytes", "heap.bytes", "heap.pages"),
}


def test_memory_stats_add_up(make_rig):
    """All keys are there, and parts make wholes whatever has happened."""
    rt = make_rig(memory_limit=1 << 24).runtime
    f = rt.graph(lambda x: (x * 2, (x + 1).sum()), max_variants=2)
    kept = []
    for i in range(24):
        size = (100, 9000, 20000)[i % 3]
        kept.append(f(rt.array(np.full(size, float(i)))))
        stats = rt.memory_stats()
        assert stats.keys() >= KEYS
        assert all(type(value) is int and value >= 0 for value in stats.values())
        assert stats["limit"] == 1 << 24
        assert stats["pages.mapped"] == stats["pages.scratch"] + stats["pages.output"]
        assert stats["pages.live"] <= stats["pages.output"]
        pages = stats["pages.mapped"] + stats["heap.pages"]
        assert pages * stats["page.bytes"] <= stats["limit"]
        assert validate(rt.memory_snapshot()) == []
        del kept[: -(i % 4) or None]
    kept.clear()
    assert rt.memory_stats()["pages.live"] == 0


def test_snapshots_are_plain_data(rt):
    """`memory_snapshot` survives JSON, with recordings, outputs and eager arrays."""
    f, x = rt.graph(lambda x: x * 2), rt.array(np.arange(9.0))
    held = [f(x) for _ in range(3)]
    snapshot = rt.memory_snapshot()
    assert json.loads(json.dumps(snapshot)) == snapshot
    assert np.asarray(held[-1]).tolist() == (np.arange(9.0) * 2).tolist()


def test_stats_are_frozen_and_sum_up(rt):
    """A runtime's statistics are the sum of its functions'; nobody can set them."""
    f, g, x = rt.graph(lambda x: x * 2), rt.graph(lambda x: x + 2), rt.array(np.ones(2))
    for _ in range(4):
        g(f(x))
    one, two, both = f.stats(), g.stats(), rt.stats()
    for field in dataclasses.fields(both):
        total = getattr(one, field.name) + getattr(two, field.name)
        assert getattr(both, field.name) == total
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.replays = 0


CLOSED = {
    "array": lambda rt, *_: rt.array(np.ones(2)),
    "generator": lambda rt, *_: rt.generator(0),
    "stream": lambda rt, *_: rt.stream(),
    "synchronize": lambda rt, *_: rt.synchronize(),
    "step": lambda rt, *_: rt.step().__enter__(),
    "call": lambda _, f, x: f(x),
    "warm": lambda _, f, x: f.warm(x),
    "eager": lambda _, __, x: x + 1,
    "method": lambda _, __, x: x.sum(),
    "plain": lambda _, f, x: f.__wrapped__(x),
}


@pytest.mark.parametrize("use", CLOSED)
@pytest.mark.parametrize("calls", [0, 1, 4])
def test_a_closed_runtime_computes_no_more(rig, use, calls):
    """Each use that needs the device is a `MisuseError` that says what to do."""
    rt = rig.runtime
    f, x = rt.graph(lambda x: x * 2), rt.array(np.ones(2))
    held = [f(x) for _ in range(calls)]
    rt.close()
    with pytest.raises(sw.MisuseError, match=r"closed.*(new one|is open)"):
        CLOSED[use](rt, f, x)
    assert [np.asarray(y).tolist() for y in held] == [[2, 2]] * calls
    assert np.asarray(x).tolist() == [1, 1]


def test_a_closed_runtime_still_tells(rig):
    """What happened can be asked for after the end."""
    rt = rig.runtime
    f, x = rt.graph(lambda x: x * 2, name="told"), rt.array(np.ones(2))
    for _ in range(3):
        f(x)
    rt.close()
    rt.close()
    assert f.stats().replays == rt.stats().replays == 1
    assert "told" in f.explain()
    assert rt.memory_stats()["pages.mapped"] == 0
    assert type(rt.events()[-1]).__name__ == "Closed"


def test_an_error_leaves_the_block_after_closing(make_rig):
    """``with Runtime() as rt`` closes on errors too, and does not swallow them."""
    rt = make_rig().runtime
    with pytest.raises(KeyError, match="mine"), rt as same:
        assert same is rt
        raise KeyError("mine")
    assert rt.closed


def test_two_runtimes_do_not_mix(make_rig):
    """Arrays of another runtime are refused by name, as arguments and otherwise."""
    one, two = make_rig().runtime, make_rig().runtime
    x, y = one.array(np.ones(2)), two.array(np.ones(2))
    f = one.graph(lambda x: x * 2, fullgraph=True)
    g = one.graph(lambda x: x * y)
    with pytest.raises(sw.MisuseError, match=r"rt\.array"):
        f(y)
    with pytest.raises(sw.MisuseError, match=r"numpy\.multiply.*rt\.array"):
        g(x)
    for _ in range(3):
        assert np.asarray(f(x)).tolist() == [2, 2]
        assert np.asarray(f(one.array(np.asarray(y)))).tolist() == [2, 2]


def test_two_runtimes_side_by_side(make_rig, bits):
    """One function graphed on two runtimes has recordings on each."""
    runtimes = make_rig().runtime, make_rig().runtime
    functions = [rt.graph(lambda x: np.add(x, 1, out=x)) for rt in runtimes]
    arrays = [rt.array(np.zeros(3)) for rt in runtimes]
    for i in range(6):
        for f, x in zip(functions, arrays, strict=True):
            f(x)
            assert np.asarray(x).tolist() == [i + 1.0] * 3
    assert [f.stats().replays for f in functions] == [4, 4]
    assert bits(arrays[0]) == bits(arrays[1])


def _errors(rt):
    """Return one error of each kind, as the runtime raises them."""
    x = rt.array(np.ones(3))
    y = rt.graph(lambda x: x * 2)(x)
    with rt.step():
        pass
    yield lambda: np.asarray(y)
    yield lambda: rt.graph(lambda x: float(x.sum()), fullgraph=True)(x)
    yield lambda: rt.graph(lambda x: x, max_variants=0)
    yield lambda: rt.array(np.zeros(1 << 20))
    yield lambda: sw.Runtime("cuda:99")


def test_raised_errors_travel(make_rig):
    """Errors as they are raised survive pickling, fields and text alike."""
    seen = set()
    for cause in _errors(make_rig(memory_limit=1 << 22).runtime):
        with pytest.raises(sw.SapwoodError) as caught:
            cause()
        error = caught.value
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy)) == (type(error), str(error))
        assert vars(copy).keys() == vars(error).keys()
        seen.add(type(error).__name__)
        del error, caught
    assert seen == {
        *("StaleOutput", "CaptureError", "MisuseError", "OutOfMemory", "NoDevice")
    }


@pytest.mark.parametrize("limit", [3 << 20, "3 MiB", "3072kib"])
def test_a_memory_limit_may_be_text(limit):
    """The text that the setting takes, the argument takes too."""
    with sw.Runtime("emulated", memory_limit=limit) as rt:
        assert rt.memory_stats()["limit"] == 3 << 20


@pytest.mark.parametrize("device", [3, b"emulated", object()])
def test_what_is_no_device_is_named(device):
    """Neither a name nor a driver: a `MisuseError` that shows it."""
    with pytest.raises(sw.MisuseError, match=r"device=.*emulated"):
        sw.Runtime(device)


def test_an_option_that_is_none_is_named(rt):
    """With the one that was meant, and all there are; as a decorator too."""
    for graph in (rt.graph, sw.graph):
        with pytest.raises(sw.MisuseError, match=r"nmae.*mean name.*max_variants"):
            graph(lambda x: x, nmae="x")
        with pytest.raises(sw.MisuseError, match=r"zzz.*max_variants"):
            graph(zzz=1)
    with pytest.raises(sw.MisuseError, match="name=3"):
        rt.graph(lambda x: x, name=3)


@pytest.mark.parametrize("kind", [staticmethod, classmethod])
def test_static_and_class_methods(rt, kind):
    """Above `graph` they bind as ever; below it they are refused, with the remedy."""
    with pytest.raises(sw.MisuseError, match=f"@{kind.__name__} above"):
        rt.graph(kind(lambda *args: args[-1]))

    class Layer:
        double = kind(rt.graph(lambda *args: args[-1] * 2))

    x = rt.array(np.arange(3.0))
    for holder in (Layer, Layer()):
        for _ in range(3):
            assert np.asarray(holder.double(x)).tolist() == [0, 2, 4]


def test_a_closed_runtime_cannot_be_entered_again(rig):
    """Neither ``with`` nor `graph` takes a runtime that is closed."""
    rt = rig.runtime
    decorate = rt.graph(name="late")
    rt.close()
    with pytest.raises(sw.MisuseError, match=r"closed.*new one"), rt:
        pass
    with pytest.raises(sw.MisuseError, match=r"closed.*new one"):
        rt.graph(lambda x: x)
    f = decorate(lambda x: x)
    with pytest.raises(sw.MisuseError, match=r"late.*closed.*new one"):
        f(1)


def test_an_error_names_only_holders_that_hold(make_rig):
    """An `OutOfMemory` of an empty runtime blames nobody."""
    rt = make_rig(memory_limit=2 << 20).runtime
    with pytest.raises(sw.OutOfMemory) as caught:
        rt.array(np.zeros(1 << 20))
    assert caught.value.holders == ()
    assert "held by" not in str(caught.value)


def test_a_donated_array_is_told_from_one_that_a_step_ended(rt):
    """Each `StaleOutput` has the remedy that helps."""
    f = rt.graph(lambda x: x + 1, donate="x")
    for _ in range(3):
        x = rt.array(np.ones(3))
        y = f(x)
        with pytest.raises(sw.StaleOutput, match=r"donated.*returned, or pass it"):
            np.asarray(x)
    with rt.step(), pytest.raises(sw.StaleOutput, match=r"step.*keep="):
        np.asarray(y)
