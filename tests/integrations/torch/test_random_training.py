"""Random programs that train models, some blocks of which are graphed.

What is done depends on a seed and on no value. Left out is what docs/torch.md says may
differ in last bits: more than two gradients of one tensor that are added up outside of
calls, and two of them under autocast.
"""

from __future__ import annotations

import gc
import random
from collections import defaultdict
from itertools import islice

import pytest

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

ALLOWED = "ignore::UserWarning", "ignore::DeprecationWarning"  # skips; torch's own
pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings(*ALLOWED)]

SEEDS = 60
STEPS = 10
DEVICE, HALF = "cuda", torch.float16
ROWS, LENGTH, WIDTH, WORDS = 4, 4, 16, 40
GRU = WIDTH, WIDTH, 1, True, True  # one layer, with bias, the batch first


def values(*shape):
    return torch.randn(shape, device=DEVICE)


class Block(nn.Module):
    """A layer, and what is made with it of a tensor of rows, length and width."""

    def __init__(self, _, fn=None, inner=None):
        super().__init__()
        self.inner, self.fn, self.twisted = inner or linear(), fn, False

    def forward(self, h):
        return self.fn(self.inner, h)


class Paired(Block):
    def forward(self, h, other, *, scale=None):
        y = self.inner(h) * other.tanh() + other
        return y if scale is None else y * scale.sigmoid()


class Worded(Block):
    def forward(self, h, words):
        return h + self.inner(words)


class Flagged(Block):
    def forward(self, h, flip=False, times=1):
        y = self.inner(h) * times
        y = y.cos() if self.twisted else y.sin()
        return y.flip(1) if flip else y


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 3 * x * x


def linear(parts=1, *, bias=True):
    return nn.Linear(WIDTH, parts * WIDTH, bias)


def layer(r):
    act = r.choice([nn.GELU(), nn.ReLU(), nn.SiLU(inplace=True), nn.Tanh()])
    return nn.Sequential(linear(bias=r.random() < 0.8), act)


def normed(r):
    return nn.Sequential(nn.LayerNorm(WIDTH), *layer(r))


def attention(r):
    p, causal = r.choice([0.0, 0.0, 0.2]), r.random() < 0.5

    def attend(mix, h):
        parts = mix(h).unflatten(-1, (3, 2, WIDTH // 2)).unbind(-3)
        q, k, v = (each.transpose(1, 2) for each in parts)
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=causal)
        return y.transpose(1, 2).flatten(-2)

    return Block(r, attend, linear(3))


def several(r):
    pair = Block(r, lambda one, h: (one(h).tanh(), h * 2))
    views = Block(r, lambda one, h: one(h).view(2, *h.shape).unbind(), linear(2))
    nest = Block(r, lambda one, h: {"h": one(h), "more": [h.exp(), h.detach() * 2]})
    return r.choice([pair, views, nest])


def taken_apart(f, h, _):
    found = f(h)
    return (found["h"], found["more"]) if isinstance(found, dict) else found


def with_words(f, h, _):
    words = torch.randperm(WORDS, device=DEVICE)[: len(h) * LENGTH]  # each one once
    return f(h, words.view(-1, LENGTH)), []


# What makes blocks that take one tensor, and return one.
SIMPLE = {
    "attention": attention,
    "batch norm": lambda r: Block(
        r, lambda norm, h: norm(h.flatten(0, 1)).view(h.shape), nn.BatchNorm1d(WIDTH)
    ),
    "convolved": lambda r: Block(
        r, lambda conv, h: conv(h.mT).mT, nn.Conv1d(WIDTH, WIDTH, 3, padding=1)
    ),
    "cubed": lambda r: Block(r, lambda one, h: Cube.apply(one(h).tanh())),
    "dropped": lambda r: nn.Sequential(*layer(r), nn.Dropout(0.3)),
    "frozen": lambda r: layer(r).requires_grad_(requires_grad=False),
    "gated": lambda r: Block(r, lambda mix, h: F.glu(mix(h)), linear(2)),
    "layer": layer,
    "normed": normed,
    "recurrent": lambda r: Block(r, lambda rnn, h: rnn(h)[0], nn.GRU(*GRU)),
    "residual": lambda r: Block(r, lambda inner, h: h + inner(h), normed(r)),
    "stacked": lambda r: nn.Sequential(attention(r), *layer(r), nn.Dropout(0.5)),
    "tied": lambda _: nn.Sequential(*[linear(), nn.Tanh()] * 2),
}

# What makes others, and how they are called: what to go on with, and what else.
FURTHER = {
    "around": (normed, lambda f, h, _: (h + f(h), [])),
    "by name": (Paired, lambda f, h, t: (f(h, other=t.also(h), scale=t.also(h)), [])),
    "flagged": (Flagged, lambda f, h, t: (f(h, t.seldom(), times=1 + t.seldom()), [])),
    "paired": (Paired, lambda f, h, t: (f(h, t.also(h)), [])),
    "several": (several, taken_apart),
    "twice": (layer, lambda f, h, _: (f(f(h)), [])),
    "two outputs": (lambda _: nn.GRU(*GRU), taken_apart),
    "worded": (lambda r: Worded(r, None, nn.Embedding(WORDS, WIDTH)), with_words),
}

OPTIMIZERS = [
    lambda p: torch.optim.SGD(p, lr=0.05),
    lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, foreach=True),
    lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=False),
    lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=True, capturable=DEVICE == "cuda"),
    lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
]


