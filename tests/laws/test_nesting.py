"""Law 14: graphed inside graphed, methods, exceptions, and functions that cannot be."""

from __future__ import annotations

import functools
import gc
import threading
import weakref

import numpy as np
import pytest

import sapwood as sw
from tests.support.frameworks import on_host


@pytest.mark.every_framework
def test_graphed_inside_graphed(agree):
    """Inside a recording a graphed function is its plain function."""

    def program(w):
        inner = w.graph(lambda x: x * 2)
        outer = w.graph(lambda x: inner(x) + inner(x + 1))
        x = w.values(4)
        for _ in range(5):
            yield outer(x), x

    world = agree(program)
    inner, outer = (function.stats() for function in world.functions)
    if world.framework.records:
        assert inner == type(inner)()
        assert (outer.warmups, outer.recordings, outer.replays) == (1, 1, 3)


@pytest.mark.every_framework
def test_inner_and_outer_both_called(agree):
    """The inner one, called for itself, has its own recordings."""

    def program(w):
        inner = w.graph(lambda x: (x * 2, x[1:]))
        outer = w.graph(lambda x: inner(inner(x)[0])[1] + 1)
        x = w.values(4)
        for _ in range(6):
            yield inner(x), outer(x), inner(outer(x))

    assert agree(program).count("replays") > 0


@pytest.mark.every_framework
def test_ambient_values_of_the_inner_function(agree):
    """What the inner function reads, the outer one reads."""

    def program(w):
        scale, weight = 2, w.values(4)
        inner = w.graph(lambda x: x * scale + weight)
        outer = w.graph(lambda x: inner(x) - 1)
        x = w.values(4)
        for i in range(16):
            scale = 2 + i // 4
            if i == 10:
                weight = w.values(4)
            yield outer(x), inner(x)

    assert agree(program).count("replays") > 0


@pytest.mark.every_framework
def test_recursion(agree):
    """A graphed function that calls itself by its graphed name."""

    def program(w):
        def power(x, n):
            return x if n == 0 else f(x, n - 1) * x

        f = w.graph(power)
        x = w.values(3)
        for _ in range(4):
            for n in (0, 1, 5, 3):
                yield f(x, n)

    assert agree(program).count("recordings") == 4


@pytest.mark.every_framework
def test_methods_of_two_instances(agree):
    """Each instance has its own recordings, state and statistics."""

    def program(w):
        class Net:
            def __init__(self, scale):
                self.scale, self.weight = scale, w.values(4)

            @w.graph
            def forward(self, x, more=0):
                self.weight += 1
                return x * self.weight * self.scale + more

        one, two = Net(2), Net(3)
        x = w.values(4)
        for i in range(8):
            yield one.forward(x), two.forward(x, more=i % 2), one.weight, two.weight
            yield Net.forward(one, x), one.weight
        if w.replayed and w.framework.records:
            assert one.forward.stats().recordings == 1
            assert two.forward.stats().recordings == 2

    agree(program)


@pytest.mark.every_framework
def test_methods_bind(rt, framework):
    """A graphed method is a method: of its object, with its name and its text."""

    class Net:
        @rt.graph
        def forward(self, x):
            """Return x plus one."""
            return x + 1

        @staticmethod
        @rt.graph
        def static(x):
            return x * 2

        @classmethod
        def made(cls):
            return cls()

    net = Net()
    assert net.forward.__self__ is net
    assert Net.forward.__name__ == "forward"
    assert Net.forward.__doc__ == "Return x plus one."
    x = rt.array(np.ones(2))
    bound = net.forward
    for _ in range(4):
        assert on_host(bound(x)).tolist() == [2, 2]
        assert on_host(net.forward(x)).tolist() == [2, 2]
        assert on_host(Net.static(x)).tolist() == [2, 2]
        assert on_host(net.static(x)).tolist() == [2, 2]
    assert 0 <= 6 - net.forward.stats().replays <= framework.settling
    assert on_host(net.forward.__wrapped__(x)).tolist() == [2, 2]


@pytest.mark.every_framework
@pytest.mark.parametrize(
    "base", ["object", pytest.param("module", marks=pytest.mark.only("torch"))]
)
def test_instances_are_held_weakly(rig, framework, base):
    """An instance dies when its user drops it, and its recordings with it."""
    rt = rig.runtime

    class Net(framework.torch.nn.Module if base == "module" else object):
        def __init__(self):
            super().__init__()
            self.weight = rt.array(np.ones(4))

        @rt.graph
        def forward(self, x):
            return x * self.weight

    x = rt.array(np.ones(4))
    for _ in range(3):
        net = Net()
        for _ in range(4):
            assert on_host(net.forward(x)).tolist() == on_host(x).tolist()
        gone = weakref.ref(net)
        del net
        gc.collect()
        assert gone() is None
        rt.synchronize()
        x += 1
        assert rt.memory_stats()["ranges"] == 0
        assert rig.device.live_handles()["execs"] == 0


