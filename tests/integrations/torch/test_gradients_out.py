"""Results that require grad: gradients are sent back through replays as through calls.

Whatever autograd outside makes of a graphed call: `backward`, `autograd.grad`, graphs
that are held, gone through twice, in another order or never.
"""

from __future__ import annotations

import copy
import gc
import warnings

import pytest

import sapwood as sw

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

pytestmark = [
    pytest.mark.gpu,
    # Of streams, where eager calls and replays go to the same parameters in one test.
    pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream"),
]

CALLS = 8


def cuda(module):
    """Return a module on the device, its values from the seed."""
    torch.manual_seed(3)
    return module.cuda()


class Attention(nn.Module):
    """A block as of a transformer, with a residual."""

    def __init__(self):
        super().__init__()
        self.norm, self.mix, self.out = nn.LayerNorm(16), nn.Linear(16, 48), None
        self.last = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))

    def forward(self, x):
        q, k, v = self.mix(self.norm(x)).view(4, -1, 2, 24).transpose(1, 2).chunk(3, -1)
        h = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)
        return x + self.last(h)


class Twice(nn.Module):
    """One weight in two places, and another that is frozen."""

    def __init__(self):
        super().__init__()
        self.one, self.frozen = nn.Linear(16, 16), nn.Linear(16, 16)
        self.frozen.requires_grad_(requires_grad=False)

    def forward(self, x):
        return self.one(self.frozen(self.one(x)).sin())


BLOCKS = {
    "attention": Attention,
    "batch norm": lambda: nn.Sequential(nn.Linear(16, 16), _Flat(nn.BatchNorm1d(16))),
    "dropout": lambda: nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.4), nn.SiLU()),
    "linear": lambda: nn.Linear(16, 16),
    "lstm": lambda: _First(nn.LSTM(16, 16, batch_first=True)),
    "no parameters": nn.Tanh,
    "shared and frozen": Twice,
}


class _Flat(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x.flatten(0, 1)).view(x.shape)


class _First(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)[0]


def trained(w, block, *, batches=1, held=False, amp=None):
    """Train a model with a graphed block in it; yield all that there is."""
    first, block, last = cuda(nn.Linear(8, 16)), cuda(block()), cuda(nn.Linear(16, 4))
    model = nn.ModuleList([first, block, last])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cuda", enabled=amp is torch.float16)
    f, kept = w.graph(block), []
    for _ in range(CALLS):
        optimizer.zero_grad()
        for _ in range(batches):
            with torch.autocast("cuda", dtype=amp, enabled=amp is not None):
                y = f(first(w.values(4, 3, 8)))
                loss = last(y).square().mean()
            scaler.scale(loss).backward()
            if held:
                kept.append((y, loss))
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        gradients = [each.grad for each in model.parameters()]
        scaler.step(optimizer)
        scaler.update()
        yield loss, y, gradients, model.state_dict(), kept


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("how", ["plain", "held", "accumulated", "half"])
def test_a_block_inside_an_eager_model(alike, block, how):
    """Losses, gradients, parameters and buffers are eager's, at each step."""
    options = {
        "plain": {},
        "held": {"held": True},
        "accumulated": {"batches": 3},
        "half": {"amp": torch.float16},
    }[how]
    world = alike(lambda w: trained(w, BLOCKS[block], **options))
    # Held outputs are kept from two recordings before they are copied out.
    assert world.count("replays") >= CALLS - (5 if how == "held" else 4)
    assert not world.count("passed_through")


def orders(w):
    """Three forwards, then backwards from the last on, the second one twice."""
    model = cuda(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)))
    f = w.graph(model)
    for _ in range(CALLS):
        model.zero_grad()
        given = [w.values(3, 8).requires_grad_() for _ in range(3)]
        shown = [f(x).sin() for x in given]
        for y in reversed(shown):
            y.sum().backward(retain_graph=True)
        shown[1].sum().backward()
        yield shown, [x.grad for x in given], [x.grad for x in model.parameters()]


def arguments(w):
    """Arguments that require grad: a leaf, what was computed, one by its name."""
    f = w.graph(lambda x, y, *, z: (torch.tanh(x @ y) * z, (y * z).exp()))
    for _ in range(CALLS):
        x, y, z = (w.values(4, 4).requires_grad_() for _ in range(3))
        one, other = f(x, y * 2, z=z.sin())
        yield one, other, torch.autograd.grad((one * other).sum(), (x, y, z))
        other = f(x, y.detach(), z=z.detach())[1]
        yield other, other.requires_grad


