"""Compiled inference: each result is that of the same code without graphs."""

from __future__ import annotations

import gc
import threading

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn
functional = torch.nn.functional

pytestmark = pytest.mark.gpu


def mlp(width=32):
    torch.manual_seed(3)
    layers = nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)
    return nn.Sequential(*layers).cuda()


def test_a_function_of_arguments(alike):
    def program(w):
        f = w.compile(lambda x, y: ((x @ y).relu(), x.sum()))
        for _ in range(8):
            yield f(w.values(16, 16), w.values(16, 16))

    told = alike(program)
    assert told.replays >= 5
    assert told.passed_through == 0


@torch.no_grad()
def test_a_module(alike):
    """Parameters are pinned, arguments move."""

    def program(w):
        f = w.compile(mlp())
        for _ in range(8):
            yield f(w.values(8, 32))

    told = alike(program)
    assert told.replays >= 5
    assert told.recordings <= 2


def test_shapes_in_turn(alike):
    def program(w):
        f = w.compile(lambda x: x * x * x, dynamic=False)
        for size in (4, 5) * 5:
            yield f(w.values(size, size))

    assert alike(program).replays >= 4


def test_integers_are_a_signature(alike):
    """One recording a size, of one compiled function."""

    def program(w):
        f = w.compile(lambda x: (x * 2).softmax(-1), dynamic=True)
        for size in (3, 5, 7, 3, 5, 7, 3, 5, 7, 3, 5, 7):
            yield f(w.values(size, 8))

    told = alike(program)
    assert told.recordings == 3
    assert told.replays >= 3


def test_sizes_that_are_to_be_captured(alike):
    def program(w):
        f = w.compile(lambda x: x.exp() + 1, dynamic=True)
        for size in (2, 5, 7, 9, 11) * 4:
            yield f(w.values(size))

    told = alike(program, **{"triton.cudagraph_capture_sizes": (2, 7)})
    assert told.recordings == 2


def test_outputs_that_are_kept(alike):
    """All of them stay what they were."""

    def program(w):
        f = w.compile(lambda x: (x + 1, (x * 2).sum(0)))
        kept = []
        for _ in range(12):
            kept.append(f(w.values(16, 16)))
            yield kept[-1]
        yield kept

    assert alike(program).replays >= 6


def test_results_are_arguments(alike):
    """``x = f(x)``, which torch's trees run slowly or refuse."""

    def program(w):
        f = w.compile(lambda x: torch.sin(x) * 1.5)
        x = w.values(32)
        for _ in range(12):
            x = f(x)
            yield x

    assert alike(program).replays >= 8


def test_two_functions_in_a_chain(alike):
    def program(w):
        f = w.compile(lambda x: torch.sin(x) @ x)
        g = w.compile(lambda y, x: (y + x).relu().sum(1))
        for _ in range(10):
            x = w.values(16, 16)
            y = f(x)
            yield g(y, x), y

    assert alike(program).replays >= 10


def test_graph_breaks(alike):
    def program(w):
        @w.compile
        def f(x):
            y = x * 2
            torch._dynamo.graph_break()
            return (y + x).relu() @ y

        for _ in range(8):
            yield f(w.values(16, 16))

    assert alike(program).replays >= 8


def test_arguments_that_are_written(alike):
    """Where torch's trees skip: what a call writes is what it was passed."""

    def program(w):
        @w.compile
        def f(x, y):
            x.add_(y)
            return x * 2

        for _ in range(8):
            x, y = w.values(16), w.values(16)
            yield f(x, y), x, y

        lasting = w.values(16)
        for _ in range(8):
            yield f(lasting, w.values(16)), lasting

    assert alike(program).replays >= 8


def test_buffers_that_are_written(alike):
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(4, device="cuda"))

        def forward(self, x):
            self.count.add_(x)
            return self.count + x

    def program(w):
        module = Counting()
        f = w.compile(module)
        for _ in range(8):
            yield f(w.values(4)), module.count

    assert alike(program).replays >= 5


