"""What is recorded, and what lives how long: warm-ups, memory, aliases, addresses."""

from __future__ import annotations

import gc

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn
functional = torch.nn.functional

pytestmark = pytest.mark.gpu

RAN: list[int] = []
"""How long the argument was, for each run of `noted`."""

ASIDE: list[object] = []
"""The stream of `aside`."""


def ask_for_another_warm_up():
    """Tell torch's own trees, where they have a word for it."""
    getattr(torch.compiler, "cudagraph_mark_warmup_incomplete", lambda: None)()


@torch.library.custom_op("sapwood_lifetime::noted", mutates_args=())
def noted(x: torch.Tensor) -> torch.Tensor:
    """Double a tensor; what runs first for a length is what no capture takes."""
    if len(x) not in RAN:
        torch.cuda.synchronize()
        ask_for_another_warm_up()
    RAN.append(len(x))
    return x * 2


@torch.library.custom_op("sapwood_lifetime::aside", mutates_args=())
def aside(x: torch.Tensor) -> torch.Tensor:
    """Double a tensor on another stream, which has the result's memory."""
    if not ASIDE:
        ASIDE.append(torch.cuda.Stream())
    here, there = torch.cuda.current_stream(), ASIDE[0]
    there.wait_stream(here)
    with torch.cuda.stream(there):
        y = x * 2
    here.wait_stream(there)
    return y


noted.register_fake(torch.empty_like)
aside.register_fake(torch.empty_like)


def live(rt):
    """Return how many results of recordings somebody holds."""
    gc.collect()
    told = rt.snapshot()["recordings"]
    return sum(output["live"] for each in told for output in each["outputs"])


# Warm-ups, memory, threads.


def test_compiled_code_runs_twice_for_each_size(ours, rt):
    """In the warm-up, which may do what no capture takes, and in the capture."""
    RAN.clear()
    f = torch.compile(lambda x: noted(x) + 1, backend=ours, dynamic=True)
    values = {size: torch.randn(size, 8, device="cuda") for size in (3, 5)}
    for size in (3, 3, 3, 3, 5, 5, 5, 5, 3, 5):
        assert torch.equal(f(values[size]), values[size] * 2 + 1)
    assert RAN == [3, 3, 5, 5]
    told = rt.stats()
    assert (told.warmups, told.recordings, told.replays) == (2, 2, 6)


def test_torch_has_no_trees_of_what_is_recorded(ours, rt):
    """Nor does it make any when it is told that a warm-up is not over."""
    trees = pytest.importorskip("torch._inductor.cudagraph_trees")
    ask_for_another_warm_up()
    f, x = torch.compile(lambda x: x * 2 + 1, backend=ours), torch.ones(8).cuda()
    for _ in range(4):
        assert torch.equal(f(x), x * 2 + 1)
        ask_for_another_warm_up()
    assert rt.stats().replays == 2
    for ordinal in range(torch.cuda.device_count()):
        assert trees.get_manager(ordinal, create_if_none_exists=False) is None


@torch.no_grad()
def test_a_first_result_is_used_at_once(alike):
    """On the caller's stream, while what makes it would still run on another."""

    def program(w):
        @w.compile
        def f(x, y):
            for _ in range(40):
                x = x @ y
            return x

        y = w.values(4096, 4096) / 64
        for _ in range(4):
            yield f(w.values(4096, 4096), y)[::64] * 2

    assert alike(program).replays >= 1


@torch.no_grad()
def test_convolutions_are_measured_in_a_warm_up(ours, rt):
    """By cuDNN, which then has the fastest one; it gives memory back meanwhile."""
    conv = nn.Conv2d(5, 7, 3, padding=1).cuda()
    f, x = torch.compile(conv, backend=ours), torch.randn(3, 5, 19, 23).cuda()
    with torch.backends.cudnn.flags(enabled=True, benchmark=True, deterministic=True):
        first = f(x)
        for _ in range(4):
            assert torch.equal(f(x), first)
        torch.testing.assert_close(first, conv(x), rtol=1e-2, atol=1e-2)
    assert rt.stats().replays == 3