def same_twice(w):
    """One argument in two places, which the function tells from two."""
    f = w.graph(lambda x, y, z: (x.sin() * y if x is y else x.cos()) * z)
    for i in range(2 * CALLS):
        x, y = (w.values(4).requires_grad_() for _ in range(2))
        found = f(x, x if i % 2 else y, y)
        yield found, torch.autograd.grad(found.sum(), (x, y), allow_unused=True)


def parts(w):
    """Results of which only some are used, in a dict, one of them twice, one plain."""

    def fn(x):
        y = x.sin()
        return {"y": y, "again": y, "z": [x.exp(), x.detach() * 2], "n": 3}

    f = w.graph(fn)
    for i in range(CALLS):
        x = w.values(5).requires_grad_()
        found = f(x)
        yield found, found["y"] is found["again"]
        used = found["y"] if i % 3 else found["z"][0]
        yield torch.autograd.grad(used.sum(), x)


def leaves(w):
    """Parameters that are no module's, and one that comes to be frozen."""
    a, b = (w.values(4).requires_grad_() for _ in range(2))
    f = w.graph(lambda x: (a * x).sin() * b)
    for i in range(2 * CALLS):
        b.requires_grad_(requires_grad=i < CALLS)
        a.grad = b.grad = None
        f(w.values(4)).sum().backward()
        yield a.grad, b.grad


def hooks(w):
    """Hooks on the result, and on parameters, are called as often as eagerly."""
    model, seen = cuda(nn.Linear(4, 4)), []
    f = w.graph(model)
    for i in range(CALLS):
        if i == 3:
            model.bias.register_post_accumulate_grad_hook(
                lambda p: seen.append(p.grad.clone())
            )
        if i == 5:
            model.weight.register_hook(lambda g: seen.append(g.clone()))
        model.zero_grad()
        y = f(w.values(2, 4))
        y.register_hook(lambda g: g * 2)
        y.exp().sum().backward()
        yield [x.grad for x in model.parameters()], seen


def sent_back(y, x):
    """Return the gradient of ``x``, or the name of the error in its place."""
    try:
        return torch.autograd.grad(y.sum(), x)
    except RuntimeError as error:
        return type(error).__name__


def written(w):
    """The caller writes to a result, and to what was passed: as eager, or an error."""
    f = w.graph(lambda x: x.exp())
    for i in range(CALLS):
        x = w.values(4).requires_grad_()
        h = x * 1
        y = f(h)
        if i % 3 == 0:
            y.mul_(2)
        elif i % 3 == 1:
            h.mul_(2)
        yield sent_back(y, x)


def part(w):
    """The caller writes to a result that is a part of what backward needs."""
    frozen = w.values(3, 4)
    f = w.graph(lambda x: (x * frozen).exp()[:, -1])
    for i in range(2 * CALLS):
        x = w.values(3, 4).requires_grad_()
        y = f(x)
        if i % 4 == 1:
            y.mul_(2)
        elif i % 4 == 3:
            frozen.mul_(1.5)
        yield sent_back(y, x)


def cast(w):
    """Autocast keeps the cast of a leaf that is used twice, of no other argument."""
    one, other = w.values(4, 4), w.values(4, 4)
    f = w.graph(lambda x: torch.tanh(x @ one) * (x @ other))
    for i in range(2 * CALLS):
        x = w.values(3, 4).requires_grad_()
        with torch.autocast("cuda", dtype=torch.bfloat16):
            y = f(x if i % 2 else x * 1)
        yield y, torch.autograd.grad(y.sum(), x)


def in_place(w):
    """The function writes to an argument that requires grad, or to what it saved."""

    def fn(x, k):
        if k == 0:
            return x.mul_(2)
        y = x.exp()
        z = y * y
        return z + y.add_(1).detach() if k == 2 else z

    f = w.graph(fn)
    for i in range(3 * CALLS):
        x = w.values(4).requires_grad_()
        try:
            y = f(x * 1, i % 3)
        except RuntimeError as error:
            yield type(error).__name__
        else:
            yield sent_back(y, x)


def views(w):
    """Results that are views of arguments, or of one another."""
    f = w.graph(lambda x: x.view(2, 4))
    g = w.graph(lambda x: (x * 2).chunk(2))
    h = w.graph(lambda x: (x, x.sin()))
    for _ in range(CALLS):
        x = w.values(8).requires_grad_()
        y, zs = x * 1, g(x)
        seen = f(y)
        seen.add_(1)
        same, u = h(x)
        yield y, same is x, torch.autograd.grad((y * u).sum() + zs[0].prod(), x)