class Trial:
    """A model and how it is trained: all is drawn from one seed."""

    def __init__(self, w, seed):
        self.seed, self.r = seed, random.Random(seed)
        r = self.r
        self.amp = r.choice([None, None, None, None, HALF, torch.bfloat16])
        names = r.choices([*SIMPLE, *FURTHER], k=r.randint(2, 6))
        if self.amp:
            names = ["layer" if n in {"around", "twice"} else n for n in names]
        self.sums = not {"recurrent", "tied", "twice", "two outputs"} & {*names}
        table = {n: (make, lambda f, h, _: (f(h), [])) for n, make in SIMPLE.items()}
        made = [(table | FURTHER)[n] for n in names]
        self.blocks = nn.ModuleList(make(r) for make, _ in made).to(DEVICE)
        self.calls = [[f, call] for f, (_, call) in zip(self.blocks, made, strict=True)]
        for i, f in r.sample([*enumerate(self.blocks)], r.randint(1, len(names))):
            self.calls[i][0] = w.graph(f.forward if r.random() < 0.3 else f)
        self.head = nn.Linear(WIDTH, 8).to(DEVICE)
        self.parameters = [*self.blocks.parameters(), *self.head.parameters()]
        loss = r.choice([F.mse_loss, F.smooth_l1_loss, F.cross_entropy])
        self.loss = w.graph(loss) if r.random() < 0.25 else loss
        self.optimizer = r.choice(OPTIMIZERS)(self.parameters)
        scaled = {"init_scale": r.choice([2.0**10, 2.0**24])}  # the larger overflows
        self.scaler = torch.amp.GradScaler(DEVICE, **scaled, enabled=self.amp is HALF)
        self.lasting = values(ROWS, LENGTH, WIDTH).requires_grad_()
        self.usual = r.choice(["plain", "leaf", "lasting", "computed"])
        self.odd = r.choice([0.0, 0.0, 0.15])  # how often shapes and kinds change
        self.seen, self.kept, self.open = defaultdict(list), [], []
        self.chosen = r.choice([*self.blocks.parameters()])

    def seldom(self):
        return self.r.random() < 0.15

    def also(self, h):
        return self.tensor(len(h))

    def note(self, name, factor=None):
        """Return a hook that notes what it is called with, and may scale it."""
        seen = self.seen
        return lambda g: seen[name].append(g.clone()) or (factor and g * factor)

    def happen(self, what, factor):
        """Freeze a parameter, or the contrary, turn a flag, or register a hook."""
        p, summed = self.chosen, self.note("sum")
        if what < 2:
            p.requires_grad_(not p.requires_grad)
        elif what == 2:
            for block in self.blocks:
                block.twisted = isinstance(block, Flagged) and not block.twisted
        elif what == 3 and p.requires_grad:
            p.register_post_accumulate_grad_hook(lambda p: summed(p.grad))
        elif p.requires_grad:
            p.register_hook(self.note("parameter", factor))

    def tensor(self, rows, *, once=False):
        """Return a tensor for a block: plain, a leaf, or what is computed from one."""
        how = self.r.choice(["plain", "leaf", "computed"])
        how = how if self.r.random() < self.odd else self.usual
        made = values(rows, LENGTH, WIDTH).requires_grad_(how != "plain")
        if how == "lasting" and once and rows == ROWS:
            made = self.lasting
        self.leaves.append(made)
        return self.touched(made * 2) if how == "computed" else made

    def touched(self, h):
        """Return a tensor, to which a caller may have done something."""
        whats = "", "in place", "detached", "heard", "retained"
        (what,) = self.r.choices(whats, [40, 2, 1, 2, 2])
        factor, write = self.r.choice([None, 0.5]), self.r.choice([F.relu_, torch.neg_])
        if what == "in place":
            write(h)
        elif what == "detached":
            return h.detach()
        elif what == "heard" and h.requires_grad:
            h.register_hook(self.note("result", factor))
        elif what == "retained" and h.requires_grad:
            h.retain_grad()
            self.leaves.append(h)
        return h

    def forward(self, *, once=True):
        """Return the loss of new inputs, with a graph behind it."""
        rows = ROWS - (self.r.random() < self.odd)
        with torch.autocast(DEVICE, dtype=self.amp, enabled=self.amp is not None):
            h, also = self.tensor(rows, once=once), []
            for f, call in self.calls:
                h, more = call(f, h, self)
                h = self.touched(h)
                also += more if isinstance(more, list) else [more]
                self.shown += [h] * self.r.choice([0, 1])
            y = self.head(h)
            loss = self.loss(y, values(*y.shape))
            for each in also:
                if self.r.random() < 0.5:
                    loss = loss + each.float().square().mean()
        self.shown += [loss, y, *also]
        return loss

    def back(self, loss, **options):
        self.scaler.scale(loss).backward(**options)
        return True

    def accumulated(self):
        times = self.r.choice([1, 1, 2, 3])
        return [self.back(self.forward() / times) for _ in range(times)]

    def twofold(self):
        losses = [self.forward(), self.forward()]
        self.back(losses.pop(self.r.randrange(2)))
        return self.back(losses.pop())

    def again(self):
        loss = self.forward()
        self.back(loss, retain_graph=self.r.random() < 0.9)
        return self.back(loss * 2)

    def summed(self):
        loss = self.forward(once=False)
        return self.back(loss + self.forward(once=False) if self.sums else loss)

    def asked(self):
        loss = self.scaler.scale(self.forward())
        wanted = [p for p in self.parameters + self.leaves if p.requires_grad]
        found = torch.autograd.grad(loss, wanted, allow_unused=True)
        for each, grad in zip(wanted, found, strict=True):
            each.grad = grad
        return True

    def never(self):
        self.open.append((self.forward(), self.leaves))

    def late(self):
        if not self.open:
            return self.never()
        loss, self.leaves = self.open.pop()
        return self.back(loss)

    def looked_at(self):
        self.blocks.train(self.r.random() < 0.4)
        with self.r.choice([torch.no_grad, torch.inference_mode])():
            self.forward()

    def step(self, i):
        """Go one step; yield all that there is to see."""
        self.r = r = random.Random(f"{self.seed}, {i}")
        self.shown, self.leaves = [], []
        ways = [self.late, self.asked, self.summed, self.looked_at, self.again]
        ways += [self.never, *[self.twofold] * 2, *[self.accumulated] * 6]
        way = r.choice(ways)
        where = f"{i}, {way.__name__}"
        self.blocks.train()
        if r.random() < 0.25:
            self.happen(r.randrange(5), r.choice([None, 0.5]))
        if self.scaler.is_enabled() or r.random() < 0.9:
            self.optimizer.zero_grad(set_to_none=r.random() < 0.7)
        try:
            sent = way()
        except RuntimeError as error:
            # How far it has come is left open.
            yield where, "error", type(error).__name__
            for each in [*self.parameters, *self.leaves, self.lasting]:
                each.grad = None
            self.seen.clear()
            self.kept.clear()
            torch.manual_seed(i)
            return
        yield where, "results", self.shown, self.kept
        gradients = [each.grad for each in self.parameters + self.leaves]
        yield where, "gradients", gradients, dict(self.seen)
        if sent and r.random() < 0.85:
            yield where, "norm", self.update()
        yield where, "state", self.blocks.state_dict(), self.parameters
        self.seen.clear()
        lists = [each for each in self.shown if r.random() < 0.7], gradients
        self.kept += [each for each in lists if r.random() < 0.3]
        for held in self.kept, self.open:
            if held and r.random() < 0.3:
                del held[r.randrange(len(held))]
            del held[:-4]

    def update(self):
        """Step the optimizer, clipped or not; return the norm of the gradients."""
        clips = self.r.random() < 0.3
        if clips:
            self.scaler.unscale_(self.optimizer)
        norm = clips and nn.utils.clip_grad_norm_(self.parameters, 0.5)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.lasting.grad is not None and self.r.random() < 0.3:
            self.lasting.detach().sub_(self.lasting.grad)
        return norm


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_training(alike, seed, monkeypatch, record_property):
    """Losses, results, gradients and parameters are eager's, bit for bit."""
    # By default cuDNN adds up the gradients of convolutions in any order.
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)

    def program(w):
        trial = Trial(w, seed)
        for i in range(STEPS):
            yield from trial.step(i)

    record_property("replays", alike(program).count("replays"))


