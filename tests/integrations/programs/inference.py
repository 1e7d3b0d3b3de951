"""Models that are called: loops of cells, images, sounds, graphs, experts."""

from __future__ import annotations

import pytest

from tests.integrations.models.worlds import Trial
from tests.integrations.programs.kit import CALLS, called, trial

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

TRIALS: list[Trial] = []


class Basic(nn.Module):
    """A block of ResNet-18, with a shortcut of one by one where it needs one."""

    def __init__(self, given, made, stride):
        super().__init__()
        self.one = nn.Conv2d(given, made, 3, stride, 1, bias=False)
        self.two = nn.Conv2d(made, made, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(made) for _ in range(3)])
        self.down = None
        if stride != 1 or given != made:
            self.down = nn.Conv2d(given, made, 1, stride, bias=False)

    def forward(self, x):
        passed = x if self.down is None else self.norms[2](self.down(x))
        x = F.relu(self.norms[0](self.one(x)), inplace=True)
        x = self.norms[1](self.two(x))
        x += passed
        return F.relu(x)


@trial(TRIALS)
def resnet(w):
    def build():
        blocks = Basic(8, 8, 1), Basic(8, 16, 2), Basic(16, 32, 2)
        return nn.Sequential(
            *(nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU()),
            *(nn.MaxPool2d(3, 2, 1), *blocks, nn.AdaptiveAvgPool2d(1)),
            *(nn.Flatten(), nn.Linear(32, 10)),
        )

    yield from called(w, w.model(build), lambda: (w.values(2, 3, 32, 32),))


@trial(TRIALS)
def cells_of_gru(w):
    cell, head = w.model(lambda: nn.GRUCell(8, 16)), w.model(lambda: nn.Linear(16, 8))

    def fn(x, steps):
        h, made = x.new_zeros(x.shape[0], 16), []
        for _ in range(steps):
            h = cell(x, h)
            x = head(h).tanh()
            made.append(x)
        return torch.stack(made, 1), h

    yield from called(w, fn, lambda: (w.values(4, 8), 5))


@trial(TRIALS)
def cells_of_lstm_fed_back(w):
    """The state goes out of each call and into the next one."""
    cells = w.model(lambda: nn.ModuleList([nn.LSTMCell(8, 8) for _ in range(2)]))

    def fn(x, states):
        after = []
        for cell, state in zip(cells, states, strict=True):
            after.append(cell(x, state))
            x = after[-1][0]
        return x, after

    f, kept = w.graph(fn), []
    states = [(w.values(3, 8), w.values(3, 8)) for _ in cells]
    for _ in range(CALLS):
        with torch.no_grad():
            y, states = f(w.values(3, 8), states)
        kept = [*kept[-2:], y]
        yield kept, states


class Lora(nn.Module):
    """A linear layer that is frozen, and a difference of low rank."""

    def __init__(self, layer, rank=2):
        super().__init__()
        self.layer = layer.requires_grad_(requires_grad=False)
        self.down = nn.Parameter(torch.randn(rank, layer.in_features))
        self.up = nn.Parameter(torch.randn(layer.out_features, rank))
        self.scaling, self.enabled = 2.0 / rank, True

    def forward(self, x):
        y = self.layer(x)
        return y + self.scaling * (x @ self.down.T @ self.up.T) if self.enabled else y


@trial(TRIALS)
def lora(w):
    """The difference is left out every other call: a plain value decides."""
    model = w.model(lambda: nn.Sequential(Lora(nn.Linear(8, 8)), nn.ReLU()))
    f, kept = w.graph(model, reads=lambda: model[0].enabled), []
    for i in range(CALLS):
        model[0].enabled = i not in (4, 7)
        with torch.no_grad():
            kept = [*kept[-2:], f(w.values(4, 8))]
        yield kept


@trial(TRIALS)
def linear_of_bytes(w):
    """Weights are bytes with a scale for each row; inputs are made bytes, too."""
    weight = w.values(12, 16)
    scale = weight.abs().amax(1, keepdim=True) / 127
    packed = (weight / scale).round().to(torch.int8)
    bias = w.values(12)

    def fn(x):
        steps = x.abs().amax(-1, keepdim=True).clamp(min=1e-5) / 127
        small = (x / steps).round().clamp(-128, 127).to(torch.int8)
        y = small.to(torch.float32) @ packed.to(torch.float32).T
        return torch.addcmul(bias, y, steps * scale.T), small

    yield from called(w, fn, lambda: (w.values(5, 16),))


@trial(TRIALS)
def experts_by_einsum(w):
    """Two experts of four for each word, all of them computed."""
    gate = w.model(lambda: nn.Linear(8, 4, bias=False))
    up, down = nn.Parameter(w.values(4, 8, 16)), nn.Parameter(w.values(4, 16, 8))

    def fn(x):
        shares, chosen = gate(x).softmax(-1).topk(2, -1)
        shares = shares / shares.sum(-1, keepdim=True)
        weights = (F.one_hot(chosen, 4) * shares[..., None]).sum(-2)
        hidden = F.silu(torch.einsum("bti,eio->bteo", x, up))
        each = torch.einsum("bteo,eoi->btei", hidden, down)
        load = weights.mean((0, 1))
        return torch.einsum("btei,bte->bti", each, weights), load, chosen

    yield from called(w, fn, lambda: (w.values(2, 5, 8),))


