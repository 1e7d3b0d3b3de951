"""What programs keep in Python, what they draw, and what they return things in."""

from __future__ import annotations

import itertools
from collections import OrderedDict, deque
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

from tests.integrations.models.worlds import Trial
from tests.integrations.programs.kit import CALLS, adamw, called, stepped, trial
from tests.integrations.programs.training import descended, layers

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

TRIALS: list[Trial] = []


# What is kept.


class Counting(nn.Module):
    """Warms up by its own count of steps, as schedules inside of models do."""

    def __init__(self):
        super().__init__()
        self.layers, self.steps = layers(), 0

    def forward(self, x):
        self.steps += 1
        return self.layers(x) * min(1.0, self.steps / 4)


@trial(TRIALS, moves=True)
def a_count_in_a_module(w):
    model = w.model(Counting)
    for kept in called(w, model, lambda: (w.values(4, 8),)):
        yield kept, model.steps


class Meter:
    """What an epoch has come to, as most training loops have it."""

    def __init__(self, place):
        self.total = torch.zeros((), device=place)
        self.count = torch.zeros((), dtype=torch.int64, device=place)
        self.history = []

    @property
    def mean(self):
        return self.total / self.count


@trial(TRIALS)
def losses_in_a_list(w):
    model, meter = w.model(layers, train=True), Meter(w.place)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x, y):
        loss = descended(optimizer, F.cross_entropy(model(x), y))
        meter.history.append(loss)
        return loss

    make = lambda: (w.values(4, 8), w.ids(4) % 4)  # noqa: E731
    for kept, _ in stepped(w, step, make, model.state_dict):
        yield kept, meter.history[-3:], len(meter.history), model.state_dict()


@trial(TRIALS)
def meters_on_the_device(w):
    """Sums in place, set to nothing between epochs, outside."""
    model, meter = w.model(layers), Meter(w.place)

    def step(x, y):
        logits = model(x)
        meter.total += F.cross_entropy(logits, y, reduction="sum")
        meter.count += y.numel()
        return meter.mean, (logits.argmax(1) == y).float().mean()

    f, kept = w.graph(step), []
    for i in range(CALLS):
        with torch.no_grad():
            kept.append(f(w.values(4, 8), w.ids(4) % 4))
        yield kept, meter.total, meter.count
        if i % 5 == 4:
            meter.total.zero_()
            meter.count.zero_()


@trial(TRIALS, moves=True)
def meters_bound_anew(w):
    """The sum is another tensor after each call, and the next call reads that."""
    meter = Meter(w.place)

    def step(x):
        meter.total = meter.total + x.square().mean()
        return meter.total * 2

    yield from stepped(w, step, lambda: (w.values(4),), lambda: meter.total)


@trial(TRIALS, moves=True)
def a_recurrent_state_in_a_tuple(w):
    """A stream's next block begins with what the last one left, as LSTMs return it."""
    model, state = w.model(lambda: nn.LSTM(4, 6)), {"hc": None}
    state["hc"] = w.values(1, 2, 6), w.values(1, 2, 6)

    def step(x):
        with torch.no_grad():
            y, state["hc"] = model(x, state["hc"])
        return y

    yield from stepped(w, step, lambda: (w.values(3, 2, 4),), lambda: state["hc"])


@trial(TRIALS, skips="batches is a <cycle>, which moves unseen")
def an_iterator_that_is_moved(w):
    """The function takes the next batch itself."""
    model, data = w.model(layers), [w.values(4, 8) for _ in range(3)]
    batches = itertools.cycle(data)
    yield from called(w, lambda: model(next(batches)), tuple)


@trial(TRIALS)
def a_table_that_the_first_call_makes(w):
    class Positions(nn.Module):
        table = None

        def forward(self, x):
            if self.table is None or self.table.shape[0] < x.shape[1]:
                at = torch.arange(x.shape[1], device=x.device, dtype=x.dtype)
                speeds = 0.1 ** torch.arange(0, 4, device=x.device)
                self.table = torch.cat([at[:, None] * speeds] * 2, -1).cos()
            return x + self.table[: x.shape[1]]

    yield from called(w, w.model(Positions), lambda: (w.values(2, 5, 8),))


@trial(TRIALS)
def features_that_hooks_take(w):
    """Hooks that stay put activations into a dict; the loss reads them there."""
    model = w.model(lambda: nn.Sequential(layers(8, 8, 8), nn.ReLU(), layers(8, 8, 4)))
    features = {}

    def keep(name):
        def hook(_, __, out):
            features[name] = out.detach()

        return hook

    for name in ("0", "2"):
        model.get_submodule(name).register_forward_hook(keep(name))

    def fn(x):
        y = model(x)
        return y, sum(each.square().mean() for each in features.values())

    for kept in called(w, fn, lambda: (w.values(4, 8),)):
        yield kept, features