def rounds(graph):
    """Train a model with one graphed block in it, for ever; yield what there is."""
    first, last = nn.Linear(8, WIDTH).to(DEVICE), nn.Linear(WIDTH, 2).to(DEVICE)
    block = nn.Sequential(linear(), nn.GELU(), nn.LayerNorm(WIDTH)).to(DEVICE)
    f, parameters = graph(block), [*nn.ModuleList([first, block, last]).parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-2)
    while True:
        optimizer.zero_grad()
        loss = last(f(first(values(ROWS, 8)))).square().mean()
        loss.backward()
        optimizer.step()
        yield loss, [each.grad for each in parameters], parameters


def test_a_plain_loop_is_replayed(alike):
    """Of ten steps with one graphed block, at least five are replays."""
    world = alike(lambda w: islice(rounds(w.graph), STEPS))
    assert world.count("replays") >= STEPS // 2


def test_a_plain_loop_keeps_no_memory(played):
    """After forty steps no more of torch's memory is in use than after twenty."""
    made, used = [], []
    loop = rounds(lambda block: made.append(played.graph(block)) or made[0])
    for _ in range(2):
        for _ in islice(loop, 2 * STEPS):
            pass
        gc.collect()
        torch.cuda.synchronize()
        used.append((torch.cuda.memory_allocated(), made[0].stats().replays))
    loop.close()
    (before, first), (after, second) = used
    assert after <= before
    assert second >= first + STEPS
