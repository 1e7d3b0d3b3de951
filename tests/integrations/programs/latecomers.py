"""Programs whose calls differ in something at first: they are replayed all the same.

What differs is where tensors lie, or which of a few values a call finds.
"""

from __future__ import annotations

import functools
import itertools
import types
from contextlib import nullcontext

import pytest

from tests.integrations.models.worlds import Trial
from tests.integrations.programs.kit import CALLS, adamw, called, stepped, trial

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

TRIALS: list[Trial] = []


def normed(linear):
    """Return a layer whose hook computes its weight before each call."""
    with pytest.warns(FutureWarning, match="weight_norm"):
        return nn.utils.weight_norm(linear)


@trial(TRIALS)
def old_style_weight_norm(w):
    """A hook binds the layer's weight anew in each call."""
    model = w.model(
        lambda: nn.Sequential(normed(nn.Linear(8, 16)), nn.ReLU(), nn.Linear(16, 4))
    )
    yield from called(w, model, lambda: (w.values(4, 8),))


def learning(model, optimizer):
    """Return a step of training."""

    def step(x, y):
        optimizer.zero_grad(set_to_none=True)
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


@trial(TRIALS)
def old_style_weight_norm_trained(w):
    """What the hook has bound requires grad, and is of the call before."""
    model = w.model(
        lambda: nn.Sequential(normed(nn.Linear(8, 16)), nn.ReLU(), nn.Linear(16, 4))
    )
    step = learning(model, adamw(model.parameters()))
    batches = lambda: (w.values(4, 8), w.values(4, 4))  # noqa: E731
    writes = lambda: list(model.parameters())  # noqa: E731
    yield from stepped(w, step, batches, writes, calls=2 * CALLS)


class Adapted(nn.Module):
    """A frozen layer with differences of low rank, one of which is in use."""

    def __init__(self, names=("poet", "lawyer")):
        super().__init__()
        self.layer = nn.Linear(8, 8).requires_grad_(requires_grad=False)
        self.down = nn.ModuleDict({name: nn.Linear(8, 2) for name in names})
        self.up = nn.ModuleDict({name: nn.Linear(2, 8) for name in names})
        self.active, self.merged = names[0], False

    def forward(self, x):
        y = self.layer(x)
        if self.merged:
            return y
        return y + self.up[self.active](self.down[self.active](x))

    def difference(self):
        return self.up[self.active].weight @ self.down[self.active].weight


@trial(TRIALS)
def adapters_in_turn(w):
    """A name decides; each adapter has a recording."""
    model = w.model(Adapted)
    f, kept = w.graph(model, reads=lambda: model.active), []
    for i in range(2 * CALLS):
        model.active = ("poet", "lawyer")[i // 2 % 2]
        with torch.no_grad():
            kept = [*kept[-2:], f(w.values(4, 8))]
        yield kept


@trial(TRIALS)
def an_adapter_merged_now_and_then(w):
    """Between calls its product is added to the weight in place, and taken out."""
    model = w.model(Adapted)
    f, kept = w.graph(model, reads=lambda: model.merged), []
    for i in range(2 * CALLS):
        if i % 4 == 0:
            sign = -1 if model.merged else 1
            with torch.no_grad():
                model.layer.weight.add_(model.difference(), alpha=sign)
            model.merged = not model.merged
        with torch.no_grad():
            kept = [*kept[-2:], f(w.values(4, 8))]
        yield kept


@trial(TRIALS)
def weights_swapped_for_others(w):
    """Averages take the place of parameters, and the other way round."""
    model = w.model(lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)))
    others = [w.values(*p.shape) for p in model.parameters()]
    f, kept = w.graph(model), []
    for _ in range(2 * CALLS):
        for i, parameter in enumerate(model.parameters()):
            mine = parameter.data
            parameter.data = others[i]
            others[i] = mine
        with torch.no_grad():
            kept = [*kept[-2:], f(w.values(4, 8))]
        yield kept


@trial(TRIALS, moves=True)
def an_adapter_loaded_for_each_request(w):
    """Its tensors are others each time, at addresses that a capture has baked in."""
    model = w.model(lambda: Adapted(["one"]))
    f, kept = w.graph(model), []
    for _ in range(2 * CALLS):
        model.down["one"].weight = nn.Parameter(w.values(2, 8))
        model.up["one"].weight = nn.Parameter(w.values(8, 2))
        with torch.no_grad():
            kept = [*kept[-2:], f(w.values(4, 8))]
        yield kept


