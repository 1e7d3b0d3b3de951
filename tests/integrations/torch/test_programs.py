"""Programs as people write them: models, losses, optimizers and samplers of many kinds.

Each is run eagerly and replayed, on the same values and with the same seed, and must
give the same bits after every call.
"""

from __future__ import annotations

import copy
from typing import NamedTuple

import pytest

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

pytestmark = [
    pytest.mark.gpu,
    # Torch's own, where it imports parts of itself.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def trained(w, model, make, loss, batches, calls=7):
    """Train a model with an optimizer; yield losses, parameters and buffers."""
    optimizer = make(model.parameters())

    @w.graph
    def step(*batch):
        optimizer.zero_grad()
        value = loss(model, *batch)
        value.backward()
        optimizer.step()
        return value.detach()

    for _ in range(calls):
        yield step(*batches()), dict(model.state_dict())


def called(w, fn, inputs, calls=8):
    """Call a function without gradients, old results kept for a while."""
    f, kept = w.graph(fn), []
    for _ in range(calls):
        with torch.no_grad():
            kept.append(f(*inputs()))
        yield kept
        del kept[:-2]


def cuda(module):
    """Return a module on the device, its values from the seed."""
    torch.manual_seed(3)
    return module.cuda()


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-2, capturable=True)


def squares(model, x, y):
    return F.mse_loss(model(x), y)


# Models.


def lstm(w):
    model = cuda(nn.LSTM(8, 16, num_layers=2, batch_first=True))
    yield from called(w, model, lambda: (w.values(4, 6, 8),))


def gru_trained(w):
    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru = nn.GRU(8, 8, bidirectional=True, batch_first=True)
            self.head = nn.Linear(16, 4)

        def forward(self, x):
            return self.head(self.gru(x)[0])

    batches = lambda: (w.values(4, 6, 8), w.values(4, 6, 4))  # noqa: E731
    yield from trained(w, cuda(Tagger()), adamw, squares, batches)


def convolutions(w):
    model = cuda(
        nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.SiLU(inplace=True),
            nn.Conv2d(8, 8, 3, groups=4, bias=False),
            nn.GroupNorm(2, 8),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8, 4),
        )
    ).to(memory_format=torch.channels_last)

    def batches():
        images = w.values(4, 3, 8, 8).to(memory_format=torch.channels_last)
        return images, torch.arange(4, device="cuda")

    def make(parameters):
        return torch.optim.SGD(
            parameters, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-3
        )

    def loss(model, x, y):
        return F.cross_entropy(model(x), y, label_smoothing=0.1)

    yield from trained(w, model, make, loss, batches)


def dropout_trained(w):
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.2, batch_first=True)
    model = cuda(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))
    batches = lambda: (w.values(2, 5, 16), w.values(2, 5, 16))  # noqa: E731
    yield from trained(w, model, adamw, squares, batches)


def language_model(w):
    class Small(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.norm = nn.Embedding(32, 16), nn.RMSNorm(16)
            self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 32, bias=False)
            self.out.weight = self.embed.weight

        def forward(self, tokens):
            x = self.embed(tokens)
            q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 2, 8)).unbind(-3)
            q, k, v = (each.transpose(1, 2) for each in (q, k, v))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.out(x + y.transpose(1, 2).flatten(-2))

    def loss(model, tokens):
        logits = model(tokens[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    batches = lambda: (w.values(4, 9, dtype=torch.int64) % 32,)  # noqa: E731
    yield from trained(w, cuda(Small()), adamw, loss, batches)


def weight_norm(w):
    linear = nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))
    batches = lambda: (w.values(4, 8), w.values(4, 8))  # noqa: E731
    yield from trained(w, cuda(linear), adamw, squares, batches)


def spectral_norm(w):
    linear = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8))
    batches = lambda: (w.values(4, 8), w.values(4, 8))  # noqa: E731
    yield from trained(w, cuda(linear), adamw, squares, batches)


def embedding_bag(w):
    model = cuda(nn.EmbeddingBag(20, 8, mode="mean"))

    def inputs():
        offsets = torch.tensor([0, 3, 5], device="cuda")
        return w.values(8, dtype=torch.int64) % 20, offsets

    yield from called(w, model, inputs)


def upsampling(w):
    def fn(x):
        big = F.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=False)
        return F.pixel_unshuffle(
            F.pad(big, (1, 1, 1, 1), mode="reflect")[..., :8, :8], 2
        )

    yield from called(w, fn, lambda: (w.values(1, 2, 8, 8),))


