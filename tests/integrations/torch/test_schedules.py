"""Schedulers that a function steps: another rate in each call, and yet replays."""

from __future__ import annotations

import math
from functools import partial

import pytest

torch = pytest.importorskip("torch")
F, optim = torch.nn.functional, torch.optim
schedulers = optim.lr_scheduler

pytestmark = [
    pytest.mark.gpu,
    # Torch's own, where it imports parts of itself.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
SKIPS = pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")

OPTIMIZERS = {
    "SGD": lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
    "AdamW": lambda p: optim.AdamW(p, lr=1e-2),
    "AdamW, capturable": lambda p: optim.AdamW(p, lr=1e-2, capturable=True),
    "two groups": lambda p: optim.Adam([{"params": [each]} for each in p], lr=1e-2),
}


class Warming:
    """A function of a step's number, as an object."""

    def __call__(self, step):
        return min(1.0, step / 8)


def _in_turn(optimizer):
    kinds = schedulers.ConstantLR(optimizer), schedulers.ExponentialLR(optimizer, 0.9)
    return schedulers.SequentialLR(optimizer, list(kinds), milestones=[4])


SCHEDULES = {
    "by steps": lambda o: schedulers.StepLR(o, 3, 0.5),
    "exponential": lambda o: schedulers.ExponentialLR(o, 0.95),
    "a cosine": lambda o: schedulers.CosineAnnealingLR(o, 10),
    "restarts": lambda o: schedulers.CosineAnnealingWarmRestarts(o, 4),
    "one cycle": lambda o: schedulers.OneCycleLR(o, 0.1, total_steps=60),
    "a function": lambda o: schedulers.LambdaLR(o, lambda i: math.cos(i / 20)),
    "an object": lambda o: schedulers.LambdaLR(o, Warming()),
    "part of one": lambda o: schedulers.LambdaLR(o, partial(max, 0.5)),
    "in turn": _in_turn,
}


class Trainer:
    """What steps a model, an optimizer and a scheduler, and counts."""

    def __init__(self, network, make, schedule):
        self.model, self.steps, self.losses = network(), 0, []
        self.optimizer = make(self.model.parameters())
        self.schedule = schedule(self.optimizer)

    def step(self, x, y):
        self.optimizer.zero_grad()
        loss = F.mse_loss(self.model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.schedule.step()
        self.steps += 1
        return loss.detach()

    def told(self):
        rates = [group["lr"] for group in self.optimizer.param_groups]
        weights = [each.detach().clone() for each in self.model.parameters()]
        state = [dict(self.optimizer.state[each]) for each in self.model.parameters()]
        counts = self.steps, self.schedule.last_epoch, self.schedule.get_last_lr()
        return weights, state, rates, counts, self.losses


def _trained(make, step="step", calls=16):
    def program(w):
        trainer = make()
        f, kept = w.graph(getattr(trainer, step)), []
        for _ in range(calls):
            kept.append(f(w.values(8, 16), w.values(8, 4)))
            yield kept, trainer.told()

    return program


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_a_scheduler_inside(alike, network, make):
    by_steps = SCHEDULES["exponential"]
    world = alike(_trained(lambda: Trainer(network, make, by_steps)))
    assert world.count("replays") >= 8
    assert world.count("passed_through") == 0


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_schedulers_of_all_kinds(alike, network, schedule):
    adamw = OPTIMIZERS["AdamW"]
    world = alike(_trained(lambda: Trainer(network, adamw, schedule)))
    assert world.count("replays") >= 8
    assert world.count("passed_through") == 0


class Accumulating(Trainer):
    """Steps every other time, and warms the rate up by hand between calls."""

    def step(self, x, y):
        loss = F.mse_loss(self.model(x), y) / 2
        loss.backward()
        self.steps += 1
        if self.steps % 2 == 0:
            self.optimizer.step()
            self.schedule.step()
            self.optimizer.zero_grad()
        return loss.detach()


class Reading(Trainer):
    """Says what rate there is."""

    def step(self, x, y):
        loss = super().step(x, y)
        return loss, self.schedule.get_last_lr()[0]


class Twice(Trainer):
    """Two steps in a call, with another rate each."""

    def step(self, x, y):
        super().step(x, y)
        return super().step(y @ x[:4], y)


class First(Trainer):
    """The scheduler goes first, as it did in old programs."""

    def step(self, x, y):
        self.schedule.step()
        self.optimizer.zero_grad()
        loss = F.mse_loss(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return loss.detach()


class Plateau(Trainer):
    """The scheduler looks at the loss."""

    def step(self, x, y):
        self.optimizer.zero_grad()
        loss = F.mse_loss(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        self.schedule.step(loss.item())
        return loss.detach()


class Own(schedulers.LRScheduler):
    """A user's, which looks at what the optimizer does not."""

    def get_lr(self):
        return [base / (1 + self.last_epoch) for base in self.base_lrs]


def _counting(optimizer):
    seen = []

    def rate(step):
        seen.append(step)
        return 1 / (1 + len(seen))

    return schedulers.LambdaLR(optimizer, rate)


@SKIPS
@pytest.mark.filterwarnings("ignore:Detected call of .lr_scheduler.step")
@pytest.mark.parametrize("cls", [Accumulating, Reading, Twice, First])
def test_other_ways_to_step_one(alike, network, cls):
    """Whether they are replayed or not."""
    make = OPTIMIZERS["AdamW"], SCHEDULES["exponential"]
    world = alike(_trained(lambda: cls(network, *make), calls=32))
    assert world.count("replays") >= (12 if cls is Accumulating else 0)


@SKIPS
@pytest.mark.parametrize("schedule", [Own, _counting, schedulers.ReduceLROnPlateau])
def test_what_is_not_torchs_own_code(alike, network, schedule):
    """Or needs a value: no region."""
    cls = Plateau if schedule is schedulers.ReduceLROnPlateau else Trainer
    alike(_trained(lambda: cls(network, OPTIMIZERS["AdamW"], schedule)))


@SKIPS
def test_a_rate_that_is_set_between_calls(alike, network):
    """By hand, and by loading a state."""

    def program(w):
        make = OPTIMIZERS["SGD"], SCHEDULES["by steps"]
        trainer = Trainer(network, *make)
        f, saved = w.graph(trainer.step), trainer.schedule.state_dict()
        for i in range(20):
            yield f(w.values(8, 16), w.values(8, 4)), trainer.told()
            if i == 9:
                trainer.optimizer.param_groups[0]["lr"] = 0.3
            if i == 14:
                trainer.schedule.load_state_dict(saved)

    assert alike(program).count("replays") >= 10


def test_one_that_is_stepped_outside_too(alike, network):
    """An optimizer whose scheduler one function steps, and another does not."""

    def program(w):
        trainer = Trainer(network, OPTIMIZERS["SGD"], SCHEDULES["exponential"])

        def plain(x, y):
            trainer.optimizer.zero_grad()
            loss = F.mse_loss(trainer.model(x), y)
            loss.backward()
            trainer.optimizer.step()
            return loss.detach()

        f, g = w.graph(trainer.step), w.graph(plain)
        for i in range(18):
            x, y = w.values(8, 16), w.values(8, 4)
            yield f(x, y), g(x, y), trainer.told()
            if i % 5 == 4:
                trainer.schedule.step()

    assert alike(program).count("replays") >= 16