def test_a_new_instance_is_not_taken_for_an_old_one(agree):
    """Objects that follow each other at one address do not inherit recordings."""

    def program(w):
        class Net:
            def __init__(self, scale):
                self.scale = scale

            @w.graph
            def forward(self, x):
                return x * self.scale

        x = w.values(4)
        for scale in range(8):
            net = Net(scale)
            for _ in range(3):
                yield net.forward(x)
            del net

    agree(program)


class Mine(Exception):
    """An exception of the user."""


def _raising(x, state, bound):
    x += 1
    state["h"] = x * 2
    if bound["fail"]:
        raise Mine("as thrown", 3)
    x *= 2
    return x - 1


@pytest.mark.every_framework
@pytest.mark.parametrize("when", [0, 1, 2, 4])
def test_a_users_exception_leaves_unchanged(rt, bits, when):
    """In warm-up, recording and between calls; what ran before it has run once."""
    x, y = rt.array(np.ones(3)), rt.array(np.ones(3))
    ours, theirs, bound = {}, {}, {"fail": False}
    f = rt.graph(lambda x: _raising(x, ours, bound))
    for call in range(8):
        bound["fail"] = call == when
        if bound["fail"]:
            with pytest.raises(Mine, match="as thrown") as caught:
                f(x)
            assert type(caught.value) is Mine
            assert caught.value.args == ("as thrown", 3)
            assert caught.value.__cause__ is None
            assert "_raising" in {entry.name for entry in caught.traceback}
            with pytest.raises(Mine):
                _raising(y, theirs, bound)
            del caught
        else:
            assert bits(f(x)) == bits(_raising(y, theirs, bound))
        assert bits(x, ours["h"]) == bits(y, theirs["h"])
    assert f.stats().replays > 0


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_interrupts_pass_through(rt, error):
    """What is not an `Exception` leaves as it is, and the runtime goes on."""
    x, fail = rt.array(np.ones(3)), [None]

    def fn(x):
        if fail[0]:
            raise fail[0]
        return x + 1

    f = rt.graph(fn)
    for fail[0] in (error, None, error, None, None, error, None, None):
        if fail[0]:
            with pytest.raises(error):
                f(x)
        else:
            assert np.asarray(f(x)).tolist() == [2] * 3


@pytest.mark.minimal
def test_an_exception_on_the_recording_call(rt, bits):
    """A function that raises only when it is captured has run that once."""
    x, y, turns = rt.array(np.ones(3)), rt.array(np.ones(3)), threading.Semaphore(1)

    class Turn:
        def __bool__(self):
            if turns.acquire(blocking=False):
                return False
            turns.release(9)
            return True

    turn = Turn()

    def fn(x):
        x += 1
        if turn:
            raise Mine
        return x * 2

    f = rt.graph(fn)
    f(x)
    with pytest.raises(Mine):
        f(x)
    y += 2
    assert bits(x) == bits(y)
    for _ in range(3):
        out = f(x)
        y += 1
        assert bits(out) == bits(y * 2)


@pytest.mark.every_framework
def test_an_exception_of_a_framework_is_the_frameworks(rt, framework):
    """Wrong shapes raise what NumPy or torch raises, at every call."""
    error, says = ValueError, "broadcast"
    if framework.xp is not np:
        error, says = RuntimeError, "must match"
    f, x = rt.graph(lambda x, y: x + y), rt.array(np.ones(3))
    for _ in range(3):
        assert on_host(f(x, x)).tolist() == [2] * 3
        with pytest.raises(error, match=says):
            f(x, rt.array(np.ones(4)))
    assert f.stats().replays == 1


def _generator(x):
    yield x


async def _coroutine(x):
    return x


async def _stream(x):
    yield x


class _Callable:
    def __call__(self, x):
        yield x


@pytest.mark.every_framework
@pytest.mark.parametrize(
    "fn",
    [
        *(_generator, _coroutine, _stream, functools.partial(_generator)),
        *(functools.partial(_coroutine), _Callable(), 3),
    ],
)
def test_functions_that_cannot_be_graphed(rt, fn):
    """Generators, coroutines and the like are refused at decoration, by name."""
    with pytest.raises(sw.MisuseError):
        rt.graph(fn)
    with pytest.raises(sw.MisuseError):
        sw.graph(fn)
    with pytest.raises(sw.MisuseError):
        rt.graph(name="n")(fn)