# Training in other ways.


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "foreach": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
    "adam": lambda p: torch.optim.Adam(p, capturable=True),
    "fused": lambda p: torch.optim.AdamW(p, fused=True, capturable=True),
    "amsgrad": lambda p: torch.optim.Adam(p, amsgrad=True, capturable=True),
    "tensor lr": lambda p: torch.optim.Adam(
        p, lr=torch.tensor(1e-2, device="cuda"), capturable=True
    ),
    "nadam": lambda p: torch.optim.NAdam(p, capturable=True),
    "radam": lambda p: torch.optim.RAdam(p, capturable=True),
    "adamax": lambda p: torch.optim.Adamax(p, capturable=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, capturable=True, momentum=0.5),
    "adadelta": lambda p: torch.optim.Adadelta(p, capturable=True),
    "rprop": lambda p: torch.optim.Rprop(p, capturable=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(alike, name):
    """All that torch says may be captured."""

    def program(w):
        model = cuda(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)))
        batches = lambda: (w.values(4, 8), w.values(4, 2))  # noqa: E731
        yield from trained(w, model, OPTIMIZERS[name], squares, batches)

    assert alike(program).count("replays") > 1


def clipped(w):
    model = cuda(nn.Linear(8, 8))
    optimizer = adamw(model.parameters())

    @w.graph
    def step(x, y):
        optimizer.zero_grad(set_to_none=False)
        loss = squares(model, x, y)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        return loss.detach(), norm

    for _ in range(7):
        yield step(w.values(4, 8), w.values(4, 8)), list(model.parameters())


def accumulated(w):
    model = cuda(nn.Linear(8, 8))
    optimizer = adamw(model.parameters())

    @w.graph
    def step(xs, ys):
        optimizer.zero_grad()
        losses = []
        for x, y in zip(xs, ys, strict=True):
            loss = squares(model, x, y) / len(xs)
            loss.backward()
            losses.append(loss.detach())
        optimizer.step()
        return losses

    for _ in range(7):
        batches = [w.values(4, 8) for _ in range(3)], [w.values(4, 8) for _ in "abc"]
        yield step(*batches), list(model.parameters())


def scaled(w):
    model = cuda(nn.Linear(16, 16))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True, capturable=True)
    scaler = torch.amp.GradScaler("cuda", init_scale=1024.0)

    @w.graph
    def step(x, y):
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.mse_loss(model(x).float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    scaler.scale(torch.ones(1, device="cuda"))
    for _ in range(7):
        yield step(w.values(4, 16), w.values(4, 16)), list(model.parameters())


def averaged(w):
    model = cuda(nn.Linear(8, 8))
    mean = copy.deepcopy(model).requires_grad_(requires_grad=False)
    optimizer = adamw(model.parameters())

    @w.graph
    def step(x, y):
        optimizer.zero_grad()
        squares(model, x, y).backward()
        optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(
                list(mean.parameters()), list(model.parameters()), 0.05
            )

    for _ in range(7):
        step(w.values(4, 8), w.values(4, 8))
        yield list(mean.parameters()), list(model.parameters())


def adversarial(w):
    maker, judge = cuda(nn.Linear(4, 8)), cuda(nn.Linear(8, 1))
    first, second = adamw(maker.parameters()), adamw(judge.parameters())

    @w.graph
    def step(real):
        made = maker(torch.randn(4, 4, device="cuda"))
        second.zero_grad()
        found = judge(real).sigmoid().mean() - judge(made.detach()).sigmoid().mean()
        found.neg().backward()
        second.step()
        first.zero_grad()
        judge(made).sigmoid().mean().neg().backward()
        first.step()
        return found.detach(), made.detach()

    for _ in range(7):
        yield step(w.values(4, 8)), list(maker.parameters()), list(judge.parameters())


def checkpointed(w):
    model = cuda(nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8)))
    optimizer = adamw(model.parameters())
    checkpoint = torch.utils.checkpoint.checkpoint

    @w.graph
    def step(x):
        optimizer.zero_grad()
        y = checkpoint(model, x, use_reentrant=False, preserve_rng_state=False)
        loss = y.square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    for _ in range(7):
        yield step(w.values(4, 8)), list(model.parameters())


def hooked(w):
    model = cuda(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2)))
    model[0].register_forward_hook(lambda _, __, out: out * 2)
    model[2].register_forward_pre_hook(lambda _, given: (given[0] * 0.5,))
    model[0].weight.register_hook(lambda grad: grad.clamp(-0.01, 0.01))
    batches = lambda: (w.values(4, 8), w.values(4, 2))  # noqa: E731
    yield from trained(w, model, adamw, squares, batches)


# Functions.


def per_sample_gradients(w):
    model = cuda(nn.Linear(8, 4))
    weights = {name: each.detach() for name, each in model.named_parameters()}

    def loss(weights, x, y):
        found = torch.func.functional_call(model, weights, (x[None],))
        return F.mse_loss(found, y[None])

    def fn(x, y):
        gradient = torch.func.grad(loss)
        return torch.func.vmap(gradient, in_dims=(None, 0, 0))(weights, x, y)

    yield from called(w, fn, lambda: (w.values(5, 8), w.values(5, 4)))


def jacobians(w):
    def fn(x):
        return torch.func.jacrev(lambda v: v.sin() @ v)(x), torch.func.jvp(
            lambda v: v.exp(), (x,), (x.cos(),)
        )

    yield from called(w, fn, lambda: (w.values(6),))