def test_steps_take_no_more_memory(ours, rt):
    """All recordings share pages, and what they are made on is one stream."""

    def streams():
        return {each["stream"] for each in torch.cuda.memory_snapshot()} | {0}

    before, taken = streams(), set()
    model = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 64)).cuda()
    f = torch.compile(model, backend=ours)
    for i in range(20):
        f(torch.randn(64, 256, device="cuda")).sum().backward()
        model.zero_grad()
        if i >= 10:
            mapped = rt.memory_stats()["pages.mapped"]
            taken.add((mapped, torch.cuda.memory_reserved()))
    assert len(taken) == 1
    assert rt.stats().replays >= 24
    assert len(streams() - before) <= 1


def test_an_operator_has_a_stream_of_its_own(alike):
    def program(w):
        f = w.compile(lambda x: aside(x + 1) * 3)
        for _ in range(7):
            yield f(w.values(64, 64))

    told = alike(program)
    assert told.replays >= 4
    assert told.passed_through == 0


def test_workspaces_of_products_are_given_up(alike):
    """No recording uses the one that was there when it was made."""

    def program(w):
        f = w.compile(lambda x, y: ((x @ y).relu() @ y).sum(1))
        for _ in range(8):
            torch._C._cuda_clearCublasWorkspaces()
            yield f(w.values(256, 256), w.values(256, 256))

    told = alike(program)
    assert told.replays >= 4
    assert told.passed_through == 0


@pytest.mark.parametrize("trees", [False, True])
def test_all_partitions_go_with_what_was_compiled(ours, rt, trees):
    """Whether torch would have made trees of them, or a graph of each, is the same."""
    options = {"graph_partition": True, "triton.cudagraph_trees": trees}

    def fn(x):
        return ((x + 1).cpu() * 2).cuda() @ x

    f = torch.compile(fn, backend=ours, options=options)
    x = torch.ones(64, 64, device="cuda")
    for _ in range(5):
        assert torch.equal(f(x), fn(x))
    functions = rt.snapshot()["functions"]
    assert sum(each["replays"] > 0 for each in functions) >= 2
    del f
    torch._dynamo.reset()
    gc.collect()
    rt.synchronize()
    assert not rt.snapshot()["functions"]
    assert rt.memory_stats()["pages.live"] == 0


def test_a_runtime_is_made_on_the_device_that_is_used():
    if torch.cuda.device_count() < 2:
        pytest.skip("there are not two GPUs")
    from sapwood.integrations.torch import backend

    before = set(backend._runtimes)
    f = torch.compile(lambda x: x.relu() * 2, backend=backend.backend)
    x = torch.randn(16, device="cuda:1")
    for _ in range(5):
        assert torch.equal(f(x), x.relu() * 2)
    assert set(backend._runtimes) - before <= {1}
    assert backend._runtime(1).stats().replays >= 3


def test_a_function_that_compiles_no_more_is_replayed(ours, rt):
    f, x = torch.compile(lambda x: x.exp() + 1, backend=ours), torch.ones(8).cuda()
    expected = f(x).clone()
    for _ in range(3):
        f(x)
    before, frozen = rt.stats(), torch._dynamo.run(f)
    for _ in range(4):
        assert torch.equal(frozen(x), expected)
    after = rt.stats()
    assert after.replays == before.replays + 4
    assert after.recordings == before.recordings == 1


@pytest.fixture
def scaled():
    """Return an operator, and the class of objects one of which it is passed."""
    base = pytest.importorskip("torch._opaque_base").OpaqueBase
    opaque = pytest.importorskip("torch._library.opaque_object")
    known = globals().get("Factor")
    if known is not None:
        return torch.ops.sapwood_lifetime.scaled, known

    class Factor(base):
        def __init__(self, by):
            self.by = by

    Factor.__qualname__ = "Factor"
    globals()["Factor"] = Factor
    opaque.register_opaque_type(Factor, typ="reference")
    kind = opaque.get_opaque_type_name(Factor)
    scaled = torch.library.custom_op(
        "sapwood_lifetime::scaled",
        lambda x, factor: x * factor.by,
        mutates_args=(),
        schema=f"(Tensor x, {kind} factor) -> Tensor",
    )
    scaled.register_fake(lambda x, _: torch.empty_like(x))
    return torch.ops.sapwood_lifetime.scaled, Factor


def test_an_argument_that_is_an_object(alike, scaled):
    """It is passed as it is; another one is another call."""
    op, factor_of = scaled

    def program(w):
        f = w.compile(lambda x, factor: op(x + 1, factor).relu())
        factors = factor_of(3.0), factor_of(5.0)
        for i in (0, 0, 0, 0, 1, 1, 1, 1, 0, 1):
            yield f(w.values(16), factors[i])

    told = alike(program)
    if not told.warmups:
        pytest.skip("this torch asks for no graphs where an argument is an object")
    assert told.replays >= 4
    assert told.passed_through == 0


