"""Graphs that torch takes for unfit, in whole or in part: they run as compiled."""

from __future__ import annotations

import shutil
from importlib import import_module

import pytest

from tests.integrations.torch_compile import test_seam as seam

torch = pytest.importorskip("torch")

gpu = pytest.mark.gpu
taken = seam.taken
split = pytest.mark.parametrize("split", [False, True], ids=["whole", "split"])


def skips():
    """Return how many graphs torch has counted that are not recorded."""
    return torch._dynamo.utils.counters["inductor"]["cudagraph_skips"]


def counted(program, count):
    """Return the program, of which torch is to count so many skips in each world."""

    def run(w):
        before = skips()
        yield from program(w)
        assert skips() - before == count

    return run


def unsafe(x):
    """Call an operator that is tagged as unfit for graphs, in both directions."""
    if not hasattr(torch.ops.sapwood_tests, "unsafe"):
        tags = (torch.Tag.cudagraph_unsafe,)
        make = torch.library.custom_op(
            "sapwood_tests::unsafe", mutates_args=(), tags=tags
        )

        @make
        def made(x: torch.Tensor) -> torch.Tensor:
            return x * 3

        made.register_fake(torch.empty_like)
        made.register_autograd(lambda _, g: g * 3)
    return torch.ops.sapwood_tests.unsafe(x)


@gpu
@split
def test_work_on_the_host_beside_that_of_the_device(alike, split):
    """It is a reason against the whole graph where torch is not to split it."""

    def program(w):
        f = w.compile(lambda x, host: (x.sin() * 2, host + 1))
        for i in range(6):
            yield f(w.values(16), torch.full((4,), float(i)))

    told = alike(counted(program, not split), graph_partition=split)
    assert told.recordings >= 1 if split else not told.recordings
    assert told.replays >= 3 if split else not told.warmups


@gpu
@split
def test_two_devices_of_one_graph(split):
    if torch.cuda.device_count() < 2:
        pytest.skip("there are not two devices here")
    backend = import_module("sapwood.integrations.torch.backend").backend
    options, before = {"graph_partition": split}, skips()
    f = torch.compile(lambda x, y: (x * 2, y + 1), backend=backend, options=options)
    for i in range(4):
        x, y = (torch.full((8,), float(i), device=f"cuda:{at}") for at in (0, 1))
        found = f(x, y)
        assert torch.equal(found[0], x * 2)
        assert torch.equal(found[1], y + 1)
    assert skips() == before + 1


@gpu
@split
def test_dynamic_shapes_that_are_not_to_be_recorded(alike, split):
    def program(w):
        f = w.compile(lambda x: (x.sin() + 1).cos(), dynamic=True)
        for size in (3, 5, 3, 5, 3, 5):
            yield f(w.values(size))

    options = {"triton.cudagraph_skip_dynamic_graphs": True, "graph_partition": split}
    told = alike(counted(program, not split), **options)
    assert not told.warmups
    assert not told.recordings


@gpu
def test_what_is_not_dynamic_is_recorded_beside_what_is(alike):
    def program(w):
        f = w.compile(lambda x, y: (x.sin() + 1, (y @ y).relu()))
        for size in (3, 5, 3, 5, 3, 5, 3, 5):
            x = w.values(size)
            torch._dynamo.mark_dynamic(x, 0)
            yield f(x, w.values(8, 8))

    told = alike(program, **{"triton.cudagraph_skip_dynamic_graphs": True})
    assert told.recordings >= 1
    assert told.replays >= 3


@gpu
@pytest.mark.parametrize("skipping", [False, True])
def test_sizes_that_are_computed_from_others(alike, skipping):
    """Torch passes some of them to its kernels ready."""

    def program(w):
        @w.compile(dynamic=True)
        def f(x):
            rows = x.shape[0] // 2
            return x[: rows * 2].view(rows, 2, -1).sum(1) * rows

        for size in (4, 6, 9) * 4:
            yield f(w.values(size, 8))

    alike(program, **{"triton.cudagraph_skip_dynamic_graphs": skipping})