@torch.no_grad()
def test_a_norm_in_training(alike):
    def program(w):
        torch.manual_seed(3)
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()).cuda()
        f = w.compile(model)
        for _ in range(8):
            yield f(w.values(2, 3, 8, 8)), dict(model.named_buffers())

    assert alike(program).replays >= 5


def test_aliases_go_out(alike):
    """An argument, a view of one, and two views of one result."""

    def program(w):
        f = w.compile(lambda x: (x, x[1:], (y := x * 2)[0], y.t(), y))
        for _ in range(8):
            x = w.values(4, 4)
            yield f(x), x

    alike(program)


@torch.no_grad()
def test_parameters_go_out(alike):
    def program(w):
        model = mlp()
        f = w.compile(lambda x: (model[0].weight, model[0].weight[1:], model(x)))
        for _ in range(6):
            out = f(w.values(4, 32))
            assert out[0].data_ptr() == model[0].weight.data_ptr()
            yield out

    assert alike(program).replays >= 2


@torch.no_grad()
def test_parameters_that_are_swapped(alike):
    """One, the other, and the first again."""

    def program(w):
        model = nn.Linear(16, 16).cuda()
        sets = [nn.Parameter(w.values(16, 16)) for _ in range(3)]
        f = w.compile(lambda x: model(x).relu())
        for i in (0, 0, 0, 1, 1, 1, 0, 0, 2, 2, 2, 0, 1, 2) * 2:
            model.weight = sets[i]
            yield f(w.values(4, 16))

    told = alike(program)
    assert told.replays >= 8


def test_views_that_are_not_aligned(alike):
    """Generated code loads sixteen bytes at once only where an address allows it."""

    def program(w):
        f = w.compile(lambda x: x * 2 + 1)
        base = w.values(1025)
        for at in (0, 1, 1, 1, 0, 2, 3, 1, 0, 1) * 2:
            yield f(base[at : at + 1021])

    assert alike(program).replays >= 6


def test_expanded_and_strided_arguments(alike):
    def program(w):
        f = w.compile(lambda x: (x.relu(), x.sum()))
        for _ in range(4):
            yield f(w.values(1, 8).expand(4, 8))
            yield f(w.values(8, 4).t())
            yield f(w.values(8, 8)[::2])
            yield f(w.values(()).clone())
            yield f(w.values(0, 8))

    alike(program)


def test_random_numbers(alike):
    """The same seed gives the same numbers, and calls differ."""

    def program(w):
        f = w.compile(lambda x: (torch.rand_like(x), functional.dropout(x, 0.5)))
        for _ in range(3):
            torch.manual_seed(5)
            for _ in range(4):
                yield f(w.values(64))

    for fallback in (False, True):
        told = alike(program, fallback_random=fallback)
        assert told.replays >= 6


def test_host_values_decide(alike):
    """Partitions are recorded, what is between them runs."""

    def program(w):
        @w.compile
        def f(x):
            y = (x * 2).relu()
            if y.sum().item() > 0:
                return y + 1
            return y - 1

        for sign in (1, -1) * 5:
            yield f(w.values(8).abs() * sign)

    alike(program)


def test_work_of_the_host_between(alike):
    """A copy to the CPU and back splits a graph in two."""

    def program(w):
        f = w.compile(lambda x: ((x + 1).cpu() * 2).cuda() @ x)
        for _ in range(8):
            yield f(w.values(8, 8))

    assert alike(program, graph_partition=True).replays >= 8


def test_a_scalar_of_the_host(alike):
    def program(w):
        f = w.compile(lambda x, s: (x * s).relu())
        for i in range(8):
            yield f(w.values(8, 8), torch.tensor(float(i)))

    alike(program, graph_partition=True)


def test_work_on_the_host_alone(ours):
    """It is as Inductor compiles it."""
    f = torch.compile(lambda x: x.relu() * 2, backend=ours)
    x = torch.randn(8)
    for _ in range(4):
        assert torch.equal(f(x), x.relu() * 2)