# Aliases, and what keeps results.


def test_aliases_across_a_break_share_their_memory(ours, rt):
    @torch.compile(backend=ours)
    def f(x):
        y = x * 2 + 1
        part = y[1:]
        torch._dynamo.graph_break()
        return y, part, y.t()

    x = torch.randn(8, 8, device="cuda")
    for _ in range(5):
        out = f(x)
        assert torch.equal(out[0], x * 2 + 1)
        assert len({each.untyped_storage().data_ptr() for each in out}) == 1
        held = live(rt)
        del out
    assert held == 1
    assert live(rt) == 0


@torch.no_grad()
@pytest.mark.parametrize("partition", [False, True])
def test_views_of_a_parameter_are_in_its_memory(alike, partition):
    def program(w):
        layer = nn.Linear(16, 16).cuda()
        f = w.compile(lambda x: (layer(x), layer.weight[3:], layer.weight.view(-1)))
        for _ in range(6):
            out = f(w.values(4, 16))
            owner = layer.weight.untyped_storage().data_ptr()
            assert out[1].untyped_storage().data_ptr() == owner
            assert out[2].data_ptr() == owner
            yield out, layer.weight

    assert alike(program, graph_partition=partition).replays >= 3


@torch.no_grad()
def test_a_parameter_that_was_returned_goes(ours, rt):
    """Nothing of a recording holds it, nor what was computed with it."""
    from torch.multiprocessing.reductions import StorageWeakRef

    def made():
        layer = nn.Linear(16, 16).cuda()
        f = torch.compile(lambda x: (layer.weight[2:], layer(x)), backend=ours)
        for _ in range(5):
            view, y = f(x)
        assert torch.equal(view, layer.weight[2:])
        return StorageWeakRef(layer.weight.untyped_storage()), y, y.clone()

    x = torch.randn(4, 16, device="cuda")
    found, y, expected = made()
    assert live(rt) == 1
    torch._dynamo.reset()
    gc.collect()
    assert found.expired()
    assert torch.equal(y, expected)


def test_results_without_bytes_may_be_held(ours, rt):
    """They are in nobody's way."""
    f = torch.compile(lambda x: (x[:0] * 2, x + 1, x.new_empty(0, 3)), backend=ours)
    x, kept = torch.randn(4, 4, device="cuda"), []
    for _ in range(8):
        none, y, empty = f(x)
        assert (none.shape, empty.shape) == ((0, 4), (0, 3))
        assert torch.equal(y, x + 1)
        kept += [none, empty]
        del y
    del none, empty
    assert rt.stats().recordings <= 2
    assert rt.stats().replays >= 5


def test_an_empty_result_of_the_host(alike):
    def program(w):
        f = w.compile(lambda x: (x + 1, torch.tensor([])))
        for _ in range(6):
            yield f(w.values(8))

    assert alike(program).replays >= 3


@torch.no_grad()
def test_parameters_that_are_frozen_go_out(alike):
    def program(w):
        layer = nn.Linear(8, 8).cuda().eval()
        f = w.compile(lambda x: (layer(x).relu(), layer.weight, layer.weight[1:]))
        for _ in range(6):
            yield f(w.values(4, 8))

    assert alike(program, freezing=True).replays >= 3


def test_a_view_keeps_a_result(ours, rt):
    """It lives as long as the view does, and is not written over."""
    f = torch.compile(lambda x: x * 2 + 1, backend=ours)
    x = torch.randn(8, 8, device="cuda")
    for _ in range(3):
        f(x)
    out = f(x)
    view = out[2:]
    del out
    assert live(rt) == 1
    for i in range(3):
        assert torch.equal(f(x + i), (x + i) * 2 + 1)
    assert torch.equal(view, (x * 2 + 1)[2:])
    del view
    assert live(rt) == 0


def test_casts_of_results_are_not_kept(alike):
    """Autocast keeps those of leaves; another call has another result."""

    def program(w):
        @w.compile
        def f(x):
            with torch.autocast("cuda", enabled=False):
                return x.sin() * 2

        x, y = w.values(16, 16), w.values(4, 16)
        with torch.autocast("cuda", dtype=torch.float16):
            for i in range(8):
                with torch.no_grad():
                    weight = f(x + i)
                weight.requires_grad_()
                out = functional.linear(y, weight), functional.linear(y * 2, weight)
                (out[0] + out[1]).float().sum().backward()
                yield out, weight.grad

    assert alike(program).replays >= 4


