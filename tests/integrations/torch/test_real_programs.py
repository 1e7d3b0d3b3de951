"""What libraries and their users write: checks, constants, contexts, seeds.

Each is run eagerly and replayed, and must give the same bits after every call.
"""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest

import sapwood as sw

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

SKIP = "ignore::sapwood.GraphSkipWarning"
pytestmark = [
    pytest.mark.gpu,
    # Torch's own, where it imports parts of itself.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

capturing = torch.cuda.is_current_stream_capturing


def of_one_argument(fn, shape=(4, 6), calls=9, **options):
    """Return a program that calls a function of new tensors, results kept a while."""

    def program(w):
        f, kept = w.graph(fn, **options), []
        for _ in range(calls):
            kept.append(f(w.values(*shape)))
            yield kept
            del kept[:-2]

    return program


# Code that asks whether it is captured.


def is_tracing():
    """Ask as transformers does."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def masked(x, mask):
    """Attend as transformers does: without a mask where it is known to say nothing."""
    q = x.unflatten(-1, (2, 8)).transpose(1, 2)
    attend = None
    if is_tracing() or not mask.all():
        attend = mask[:, None, None, :].expand(-1, 1, x.shape[1], -1)
    return F.scaled_dot_product_attention(q, q, q, attn_mask=attend)


def test_a_mask_that_only_captures_build(rt):
    """It is recorded: from the second call on, bits are those of the mask."""
    x, f = torch.randn(2, 5, 16, device="cuda"), rt.graph(masked)
    mask = torch.ones(2, 5, dtype=torch.bool, device="cuda")
    attend = mask[:, None, None, :].expand(-1, 1, 5, -1)
    q = x.unflatten(-1, (2, 8)).transpose(1, 2)
    apart = F.scaled_dot_product_attention(q, q, q, attn_mask=attend)
    assert torch.equal(f(x, mask), masked(x, mask))
    for _ in range(5):
        assert torch.equal(f(x, mask), apart)
    stats = f.stats()
    assert (stats.warmups, stats.recordings, stats.replays) == (2, 1, 3)
    assert f.explain().count("asks whether a capture is on") == 1


def test_a_mask_with_holes(rt):
    """The recording has no branch on what the mask holds: both are served."""
    x, f = torch.randn(2, 5, 16, device="cuda"), rt.graph(masked)
    mask = torch.ones(2, 5, dtype=torch.bool, device="cuda")
    for i in range(6):
        mask.fill_(True)
        mask[:, i % 4 + 1 :] = False
        assert torch.allclose(f(x, mask), masked(x, mask), atol=1e-6)
    assert f.stats().replays == 3


def check_first(x):
    """Look for what is not finite, as checks of inputs do."""
    if not is_tracing() and not bool(torch.isfinite(x).all()):
        raise ValueError("not finite")
    return x * 2


def bound_by_name(x):
    if not capturing():
        float(x.sum())
    return x + 1


def by_the_c_module(x):
    if not torch._C._cuda_isCurrentStreamCapturing():
        x.nonzero()
    return x - 1


def copies_to_the_host(x):
    if not is_tracing():
        x.cpu()
        x.tolist()
    return x * 3


def host_data_when_not(x):
    if not is_tracing():
        torch.zeros_like(x).copy_(torch.rand(x.shape))
    return x.exp()


def in_backward(x):
    class Checked(torch.autograd.Function):
        @staticmethod
        def forward(_, x):
            return x * 2

        @staticmethod
        def backward(_, grad):
            if not capturing():
                grad.sum().item()
            return grad * 2

    with torch.enable_grad():
        leaf = x.detach().requires_grad_()
        (grad,) = torch.autograd.grad(Checked.apply(leaf).sum(), leaf)
    return grad


LEAVES_OUT = [
    *(check_first, bound_by_name, by_the_c_module, copies_to_the_host),
    *(host_data_when_not, in_backward),
]


@pytest.mark.parametrize("fn", LEAVES_OUT)
def test_what_a_capture_leaves_out_is_no_reason(alike, fn):
    """Host reads behind the question are the warm-up's alone."""
    world = alike(of_one_argument(fn))
    assert world.count("recordings") >= 1
    assert world.count("replays") >= 3


def test_other_threads_get_the_true_answer(rt):
    """Only who works for the function is told what it is answered."""
    found = []

    def ask():
        found.append(capturing())

    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()  # has a thread by now

        def f(x):
            pool.submit(ask).result()
            return x + 1

        g, x = rt.graph(f), torch.ones(3, device="cuda")
        for _ in range(3):
            g(x)
    assert g.stats().recordings
    assert found
    assert not any(found)


def test_verified_against_the_work_of_captures(rt):
    """An eager run of the comparison is answered as in a capture."""
    x, f = torch.randn(2, 5, 16, device="cuda"), rt.graph(masked, verify=1)
    mask = torch.ones(2, 5, dtype=torch.bool, device="cuda")
    for _ in range(5):
        f(x, mask)
    assert f.stats().replays >= 2


@pytest.mark.filterwarnings(SKIP)
def test_an_optimizer_that_cannot_be_captured(rt, bits):
    """Its step asks, and raises in a capture; the training goes on eagerly."""

    def train(graph):
        torch.manual_seed(1)
        model = nn.Linear(4, 4, device="cuda")
        optimizer = torch.optim.AdamW(model.parameters(), capturable=False)

        def step(x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        step, x = graph(step), torch.ones(2, 4, device="cuda")
        return [bits(step(x), *model.parameters()) for _ in range(5)]

    assert train(rt.graph) == train(lambda fn: fn)


# Host constants.

CONSTANTS = {
    "tensor": lambda x: x + torch.tensor([1.0, 2, 3, 4, 5, 6], device=x.device),
    "number": lambda x: x + torch.tensor(0.25, device=x.device),
    "host number": lambda x: x * torch.tensor(0.5),
    "half": lambda x: x + torch.tensor([0.1] * 6, device="cuda", dtype=torch.float16),
    "last": lambda x: x[:, [-1]],
    "rows": lambda x: x[[0, 2, 1]],
    "rows and columns": lambda x: x[[0, 1], [2, 3]],
    "host indices": lambda x: x[:, torch.tensor([1, 0])],
    "index_select": lambda x: x.index_select(1, torch.tensor([1, 2], device="cuda")),
    "new_tensor": lambda x: x * x.new_tensor([[2.0]] * 4),
    "as_tensor": lambda x: x + torch.as_tensor([1.0] * 6, device="cuda"),
    "arange to": lambda x: x + torch.arange(6).to(x.device),
    "arange cast": lambda x: x + torch.arange(6).to(x.device, torch.float64),
    "zeros to": lambda x: x + torch.zeros(6).add(3).to("cuda"),
    "cuda()": lambda x: x + torch.linspace(0, 1, 6).cuda(),
    "type_as": lambda x: x + torch.ones(6, dtype=torch.float64).type_as(x),
    "not blocking": lambda x: x + torch.ones(6).to("cuda", non_blocking=True),
    "transposed": lambda x: x + torch.arange(24.0).view(6, 4).t().to("cuda"),
    "expanded": lambda x: x + torch.ones(1, 1).expand(4, 6).to("cuda"),
    "complex": lambda x: x + torch.tensor([1j] * 6, device="cuda").conj(),
    "empty": lambda x: x.sum() + torch.tensor([], device="cuda").sum(),
    "bools": lambda x: x.masked_fill(torch.tensor([[True] + [False] * 5]).cuda(), 9),
    "copy_": lambda x: torch.empty_like(x).copy_(torch.arange(6.0)),
    "copy_ cast": lambda x: torch.empty_like(x).copy_(torch.arange(6)),
    "where": lambda x: torch.where(x > 0, torch.tensor(0.0), x),
    "where there": lambda x: torch.where(x > 0, x, torch.tensor(-1.0, device="cuda")),
    "minimum": lambda x: torch.minimum(x, torch.tensor(0.5)),
    "gather": lambda x: x.gather(1, torch.tensor([[0], [1], [2], [3]]).cuda()),
    "one_hot": lambda x: x[:, :3] + F.one_hot(torch.tensor([0, 2, 1, 0]), 3).cuda(),
    "stacked": lambda x: (
        x + torch.stack([torch.tensor(float(i)) for i in range(6)]).cuda()
    ),
}


@pytest.mark.parametrize("how", CONSTANTS)
def test_constants(alike, how):
    """What a function makes from plain values is data of the recording."""
    world = alike(of_one_argument(CONSTANTS[how]))
    assert world.count("replays") >= 3
    assert world.count("passed_through") == 0


def written(x):
    x = x.clone()
    x[:, [0, 2]] = 1.0
    x[[1]] = x[[2]] * 2
    x[torch.tensor([3])] = torch.tensor(7.0)
    x.index_put_((torch.tensor([0]), torch.tensor([1])), torch.tensor(5.0).cuda())
    return x


def kept_and_written(x):
    """Write to a constant: the next replay has it anew."""
    counts = torch.tensor([0.0] * 6, device="cuda")
    counts += x.sum(0)
    return counts, torch.tensor([1.0, 2.0], device="cuda")


def in_the_backward_pass(x):
    with torch.enable_grad():
        weight = torch.tensor([1.0] * 6, device="cuda", requires_grad=True)
        (x * weight).sin().sum().backward()
    return weight.grad


def in_inference_mode(x):
    with torch.inference_mode():
        return x + torch.tensor([1.0] * 6, device="cuda")


def under_a_device(x):
    with torch.device("cuda"):
        return x + torch.tensor([2.0] * 6) + torch.arange(6)


def packed(x):
    lengths = torch.tensor([6, 4, 3, 1])
    sequence = nn.utils.rnn.pack_padded_sequence(x[..., None], lengths, True)
    padded, _ = nn.utils.rnn.pad_packed_sequence(sequence, batch_first=True)
    return padded


def positions(x):
    """Make positions and a causal mask as models do."""
    n = x.shape[1]
    at = torch.arange(n, device=x.device)
    mask = torch.full((n, n), float("-inf")).triu(1).to(x.device)
    table = torch.tensor([10000.0 ** (-i / n) for i in range(n)], device=x.device)
    return (x[:, None] + mask).softmax(-1) @ (at[:, None] * table[None]).sin()


PROGRAMS = [
    *(written, kept_and_written, in_the_backward_pass, in_inference_mode),
    *(under_a_device, packed, positions),
]


@pytest.mark.parametrize("fn", PROGRAMS)
def test_programs_with_constants(alike, fn):
    """As models and losses have them."""
    world = alike(of_one_argument(fn))
    assert world.count("replays") >= 3
    assert world.count("passed_through") == 0


def test_constants_go_by_what_they_are_made_of(alike):
    """A number of an argument or a slot is guarded: another is another recording."""
    settings = {"scale": 1.0}

    def program(w):
        f = w.graph(lambda x, n: x * torch.tensor([n, settings["scale"]]).cuda())
        for i in range(12):
            settings["scale"] = float(i // 6)
            yield f(w.values(3, 2), i % 2)

    assert alike(program).count("replays") >= 3


def test_constants_that_differ_by_themselves_refuse(rt):
    """What is not the same in two runs is no constant."""
    source = iter(range(9))

    def f(x):
        return x + torch.tensor([float(next(source))] * 3, device="cuda")

    g, x = rt.graph(f, fullgraph=True), torch.zeros(3, device="cuda")
    with pytest.raises(sw.CaptureError):
        for _ in range(4):
            g(x)
    assert g.stats().replays == 0


def test_random_host_tensors_refuse(rt):
    """Numbers that the host draws are no constants."""
    g = rt.graph(lambda x: x + torch.rand(3).cuda(), fullgraph=True)
    x = torch.zeros(3, device="cuda")
    with pytest.raises(sw.CaptureError):
        g(x)


def test_constants_live_as_long_as_recordings(rt, same):
    """Many recordings, each with its own, some of them large; then none of them."""

    def f(x, n):
        return x[:, None] + torch.full((1, 4096), float(n)).cuda()

    g = rt.graph(f, max_recordings=64)
    for _ in range(4):
        for n in range(24):
            x = torch.arange(64.0, device="cuda")
            same(g(x, n), f(x, n))
    assert g.stats().replays >= 40


def test_constants_around_eager_regions(alike):
    """Each part has its own."""
    live = sw.eager(lambda y: y + float(y.sum() * 0))

    def fn(x):
        y = live(x + torch.tensor([1.0] * 6, device="cuda"))
        return y[:, [0, -1]]

    assert alike(of_one_argument(fn)).count("replays") >= 3


# Tensors on the host that the function names.

TABLE, SCALE = torch.arange(6.0), torch.tensor(2.0)


class Scaled(nn.Module):
    """A module with a tensor that nobody has moved to the device."""

    def __init__(self):
        super().__init__()
        self.scale, self.rows = torch.tensor([0.5] * 6), torch.tensor([1, 0])

    def forward(self, x):
        return x[self.rows] * self.scale.to(x.device)


NAMED = {
    "global": lambda x: x + TABLE.cuda(),
    "number": lambda x: x * SCALE,
    "part": lambda x: x + TABLE[2:4].sum().to(x.device),
    "module": Scaled(),
}


@pytest.mark.parametrize("how", NAMED)
def test_named_host_tensors(alike, how):
    """They are guarded by content: another content is another recording."""

    def program(w):
        f = w.graph(NAMED[how])
        for i in range(12):
            yield f(w.values(4, 6))
            if i == 5:
                TABLE.add_(1)
                SCALE.add_(1)
                NAMED["module"].scale.add_(1)
        TABLE.sub_(1)
        SCALE.sub_(1)
        NAMED["module"].scale.sub_(1)

    world = alike(program)
    assert world.count("replays") >= 6
    assert world.count("passed_through") == 0


# Objects that the function makes.


class Layer:
    """A layer of a cache, as transformers has them."""

    def __init__(self, keys):
        self.dtype, self.device, self.ready = keys.dtype, keys.device, True
        self.keys, self.values = keys * 2, torch.cat([keys, keys])


class Cache:
    def __init__(self, x):
        self.layers = [Layer(x), Layer(x + 1)]


def _cached(x):
    cache = Cache(x)
    return {"logits": x @ x.T, "cache": cache}


def _policy(x):
    pairs = torch.distributions.Normal(x, x.exp(), validate_args=False)
    return pairs, torch.distributions.Categorical(logits=x, validate_args=False)


OBJECTS = {
    "cache": (_cached, lambda out: [vars(each) for each in out["cache"].layers]),
    "policy": (_policy, lambda out: [out[0].mean, out[0].entropy(), out[1].probs]),
}


@pytest.mark.parametrize("name", OBJECTS)
def test_objects_that_are_returned(alike, name):
    """Each call has its own, which compute what eager ones do."""
    fn, look = OBJECTS[name]

    def program(w):
        f, kept = w.graph(fn), []
        for _ in range(7):
            kept.append(f(w.values(4, 6)))
            yield [
                [
                    str(each) if isinstance(each, torch.device) else each
                    for each in _flat(look(out))
                ]
                for out in kept
            ]
            del kept[:-2]

    world = alike(program)
    assert world.count("replays") >= 2
    assert world.count("passed_through") == 0


def _flat(shown):
    return [
        part
        for each in shown
        for part in (each.values() if isinstance(each, dict) else [each])
    ]


# Modes and contexts.


HELD = {}
"""Contexts that were made outside, by what they are of."""


def half(x):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        return x @ x.t()


def half_outside(x):
    with HELD["autocast"]:
        return x @ x.t()


def half_off(x):
    with torch.autocast("cuda", enabled=False):
        return x @ x.t()


def half_decorated():
    @torch.autocast("cuda", dtype=torch.float16)
    def decorated(x):
        return (x @ x.t()).float() + 1

    return decorated


def without_gradients(x):
    with torch.no_grad(), HELD["no_grad"]:
        y = x * 2
    with torch.set_grad_enabled(mode=False):
        return y + 1


@torch.no_grad()
def decorated(x):
    return x * 2


def named(x):
    with torch.profiler.record_function("inside"), HELD["record_function"]:
        return x + 1


def nvtx(x):
    torch.cuda.nvtx.range_push("here")
    y = x + 1
    torch.cuda.nvtx.range_pop()
    return y


def attention(x):
    q = x[None, None].expand(1, 2, -1, -1)
    with nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH):
        return F.scaled_dot_product_attention(q, q, q)


CONTEXTS = [
    *(half, half_outside, half_off, half_decorated, without_gradients, decorated),
    *(named, nvtx, attention),
]


@pytest.fixture
def _held(monkeypatch):
    monkeypatch.setitem(HELD, "autocast", torch.autocast("cuda", dtype=torch.float16))
    monkeypatch.setitem(HELD, "no_grad", torch.no_grad())
    of = torch.profiler.record_function("outside")
    monkeypatch.setitem(HELD, "record_function", of)


@pytest.mark.usefixtures("_held")
@pytest.mark.parametrize("fn", CONTEXTS)
def test_contexts_inside(alike, fn):
    """They are entered and left in every recording, and write to themselves."""
    fn = fn() if fn is half_decorated else fn
    world = alike(of_one_argument(fn, shape=(8, 8)))
    assert world.count("replays") >= 3
    assert world.count("passed_through") == 0


def test_a_step_under_autocast(alike, cuda):
    """A training step as people write it, the context inside."""

    def program(w):
        model = cuda(nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, capturable=True)

        @w.graph
        def step(x, y):
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = F.mse_loss(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            return loss.detach()

        for _ in range(9):
            yield step(w.values(4, 8), w.values(4, 4)), dict(model.state_dict())

    assert alike(program).count("replays") >= 3


# Seeds.


def seeds(x):
    torch.manual_seed(3)
    return torch.rand_like(x) + x


def seeds_the_device(x):
    torch.cuda.manual_seed(3)
    return torch.rand_like(x) + x


def seeds_a_generator(x):
    torch.cuda.default_generators[x.device.index].manual_seed(3)
    return torch.rand_like(x) + x


def forks(x):
    with torch.random.fork_rng():
        torch.manual_seed(5)
        y = torch.rand_like(x)
    return y + torch.rand_like(x)


def sets_a_state(x):
    state = torch.cuda.get_rng_state()
    y = torch.rand_like(x)
    torch.cuda.set_rng_state(state)
    return y + torch.rand_like(x)


def of_its_own(x):
    generator = torch.Generator("cuda").manual_seed(1)
    return x + torch.rand(x.shape, device="cuda", generator=generator)


SEEDS = [
    *(seeds, seeds_the_device, seeds_a_generator, forks, sets_a_state, of_its_own),
]


@pytest.mark.filterwarnings(SKIP)
@pytest.mark.parametrize("fn", SEEDS)
def test_seeds_set_inside(alike, fn):
    """Numbers are eager's, whether that is recorded or not."""
    program = of_one_argument(fn)
    for first in (None, 3, 11):

        def seeded(w, first=first):
            torch.manual_seed(3)
            for shown in program(w):
                yield shown, torch.rand(2, device="cuda")
                if first is not None:
                    torch.manual_seed(first)

        alike(seeded)


@pytest.mark.parametrize("fn", SEEDS)
def test_seeds_set_inside_refuse_by_name(rt, fn):
    """By the call that would record them."""
    f, x = rt.graph(fn, fullgraph=True), torch.zeros(3, device="cuda")
    torch.manual_seed(3)
    with pytest.raises(sw.CaptureError, match="enerator"):
        for _ in range(3):
            f(x)


def test_statistics_that_are_passed(alike):
    """Torch's schemas do not say that they are written: those of the caller are."""

    def program(w):
        @w.graph
        def norm(x, mean, var, training):
            return torch.nn.functional.batch_norm(x, mean, var, training=training)

        for i in range(12):
            mean, var = w.values(4), w.values(4).abs()
            yield norm(w.values(6, 4, 3), mean, var, i % 2 == 0), mean, var

    assert alike(program).count("replays") >= 4


def test_layers_with_dropout_of_their_own(alike):
    """What cuDNN draws goes on as eagerly, whatever is recorded beside."""

    def program(w):
        torch.manual_seed(5)
        model = torch.nn.LSTM(6, 8, 2, dropout=0.5).cuda()
        reads = w.graph(lambda x: model(x)[0].sum().item())
        f = w.graph(lambda x: model(x)[0] * 2)
        for _ in range(8):
            x = w.values(5, 2, 6)
            yield f(x).detach(), torch.rand(3, device="cuda")
            yield reads(x)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        alike(program)


@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("where", ["cpu", "cuda"])
def test_lengths_on_the_host(alike, reduction, where):
    """Of the loss that aligns sequences: calls are as eager ones, also the first."""

    def program(w):
        weight = torch.nn.Parameter(w.values(5, 7))

        @w.graph
        def step(x, targets, lengths):
            weight.grad = None
            steps = torch.full((3,), 20, device=where)
            logits = (x @ weight).log_softmax(-1)
            loss = torch.nn.functional.ctc_loss(
                logits, targets, steps, lengths, reduction=reduction
            )
            loss.sum().backward()
            return loss.detach(), weight.grad

        for _ in range(4):
            targets = torch.randint(1, 7, (3, 6), device="cuda")
            lengths = torch.tensor([6, 4, 5], device=where)
            yield step(w.values(20, 3, 5), targets, lengths)

    alike(program)