@gpu
@split
@pytest.mark.parametrize("of", ["whole numbers", "numbers"])
def test_an_item_within_a_graph(alike, split, of):
    def program(w):
        @w.compile
        def f(x):
            y = (x * 2).sum()
            item = (y.long() if of == "whole numbers" else y).item()
            return (x * item).relu() + 1

        for i in (1, 2, 2, 1, 3, 3, 1, 2):
            yield f(torch.full((4,), float(i), device="cuda"))

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        if of == "numbers":  # which torch makes tensors again
            alike(program, graph_partition=split)
        else:
            told = alike(counted(program, not split), graph_partition=split)
            assert split or not told.warmups


@gpu
@split
def test_a_shape_that_values_decide(alike, split):
    def program(w):
        f = w.compile(lambda x: ((x * 2).relu(), x.nonzero() + 1))
        for i in (1, 2, 2, 1, 3, 3, 1, 2) * 3:
            yield f(torch.arange(6.0, device="cuda").sub(i).relu())

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        told = alike(counted(program, not split), graph_partition=split)
    assert told.replays >= 6 if split else not told.warmups


@gpu
@split
def test_graphs_of_nothing_but_shapes_that_values_decide(alike, split):
    """Three of them, in one function."""

    def program(w):
        @w.compile
        def f(x):
            one = x.nonzero()
            torch._dynamo.graph_break()
            two = x.nonzero()
            torch._dynamo.graph_break()
            return one, two, x.nonzero()

        for i in range(1, 5):
            yield f(torch.tensor([0.0, i, 0.0, 3.0], device="cuda"))

    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        told = alike(counted(program, 0 if split else 3), graph_partition=split)
    assert split or not told.warmups


@gpu
@split
def test_a_wrapper_that_is_written_in_cpp(alike, split):
    if shutil.which("g++") is None:
        pytest.skip("no C++ compiler here")

    def program(w):
        before, f = skips(), w.compile(lambda x: (x @ x).relu() + 1)
        for _ in range(5):
            yield f(w.values(8, 8))
        found.append(skips() - before)

    found = []
    told = alike(program, cpp_wrapper=True, graph_partition=split)
    assert found[0] == found[1]
    assert told.warmups == 0 if found[1] else told.replays >= 2
    assert found[1] or not split


@gpu
@split
def test_operators_that_are_tagged_as_unsafe(alike, split):
    unsafe(torch.ones(1))

    def program(w):
        f = w.compile(lambda x: unsafe(x.sin() * 2).relu() + 1)
        for _ in range(6):
            yield f(w.values(16))

    told = alike(counted(program, not split), graph_partition=split)
    assert told.recordings >= 2 if split else not told.recordings
    assert told.replays >= 6 if split else not told.warmups


VALUES = {
    "full": torch.linalg.svd,
    "thin": lambda x: torch.linalg.svd(x, full_matrices=False),
    "values": lambda x: (torch.linalg.svdvals(x),),
    "jacobi": lambda x: torch.linalg.svd(x, full_matrices=False, driver="gesvdj"),
}


@gpu
@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
@pytest.mark.parametrize("ways", VALUES.values(), ids=VALUES)
def test_singular_values(alike, ways):
    """Which wait for the host, and which torch takes for fit in some releases."""

    def program(w):
        f = w.compile(lambda x: (x.sin(), *ways(x * 2), x + 1))
        side = torch.cuda.Stream()
        for _ in range(4):
            x = w.values(6, 4)
            yield f(x)
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                y = f(x)
            torch.cuda.current_stream().wait_stream(side)
            yield y

    alike(program)


@pytest.fixture
def cached():
    """Have what is compiled kept on disk, each graph by itself."""
    inductor = import_module("torch._inductor.config")
    functorch = import_module("torch._functorch.config")
    with (
        inductor.patch(fx_graph_cache=True),
        functorch.patch(enable_autograd_cache=False),
    ):
        yield import_module("torch._dynamo.utils").counters