@pytest.mark.filterwarnings("ignore")
def test_a_sparse_result(alike):
    """It is right, however it comes about."""

    def program(w):
        at = torch.tensor([[0, 1, 2], [2, 0, 3]], device="cuda")
        f = w.compile(lambda x: torch.sparse_coo_tensor(at, x * 2, (4, 4)))
        for _ in range(5):
            found = f(w.values(3))
            assert found.is_sparse
            yield found.to_dense()

    alike(program)


def test_tensors_without_memory(alike):
    """They pass by; what is computed on the device is recorded."""

    def program(w):
        f, bare = w.compile(lambda x, y: (x * 2, y * 3)), torch.empty(4, device="meta")
        for _ in range(6):
            out, other = f(w.values(8), bare)
            yield out, other.device.type, tuple(other.shape)

    assert alike(program).replays >= 3


@pytest.mark.parametrize("marked", [False, True])
def test_no_result_is_overwritten(alike, marked):
    """Not that of a warm-up, a recording or a replay, however steps are marked."""

    def program(w):
        f = w.compile(lambda x: (x * x * x).cos())
        kept = []
        for _ in range(6):
            if marked:
                torch.compiler.cudagraph_mark_step_begin()
            kept.append(f(w.values(16)))
            yield kept
        kept = [each + 1 for each in kept]
        yield kept, f(w.values(16))

    assert alike(program).replays >= 2


@pytest.mark.parametrize("marked", [False, True])
def test_a_gradient_stays_over_steps(alike, marked):
    """It was made by a recording, and the next ones are added to it."""

    def program(w):
        layer = nn.Linear(16, 16).cuda()
        f = w.compile(lambda x: layer(x).square().mean())
        for i in range(9):
            if marked:
                torch.compiler.cudagraph_mark_step_begin()
            f(w.values(4, 16)).backward()
            f(w.values(4, 16))
            yield layer.weight.grad, layer.bias.grad
            if i % 3 == 2:
                layer.zero_grad()

    assert alike(program).replays >= 9


@pytest.mark.parametrize("training", [False, True])
def test_code_whose_source_is_not_known(alike, training):
    """Where a pass of the user's has dropped it, results are kept as well."""

    def forget(graph):
        for node in graph.nodes:
            node.meta.pop("stack_trace", None)
            node.stack_trace = None

    def program(w):
        layer = nn.Linear(16, 16).cuda().requires_grad_(requires_grad=training)
        f, kept = w.compile(lambda x: layer(x).sin() * 2), []
        for _ in range(6):
            kept.append(f(w.values(4, 16)))
            if training:
                kept[-1].sum().backward(retain_graph=True)
            yield kept, layer.weight.grad

    assert alike(program, post_grad_custom_post_pass=forget).replays >= 2


# Addresses that are not multiples of what compiled code loads at once.

WAYS = {
    "as it is": {},
    "without trees": {"triton.cudagraph_trees": False},
    "without graphs": {"triton.cudagraph_capture_sizes": ()},
}


@pytest.mark.parametrize("way", [*WAYS])
def test_a_lasting_argument_that_is_not_aligned_is_not_copied(alike, way, monkeypatch):
    utils = pytest.importorskip("torch._inductor.utils")
    copies, copy = [], utils.clone_preserve_strides

    def counted(x):
        copies.append(x.shape)
        return copy(x)

    def program(w):
        lasting = w.values(1025)[1:]
        torch._dynamo.mark_static_address(lasting)
        f, x = w.compile(lambda x, y: (x * 2 + y).relu()), w.values(1024)
        monkeypatch.setattr(utils, "clone_preserve_strides", counted)
        for _ in range(6):
            yield f(x, lasting)
        monkeypatch.setattr(utils, "clone_preserve_strides", copy)

    told = alike(program, **WAYS[way])
    assert not copies
    assert told.copied_bytes == 0
    assert told.replays == (0 if way == "without graphs" else 4)