@trial(TRIALS, skips=r"hooks\.registered")
def hooks_for_one_call(w):
    model = w.model(layers)

    def fn(x):
        seen = []
        handle = model[0].register_forward_hook(lambda _, __, out: seen.append(out))
        y = model(x)
        handle.remove()
        return y, seen[0].relu()

    yield from called(w, fn, lambda: (w.values(4, 8),))


@contextmanager
def evaluated(model):
    """Have a model in evaluation mode meanwhile."""
    before = model.training
    model.eval()
    try:
        yield model
    finally:
        model.train(before)


@trial(TRIALS)
def a_mode_for_one_part(w):
    """A step whose second part is in another mode, which is put back."""
    norm = lambda: nn.Sequential(layers(), nn.BatchNorm1d(4), nn.Dropout(0.5))  # noqa: E731
    model = w.model(norm, train=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x, y):
        loss = descended(optimizer, F.cross_entropy(model(x), y))
        with evaluated(model), torch.no_grad():
            return loss, F.cross_entropy(model(x), y)

    make = lambda: (w.values(4, 8), w.ids(4) % 4)  # noqa: E731
    yield from stepped(w, step, make, model.state_dict)


@trial(TRIALS)
def frames_that_the_caller_keeps(w):
    """A deque of frames outside: each call gets it as a list, old ones dropped."""
    model = w.model(lambda: nn.Conv2d(3, 4, 3))
    frames = deque([w.values(6, 6) for _ in range(3)], maxlen=3)

    def fn(stack):
        y = model(torch.stack(stack)[None])
        return y.relu().amax((2, 3)), stack[-1] * 0.5 + 1

    f, kept = w.graph(fn), []
    for _ in range(CALLS):
        with torch.no_grad():
            q, frame = f(list(frames))
        frames.append(frame)
        kept.append(q)
        yield kept, list(frames)


# What is drawn.


@trial(TRIALS)
def choices_that_are_relaxed(w):
    """Gumbel's noise, hard on the way there, soft on the way back."""
    model = w.model(lambda: nn.ModuleList([layers(8, 16, 6), layers(6, 16, 8)]))
    optimizer = adamw(model.parameters())

    def step(x, heat):
        z = F.gumbel_softmax(model[0](x) / heat, tau=1.0, hard=True)
        kept = torch.bernoulli(torch.full_like(x, 0.8))
        loss = (kept * (model[1](z) - x)).square().mean()
        return descended(optimizer, loss), z.detach(), kept

    heat = torch.tensor(0.7, device=w.place)
    yield from stepped(w, step, lambda: (w.values(4, 8), heat), model.state_dict)


@trial(TRIALS)
def noise_on_the_way_to_an_image(w):
    """A sampler with noise in each step, by levels in a tensor."""
    model = w.model(lambda: layers(9, 32, 8, nn.SiLU))
    levels = torch.linspace(2.0, 0.1, 5, device=w.place)

    def fn(x):
        for now, then in itertools.pairwise(levels):
            seen = torch.cat([x / (1 + now**2).sqrt(), now.log().expand(len(x), 1)], 1)
            clean = x - now * model(seen)
            up = torch.minimum(then, (then**2 * (1 - (then / now) ** 2)).sqrt())
            down = (then**2 - up**2).sqrt()
            x = clean + (x - clean) / now * down + torch.randn_like(x) * up
        return x

    yield from called(w, fn, lambda: (w.values(4, 8),), last=None)


@trial(TRIALS)
def blocks_left_out_by_chance(w):
    """Stochastic depth: a branch of some samples is left out, the others grow."""

    def build():
        return nn.ModuleList([layers(8, 8, 8) for _ in range(3)])

    model = w.model(build, train=True)
    optimizer = adamw(model.parameters())

    def step(x, y):
        for i, block in enumerate(model):
            stay = 1 - 0.2 * (i + 1) / len(model)
            mask = x.new_empty(len(x), 1).bernoulli_(stay).div_(stay)
            x = x + mask * F.alpha_dropout(block(x), 0.1, training=True)
        return descended(optimizer, F.mse_loss(x, y))

    make = lambda: (w.values(4, 8), w.values(4, 8))  # noqa: E731
    yield from stepped(w, step, make, model.state_dict)


