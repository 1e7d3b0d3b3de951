"""Models and loops as people write them who need torch alone."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from tests.integrations.models.worlds import Trial

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

CALLS = 12
WIDTH, HEADS, WORDS, LENGTH = 32, 4, 99, 16


class Attention(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.all, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.dropout = dropout

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.all(x).split(c, 2)
        q, k, v = (z.view(b, t, HEADS, c // HEADS).transpose(1, 2) for z in (q, k, v))
        rate = self.dropout if self.training else 0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=rate, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, c))


class Block(nn.Module):
    def __init__(self, dropout):
        super().__init__()
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention(dropout)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH),
            nn.GELU(),
            nn.Linear(4 * WIDTH, WIDTH),
            nn.Dropout(dropout),
        )

    def forward(self, x):
        x = x + self.attention(self.before(x))
        return x + self.mlp(self.after(x))


class Gpt(nn.Module):
    """As nanoGPT is: weights shared, the loss inside."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(64, WIDTH)
        self.blocks = nn.ModuleList([Block(dropout) for _ in range(2)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.words.weight = self.head.weight

    def forward(self, ids, targets=None):
        at = torch.arange(ids.shape[1], device=ids.device)
        x = self.words(ids) + self.places(at)
        for block in self.blocks:
            x = block(x)
        x = self.norm(x)
        if targets is None:
            return self.head(x[:, [-1], :]), None
        logits = self.head(x)
        loss = F.cross_entropy(
            logits.view(-1, WORDS), targets.view(-1), ignore_index=-1
        )
        return logits, loss


def written(model, optimizer=None):
    """Return what a training step writes."""
    state = optimizer.state_dict()["state"] if optimizer else {}
    return {
        "grads": {name: p.grad for name, p in model.named_parameters()},
        "values": dict(model.state_dict()),
        "state": {str(key): dict(each) for key, each in state.items()},
    }


def gpt_forward(w):
    model = w.model(Gpt)
    f = w.graph(model)
    for _ in range(CALLS):
        with torch.no_grad():
            out = f(w.ids(2, LENGTH))
        yield out


def gpt_forward_with_targets(w):
    model = w.model(Gpt)
    f = w.graph(model)
    for _ in range(CALLS):
        with torch.no_grad():
            out = f(w.ids(2, LENGTH), w.ids(2, LENGTH))
        yield out


def optimizer_of(model, **options):
    """Return AdamW as nanoGPT makes it: no decay for vectors."""
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    options = {"capturable": True, **options}
    return torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.95), **options)


def gpt_training(w, *, dropout=0.0, micro=2, rate=None, **options):
    """Its loop: micro-batches under autocast, clipping, AdamW, a rate that decays."""
    model = w.model(lambda: Gpt(dropout), train=True)
    optimizer = optimizer_of(model, **options)
    if rate is not None:
        for group in optimizer.param_groups:
            group["lr"] = torch.tensor(1e-3, device=w.place)

    def step(batches):
        losses = []
        for x, y in batches:
            with w.autocast(torch.bfloat16):
                _, loss = model(x, y)
                loss = loss / micro
            loss.backward()
            losses.append(loss.detach())
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return torch.stack(losses), norm

    f = w.graph(step, reads=lambda: written(model, optimizer))
    for i in range(CALLS):
        if rate is not None:
            for group in optimizer.param_groups:
                group["lr"].fill_(rate(i))
        yield f([(w.ids(2, LENGTH), w.ids(2, LENGTH)) for _ in range(micro)])
    yield written(model, optimizer)


def cosine(i):
    return 1e-3 * (0.1 + 0.45 * (1 + math.cos(math.pi * i / CALLS)))


def gpt_sampling(w):
    """The next word of a window, drawn from the ten likeliest."""
    model = w.model(Gpt)

    def following(ids, temperature):
        logits = model(ids)[0][:, -1, :] / temperature
        top, _ = torch.topk(logits, 10)
        logits = logits.masked_fill(logits < top[:, [-1]], -math.inf)
        drawn = torch.multinomial(F.softmax(logits, dim=-1), num_samples=1)
        return torch.cat([ids[:, 1:], drawn], dim=1)

    f, ids = w.graph(following), w.ids(2, LENGTH)
    for _ in range(CALLS):
        with torch.no_grad():
            ids = f(ids, 0.8)
        yield ids


def gpt_until_the_end(w):
    """Sampling that looks at each word on the host."""
    model = w.model(Gpt)

    def following(ids):
        drawn = model(ids)[0][:, -1, :].argmax(-1, keepdim=True)
        if (drawn == 0).all():
            return ids
        return torch.cat([ids[:, 1:], drawn], dim=1)

    f = w.graph(following)
    for _ in range(CALLS):
        with torch.no_grad():
            out = f(w.ids(2, LENGTH))
        yield out


# Diffusion.


class Residual(nn.Module):
    def __init__(self, given, made):
        super().__init__()
        self.norms = nn.ModuleList([nn.GroupNorm(4, given), nn.GroupNorm(4, made)])
        self.first = nn.Conv2d(given, made, 3, padding=1)
        self.second = nn.Conv2d(made, made, 3, padding=1)
        self.time = nn.Linear(WIDTH, made)
        self.skip = nn.Conv2d(given, made, 1) if given != made else nn.Identity()

    def forward(self, x, t):
        h = self.first(F.silu(self.norms[0](x))) + self.time(t)[:, :, None, None]
        return self.skip(x) + self.second(F.silu(self.norms[1](h)))


