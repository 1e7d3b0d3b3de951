"""Graphed inside graphed, methods, exceptions, and functions that cannot be graphed."""

from __future__ import annotations

import functools
import gc
import threading
import types
import weakref

import pytest

import sapwood as sw

torch = pytest.importorskip("torch")
nn = torch.nn

pytestmark = pytest.mark.gpu


def test_graphed_inside_graphed(alike):
    """Inside a recording a graphed function is its plain function."""

    def program(w):
        inner = w.graph(lambda x: x * 2)
        outer = w.graph(lambda x: inner(x) + inner(x + 1))
        x = w.values(4)
        for _ in range(5):
            yield outer(x), x

    world = alike(program)
    inner, outer = (function.stats() for function in world.functions)
    assert (outer.warmups, outer.recordings, outer.replays) == (1, 1, 3)
    assert inner == type(inner)()


def test_inner_and_outer_both_called(alike):
    """The inner one, called for itself, has its own recordings."""

    def program(w):
        inner = w.graph(lambda x: (x * 2, x[1:]))
        outer = w.graph(lambda x: inner(inner(x)[0])[1] + 1)
        x = w.values(4)
        for _ in range(6):
            yield inner(x), outer(x), inner(outer(x))

    assert alike(program).count("replays") > 0


def test_ambient_values_of_the_inner_function(alike):
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

    assert alike(program).count("replays") > 0


def test_recursion(alike):
    """A graphed function that calls itself by its graphed name."""

    def program(w):
        def power(x, n):
            return x if n == 0 else f(x, n - 1) * x

        f, x = w.graph(power), w.values(3)
        for _ in range(4):
            for n in (0, 1, 5, 3):
                yield f(x, n)

    assert alike(program).count("recordings") == 4