def chunks(w):
    """Results that share memory, and no element: rows, columns, chunks, one behind."""
    model = cuda(nn.Linear(4, 6))

    def several(x):
        y = model(x)
        left, right = y.chunk(2, dim=-1)
        return {"rows": [*(y * 2)], "halves": (left, right), "none": y[:0], "x": x + 1}

    f = w.graph(several)
    for i in range(CALLS + 2):
        model.zero_grad()
        found = f(w.values(4, 4))
        rows, (left, right) = found["rows"], found["halves"]
        yield found, [each.requires_grad for each in (*rows, left, right)]
        used = [rows[1] * rows[3].exp(), left * 2, right.sin() * left][i % 3]
        used.sum().backward()
        yield [each.grad for each in model.parameters()]


def parts_of_results(w):
    """The first of a sequence beside all of it: written in place, it is seen there."""
    model = cuda(nn.Linear(4, 4))

    def pooled(x):
        y = model(x).tanh() * 2
        return y, y[:, 0], y.view(-1, 2), y[1:, 1:].transpose(0, 1)

    f = w.graph(pooled)
    for i in range(CALLS + 3):
        model.zero_grad()
        whole, first, pairs, inner = f(w.values(3, 2, 4))
        yield whole, first, pairs, inner
        if i % 3 == 1:
            first.mul_(3)
        if i % 3 == 2:
            whole.add_(pairs.detach().view(3, 2, 4))
        yield whole, first, pairs, inner
        (whole.exp().sum() + (first * pairs[:3, :1]).sum() + inner.sum()).backward()
        yield [each.grad for each in model.parameters()]


def twice(w):
    """A penalty on gradients, by a graphed critic that writes to what it has made."""
    layers = nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8), nn.ReLU(inplace=True)
    critic = cuda(nn.Sequential(*layers, nn.Linear(8, 1)))
    f = w.graph(critic)
    for _ in range(CALLS):
        critic.zero_grad()
        x = w.values(3, 6).requires_grad_()
        (slope,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
        ((slope.norm(dim=1) - 1) ** 2).mean().backward()
        yield slope, [x.grad for x in critic.parameters()]


def recomputed(w):
    """A graphed block in checkpoints of both kinds."""
    block = cuda(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Dropout(0.3)))
    f = w.graph(block)
    for i in range(CALLS):
        block.zero_grad()
        x = w.values(2, 4).requires_grad_()
        y = torch.utils.checkpoint.checkpoint(f, x, use_reentrant=i % 2 == 0)
        y.sum().backward()
        yield y, x.grad, [each.grad for each in block.parameters()]


def inside(w):
    """A block that has checkpoints inside, or hooks, or keeps more than it saves."""

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.kept = x * 2
            return ctx.kept.exp()

        @staticmethod
        def backward(ctx, gradient):
            return gradient * ctx.kept

    def hooked(x):
        y = x * 3
        y.register_hook(lambda g: g * 2)
        return y.sin()

    made = [
        lambda x: torch.utils.checkpoint.checkpoint(torch.sin, x, use_reentrant=False),
        lambda x: torch.utils.checkpoint.checkpoint(torch.sin, x, use_reentrant=True),
        Doubled.apply,
        hooked,
    ]
    graphed = [w.graph(fn) for fn in made]
    for _ in range(CALLS):
        x = w.values(4).requires_grad_()
        for f in graphed:
            f(x).exp().sum().backward()
            yield x.grad


class Reversed(torch.autograd.Function):
    """Gradients go through it with another sign, and another factor."""

    factor = 2.0

    @staticmethod
    def forward(ctx, x, weight):
        ctx.shift = 3
        ctx.save_for_backward(weight)
        return x * weight

    @staticmethod
    def backward(ctx, gradient):
        (weight,) = ctx.saved_tensors
        return -gradient * weight * Reversed.factor, gradient * ctx.shift