def spectra(w):
    window = torch.hann_window(16, device="cuda")

    def fn(x):
        found = torch.stft(x, 16, 4, window=window, return_complex=True)
        return torch.fft.irfft(torch.fft.rfft(x)), found.abs().log1p()

    yield from called(w, fn, lambda: (w.values(2, 64),))


def orders(w):
    def fn(x):
        values, places = x.topk(3, dim=-1)
        ranked = x.sort(dim=-1, stable=True).indices
        sums = torch.zeros_like(x).scatter_add_(-1, ranked, x.cumsum(-1))
        return values, places, ranked, sums, x.argmax(-1), x.logcumsumexp(-1)

    yield from called(w, fn, lambda: (w.values(4, 9),))


def solved(w):
    def fn(a, b):
        spd = a @ a.mT + 8 * torch.eye(6, device="cuda")
        return torch.linalg.solve_ex(spd, b)[0], torch.einsum("ij,jk->ik", spd, b)

    yield from called(w, fn, lambda: (w.values(6, 6), w.values(6, 2)))


def narrow_dtypes(w):
    def fn(x):
        half, small = x.bfloat16(), (x * 10).to(torch.int8)
        mask = (small > 0) & (small < 9)
        return half @ half.mT, small.bitwise_and(3), mask, x.where(mask, -x).half()

    yield from called(w, fn, lambda: (w.values(16, 16),))


def sampled(w):
    def fn(logits):
        noise = torch.rand_like(logits).clamp_(1e-6)
        picked = (logits.softmax(-1) / noise).argmax(-1)
        more = torch.multinomial(logits.softmax(-1), 4, replacement=True)
        return picked, more, torch.normal(logits, 1.0), F.dropout(logits, 0.3)

    yield from called(w, fn, lambda: (w.values(3, 11),))


def diffused(w):
    model = cuda(nn.Sequential(nn.Linear(8, 32), nn.SiLU(), nn.Linear(32, 8)))
    levels = torch.linspace(1.0, 0.1, 6).tolist()

    def fn(x):
        for level in levels:
            x = x - level * model(x) + 0.1 * level * torch.randn_like(x)
        return x

    yield from called(w, fn, lambda: (w.values(4, 8),))


class State(NamedTuple):
    """What a decoder keeps."""

    keys: torch.Tensor
    place: torch.Tensor


def decoded(w):
    project = cuda(nn.Linear(8, 8))
    state = State(
        torch.zeros(16, 8, device="cuda"),
        torch.zeros(1, dtype=torch.int64, device="cuda"),
    )

    @w.graph
    def fn(x, state):
        state.keys.index_copy_(0, state.place, project(x))
        seen = torch.arange(16, device="cuda") <= state.place
        scores = (state.keys @ x[0]).masked_fill(~seen, float("-inf"))
        state.place.add_(1)
        return State(scores.softmax(-1) @ state.keys, state.place)

    for _ in range(8):
        with torch.no_grad():
            yield fn(w.values(1, 8), state), state


def written_arguments(w):
    @w.graph
    def fn(x, out):
        torch.mul(x, 2, out=out)
        x.clamp_(min=0).t().add_(1)
        return x.view(-1)[::2]

    for _ in range(7):
        x, out = w.values(4, 4), torch.empty(4, 4, device="cuda")
        yield fn(x, out), x, out


class Cubed(torch.autograd.Function):
    """A function with a backward of its own, and something kept for it."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.factor = 3
        return x**3

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return ctx.factor * grad * x**2


def own_backward(w):
    model = cuda(nn.Linear(8, 8))

    def loss(model, x):
        return Cubed.apply(model(x)).mean()

    yield from trained(w, model, adamw, loss, lambda: (w.values(4, 8),))


def penalised(w):
    model = cuda(nn.Sequential(nn.Linear(8, 16), nn.Softplus(), nn.Linear(16, 1)))

    def loss(model, x):
        x = x.clone().requires_grad_()
        (found,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        return (found.norm(dim=-1) - 1).square().mean()

    yield from trained(w, model, adamw, loss, lambda: (w.values(4, 8),))


PROGRAMS = {
    each.__name__: each
    for each in (
        lstm,
        gru_trained,
        convolutions,
        dropout_trained,
        language_model,
        weight_norm,
        spectral_norm,
        embedding_bag,
        upsampling,
        clipped,
        accumulated,
        scaled,
        averaged,
        adversarial,
        checkpointed,
        hooked,
        per_sample_gradients,
        jacobians,
        spectra,
        orders,
        solved,
        narrow_dtypes,
        sampled,
        diffused,
        decoded,
        written_arguments,
        own_backward,
        penalised,
    )
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(alike, name):
    """What it yields is the same, bit for bit, and calls are replayed."""
    assert alike(PROGRAMS[name]).count("replays") > 1
