"""Functions that torch has compiled: replayed, they are what torch makes of them."""

from __future__ import annotations

import copy
import gc

import pytest

import sapwood as sw

torch = pytest.importorskip("torch")
nn = torch.nn
functional = torch.nn.functional

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore"),  # what the compiler says of itself
]


@pytest.fixture(autouse=True)
def fresh():
    """Have nothing compiled by other tests."""
    torch._dynamo.reset()


def randn(*shape, **options):
    return torch.randn(*shape, device="cuda", **options)


def mlp(width):
    return nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, 1)).cuda()


def operations(f):
    """Return the operations that were captured, by name."""
    return [op.name for node in f._runner.cache.nodes for op in node.recording.ops]


@torch.no_grad()
@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_functions_agree(rt, same, dynamic):
    """Results are the compiled function's, with lasting and new arguments, and stay."""
    layer = nn.Linear(64, 64).cuda()

    @torch.compile(dynamic=dynamic)
    def fn(x, y):
        h = functional.gelu(layer(x)) * y
        return h.softmax(-1), (h + 1).sum(0)

    f = rt.graph(lambda x, y: fn(x, y))
    kept = []
    for size in (8, 8, 8, 8, 24, 24, 24, 24, 8, 24):
        x, y = randn(size, 64), randn(size, 64)
        kept.append((f(x, y), fn(x, y)))
        kept.append((f(x, y), fn(x, y)))
    for found, expected in kept:
        same(found, expected)
    assert f.stats().recordings >= 2
    assert f.stats().replays >= 4
    assert "compiled graph" in operations(f)
    assert not any("gelu" in name for name in operations(f))


@torch.no_grad()
def test_a_compiled_function_may_be_the_function(rt, same):
    """`rt.graph` takes what `torch.compile` gives."""
    layer = nn.Linear(64, 64).cuda()
    fn = torch.compile(lambda x: functional.gelu(layer(x)).sum(1))
    f = rt.graph(fn)
    for _ in range(6):
        x = randn(8, 64)
        same(f(x), fn(x))
    assert f.stats().replays >= 3


@torch.no_grad()
def test_compiled_modules_agree(rt, same):
    """A compiled module is the module: what it holds is pinned, and guarded."""
    module = nn.Sequential(nn.Linear(32, 32), nn.Dropout(0.5), nn.Tanh()).cuda()
    compiled = torch.compile(module)
    f = rt.graph(compiled)
    compiled.eval()
    for change in (
        lambda: None,
        lambda: module[0].weight.mul_(2),
        lambda: setattr(module[0], "weight", nn.Parameter(randn(32, 32))),
        lambda: setattr(module[0], "bias", nn.Parameter(randn(32))),
    ):
        change()
        for _ in range(5):
            x = randn(8, 32)
            same(f(x), compiled(x))
    replays = f.stats().replays
    assert replays >= 5
    compiled.train()
    assert all((f(randn(8, 32)) == 0).any() for _ in range(5))
    assert f.stats().replays > replays


@torch.no_grad()
def test_compiled_code_writes_in_place(rt, same, named):
    """A cache at a moving position is written as by the compiled function itself."""
    layer = nn.Linear(16, 16).cuda()
    one, two = torch.zeros(2, 32, 16, device="cuda")

    @torch.compile
    def step(cache, x, place):
        cache.index_copy_(0, place, layer(x))
        return (cache * x).sum(1)

    f = rt.graph(lambda x, place: step(one, x, place))
    for i in range(12):
        x, place = randn(1, 16), torch.tensor([i], device="cuda")
        same(f(x, place), step(two, x, place))
        same(one, two)
    assert f.stats().replays >= 8
    assert named([one, layer.weight, layer.bias])


@torch.no_grad()
def test_arguments_are_written_in_place(rt, same):
    """An argument that moves, and is written by generated code, is copied back."""

    @torch.compile
    def step(x, total):
        total.add_(x * 2)
        return total.sin()

    f = rt.graph(lambda x, total: step(x, total))
    for _ in range(8):
        x, one = randn(64), randn(64)
        two = one.clone()
        same(f(x, one), step(x, two))
        same(one, two)
    assert f.stats().replays >= 4


@torch.no_grad()
def test_a_compiled_part_of_a_plain_function(rt, same):
    """What is around it is recorded as ever; what breaks its graph is between two."""
    inner = torch.compile(mlp(32))

    @torch.compile
    def broken(x):
        y = x * 2
        torch._dynamo.graph_break()
        return y.cos() + x

    def fn(x):
        y = torch.nn.functional.layer_norm(x, (32,))
        return inner(broken(y)) + y, broken(x)

    f = rt.graph(fn)
    for _ in range(6):
        x = randn(8, 32)
        same(f(x), fn(x))
    assert f.stats().replays >= 3
    assert operations(f).count("compiled graph") == 5


@torch.no_grad()
def test_compiled_inside_and_outside(rt, same):
    """A compiled function that runs by itself in between is compiled once."""
    fn = torch.compile(lambda x: (x.exp() * 2).sum(1))
    f = rt.graph(lambda x: fn(x) + 1)
    counters = torch._dynamo.utils.counters["stats"]
    fn(randn(8, 8))
    compiled = counters["unique_graphs"]
    for _ in range(8):
        x = randn(8, 8)
        same(fn(x) + 1, f(x))
        same(f(x), fn(x) + 1)
    assert counters["unique_graphs"] == compiled
    # Nothing was made ready by the first call: the second is recorded.
    assert f.stats().warmups == 1


