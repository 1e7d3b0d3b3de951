"""What eager regions do, where they are, and under what they run."""

from __future__ import annotations

import contextlib
import gc
import random

import pytest

import sapwood as sw

torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.gpu,
    # Torch's own, where it imports parts of itself.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


class Mine(Exception):
    """An exception of the user, which may have a tensor."""

    def __init__(self, tensor=None):
        super().__init__("as thrown")
        self.tensor = tensor


WHERE = {
    "first": lambda live, x: live(x) * 2,
    "last": lambda live, x: live(x * 2),
    "alone": lambda live, x: live(x),
    "in a row": lambda live, x: live(live(live(x + 1))) + 1,
    "with nothing between": lambda live, x: (live(x), live(x), x),
    "unused": lambda live, x: (x, [live(x) for _ in range(3)][0:0]),
    "on views alone": lambda live, x: live(live(x[1:]).t()).t(),
}


@pytest.mark.parametrize("where", WHERE)
def test_where_eager_regions_are(alike, where, replayed):
    """First, last, in a row, with nothing recorded between, and with nothing at all."""

    def program(w):
        seen = []

        @sw.eager
        def live(h):
            seen.append(h.sum().item())
            return h * (1 + len(seen) % 2)

        f, x = w.graph(lambda x: WHERE[where](live, x)), w.values(3, 3)
        for i in range(9):
            x = x if i % 2 else w.values(3, 3)
            yield f(x), x, list(seen)

    replayed(alike(program))


def test_batches_come_from_an_eager_region(alike, replayed):
    """A loader on the host is asked first, and its pinned batches are copied in."""

    def program(w):
        data = w.values(64, 8).cpu().pin_memory()
        batches = iter(data.split(4))

        @sw.eager
        def load():
            batch = next(batches).to("cuda", non_blocking=True)
            return batch, batch.flip(0)

        def fn(weight):
            x, y = load()
            weight += (x * y).mean(0)
            x.relu_()
            return x * weight, y

        f, weight = w.graph(fn), w.values(8)
        for _ in range(10):
            yield f(weight), weight

    replayed(alike(program))


def test_eager_regions_wait_measure_and_copy(alike, replayed):
    """Events around a recorded part, waits for the device, and a way by the host."""

    def program(w):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        host = torch.empty(256, pin_memory=True)

        @sw.eager
        def start():
            torch.cuda.synchronize()
            begin.record()

        @sw.eager
        def stop(h):
            end.record()
            end.synchronize()
            assert begin.elapsed_time(end) >= 0
            host.copy_(h, non_blocking=True)
            torch.cuda.current_stream().synchronize()
            return torch.from_numpy(host.numpy() * 2).to("cuda")

        def fn(x):
            h = x * 2
            start()
            h = h.softmax(-1)
            y = stop(h)
            return h + y

        f = w.graph(fn)
        for _ in range(8):
            yield f(w.values(256))

    replayed(alike(program))


def test_a_users_own_graph_in_an_eager_region(alike, replayed):
    """An eager region captures CUDA graphs by hand, now and then, and replays them."""

    def program(w):
        static, made, calls = torch.zeros(64, device="cuda"), [], []

        @sw.eager
        def by_hand(h):
            static.copy_(h)
            calls.append(float(h[0]))
            if len(calls) % 3 == 1:
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    out = static * 2 + 1
                made[:] = [(graph, out)]
            graph, out = made[0]
            graph.replay()
            return out.clone()

        def fn(x):
            h = x + 1
            y = by_hand(h)
            y += h
            return by_hand(y) - h

        f = w.graph(fn)
        for _ in range(8):
            yield f(w.values(64))
        del made[:]

    replayed(alike(program))


def test_eager_regions_reuse_memory(alike, replayed):
    """Blocks are allocated, spoilt and freed around parts; nothing kept is touched."""

    def program(w):
        seen = []

        @sw.eager
        def churn(*held):
            for size in (1 << 20, 1 << 22, 1 << 20, 3 << 19):
                junk = [torch.full((size,), torch.nan, device="cuda") for _ in range(4)]
                del junk
            seen.append(held)
            del seen[:-5]
            if len(seen) == 4:
                gc.collect()
                torch.cuda.empty_cache()

        def fn(x):
            churn()
            h = x * 2
            big = h.repeat(2).flip(0)
            churn(h, big[5:])
            y = big[: x.numel()] + h
            churn(y)
            return y * 2, h.sum(), y

        f, kept = w.graph(fn), []
        for _ in range(10):
            kept.append(f(w.values(1 << 20)))
            yield kept, seen
            del kept[:-3]

    replayed(alike(program))


def test_streams_inside_and_around(alike, replayed):
    """Calls on two streams in turn, and an eager region that works on a third."""

    def program(w):
        sides = [torch.cuda.Stream() for _ in range(3)]

        @sw.eager
        def aside(h):
            here, there = torch.cuda.current_stream(), sides[2]
            there.wait_stream(here)
            with torch.cuda.stream(there):
                y = h.flip(0) * 2
                h.add_(1)
            h.record_stream(there)
            here.wait_stream(there)
            y.record_stream(here)
            return y

        def fn(x):
            h = x * 2
            y = aside(h)
            x += h
            return y + h, y

        f, x = w.graph(fn), w.values(1 << 18)
        for i in range(12):
            side = sides[i % 2]
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                y = f(x)
            torch.cuda.current_stream().wait_stream(side)
            yield y, x
            del y

    replayed(alike(program))