@trial(TRIALS)
def windows_of_one_buffer(w):
    """Arguments are views, each at another place of what a loader has brought."""
    whole = w.values(4 * CALLS, 8)
    model = w.model(lambda: nn.Sequential(nn.Linear(8, 8), nn.GELU()))
    at = iter(range(0, 4 * CALLS, 4))
    yield from called(w, model, lambda: (whole[(i := next(at)) : i + 4],))


@trial(TRIALS)
def attention_by_backends_in_turn(w):
    """A context around the call says which kernels attention may take."""
    kinds = torch.nn.attention.SDPBackend

    def fn(q, k, v):
        return F.scaled_dot_product_attention(q, k, v)

    f, kept = w.graph(fn, reads=torch.backends.cuda.flash_sdp_enabled), []
    for i in range(2 * CALLS):
        chosen = torch.nn.attention.sdpa_kernel(kinds.MATH) if i % 2 else nullcontext()
        with torch.no_grad(), chosen:
            kept = [*kept[-2:], f(*(w.values(2, 2, 5, 8) for _ in range(3)))]
        yield kept


@trial(TRIALS)
def groups_with_other_rates(w):
    """A scheduler writes rates, as tensors, into the optimizer's groups."""
    model = w.model(lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)))
    groups = [
        {"params": list(layer.parameters()), "lr": w.values(1)[0].abs() * 1e-3}
        for layer in (model[0], model[2])
    ]
    optimizer = torch.optim.AdamW(groups, capturable=True)
    step = learning(model, optimizer)
    f, kept = w.graph(step, reads=lambda: list(model.parameters())), []
    for i in range(CALLS):
        for number, group in enumerate(optimizer.param_groups):
            group["lr"].mul_(0.9 - 0.01 * i * number)
        kept = [*kept[-2:], f(w.values(4, 8), w.values(4, 4))]
        yield kept, list(model.parameters())


class Halved(torch.autograd.Function):
    """An operation with a backward of its own."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 0.5

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * 0.5 + 0.0 * x


@trial(TRIALS)
def a_function_with_its_own_backward(w):
    model = w.model(lambda: nn.Linear(8, 8))
    optimizer = adamw(model.parameters())

    def step(x):
        optimizer.zero_grad(set_to_none=True)
        loss = Halved.apply(model(x)).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    yield from stepped(
        w, step, lambda: (w.values(4, 8),), lambda: list(model.parameters())
    )


@trial(TRIALS)
def a_cached_table(w):
    """Sinusoids that a first call computes for each length, and later ones find."""

    @functools.cache
    def table(length, width):
        at = torch.arange(length, dtype=torch.float32, device=w.place)
        rates = 10000 ** (-torch.arange(0, width, 2, device=w.place) / width)
        angles = at[:, None] * rates
        return torch.cat([angles.sin(), angles.cos()], 1)

    layer = w.model(lambda: nn.Linear(8, 8))
    lengths = itertools.cycle([5, 5, 5, 7])

    def encode(x):
        return layer(x + table(x.shape[1], x.shape[2]))

    yield from called(w, encode, lambda: (w.values(2, next(lengths), 8),), None)


@trial(TRIALS)
def a_recurrent_state(w):
    """Hidden states that are new tensors after each call, all results kept."""
    cell = w.model(lambda: nn.GRUCell(8, 16))
    state = types.SimpleNamespace(h=w.values(4, 16))

    def step(x):
        state.h = cell(x, state.h)
        return state.h.mean(1)

    yield from called(w, step, lambda: (w.values(4, 8),), None)


@trial(TRIALS)
def masked_attention_trained(w):
    """Attention with a bias, whose backward is told of seeds that none needs."""
    model = w.model(lambda: nn.Linear(16, 48))
    bias = w.values(1, 1, 6, 6)

    def attend(x):
        q, k, v = model(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        found = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        return found.transpose(1, 2).flatten(2)

    step = learning(attend, adamw(model.parameters()))
    batches = lambda: (w.values(3, 6, 16), w.values(3, 6, 16))  # noqa: E731
    yield from stepped(w, step, batches, lambda: list(model.parameters()))
