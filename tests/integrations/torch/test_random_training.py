"""Random programs that train models, some blocks of which are graphed.

A seed draws a model, which of its blocks are graphed, and how it is trained. What is
done depends on no value, so that it is the same eagerly and replayed.

Left out is what docs/torch.md says may differ in last bits: more than two gradients of
one tensor that are added up outside of calls, and two of them under autocast.
"""

from __future__ import annotations

import gc
import random
from collections import defaultdict
from itertools import islice

import pytest

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

pytestmark = [
    pytest.mark.gpu,
    # Skips are allowed here; torch warns of streams, and where it imports itself.
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

SEEDS = 60
STEPS = 10
DEVICE = "cuda"
HALF = torch.float16
ROWS, LENGTH, WIDTH, WORDS = 4, 4, 16, 40


@pytest.fixture(autouse=True)
def _in_one_order(monkeypatch):
    """Have cuDNN add up the gradients of convolutions in one order."""
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)


def values(*shape):
    return torch.randn(shape, device=DEVICE)


# Blocks: each maps a tensor of rows, length and width to another one.


class Through(nn.Module):
    """A layer, what is made of its argument, and of its result."""

    def __init__(self, inner, after, before=lambda h: h):
        super().__init__()
        self.inner, self.after, self.before = inner, after, before

    def forward(self, h):
        return self.after(self.inner(self.before(h)), h)


class Worded(nn.Module):
    def __init__(self, _):
        super().__init__()
        self.table = nn.Embedding(WORDS, WIDTH)

    def forward(self, h, words):
        return h + self.table(words)


class Paired(nn.Module):
    def __init__(self, _):
        super().__init__()
        self.one = linear()

    def forward(self, h, other, *, scale=None):
        y = self.one(h) * other.tanh() + other
        return y if scale is None else y * scale.sigmoid()


class Flagged(nn.Module):
    def __init__(self, _):
        super().__init__()
        self.one, self.twisted = linear(), False

    def forward(self, h, flip=False, times=1):
        y = self.one(h) * times
        y = y.cos() if self.twisted else y.sin()
        return y.flip(1) if flip else y