class Unet(nn.Module):
    """As those of diffusion are: down, attention in the middle, up over skips."""

    def __init__(self):
        super().__init__()
        self.enter, self.leave = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 3, 1)
        self.time = nn.Sequential(
            nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH)
        )
        self.down = nn.ModuleList([Residual(16, 16), Residual(16, 32)])
        self.middle = Residual(32, 32)
        self.attend = nn.MultiheadAttention(32, 4, batch_first=True)
        self.up = nn.ModuleList([Residual(64, 16), Residual(32, 16)])

    def forward(self, x, t):
        half = WIDTH // 2
        ladder = torch.arange(half, device=x.device, dtype=torch.float32)
        angles = t[:, None].float() * torch.exp(-math.log(10_000) * ladder / half)
        t = self.time(torch.cat([angles.sin(), angles.cos()], dim=-1))
        x, passed = self.enter(x), []
        for layer in self.down:
            x = layer(x, t)
            passed.append(x)
            x = F.avg_pool2d(x, 2)
        x = self.middle(x, t)
        flat = x.flatten(2).transpose(1, 2)
        x = x + self.attend(flat, flat, flat)[0].transpose(1, 2).view_as(x)
        for layer in self.up:
            x = F.interpolate(x, scale_factor=2, mode="nearest")
            x = layer(torch.cat([x, passed.pop()], dim=1), t)
        return self.leave(F.silu(x))


class Scheduler:
    """Steps of DDIM; what it knows of noise lies on the device."""

    def __init__(self, place, steps=CALLS):
        self.kept = torch.linspace(0.999, 0.95, 100).cumprod(0).to(place)
        self.timesteps = torch.linspace(99, 0, steps).long().to(place)

    def noised(self, x, noise, t):
        kept = self.kept[t][:, None, None, None]
        return kept.sqrt() * x + (1 - kept).sqrt() * noise

    def step(self, noise, t, before, x):
        """Step from one time to another; each is a tensor of one number."""
        now, then = self.kept[t].view(-1), self.kept[before].view(-1)
        clean = (x - (1 - now).sqrt() * noise) / now.sqrt()
        return then.sqrt() * clean.clamp(-1, 1) + (1 - then).sqrt() * noise


def unet_denoising(w):
    """Images from noise, each step on what the one before gave."""
    # Every second time is aligned as the first is: so there are two kinds of calls.
    model, steps = w.model(Unet), 3 * CALLS
    scheduler = Scheduler(w.place, steps)

    def step(x, t, before):
        noise = model(x, t.expand(x.shape[0]))
        return scheduler.step(noise, t, before, x)

    f, x, times = w.graph(step), w.values(2, 3, 8, 8), scheduler.timesteps
    for i in range(steps):
        with torch.no_grad():
            x = f(x, times[i : i + 1], times[min(i + 1, steps - 1) :][:1])
        yield x


def unet_numbers(w):
    """A time without dimensions, as an index, is read on the host."""
    model, scheduler = w.model(Unet), Scheduler(w.place)

    def step(x, t):
        noise = model(x, t.expand(x.shape[0]))
        return scheduler.step(noise, t, t, x)

    f = w.graph(step)
    for t in scheduler.timesteps:
        with torch.no_grad():
            out = f(w.values(2, 3, 8, 8), t)
        yield out


def unet_guided_loop(w):
    """All steps in one function, with guidance and fresh noise in each."""
    model, scheduler = w.model(Unet), Scheduler(w.place, 4)

    def sample(x):
        times = scheduler.timesteps.split(1)
        for t, before in pairwise(times):
            both = model(torch.cat([x, x * 0.5]), t.expand(2 * x.shape[0]))
            free, guided = both.chunk(2)
            x = scheduler.step(free + 3.0 * (guided - free), t, before, x)
            x = x + 0.01 * torch.randn_like(x)
        return x

    f = w.graph(sample)
    for _ in range(CALLS):
        with torch.no_grad():
            out = f(w.values(2, 3, 8, 8))
        yield out


def unet_training(w):
    """Noise is drawn and predicted; a mean of the weights is kept."""
    model, scheduler = w.model(Unet, train=True), Scheduler(w.place)
    mean = w.model(Unet).requires_grad_(requires_grad=False)
    optimizer = optimizer_of(model)

    def step(x):
        noise = torch.randn_like(x)
        t = torch.randint(0, 100, (x.shape[0],), device=x.device)
        optimizer.zero_grad()
        loss = F.mse_loss(model(scheduler.noised(x, noise, t), t), noise)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            for old, new in zip(mean.parameters(), model.parameters(), strict=True):
                old.lerp_(new, 0.01)
        return loss.detach()

    f = w.graph(step, reads=lambda: written(model, optimizer))
    for _ in range(CALLS):
        yield f(w.values(2, 3, 8, 8))
    yield written(model, optimizer), dict(mean.state_dict())


TRIALS = [
    Trial("gpt", gpt_forward),
    Trial("gpt, targets", gpt_forward_with_targets),
    Trial("gpt, training", gpt_training),
    Trial("gpt, training fused", lambda w: gpt_training(w, fused=True)),
    Trial("gpt, training with dropout", lambda w: gpt_training(w, dropout=0.1)),
    Trial("gpt, a rate that decays", lambda w: gpt_training(w, rate=cosine)),
    Trial(
        "gpt, not capturable",
        lambda w: gpt_training(w, capturable=False),
        live=True,
    ),
    Trial("gpt, sampling", gpt_sampling),
    Trial("gpt, until the end", gpt_until_the_end, skips="on the host"),
    Trial("unet, denoising", unet_denoising),
    Trial("unet, times as numbers", unet_numbers, skips="on the host"),
    Trial("unet, a guided loop", unet_guided_loop),
    Trial("unet, training", unet_training),
]