@trial(TRIALS)
def races_of_chances(w):
    """Words by exponential clocks; policies by distributions that check nothing."""

    def fn(logits):
        chances = logits.softmax(-1)
        word = (chances / torch.empty_like(chances).exponential_(1)).argmax(-1)
        normal = torch.distributions.Normal(
            logits.mean(-1), logits.std(-1), validate_args=False
        )
        other = torch.distributions.Normal(0.0, 1.0, validate_args=False)
        drawn = normal.rsample((2,))
        away = torch.distributions.kl_divergence(normal, other)
        return word, drawn, normal.log_prob(drawn), away

    yield from called(w, fn, lambda: (w.values(3, 12),))


@trial(TRIALS, reads=True)
def generators_of_ones_own(w):
    own = torch.Generator(w.place).manual_seed(4)

    def fn(x):
        return x + torch.randn(x.shape, generator=own, device=x.device)

    yield from called(w, fn, lambda: (w.values(3, 4),))


# What is returned.


@dataclass
class Output:
    logits: Any
    loss: Any = None
    states: tuple = ()


class Boxes(NamedTuple):
    corners: Any
    label: str
    scores: Any


class Answer(OrderedDict):
    """A dict whose items are attributes, as models of libraries return it."""

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


def kinds(nest):
    """Return a nest with classes beside what is in them."""
    if isinstance(nest, dict):
        return type(nest).__name__, {name: kinds(each) for name, each in nest.items()}
    if isinstance(nest, list | tuple):
        return type(nest).__name__, [kinds(each) for each in nest]
    return nest


def of_its_kind(w, fn, make):
    """Yield the last results of a function with their classes."""
    for kept in called(w, fn, make):
        yield [kinds(each) for each in kept]


@trial(TRIALS)
def results_of_torch(w):
    """Named tuples of torch's own, as they are."""

    def fn(x):
        ranked = x.sort(dim=-1, stable=True)
        return x.topk(2), ranked, x.max(0), x.aminmax(), torch.linalg.slogdet(x @ x.T)

    yield from of_its_kind(w, fn, lambda: (w.values(4, 5),))


@trial(TRIALS)
def results_in_classes(w):
    """A dataclass, a named tuple and a dict of a class, one in another."""
    model = w.model(layers)

    def fn(x, *, labels=None, **more):
        logits = model(x)
        loss = None if labels is None else F.cross_entropy(logits, labels)
        out = Output(logits, loss, (x.mean(), [x.amax(1)]))
        boxes = Boxes(logits.relu(), "box", more.get("scale", 1.0) * logits.sum())
        return Answer(out=out, boxes=boxes, none=None)

    f = w.graph(fn)
    for i in range(CALLS):
        given = {"labels": w.ids(4) % 4, "scale": 2.0} if i < 5 else {}
        with torch.no_grad():
            answer = f(w.values(4, 8), **given)
        yield answer.out, kinds(answer.boxes), type(answer).__name__


@trial(TRIALS)
def shapes_beside_tensors(w):
    """Sizes, dtypes and plain values among tensors; views of one another."""

    def fn(x, axis):
        y = x.softmax(axis)
        top, *others = y.unbind(0)
        return {
            "size": y.shape,
            "same": [y, y, y.mT],
            "kind": str(y.dtype),
            "place": y.is_contiguous(),
            "parts": {"top": top[None], "others": tuple(others[:1])},
            3: (y.numel(), y.stride(), x.sum(axis, keepdim=True)),
        }

    f = w.graph(fn)
    for i in range(CALLS):
        y = f(w.values(3, 4), 0 if i < 4 else -1)
        yield kinds(y), y["same"][0] is y["same"][1]


class Carry(NamedTuple):
    hidden: Any
    place: Any
    extras: dict


@trial(TRIALS)
def states_in_a_named_tuple(w):
    """Each call's state is the next one's argument, and the old one stays as it was."""
    cell = w.model(lambda: nn.RNNCell(4, 4))

    def fn(x, carry):
        hidden = cell(x, carry.hidden)
        extras = {**carry.extras, "peak": torch.maximum(carry.extras["peak"], hidden)}
        return carry._replace(hidden=hidden, place=carry.place + 1, extras=extras)

    f = w.graph(fn)
    place = torch.zeros((), dtype=torch.int64, device=w.place)
    carry = Carry(w.values(2, 4), place, {"peak": w.values(2, 4)})
    for _ in range(CALLS):
        with torch.no_grad():
            before, carry = carry, f(w.values(2, 4), carry)
        yield kinds(before), kinds(carry)
        del before