def own_backward(w):
    """A function with a backward of the user's, which goes by what may change."""
    layer = cuda(nn.Linear(4, 4))
    f = w.graph(lambda x: Reversed.apply(layer(x), layer.weight[0]).sin())
    for i in range(3 * CALLS):
        Reversed.factor = float(i // CALLS)
        layer.zero_grad()
        f(w.values(2, 4)).sum().backward()
        yield [each.grad for each in layer.parameters()]


def trained_inside(w):
    """Backward inside, and a result that requires grad all the same."""
    model, weight = cuda(nn.Linear(4, 4)), w.values(4).requires_grad_()

    def step(x):
        model.zero_grad()
        model(x).square().sum().backward()
        return (x * weight).sin()

    f = w.graph(step)
    for _ in range(CALLS):
        y = f(w.values(3, 4))
        yield [x.grad for x in model.parameters()], torch.autograd.grad(y.sum(), weight)


PROGRAMS = {
    arguments: 4,
    cast: 8,
    hooks: 0,
    in_place: 0,
    inside: 0,
    leaves: 6,
    orders: 10,
    own_backward: 8,
    part: 8,
    parts: 3,
    recomputed: 0,
    same_twice: 0,
    trained_inside: 0,
    twice: 4,
    chunks: 3,
    parts_of_results: 3,
    views: 0,
    written: 4,
}
"""And how many replays there have to be."""


@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
@pytest.mark.parametrize("program", PROGRAMS)
def test_programs(alike, program):
    """Gradients are eager's, whichever way they go."""
    assert alike(program).count("replays") >= PROGRAMS[program]


def test_inference_whose_author_forgot_no_grad(rt, same):
    """It is replayed, and backward is still there for who wants it."""
    model = cuda(nn.Sequential(*(nn.Linear(16, 16) for _ in range(3))))
    f = rt.graph(model)
    for _ in range(CALLS):
        x = torch.randn(4, 16, device="cuda")
        found = f(x)
        same(found.detach(), model(x).detach())
        assert found.requires_grad
    assert f.stats().replays >= CALLS - 5
    assert "backward" not in f.explain()


def test_nothing_is_kept(rt):
    """Neither by graphs that were gone through, nor by those that never are."""
    model = cuda(nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64)))
    f, used = rt.graph(model), []
    for i in range(40):
        model.zero_grad()
        y = f(torch.randn(32, 64, device="cuda"))
        if i % 3:
            y.sum().backward()
        del y
        if i % 10 == 9:
            torch.cuda.synchronize()
            mapped = rt.memory_stats()["pages.mapped"]
            used.append((torch.cuda.memory_allocated(), mapped))
    # Where other streams are slow to be done with pages, there may be more of them.
    (torchs, pages), (torchs_then, pages_then) = used[-1], used[1]
    assert torchs == torchs_then
    assert pages <= pages_then + 2
    gc.collect()
    held = torch.cuda.memory_allocated()
    del f, model
    gc.collect()
    rt.synchronize()
    assert torch.cuda.memory_allocated() < held


def test_what_is_differentiated_twice_is_run_again_or_refused(rt):
    """Not where that would be another result."""
    model = cuda(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Tanh()))
    f, x = rt.graph(model), torch.randn(2, 4, device="cuda", requires_grad=True)
    for _ in range(4):
        y = f(x)
    with pytest.raises(RuntimeError, match=r"differentiated twice.*__wrapped__"):
        torch.autograd.grad(y.sum(), x, create_graph=True)


def test_the_whole_graph_is_asked_for(rt, same):
    """What cannot be sent back raises, where the user wants it to."""
    f = rt.graph(lambda x: x.view(2, -1), fullgraph=True)
    x = torch.randn(4, device="cuda", requires_grad=True)
    with pytest.raises(sw.CaptureError, match=r"view of an argument|another result"):
        for _ in range(3):
            f(x)
    g = rt.graph(torch.sin, fullgraph=True)
    for _ in range(4):
        same(torch.autograd.grad(g(x).sum(), x), (x.cos(),))


def test_a_skip_is_told_once(rt):
    """With what is in the way, and what to do about it."""
    f = rt.graph(lambda x: x.view(2, 2), name="seen")
    x = torch.randn(4, device="cuda", requires_grad=True)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(6):
            f(x)
    skips = [each for each in told if each.category is sw.GraphSkipWarning]
    assert [str(each.message).startswith("seen runs") for each in skips] == [True]


def test_a_copy_of_a_module_has_gradients_of_its_own(rt, same):
    """A graphed module that is copied, and its copy, are trained apart."""
    plain = cuda(nn.Linear(4, 4))
    models = [plain, copy.deepcopy(plain)]
    fs = [rt.graph(each) for each in models]
    for _ in range(CALLS):
        x = torch.randn(3, 4, device="cuda")
        fs[0](x).sum().backward()
        fs[1](x * 2).sum().backward()
    one, other = ([each.grad for each in model.parameters()] for model in models)
    same(other[0], one[0] * 2)