@trial(TRIALS)
def speech_by_convolutions(w):
    """Halves of time, then gated convolutions in depth, as in a conformer."""

    def build():
        gated = nn.Sequential(
            nn.Conv1d(16, 32, 1), nn.GLU(1), nn.Conv1d(16, 16, 5, padding=2, groups=16)
        )
        return nn.ModuleDict(
            {
                "front": nn.Conv1d(8, 16, 3, stride=2, padding=1),
                "gated": nn.Sequential(gated, nn.BatchNorm1d(16), nn.SiLU()),
                "head": nn.Linear(16, 10),
            }
        )

    model = w.model(build)

    def fn(x, lengths):
        x = F.gelu(model["front"](x))
        x = x + model["gated"](x)
        there = torch.arange(x.shape[-1], device=x.device) < (lengths[:, None] + 1) // 2
        x = (x * there[:, None]).mT
        return model["head"](x).log_softmax(-1).argmax(-1).masked_fill(~there, 0)

    yield from called(w, fn, lambda: (w.values(2, 8, 16), w.ids(2, below=16)))


@trial(TRIALS)
def sound_sample_by_sample(w):
    """Dilated causal convolutions; what lies behind is shifted in place."""
    layers = w.model(lambda: nn.ModuleList([nn.Conv1d(4, 8, 2) for _ in range(3)]))
    behind = [torch.zeros(1, 4, 2**i, device=w.place) for i in range(3)]

    def fn(x):
        skips = x.new_zeros(x.shape)
        for layer, queue in zip(layers, behind, strict=True):
            y = layer(torch.cat([queue[..., :1], x], -1))
            queue.copy_(torch.cat([queue[..., 1:], x], -1))
            left, right = y.chunk(2, 1)
            y = left.tanh() * right.sigmoid()
            x, skips = x + y, skips + y
        return skips

    f = w.graph(fn)
    for _ in range(CALLS):
        with torch.no_grad():
            yield f(w.values(1, 4, 1)), behind


@trial(TRIALS)
def graph_convolutions(w):
    """A graph as a dense matrix, normalised inside; then attention over neighbours."""
    layers = w.model(lambda: nn.ModuleList([nn.Linear(6, 6) for _ in range(3)]))

    def fn(x, edges):
        near = (edges + edges.T > 0).float() + torch.eye(8, device=x.device)
        scale = near.sum(1).rsqrt()
        near = scale[:, None] * near * scale[None]
        for layer in layers[:2]:
            x = F.elu(near @ layer(x))
        scores = F.leaky_relu(x @ layers[2](x).T, 0.2)
        return torch.where(near > 0, scores, -1e9).softmax(-1) @ x

    yield from called(w, fn, lambda: (w.values(8, 6), w.values(8, 8)))


@trial(TRIALS)
def nearest_codes(w):
    book = w.model(lambda: nn.Embedding(16, 4))

    def fn(x):
        flat = x.permute(0, 2, 3, 1).reshape(-1, 4)
        codes = torch.cdist(
            flat, book.weight, compute_mode="donot_use_mm_for_euclid_dist"
        )
        codes = codes.argmin(1)
        found = book(codes).view(x.shape[0], *x.shape[2:], 4).permute(0, 3, 1, 2)
        return found, codes, F.mse_loss(found, x)

    yield from called(w, fn, lambda: (w.values(2, 4, 3, 3),))


@trial(TRIALS)
def state_space_scan(w):
    """A linear state with steps of its own for each input, as in Mamba."""
    project = w.model(lambda: nn.Linear(6, 6 + 2 * 4))
    decay = nn.Parameter(w.values(6, 4))

    def fn(u):
        step, into, out = project(u).split([6, 4, 4], -1)
        step = F.softplus(step)[..., None]
        kept = torch.exp(-step * decay.exp())
        given = step * into[:, :, None] * u[..., None]
        h, ys = torch.zeros_like(kept[:, 0]), []
        for t in range(u.shape[1]):
            h = torch.addcmul(given[:, t], kept[:, t], h)
            ys.append(torch.einsum("bds,bs->bd", h, out[:, t]))
        return torch.stack(ys, 1)

    yield from called(w, fn, lambda: (w.values(2, 6, 6),))


@trial(TRIALS)
def mobile_convolutions_in_half(w):
    """Squeeze and excite, channels last, under autocast and inference mode."""

    def build():
        thin = [nn.Conv2d(*sizes, 1) for sizes in ((4, 16), (16, 4), (4, 16), (16, 4))]
        return nn.ModuleList(
            [thin[0], nn.Conv2d(16, 16, 3, 1, 1, groups=16), *thin[1:]]
        )

    up, deep, squeeze, excite, down = w.model(build).to(
        memory_format=torch.channels_last
    )

    def fn(x):
        x = x.contiguous(memory_format=torch.channels_last)
        with torch.inference_mode(), w.autocast(torch.bfloat16):
            y = F.hardswish(deep(F.hardswish(up(x))))
            y = y * F.hardsigmoid(excite(squeeze(y.mean((2, 3), keepdim=True)).relu()))
            return x + down(y)

    yield from called(w, fn, lambda: (w.values(2, 4, 6, 6),))


@trial(TRIALS)
def light_along_rays(w):
    """Colours along rays, each dimmed by what lies before it."""
    field = w.model(
        lambda: nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 4))
    )

    def fn(start, way, far=4.0):
        depths = torch.linspace(0.5, far, 8, device=start.device)
        points = start[:, None] + way[:, None] * depths[:, None]
        waves = [f(points * 2**i) for i in range(2) for f in (torch.sin, torch.cos)]
        colour, density = field(torch.cat(waves, -1)).split([3, 1], -1)
        lost = F.relu(density[..., 0]) * (depths[1] - depths[0])
        before = torch.ones(8, 8, device=start.device).triu(1)
        weights = (-lost @ before).exp() * (1 - (-lost).exp())
        shown = (weights[..., None] * colour.sigmoid()).sum(1)
        return shown, (weights * depths).sum(1), weights.sum(1)

    yield from called(w, fn, lambda: (w.values(5, 3), F.normalize(w.values(5, 3))))