def test_a_graphed_part_of_a_training_step(rt, same):
    """A graphed model inside a graphed step, and for itself, under its own mode."""
    worlds = []
    for _ in range(2):
        torch.manual_seed(3)
        module = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)).cuda()
        worlds.append((module, torch.optim.SGD(module.parameters(), lr=0.1)))

    def stepping(forward, optimizer):
        def step(x):
            optimizer.zero_grad(set_to_none=True)
            loss = forward(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    (mine, one), (theirs, two) = worlds
    forward = rt.graph(mine)
    f, eager = rt.graph(stepping(forward, one)), stepping(theirs, two)
    for _ in range(8):
        x = torch.randn(4, 8, device="cuda")
        same(f(x), eager(x))
        same(list(mine.parameters()), list(theirs.parameters()))
        with torch.no_grad():
            same(forward(x), theirs(x))
    assert f.stats().replays >= 4
    assert forward.stats().replays >= 4


def test_methods_of_two_instances(alike):
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
        if w.replayed:
            assert one.forward.stats().recordings == 1
            assert two.forward.stats().recordings == 2

    alike(program)


@torch.no_grad()
def test_methods_of_two_modules(alike):
    """So have the methods of modules, with parameters of their own."""

    def program(w):
        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = nn.Parameter(w.values(4, 4))

            @w.graph
            def project(self, x):
                return x @ self.weight

            def forward(self, x):
                return self.project(x).relu()

        blocks, x = [Block(), Block()], w.values(2, 4)
        for i in range(8):
            if i == 5:
                blocks[0].weight = nn.Parameter(w.values(4, 4))
            yield [block(x) for block in blocks], blocks[1].project(x)

    alike(program)


def test_methods_bind(rt, same):
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

    net, x = Net(), torch.ones(2, device="cuda")
    bound = net.forward
    assert bound.__self__ is net
    assert (Net.forward.__name__, Net.forward.__doc__) == (
        *("forward", "Return x plus one."),
    )
    for _ in range(4):
        same([bound(x), net.forward(x)], [x + 1, x + 1])
        same([Net.static(x), net.static(x)], [x * 2, x * 2])
    assert net.forward.stats().replays >= 5
    same(net.forward.__wrapped__(x), x + 1)


def test_instances_are_held_weakly(rig, rt, same):
    """An instance dies when its user drops it, and its recordings with it."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.ones(4, device="cuda")

        @rt.graph
        def forward(self, x):
            return x * self.weight

    x = torch.ones(4, device="cuda")
    for _ in range(3):
        net = Net()
        for _ in range(4):
            same(net.forward(x), x)
        gone = weakref.ref(net)
        del net
        gc.collect()
        assert gone() is None
        rt.synchronize()
        assert rt.memory_stats()["ranges"] == 0
        assert rig.device.live_handles()["execs"] == 0


class Mine(Exception):
    """An exception of the user."""


def _raising(x, state, bound):
    x += 1
    state["h"] = x * 2
    if bound["fail"]:
        raise Mine("as thrown", 3)
    x *= 2
    return x - 1


@pytest.mark.parametrize("when", [0, 1, 2, 4])
def test_a_users_exception_leaves_unchanged(rt, bits, when):
    """In warm-up, recording and between calls; what ran before it has run once."""
    x, y = torch.ones(3, device="cuda"), torch.ones(3, device="cuda")
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


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_exit_on_the_recording_call(rt, bits, error):
    """A function that ends the program only when it is captured has run that once."""
    x, y = torch.ones(3, device="cuda"), torch.ones(3, device="cuda")
    kept, turns = types.SimpleNamespace(h=x * 0), threading.Semaphore(1)

    def fn(x):
        x += 1
        kept.h = x * 3
        if torch.cuda.is_current_stream_capturing() and turns.acquire(blocking=False):
            raise error
        return x * 2

    f = rt.graph(fn)
    f(x)
    with pytest.raises(error):
        f(x)
    y += 2
    assert bits(x, kept.h) == bits(y, y * 3)
    for _ in range(4):
        found = f(x)
        y += 1
        assert bits(found, kept.h) == bits(y * 2, y * 3)


def test_an_exception_of_torch_is_torchs(rt, same):
    """Wrong shapes raise what torch raises, at every call."""
    f, x = rt.graph(lambda x, y: x + y), torch.ones(3, device="cuda")
    for _ in range(3):
        same(f(x, x), x + x)
        with pytest.raises(RuntimeError, match="must match"):
            f(x, torch.ones(4, device="cuda"))
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


@pytest.mark.parametrize(
    "fn", [_generator, _coroutine, _stream, functools.partial(_generator), _Callable()]
)
def test_functions_that_cannot_be_graphed(rt, fn):
    """Generators, coroutines and the like are refused at decoration, by name."""
    with pytest.raises(sw.MisuseError):
        rt.graph(fn)
    with pytest.raises(sw.MisuseError):
        rt.graph(name="n")(fn)


def _yields(self, x):
    del self
    yield x


async def _waits(self, x):
    del self
    return x


@pytest.mark.parametrize("forward", [_yields, _waits])
def test_modules_that_cannot_be_graphed(rt, forward):
    """So are modules whose ``forward`` is one of those."""
    module = type("Odd", (nn.Module,), {"forward": forward})()
    with pytest.raises(sw.MisuseError):
        rt.graph(module)


def test_partials_lambdas_and_callable_objects(alike):
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
            w.graph(torch.sin),
            w.graph(torch.nn.functional.gelu),
        ]
        x = w.values(3)
        for i in range(6):
            if i == 3:
                scale.factor = w.values(3)
            yield [f(x) for f in fs]

    assert alike(program).count("replays") > 0


def test_disabled(rt, same):
    """In `sw.disabled()` every call is the plain one; afterwards all is as before."""
    f, x = rt.graph(lambda x: x * 2), torch.arange(3.0, device="cuda")
    for _ in range(3):
        f(x)
    before = f.stats()
    with sw.disabled():
        with sw.disabled():
            same(f(x), x * 2)
        same(f(x), x * 2)
        assert rt.graph(lambda x: x.sum().item())(x) == 3
        other = threading.Thread(target=lambda: same(f(x), x * 2))
        other.start()
        other.join()
    assert f.stats().replays == before.replays + 1
    same(f(x), x * 2)
    assert f.stats().replays == before.replays + 2
    assert f.stats().warmups == before.warmups


def test_one_function_graphed_twice(alike):
    """Two graphed functions of one plain function, or of a graphed one, are two."""

    def program(w):
        def fn(x):
            x += 1
            return x * 2

        f, g = w.graph(fn), w.graph(fn, max_variants=1)
        h, x = w.graph(f), w.values(3)
        for _ in range(6):
            yield f(x), g(x), f(g(x)), h(x), x

    assert alike(program).count("replays") > 0