class Cube(torch.autograd.Function):
    """A backward that is written by hand."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 3 * x * x


def linear(parts=1, **options):
    return nn.Linear(WIDTH, parts * WIDTH, **options)


def gru(_):
    return nn.GRU(WIDTH, WIDTH, batch_first=True)


def layer(r):
    acts = {nn.GELU: {}, nn.ReLU: {}, nn.SiLU: {"inplace": True}, nn.Tanh: {}}
    act = r.choice(list(acts))
    return nn.Sequential(linear(bias=r.random() < 0.8), act(**acts[act]))


def normed(r):
    return nn.Sequential(nn.LayerNorm(WIDTH), *layer(r))


def dropped(r):
    return nn.Sequential(*layer(r), nn.Dropout(r.choice([0.2, 0.5])))


def attention(r):
    p, causal = r.choice([0.0, 0.0, 0.2]), r.random() < 0.5

    def attended(y, _):
        parts = y.unflatten(-1, (3, 2, WIDTH // 2)).unbind(-3)
        q, k, v = (each.transpose(1, 2) for each in parts)
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=causal)
        return y.transpose(1, 2).flatten(-2)

    return Through(linear(3), attended)


def batch_norm(r):
    apart, back = lambda h: h.flatten(0, 1), lambda y, h: y.view(h.shape)
    return nn.Sequential(*layer(r), Through(nn.BatchNorm1d(WIDTH), back, apart))


def convolved(r):
    conv, turned = nn.Conv1d(WIDTH, WIDTH, 3, padding=1), lambda h: h.transpose(1, 2)
    return nn.Sequential(Through(conv, lambda y, _: turned(y), turned), *layer(r))


def gated(_):
    return Through(linear(2), lambda y, _: y.chunk(2, -1)[0] * F.glu(y))


def tied(_):
    one, frozen = linear(), linear().requires_grad_(requires_grad=False)
    return nn.Sequential(one, frozen, nn.Tanh(), one)


def several(r):
    def more(y, _):
        y, other = y.chunk(2, -1)
        return {"h": y.tanh(), "more": [other.exp(), y.detach() * 2], "n": 3}

    pair = lambda y, _: (y.tanh(), y.exp().mean(-1))  # noqa: E731
    views = lambda y, _: y.chunk(2, -1)  # noqa: E731
    parts, fn = r.choice([(2, more), (1, pair), (2, views)])
    return Through(linear(parts), fn)


# Ways to call a block: they return the tensor to go on with, and further ones.


def plainly(f, h, _):
    return f(h), []


def twice(f, h, _):
    return f(f(h)), []


def around(f, h, _):
    return h + f(h), []


def with_words(f, h, _):
    chosen = torch.randperm(WORDS, device=DEVICE)[: h.shape[0] * LENGTH]
    return f(h, chosen.view(-1, LENGTH)), []


def with_another(f, h, trial):
    return f(h, trial.tensor(h.shape[0])), []


def by_name(f, h, trial):
    return f(h, other=trial.tensor(h.shape[0]), scale=trial.tensor(h.shape[0])), []


def with_flags(f, h, trial):
    flip, more = (trial.r.random() < 0.15 for _ in range(2))
    return f(h, flip=flip, times=1 + more), []


def taken_apart(f, h, _):
    found = f(h)
    return (found["h"], found["more"]) if isinstance(found, dict) else found


BLOCKS = {
    "around": (normed, around),
    "attention": (attention, plainly),
    "batch norm": (batch_norm, plainly),
    "by name": (Paired, by_name),
    "convolved": (convolved, plainly),
    "cubed": (lambda _: Through(linear(), lambda y, _: Cube.apply(y.tanh())), plainly),
    "dropped": (dropped, plainly),
    "flagged": (Flagged, with_flags),
    "frozen": (lambda r: layer(r).requires_grad_(requires_grad=False), plainly),
    "gated": (gated, plainly),
    "layer": (layer, plainly),
    "normed": (normed, plainly),
    "paired": (Paired, with_another),
    "recurrent": (lambda r: Through(gru(r), lambda y, _: y[0]), plainly),
    "residual": (lambda r: Through(normed(r), lambda y, h: h + y), plainly),
    "several": (several, taken_apart),
    "stacked": (lambda r: nn.Sequential(attention(r), *dropped(r)), plainly),
    "tied": (tied, plainly),
    "twice": (layer, twice),
    "two outputs": (gru, taken_apart),
    "worded": (Worded, with_words),
}

OPTIMIZERS = [
    lambda p: torch.optim.SGD(p, lr=0.05),
    lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, foreach=True),
    lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=False),
    lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=True, capturable=DEVICE == "cuda"),
    lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
]

LOSSES = [
    F.mse_loss,
    lambda y, goal: F.cross_entropy(y.flatten(0, 1), goal.flatten(0, 1).argmax(-1)),
]


class Trial:
    """A model and how it is trained: all is drawn from one seed."""

    def __init__(self, w, seed):
        self.w, self.r = w, random.Random(seed)
        r = self.r
        self.amp = r.choice([None, None, None, None, HALF, torch.bfloat16])
        names = r.choices(list(BLOCKS), k=r.randint(2, 6))
        if self.amp:
            names = ["layer" if n in {"around", "twice"} else n for n in names]
        self.sums = not {"recurrent", "tied", "twice", "two outputs"} & {*names}
        graphed = r.sample(range(len(names)), r.randint(1, len(names)))
        self.blocks = nn.ModuleList(BLOCKS[n][0](r) for n in names).to(DEVICE)
        self.calls = [BLOCKS[n][1] for n in names]
        self.functions = [*self.blocks]
        for i in graphed:
            self.functions[i] = self.graph(self.blocks[i], self.calls[i])
        self.head = nn.Linear(WIDTH, 8).to(DEVICE)
        self.parameters = [*self.blocks.parameters(), *self.head.parameters()]
        loss = r.choice(LOSSES)
        self.loss = w.graph(loss) if r.random() < 0.25 else loss
        self.optimizer = r.choice(OPTIMIZERS)(self.parameters)
        scaled = {"init_scale": r.choice([2.0**10, 2.0**24])}  # the larger overflows
        self.scaler = torch.amp.GradScaler(DEVICE, **scaled, enabled=self.amp is HALF)
        self.lasting = values(ROWS, LENGTH, WIDTH).requires_grad_()
        self.usual = r.choice(["plain", "leaf", "lasting", "computed"])
        self.odd = r.choice([0.0, 0.0, 0.15])  # how often shapes and kinds change
        self.seen, self.events = defaultdict(list), defaultdict(list)
        self.kept, self.open = [], []
        self.plan(*r.choices(self.parameters, k=2))

    def graph(self, block, call):
        """Graph a block itself, or a function that calls it."""
        if call in {plainly, twice, around} and self.r.random() < 0.3:
            return self.w.graph(lambda h: block(h))
        return self.w.graph(block)

    def plan(self, one, other):
        """Draw what happens before some of the steps."""
        at = lambda: self.events[self.r.randrange(STEPS)]  # noqa: E731
        if self.r.random() < 0.4:
            for _ in "ab":
                at().append(lambda: one.requires_grad_(not one.requires_grad))
        if self.r.random() < 0.3:
            at().append(lambda: self.listen(other))
        for block in self.blocks:
            if isinstance(block, Flagged) and self.r.random() < 0.5:
                at().append(lambda b=block: setattr(b, "twisted", not b.twisted))

    def note(self, name, factors=(None,)):
        """Return a hook that notes what it is called with, and may scale it."""
        seen, factor = self.seen, self.r.choice(factors)
        return lambda g: seen[name].append(g.clone()) or (factor and g * factor)

    def listen(self, parameter):
        """Register a hook on a parameter, for what comes or what was accumulated."""
        noted, scaled = self.note("sum"), self.note("parameter", [None, 0.5])
        late = self.r.random() < 0.6
        if parameter.requires_grad and late:
            parameter.register_post_accumulate_grad_hook(lambda p: noted(p.grad))
        elif parameter.requires_grad:
            parameter.register_hook(scaled)

    def tensor(self, rows, *, once=False):
        """Return a tensor for a block: plain, a leaf, or what is computed from one."""
        odd = self.r.random() < self.odd
        how = self.r.choice(["plain", "leaf", "computed"]) if odd else self.usual
        if how == "lasting" and once and rows == ROWS:
            self.leaves.append(self.lasting)
            return self.lasting
        made = values(rows, LENGTH, WIDTH)
        if how == "plain":
            return made
        self.leaves.append(made.requires_grad_())
        return self.touched(made * 2) if how == "computed" else made

    def touched(self, h):
        """Return a tensor, to which a caller may have done something."""
        whats = "", "scaled", "relu", "detached", "heard", "retained"
        (what,) = self.r.choices(whats, [40, 1, 1, 1, 2, 2])
        if what == "scaled":
            h.mul_(1.5)
        elif what == "relu":
            F.relu_(h)
        elif what == "detached":
            return h.detach()
        elif what == "heard" and h.requires_grad:
            h.register_hook(self.note("result", [None, 0.5]))
        elif what == "retained" and h.requires_grad:
            h.retain_grad()
            self.leaves.append(h)
        return h

    def forward(self, *, once=True):
        """Return the loss of new inputs, with a graph behind it."""
        rows = ROWS - (self.r.random() < self.odd)
        with torch.autocast(DEVICE, dtype=self.amp, enabled=self.amp is not None):
            h, also = self.tensor(rows, once=once), []
            for f, call in zip(self.functions, self.calls, strict=True):
                h, more = call(f, h, self)
                h = self.touched(h)
                also += more if isinstance(more, list) else [more]
                self.shown.append(h)
            y = self.head(h)
            loss = self.loss(y, values(*y.shape))
            for each in also:
                if self.r.random() < 0.5:
                    loss = loss + each.float().square().mean()
        self.shown += [loss, y, *also]
        return loss

    # Ways to train: each returns whether gradients have come.

    def back(self, loss, **options):
        self.scaler.scale(loss).backward(**options)
        return True

    def accumulated(self):
        for _ in range(self.r.choice([1, 1, 2, 3])):
            self.back(self.forward() / 2)
        return True

    def twofold(self):
        losses = [self.forward(), self.forward()]
        self.back(losses.pop(self.r.randrange(2)))
        return self.back(losses.pop())

    def again(self):
        loss = self.forward()
        self.back(loss, retain_graph=self.r.random() < 0.9)
        return self.back(loss * 2)

    def never(self):
        self.open.append((self.forward(), self.leaves))
        return False

    def late(self):
        if not self.open:
            return self.never()
        loss, self.leaves = self.open.pop()
        return self.back(loss)

    def asked(self):
        loss = self.scaler.scale(self.forward())
        wanted = [p for p in self.parameters + self.leaves if p.requires_grad]
        found = torch.autograd.grad(loss, wanted, allow_unused=True)
        for each, grad in zip(wanted, found, strict=True):
            each.grad = grad
        return True

    def summed(self):
        loss = self.forward(once=False)
        return self.back(loss + self.forward(once=False) if self.sums else loss)

    def looked_at(self):
        self.blocks.train(self.r.random() < 0.4)
        with self.r.choice([torch.no_grad, torch.inference_mode])():
            self.forward()
        self.blocks.train()
        return False

    def step(self, i):
        """Go one step; yield all that there is to see."""
        r, self.shown, self.leaves = self.r, [], []
        ways = [self.late, self.asked, self.summed, self.looked_at, self.again]
        ways += [self.never, *[self.twofold] * 2, *[self.accumulated] * 6]
        way = r.choice(ways)
        for event in self.events.pop(i, ()):
            event()
        if self.scaler.is_enabled() or r.random() < 0.9:
            self.optimizer.zero_grad(set_to_none=r.random() < 0.7)
        try:
            sent = way()
        except RuntimeError as error:
            # How far a backward comes that fails is left open.
            yield f"{i}, {way.__name__}: error", type(error).__name__
            for each in [*self.parameters, *self.leaves, self.lasting]:
                each.grad = None
            self.seen.clear()
            self.blocks.train()
            return
        yield f"{i}, {way.__name__}: results", self.shown, self.kept
        gradients = [each.grad for each in self.parameters + self.leaves]
        yield f"{i}, {way.__name__}: gradients", gradients, dict(self.seen)
        if sent and r.random() < 0.85:
            yield f"{i}, {way.__name__}: norm", self.update()
        yield f"{i}, {way.__name__}: state", self.blocks.state_dict(), self.parameters
        self.keep([[each for each in self.shown if r.random() < 0.7], gradients])

    def update(self):
        """Step the optimizer, clipped or not; return the norm of the gradients."""
        norm = None
        if self.r.random() < 0.3:
            self.scaler.unscale_(self.optimizer)
            norm = nn.utils.clip_grad_norm_(self.parameters, 0.5)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self.lasting.grad is not None and self.r.random() < 0.3:
            with torch.no_grad():
                self.lasting.add_(self.lasting.grad, alpha=-0.1)
                self.lasting.grad = None
        return norm

    def keep(self, lists):
        """Keep some of what there is, and drop some of what was kept."""
        self.kept += [each for each in lists if self.r.random() < 0.3]
        for held in self.kept, self.open:
            if held and self.r.random() < 0.3:
                del held[self.r.randrange(len(held))]
            del held[:-4]
        self.seen.clear()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_random_training(alike, seed, record_property):
    """Losses, results, gradients and parameters are eager's, bit for bit."""

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