def test_frozen_constants(alike):
    def program(w):
        table = torch.arange(16.0, device="cuda")
        f = w.compile(lambda x: x + table * torch.tensor([1.0, 2.0], device="cuda")[0])
        for _ in range(6):
            yield f(w.values(16))

    assert alike(program).replays >= 3


def test_a_tensor_that_the_function_holds_is_written(alike):
    def program(w):
        held = torch.zeros(4, device="cuda")

        @w.compile
        def f(x):
            held.add_(x)
            return held * 2

        for _ in range(6):
            yield f(w.values(4)), held

    alike(program)


def test_eight_threads(ours):
    """One compiled function, and each thread's results are its own."""
    f = torch.compile(lambda x: (x @ x).relu().sum(1), backend=ours)
    x = torch.randn(32, 32, device="cuda")
    expected = [f(x + i).clone() for i in range(8)]
    wrong, ready = [], threading.Barrier(8)

    def calls(i):
        ready.wait(60)
        wrong.extend(i for _ in range(20) if not torch.equal(f(x + i), expected[i]))

    threads = [threading.Thread(target=calls, args=(i,)) for i in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong


def test_a_stream_of_ones_own(alike):
    def program(w):
        f, side = w.compile(lambda x: (x @ x).relu()), torch.cuda.Stream()
        for _ in range(8):
            x = w.values(64, 64)
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                y = f(x)
            torch.cuda.current_stream().wait_stream(side)
            yield y, f(x)

    alike(program)


def test_recordings_go_with_what_was_compiled(ours, rt):
    f = torch.compile(lambda x: x.relu() * 2, backend=ours)
    x = torch.randn(8, device="cuda")
    kept = [f(x) for _ in range(5)]
    assert rt.stats().recordings
    del f
    torch._dynamo.reset()
    gc.collect()
    rt.synchronize()
    assert not rt.snapshot()["functions"]
    assert all(torch.equal(each, x.relu() * 2) for each in kept)


def test_hundreds_of_sizes(alike):
    """They are bounded, and right."""

    def program(w):
        f = w.compile(lambda x: (x * 2).sum(0), dynamic=True)
        for size in [*range(2, 42)] * 3:
            yield f(w.values(size, 4))

    told = alike(program, **{"triton.cudagraph_dynamic_shape_warn_limit": None})
    assert told.recordings <= 80


def test_kernels_that_tune_themselves(rt, ours, bits):
    """Torch copies what they write to the host, if more memory was never in use."""
    from torch._inductor.utils import fresh_cache

    x = torch.randn(512, 512, device="cuda")
    with fresh_cache():
        f = torch.compile(lambda x: (x @ x).relu(), backend=ours)
        torch.cuda.reset_peak_memory_stats()
        for _ in range(5):
            assert bits(f(x)) == bits((x @ x).relu())
    assert rt.stats().replays >= 2
    assert not rt.stats().skipped


@pytest.mark.usefixtures("ours")
def test_in_place_of_torchs_trees(rt, bits):
    """``mode="reduce-overhead"`` is recorded by us within a block, by torch outside."""
    import sapwood as sw

    x = torch.randn(16, 16, device="cuda")
    f = torch.compile(lambda x: (x @ x).relu(), mode="reduce-overhead")
    with sw.trees():
        for _ in range(5):
            assert bits(f(x)) == bits((x @ x).relu())
        assert rt.stats().replays >= 2
    before = rt.stats()
    g = torch.compile(lambda x: (x @ x).relu() + 1, mode="reduce-overhead")
    for _ in range(4):
        torch.compiler.cudagraph_mark_step_begin()
        assert bits(g(x)) == bits((x @ x).relu() + 1)
    assert rt.stats() == before


def test_within_a_graphed_function(rt, ours, bits):
    """What is compiled becomes part of the function's recording."""
    inner = torch.compile(lambda x: (x * 2).relu() + 1, backend=ours)
    f = rt.graph(lambda x: inner(x) @ x)
    for _ in range(6):
        x = torch.randn(8, 8, device="cuda")
        assert bits(f(x)) == bits(((x * 2).relu() + 1) @ x)
    assert f.stats().replays >= 3