@pytest.mark.filterwarnings("ignore")
def test_a_backward_is_skipped_with_its_forward(taken, cached):
    """The forward comes from the cache; its backward is another one, and does not."""
    unsafe(torch.ones(1))

    def compiled(factor):
        class Scaled(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                ctx.save_for_backward(x)
                return unsafe(x.sin())

            @staticmethod
            def backward(ctx, grad):
                (x,) = ctx.saved_tensors
                return grad * x * factor

        return seam.compiled(lambda x: Scaled.apply(x))

    cached.clear()
    for factor in (2, 3):
        torch.compiler.reset()
        f = compiled(factor)
        for _ in range(3):
            x = torch.arange(4.0, requires_grad=True)
            f(x).sum().backward()
            assert torch.equal(x.grad, x.detach() * factor)
    assert cached["inductor"]["fxgraph_cache_hit"] == 1
    assert cached["inductor"]["fxgraph_cache_miss"] == 3
    assert not taken


@pytest.mark.filterwarnings("ignore")
def test_what_a_cache_has_is_for_the_device_that_it_was_for(taken, cached, monkeypatch):
    """Forward and backward: a second device, as if that were the CPU."""
    backend = import_module("sapwood.integrations.torch.backend")
    output_code = import_module("torch._inductor.output_code")
    wrapped, post, asked = backend._wrapped, output_code.cudagraph_post_compile, []

    def noted(*args, **kwargs):
        asked.append((kwargs["is_backward"], kwargs["device_index"]))
        return wrapped(*args, **kwargs)

    def second(inputs, graph, *rest):
        graph.device_idxs = {1}
        return post(inputs, graph, *rest)

    monkeypatch.setattr(backend, "_wrapped", noted)
    monkeypatch.setattr(output_code, "cudagraph_post_compile", second)
    for hits in (0, 2):
        torch.compiler.reset()
        cached.clear()
        asked.clear()
        f = seam.compiled(lambda x: x.sin() * 2)
        x = torch.arange(4.0, requires_grad=True)
        f(x).sum().backward()
        torch.testing.assert_close(x.grad, x.detach().cos() * 2)
        assert cached["inductor"]["fxgraph_cache_hit"] == hits
        assert asked == [(False, 1), (True, 1)]
    assert len(taken) == 4


@gpu
@pytest.mark.filterwarnings("ignore")
def test_a_cache_for_a_second_device(cached, monkeypatch, tmp_path):
    if torch.cuda.device_count() < 2:
        pytest.skip("there are not two devices here")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    backend = import_module("sapwood.integrations.torch.backend")
    for hits in (0, 2):
        torch._dynamo.reset()
        cached.clear()
        f = torch.compile(lambda x: x * x * 2, backend=backend.backend)
        for _ in range(4):
            x = torch.arange(4.0, device="cuda:1", requires_grad=True)
            f(x).sum().backward()
            assert torch.equal(x.grad, x.detach() * 4)
        assert cached["inductor"]["fxgraph_cache_hit"] == hits
        assert backend._runtime(1).stats().replays >= 4


@pytest.mark.filterwarnings("ignore")
def test_what_a_cache_has_of_the_host_is_never_recorded(cached, monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    backend = import_module("sapwood.integrations.torch.backend")
    asked = []
    monkeypatch.setattr(backend, "_wrapped", lambda *_, **__: asked.append(1))
    for hits in (0, 2):
        torch.compiler.reset()
        cached.clear()
        f = torch.compile(lambda x: x * x * 2, backend=backend.backend)
        for _ in range(3):
            x = torch.arange(4.0, requires_grad=True)
            f(x).sum().backward()
            assert torch.equal(x.grad, x.detach() * 4)
        assert cached["inductor"]["fxgraph_cache_hit"] == hits
    assert not asked