def training(model, how):
    """Return a step that is compiled, or whose forward is, or also its update."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, capturable=True)

    def loss_of(x, y):
        return functional.mse_loss(model(x), y)

    def update():
        optimizer.step()

    forward = loss_of if how == "step" else torch.compile(loss_of)
    update = torch.compile(update) if how == "update" else update

    def step(x, y):
        optimizer.zero_grad(set_to_none=True)
        loss = forward(x, y)
        loss.backward()
        update()
        return loss.detach()

    return torch.compile(step) if how == "step" else step


@pytest.mark.parametrize("how", ["forward", "update", "step"])
def test_compiled_training_agrees(rt, same, how, named):
    """Every gradient and parameter is the compiled step's, with old losses kept."""
    one = mlp(32)
    two = copy.deepcopy(one)
    expected, made = training(two, how), training(one, how)
    step = rt.graph(lambda x, y: made(x, y))
    kept = []
    for _ in range(16):
        x, y = randn(16, 32), randn(16, 1)
        kept.append((step(x, y), expected(x, y)))
        for a, b in zip(one.parameters(), two.parameters(), strict=True):
            same(a.grad, b.grad)
            same(a, b)
    for found, wanted in kept:
        same(found, wanted)
    assert step.stats().replays >= 4
    assert named([*one.parameters()])


@pytest.mark.parametrize("chance", [0.0, 0.1])
def test_compiled_attention_trains(alike, replayed, chance):
    """Its seeds are on the host in a warm-up, and on the device in a capture."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def program(w):
        torch.manual_seed(3)
        parts = nn.Linear(32, 96).cuda()
        look = functional.scaled_dot_product_attention

        @torch.compile
        def forward(x):
            q, k, v = parts(x).view(2, 16, 3, 2, 16).permute(2, 0, 3, 1, 4)
            return look(q, k, v, dropout_p=chance, is_causal=True)

        def step(x):
            parts.zero_grad()
            with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
                loss = forward(x).square().sum()
                loss.backward()
            return loss.detach()

        f = w.graph(step)
        torch.manual_seed(5)
        for _ in range(8):
            yield f(w.values(2, 16, 32)), parts.weight.grad

    replayed(alike(program), 3)


def test_random_numbers_go_on(rt, same):
    """Compiled dropout differs between replays, and for one seed it is the same."""
    layer = nn.Linear(64, 64).cuda()

    @torch.compile
    def fn(x):
        return functional.dropout(layer(x), 0.5)

    f, x = rt.graph(lambda x: fn(x)), randn(64, 64)
    with torch.no_grad():
        for _ in range(4):
            f(x)
        torch.manual_seed(3)
        found = [f(x) for _ in range(4)]
        torch.manual_seed(3)
        expected = [fn(x) for _ in range(4)]
    assert not torch.equal(found[0], found[1])
    same(found, expected)
    assert f.stats().replays >= 2


@torch.no_grad()
def test_torch_s_own_graphs_are_left_out(rt, same):
    """What torch would record by itself is recorded here; outside, torch does."""
    fn = torch.compile(lambda x: (x.exp() * 2).sum(1), mode="reduce-overhead")
    f = rt.graph(lambda x: fn(x))
    kept = []
    for _ in range(12):
        x = randn(8, 8)
        torch.compiler.cudagraph_mark_step_begin()
        kept.append((f(x), fn(x).clone()))
    for found, expected in kept:
        same(found, expected)
    assert f.stats().replays >= 3


@torch.no_grad()
def test_nothing_is_compiled_in_a_capture(rt, same):
    """Where torch has forgotten what it compiled, the call warms up again."""
    fn = torch.compile(lambda x: x * 2 + 1)
    f, x = rt.graph(lambda x: fn(x)), randn(8, 8)
    for call in range(8):
        same(f(x), x * 2 + 1)
        if call == 1:
            torch._dynamo.reset()
    assert f.stats().warmups == 4
    assert f.stats().recordings == 1
    assert f.stats().replays >= 2


@torch.no_grad()
def test_a_recording_keeps_the_code_that_it_runs(rt, same):
    """Torch may forget what it compiled, and a recording still runs it."""
    fn = torch.compile(lambda x: (x.exp() * 2).sum(1))
    f = rt.graph(lambda x: fn(x))
    x = randn(8, 8)
    for _ in range(4):
        expected = f(x)
    torch._dynamo.reset()
    torch.compiler.reset()
    gc.collect()
    before = f.stats().replays
    for _ in range(3):
        same(f(x), expected)
    assert f.stats().replays == before + 3


@torch.no_grad()
def test_numbers_of_the_host_are_right_or_refused(rt, same):
    """What compiled code reads on the host it keeps on the device, or is refused."""
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        fn = torch.compile(lambda x: x * x.sum().item())
        f = rt.graph(lambda x: fn(x), fullgraph=True)
        for _ in range(8):
            x = randn(8)
            refused = None
            try:
                found = f(x)
            except sw.CaptureError as error:
                refused = str(error)
            if refused is None:
                same(found, fn(x))
            else:
                assert "on the host" in refused