@torch.no_grad()
def test_a_parameter_that_is_not_aligned(alike):
    def program(w):
        base = w.values(16 * 16 + 1)
        weight = nn.Parameter(base[1:].view(16, 16))
        layer = nn.Linear(16, 16, bias=False).cuda()
        layer.weight = weight
        f = w.compile(lambda x: layer(x).relu() + layer.weight)
        for i in range(8):
            base.add_(i)
            yield f(w.values(16, 16))

    assert alike(program).replays >= 4


def test_an_attribute_that_is_no_parameter_is_written(alike):
    class Averaging(nn.Module):
        def __init__(self):
            super().__init__()
            self.mean = torch.zeros(4, device="cuda")

        def forward(self, x):
            self.mean.mul_(0.5).add_(x)
            return self.mean + x

    def program(w):
        module = Averaging()
        f = w.compile(module)
        for _ in range(8):
            yield f(w.values(4)), module.mean

    assert alike(program).replays >= 4


# Arguments that are results of recordings, at one address or another.


def test_only_what_moves_is_copied(alike):
    """One argument is another kept result each time, the large one is where it was."""

    def program(w):
        f = w.compile(lambda x: x.sin() + 1)
        g = w.compile(lambda y, z: z * y.sum())
        x, z, kept = w.values(16), w.values(512, 512), []
        for _ in range(16):
            kept.append(f(x))
            yield g(kept[-1], z).sum(0)
        yield kept

    told = alike(program)
    assert told.copied_bytes < 512 * 512 * 4
    assert told.recordings <= 12
    assert told.replays >= 16
    assert told.passed_through == 0


def test_views_of_an_argument_that_was_copied(alike):
    """They are of the caller's tensor, and stay when it has dropped that."""

    def program(w):
        f = w.compile(lambda x: x * 3)
        g = w.compile(lambda y: (y[1:], y.sum(), y.t()))
        kept = []
        for _ in range(12):
            y = f(w.values(8, 8))
            kept.append(g(y))
            del y
            yield kept[-1]
        yield kept

    assert alike(program).replays >= 8


def test_an_argument_that_has_come_to_rest_is_not_copied(ours, rt):
    """After it was one result, and another one."""
    one, two, g = (
        torch.compile(fn, backend=ours)
        for fn in (lambda x: x + 1, lambda x: x * 3, lambda y: y.cos())
    )
    x = torch.randn(64, device="cuda")
    for _ in range(3):
        one(x)
        two(x)
    y, z = one(x), two(x)
    expected = g(z).clone()
    for each in (y, z, y, z, z, z):
        g(each)
    before = rt.stats()
    for _ in range(5):
        assert torch.equal(g(z), expected)
    after = rt.stats()
    assert after.copied_bytes == before.copied_bytes
    assert after.recordings == before.recordings
    assert after.replays == before.replays + 5


@pytest.mark.parametrize("variants", [1, 2])
def test_how_many_recordings_there_may_be_is_an_option(alike, variants):
    def program(w):
        f = w.compile(lambda x: x * 2 + 1)
        g = w.compile(lambda y: y.cos())
        x, kept = w.values(16), []
        for _ in range(14):
            kept.append(f(x))
            yield g(kept[-1])
        yield kept

    told = alike(program, max_variants=variants)
    assert told.recordings - told.evicted <= 2 * (variants + 1)
    assert told.replays >= 12
    assert told.escaped > 0


@torch.no_grad()
def test_a_weight_that_is_a_result_of_a_recording_is_not_copied(alike):
    def program(w):
        f = w.compile(lambda x: x.tanh())
        x = w.values(64, 64)
        for _ in range(3):
            f(x)
        weight = f(x)
        layer = nn.Linear(64, 64, bias=False).cuda()
        layer.weight = nn.Parameter(weight)
        g, z = w.compile(layer), w.values(4, 64)
        for _ in range(6):
            yield g(z), weight

    told = alike(program)
    assert told.copied_bytes == 0
    assert told.replays >= 5


@pytest.mark.parametrize("written", [False, True])
def test_arguments_that_are_one_memory(alike, written):
    """Two views of a kept result, at ever new addresses; one may be written."""

    def program(w):
        f = w.compile(lambda x: x * 3)

        @w.compile
        def g(y, part):
            if written:
                y.add_(1)
            return y * 2, part.cos()

        kept = []
        for _ in range(12):
            y = f(w.values(16))
            kept.append((y, g(y, y[4:])))
            yield kept[-1]
        yield kept

    told = alike(program)
    assert told.replays >= 6
    assert told.passed_through == 0
