"""Random models with random training loops: graphed blocks give the bits of plain ones.

Drawn are blocks, which of them are graphed, the optimizer, autocast, microbatches, the
order of backwards, what is held, batch sizes, leaves, gradients that are asked for.
Under autocast no block is called twice: the gradients are added up outside of both.
"""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream"),
]

WIDTH, STEPS, SEEDS = 16, 9, 40


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        inner = nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH)
        self.norm, self.inner = nn.LayerNorm(WIDTH), nn.Sequential(*inner)

    def forward(self, x):
        return x + self.inner(self.norm(x))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        parts = self.mix(x).view(-1, 4, 3, 2, WIDTH // 2).permute(2, 0, 3, 1, 4)
        h = F.scaled_dot_product_attention(*parts)
        return self.out(h.transpose(1, 2).reshape(-1, WIDTH)).view(x.shape)


class Gated(nn.Module):
    """Several results, one frozen weight, and an argument that is passed by name."""

    def __init__(self):
        super().__init__()
        self.gate, self.value = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.value.weight.requires_grad_(requires_grad=False)

    def forward(self, x, *, scale=None):
        gate, value = self.gate(x).sigmoid(), self.value(x)
        gate = gate if scale is None else gate * scale
        return {"both": gate * value, "parts": [value, gate.detach()]}


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRU(WIDTH, WIDTH, batch_first=True)

    def forward(self, x):
        return self.cell(x.view(-1, 4, WIDTH))[0].reshape(x.shape)


BLOCKS = (
    *(Attention, Gated, Recurrent, Residual),
    lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.3), nn.SiLU()),
    lambda: nn.Sequential(nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, WIDTH)),
    lambda: nn.Linear(WIDTH, WIDTH),
)


class Habits(NamedTuple):
    """How a program trains."""

    batches: int
    autocast: object
    none: bool
    late: bool
    holds: bool
    leaf: bool

    @classmethod
    def drawn(cls, draw):
        kinds = None, None, torch.bfloat16, torch.float16
        batches, autocast = draw.choice((1, 1, 2, 3)), draw.choice(kinds)
        return cls(
            batches, autocast, *(draw.random() < p for p in (0.7, 0.3, 0.3, 0.5))
        )


class Model:
    """Blocks in a row, some of them graphed, and a head that is not."""

    def __init__(self, w, draw, *, repeats):
        self.draw = draw
        self.blocks = [draw.choice(BLOCKS)().cuda() for _ in range(draw.randint(1, 4))]
        graphed = {i for i in range(len(self.blocks)) if draw.random() < 0.6} or {0}
        self.functions = [
            (w.graph(each) if i in graphed else each, isinstance(each, Gated))
            for i, each in enumerate(self.blocks)
        ]
        if repeats and draw.random() < 0.3:
            self.functions.append(self.functions[0])
        self.head = nn.Linear(WIDTH, 3).cuda()

    def __call__(self, x):
        """Return what all blocks in turn make of ``x``."""
        for fn, several in self.functions:
            if not several:
                x = fn(x)
                continue
            named = {"scale": x.detach().mean(-1, keepdim=True)}
            found = fn(x, **(named if self.draw.random() < 0.3 else {}))
            x = found["both"] + found["parts"][0] * 0.5
        return self.head(x)

    def parameters(self):
        """Return those of blocks and head."""
        return [p for each in (*self.blocks, self.head) for p in each.parameters()]


def optimizer_of(parameters, draw):
    """Return an optimizer, as it is by default or one by one."""
    if draw.random() < 0.4:
        return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)
    return torch.optim.AdamW(parameters, lr=1e-2, foreach=draw.random() < 0.5)


def batches(model, habits, given, scaler, kept):
    """Go forward and backward with each batch, at once or late; yield results."""
    losses, dtype = [], habits.autocast or torch.half
    for x in given:
        passed = x * 1.1 if habits.leaf and model.draw.random() < 0.5 else x
        with torch.autocast("cuda", dtype, enabled=habits.autocast is not None):
            y = model(passed)
            losses.append(y.float().square().mean())
        if not habits.late:
            again = model.draw.random() < 0.2
            scaler.scale(losses.pop()).backward(retain_graph=again)
        if habits.holds:
            kept.append(y)
        yield y.detach()
    for loss in reversed(losses):
        scaler.scale(loss).backward()


def program(w, seed):
    """Train a random model; yield results, gradients, parameters and buffers."""
    draw, kept = random.Random(seed), []
    torch.manual_seed(seed)
    habits = Habits.drawn(draw)
    model = Model(w, draw, repeats=habits.autocast is None)
    parameters = model.parameters()
    optimizer = optimizer_of(parameters, draw)
    scaler = torch.amp.GradScaler("cuda", enabled=habits.autocast is torch.float16)
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=habits.none)
        size = draw.choice((8, 8, 8, 4))
        given = [w.values(size, WIDTH) for _ in range(habits.batches)]
        if draw.random() < 0.15:
            with torch.no_grad():
                yield model(given[0])
        for x in given:
            x.requires_grad_(habits.leaf)
        yield from batches(model, habits, given, scaler, kept)
        if habits.leaf and draw.random() < 0.2:
            yield torch.autograd.grad(model(given[0]).sum(), given[0])
        if draw.random() < 0.1:
            model(given[0])
        if step == STEPS // 2 and draw.random() < 0.3:
            model.blocks[0].requires_grad_(requires_grad=False)
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(parameters, 1.0)
        yield [p.grad for p in parameters], [x.grad for x in given], kept
        scaler.step(optimizer)
        scaler.update()
        yield [each.state_dict() for each in model.blocks]


@pytest.mark.parametrize("played", ["in C"], indirect=True)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_training_is_the_same(alike, monkeypatch, seed):
    """Every loss, gradient, parameter and buffer, at every step."""
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    alike(lambda w: program(w, seed))