def test_wrong_options_are_refused(rt):
    """An option that cannot be is refused when the function is graphed."""
    for options in (
        *({"max_variants": 0}, {"max_recordings": -1}, {"fullgraph": "no"}),
        *({"verify": -1}, {"verify": 1.5}),
    ):
        with pytest.raises(sw.MisuseError):
            rt.graph(lambda x: x, **options)


@pytest.mark.every_framework
def test_partials_lambdas_and_callable_objects(agree):
    """Anything callable that is not forbidden can be graphed."""

    def program(w):
        class Scale:
            def __init__(self, factor):
                self.factor = factor

            def __call__(self, x, plus=0):
                return x * self.factor + plus

            def method(self, x):
                return x - self.factor

        scale = Scale(w.values(3))
        fs = [
            w.graph(scale),
            w.graph(functools.partial(scale, plus=4)),
            w.graph(scale.method),
            w.graph(lambda *parts: sum(parts)),
            w.graph(w.framework.xp.sin),
            w.graph(w.framework.xp.add),
        ]
        x = w.values(3)
        for i in range(6):
            if i == 3:
                scale.factor = w.values(3)
            yield [f(x) for f in fs[:-1]], fs[-1](x, x)

    assert agree(program).count("replays") > 0


@pytest.mark.every_framework
def test_disabled(rt, bits):
    """In `sw.disabled()` every call is the plain one; afterwards all is as before."""
    ran = []
    f = rt.graph(lambda x: x * 2)
    x = rt.array(np.arange(3.0))
    for _ in range(3):
        f(x)
    before = f.stats()
    with sw.disabled():
        with sw.disabled():
            ran.append(bits(f(x)))
        ran.append(bits(f(x)))
        assert float(rt.graph(lambda x: float(x.sum()))(x)) == 3
    assert ran[0] == ran[1] == bits(f(x))
    assert f.stats().replays == before.replays + 1
    assert f.stats().warmups == before.warmups


@pytest.mark.every_framework
def test_disabled_on_one_thread_only(rt):
    """`disabled` is for the thread that says so."""
    f, x = rt.graph(lambda x: x * 2), rt.array(np.arange(3.0))
    with sw.disabled():
        other = threading.Thread(target=lambda: [f(x) is x for _ in range(3)])
        other.start()
        other.join()
    assert f.stats().replays == 1


def test_the_plain_function_is_at_hand(rt):
    """``__wrapped__`` and the metadata of the function are kept."""

    def fn(x: int, y: int = 2) -> int:
        """Add."""
        return x + y

    f = rt.graph(fn)
    assert f.__wrapped__ is fn
    assert (f.__name__, f.__doc__, f.__module__) == ("fn", "Add.", fn.__module__)
    assert "fn" in repr(f)
    assert f(1, y=3) == 4


@pytest.mark.every_framework
def test_one_function_graphed_twice(agree):
    """Two graphed functions of one plain function share nothing."""

    def program(w):
        def fn(x):
            x += 1
            return x * 2

        f, g = w.graph(fn), w.graph(fn, max_variants=1)
        x = w.values(3)
        for _ in range(6):
            yield f(x), g(x), f(g(x)), x

    assert agree(program).count("replays") > 0


@pytest.mark.every_framework
def test_a_graphed_function_graphed_again(agree):
    """Graphing what is graphed already does no harm."""

    def program(w):
        f = w.graph(w.graph(lambda x: x + 1))
        x = w.values(3)
        for _ in range(4):
            yield f(x)

    assert agree(program).count("replays") > 0


def test_a_call_of_another_runtime_inside(make_rig):
    """A function of one runtime called inside one of another is plain there."""
    one, two = make_rig().runtime, make_rig().runtime
    inner = one.graph(lambda x: x * 2)
    outer = two.graph(lambda x: inner(x) + 1)
    x = two.array(np.ones(2))
    for _ in range(4):
        assert np.asarray(outer(x)).tolist() == [3, 3]
    assert inner.stats().warmups == 0
    foreign = one.graph(lambda x: x + 1)
    with pytest.warns(sw.GraphSkipWarning, match="an array of another runtime"):
        assert np.asarray(foreign(x)).tolist() == [2, 2]
    assert np.asarray(foreign(x)).tolist() == [2, 2]