MODES = {
    "no grad": (torch.no_grad,),
    "inference": (torch.inference_mode,),
    "bfloat16": (torch.no_grad, lambda: torch.autocast("cuda", torch.bfloat16)),
    "half, uncached": (
        torch.no_grad,
        lambda: torch.autocast("cuda", torch.float16, cache_enabled=False),
    ),
}


def test_modes_around_the_call(alike, network, replayed):
    """Each mode has its recordings, and eager regions run in it."""

    def program(w):
        model, seen = network(), []

        @sw.eager
        def scale(h):
            y = model[3](model[1](h))
            seen.append((str(h.dtype), str(y.dtype), torch.is_inference_mode_enabled()))
            h.mul_(1 / (1 + float(y.abs().max())))
            return y

        def fn(x):
            h = model[0](x)
            y = scale(h)
            return model[3](h) + y, y

        f = w.graph(fn)
        for i in range(24):
            x, modes = w.values(8, 16), [*MODES.values()][i % 5 % 4]
            with contextlib.ExitStack() as stack:
                for mode in modes:
                    stack.enter_context(mode())
                y = f(x)
            yield y, list(seen)

    replayed(alike(program), 8)


def test_graphed_functions_with_eager_regions_in_others(alike, replayed):
    """The inner one, with an eager region, is called inside another and for itself."""

    def program(w):
        seen, total = [], w.values(4)

        @sw.eager
        def halve(h):
            seen.append(h.sum().item())
            return h * (0.5 if seen[-1] > 0 else 2)

        def inner(x):
            y = halve(x + 1)
            total.add_(y)
            return y - total

        def outer(x):
            h = g(x) * 2
            halve(h)
            return g(h) + h, x

        g = w.graph(inner)
        f = w.graph(outer)
        for i in range(10):
            x = w.values(4)
            yield f(x), g(x) if i % 2 else None, total, list(seen)

    world = alike(program)
    replayed(world)
    assert all(f.stats().replays >= 2 for f in world.functions)


def test_two_hundred_calls(alike):
    """Shapes in turn, results fed back, kept and dropped at random, logs as well."""

    def program(w):
        chance, logged, kept = random.Random(5), [], []
        total = w.values(3)

        @sw.eager
        def log(h):
            if chance.random() < 0.3:
                logged.append(h)
            if len(logged) > 6:
                del logged[chance.randrange(6)]
            return h.abs().max() + 1

        def fn(x):
            h = x * 0.5
            largest = log(h)
            h += 1 / largest
            total.add_(h[:3])
            log(total)
            return h, h[1:] / largest

        f = w.graph(fn)
        for i in range(200):
            old = [h for pair in kept for h in pair if h.numel() > 3]
            fed = old and chance.random() < 0.4
            x = chance.choice(old) if fed else w.values(chance.choice([3, 64, 5000]))
            kept.append(f(x))
            while len(kept) > 8 or (kept and chance.random() < 0.3):
                del kept[chance.randrange(len(kept))]
            del x, old
            if i % 10 == 9:
                yield kept, logged, total

    world = alike(program)
    assert world.count("replays") >= 60


def test_exceptions_at_random_calls(alike, replayed):
    """Eager regions raise now and then; state is as far as an eager call would be."""

    def program(w):
        chance, total, x = random.Random(9), w.values(4), w.values(4)

        @sw.eager
        def check(h, factor):
            h.mul_(factor if float(h[0]) > 0 else 1)
            if chance.random() < 0.12:
                raise Mine
            return h.sum()

        def fn(x):
            total.add_(x)
            s = check(total * 2, 3)
            x.mul_(0.5).add_(s.sigmoid())
            s = check(x, 0.5)
            total.sub_(s)
            return total * 1, s

        f, raised = w.graph(fn), 0
        for _ in range(40):
            y = None
            try:
                y = f(x)
            except Mine:
                raised += 1
            yield y, x, total
        assert 3 <= raised < 30

    replayed(alike(program))


@pytest.mark.parametrize("when", [0, 1, 4])
def test_an_exception_is_kept_with_its_tensor(alike, when, replayed):
    """What it holds is never overwritten, and later calls are right."""

    def program(w):
        errors, calls = [], []

        @sw.eager
        def check(h):
            calls.append(float(h[0]))
            if len(calls) == when + 1:
                raise Mine(h)

        def fn(x):
            h = x * 2
            check(h)
            h += 1
            return h, h * x

        f, kept = w.graph(fn), []
        for _ in range(10):
            try:
                kept.append(f(w.values(4)))
            except Mine as error:
                errors.append(error)
            yield kept, [error.tensor for error in errors]
        errors.clear()
        gc.collect()

    replayed(alike(program))