class Dropping(nn.Module):
    """Attention of which some is dropped, by seeds that it saves for backward."""

    def forward(self, q, k, v):
        with nn.attention.sdpa_kernel(nn.attention.SDPBackend.EFFICIENT_ATTENTION):
            return F.scaled_dot_product_attention(q, k, v, dropout_p=0.3)


def test_what_is_dropped_is_dropped_in_backward(alike):
    """Seeds are on the host eagerly, and on the device in recordings."""

    def program(w):
        f = w.graph(cuda(Dropping()))
        for _ in range(CALLS):
            q, k, v = (w.values(2, 2, 8, 16).requires_grad_() for _ in range(3))
            f(q, k, v).square().sum().backward()
            yield q.grad, k.grad, v.grad

    assert alike(program).count("replays") >= CALLS // 2


def test_memory_lasts_until_both_streams_are_done(alike):
    """Autograd lets go of what was saved while a slower stream still has to use it."""
    large = 4096

    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(large, large)

        def forward(self, h, other):
            return self.inner(h) * other.tanh()

    def program(w):
        block = cuda(Mixed())
        f = w.graph(block)
        for _ in range(4):
            block.zero_grad()
            h, other = (w.values(large, large).requires_grad_() for _ in range(2))
            # What is computed nobody else has, once it is let go of.
            f(h * 2, other * 2).mean().backward()
            yield h.grad.sum(), other.grad.sum(), block.inner.weight.grad.sum()

    alike(program)


@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
@pytest.mark.parametrize("back", [False, True])
def test_an_argument_that_gets_a_history_is_no_other(rt, back):
    """It is written inside, from what requires grad: gradients go out as eagerly."""

    def fn(x):
        with torch.enable_grad():
            return x.add_(weight)

    f, weight = rt.graph(fn), torch.ones(4, device="cuda", requires_grad=True)
    for i in range(6):
        weight.grad = None
        x = torch.full((4,), float(i), device="cuda")
        with torch.set_grad_enabled(back):
            y = f(x)
        assert y is x
        y.square().sum().backward()
        assert weight.grad.tolist() == [2.0 * i + 2] * 4


@pytest.mark.parametrize("lasts", [False, True])
def test_an_argument_that_has_a_history_is_returned(rt, lasts):
    """Under `no_grad`: it is the caller's own, and goes out as it came."""
    f = rt.graph(lambda x: (x * 2, x))
    weight = torch.ones(4, device="cuda", requires_grad=True)
    lasting = weight * 3
    for i in range(6):
        x = lasting if lasts else weight * (i + 1)
        with torch.no_grad():
            doubled, same = f(x)
        assert same is x
        assert torch.equal(doubled, x.detach() * 2)
        same.sum().backward(retain_graph=True)
    assert f.stats().replays >= 3
    assert weight.grad.tolist() == [18.0 if lasts else 21.0] * 4


def test_a_step_returns_what_nobody_goes_back_through(alike):
    """Its loss is spent; torch says so to who tries again."""

    def program(w):
        model, kept = cuda(nn.Linear(8, 8)), []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        @w.graph
        def step(x):
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), x)
            loss.backward()
            optimizer.step()
            return loss, {"twice": loss * 2}

        for _ in range(CALLS):
            loss, others = step(w.values(4, 8))
            for each in (loss, others["twice"]):
                yield each.detach()
                assert each.requires_grad
                assert not each.is_leaf
                with pytest.raises(RuntimeError, match="through the graph a second"):
                    each.backward()
            kept.append(loss)
        yield [each.detach() for each in kept]
        assert all(each.requires_grad for each in kept)

    assert alike(program).count("replays") >= 2


@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
@pytest.mark.parametrize("detached", [False, True])
def test_what_a_step_leaves_to_others_to_go_back_through(alike, detached):
    """It calls `backward` for another: a gradient that comes later is not lost."""

    def program(w):
        maker, judge = cuda(nn.Linear(8, 8)), cuda(nn.Linear(8, 1))

        @w.graph
        def judged(x):
            made = maker(x)
            judge(made.detach()).sum().backward()
            return made.detach() if detached else made

        for _ in range(CALLS):
            made = judged(w.values(4, 8))
            judge(made).square().sum().backward()
            yield [p.grad for p in (*maker.parameters(), *judge.parameters())]

    replays = alike(program).count("replays")
    assert detached or not replays
