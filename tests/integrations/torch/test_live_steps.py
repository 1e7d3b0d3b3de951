"""Optimizers that no recording can step: their steps run live, between two parts."""

from __future__ import annotations

import math

import pytest

import sapwood as sw

torch = pytest.importorskip("torch")
F, optim = torch.nn.functional, torch.optim

pytestmark = [
    pytest.mark.gpu,
    # Torch's own, where it imports parts of itself.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

MADE = {
    "Adam": lambda p: optim.Adam(p, lr=1e-2),
    "AdamW, one by one": lambda p: optim.AdamW(p, lr=1e-2, foreach=False),
    "AdamW, fused": lambda p: optim.AdamW(p, lr=1e-2, fused=True),
    "AdamW, amsgrad": lambda p: optim.AdamW(p, lr=1e-2, amsgrad=True, maximize=True),
    "NAdam": lambda p: optim.NAdam(p, lr=1e-2, momentum_decay=1e-3),
    "RAdam": lambda p: optim.RAdam(p, lr=1e-2),
    "RMSprop": lambda p: optim.RMSprop(p, lr=1e-2, momentum=0.9),
    "Adagrad": lambda p: optim.Adagrad(p, lr=1e-2),
    "Adafactor": lambda p: optim.Adafactor(p, lr=1e-2),
    "ASGD": lambda p: optim.ASGD(p, lr=1e-2),
}


@pytest.fixture
def skipped(alike):
    """Return what runs a program whose function is skipped, and says so."""

    def run(program):
        with pytest.warns(sw.GraphSkipWarning) as told:
            alike(program)
        return str(told[0].message)

    return run


def _state(optimizer):
    return [
        dict(optimizer.state[p]) for g in optimizer.param_groups for p in g["params"]
    ]


def _trained(w, model, optimizer, step, calls=12):
    """Yield what training shows: losses that are kept, weights and their state."""
    f, losses = w.graph(step), []
    for _ in range(calls):
        losses.append(f(w.values(8, 16), w.values(8, 4)))
        yield losses, [p.detach() for p in model.parameters()], _state(optimizer)


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_steps_run_live(alike, network, replayed, make):
    def program(w):
        model = network(0.1)
        optimizer = make(model.parameters())

        def step(x, y):
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        yield from _trained(w, model, optimizer, step)

    replayed(alike(program), 7)


def test_what_is_behind_a_step_finds_new_weights(alike, network, replayed):
    """Norms are clipped in front of it, a mean of weights follows behind it."""

    def program(w):
        model, slow = network(), network()
        slow.load_state_dict(model.state_dict())
        optimizer = optim.AdamW(model.parameters(), lr=1e-2)

        def step(x, y):
            loss = F.mse_loss(model(x), y)
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            with torch.no_grad():
                for old, new in zip(slow.parameters(), model.parameters(), strict=True):
                    old.lerp_(new, 0.1)
            return loss.detach(), norm, slow(x).detach()

        for shown in _trained(w, model, optimizer, step):
            yield shown, slow.state_dict()

    replayed(alike(program), 7)


@pytest.mark.parametrize(
    "make",
    [
        lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: optim.AdamW(p, lr=1e-2),
        lambda p: optim.AdamW(p, lr=1e-2, capturable=True),
    ],
    ids=["SGD", "AdamW", "AdamW, capturable"],
)
def test_a_rate_of_each_call(alike, network, make):
    """A schedule goes on between calls."""

    def program(w):
        model = network()
        optimizer = make(model.parameters())
        schedule = optim.lr_scheduler.LambdaLR(optimizer, lambda i: math.cos(i / 20))

        def step(x, y):
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        for shown in _trained(w, model, optimizer, step, 24):
            yield shown, schedule.get_last_lr()
            schedule.step()

    assert alike(program).count("replays") >= 12


def test_steps_of_a_scaler(alike, network):
    """Where gradients overflow it leaves out the step, which it asks on the host."""

    def program(w):
        model = network()
        optimizer = optim.Adam(model.parameters(), lr=1e-2)
        scaler = torch.amp.GradScaler("cuda", init_scale=2.0**14, growth_interval=4)

        def step(x, y):
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=torch.float16):
                loss = F.mse_loss(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            return loss.detach()

        for shown in _trained(w, model, optimizer, step, 24):
            yield shown, scaler.get_scale()

    assert alike(program).count("replays") >= 8


def test_books_are_kept_beside_a_step(alike, network, replayed):
    """Counts, lists of losses and what is bound are written again by replays."""

    class Trainer:
        def __init__(self):
            self.model, self.steps, self.losses, self.last = network(), 0, [], None
            self.optimizer = optim.AdamW(self.model.parameters(), lr=1e-2)

        def step(self, x, y):
            self.steps += 1
            self.optimizer.zero_grad()
            made = self.model(x)
            loss = F.mse_loss(made, y)
            loss.backward()
            self.losses.append(loss.detach())
            self.optimizer.step()
            self.last = {"made": made.detach(), "loss": loss.detach()}
            if self.steps % 4 == 0:
                return loss.detach() * 2
            return loss.detach()

    def program(w):
        trainer = Trainer()
        f = w.graph(trainer.step)
        for _ in range(24):
            yield f(w.values(8, 16), w.values(8, 4)), trainer.steps, trainer.losses
            yield trainer.last, trainer.model.state_dict(), _state(trainer.optimizer)

    replayed(alike(program), 10)


def test_what_is_read_behind_a_step_decides(alike, network):
    """A call that goes a new way does not step twice."""

    def program(w):
        model = network()
        optimizer = optim.AdamW(model.parameters(), lr=3e-2)

        def step(x, y):
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                if F.mse_loss(model(x), y) > loss * 0.98:
                    model[0].bias.mul_(0.5)
            return loss.detach()

        yield from _trained(w, model, optimizer, step, 30)

    assert alike(program).count("replays") >= 8


def test_losses_are_read_behind_a_step(alike, network, replayed):
    """As most training loops do, which print them or keep them."""

    def program(w):
        model = network()
        optimizer = optim.AdamW(model.parameters(), lr=1e-2)

        def step(x, y):
            optimizer.zero_grad()
            made = model(x)
            loss = F.mse_loss(made, y)
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            with torch.no_grad():
                right = (made.argmax(1) == y.argmax(1)).float().mean()
            return {"loss": loss.item(), "right": float(right), "norm": norm.item()}

        yield from _trained(w, model, optimizer, step, 16)

    replayed(alike(program), 11)


@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
def test_weights_that_move(alike, network):
    """Their memory is another one every second call."""

    def program(w):
        model = network()
        optimizer = optim.AdamW(model.parameters(), lr=1e-2)

        def step(x, y):
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            return loss.detach(), model(x).detach()

        f, kept = w.graph(step), []
        for i in range(20):
            if i % 2:
                kept.append([p.data for p in model.parameters()])
                for p in model.parameters():
                    p.data = p.data.clone()
            yield f(w.values(8, 16), w.values(8, 4)), model.state_dict()
            yield _state(optimizer), kept

    alike(program)


def test_a_step_that_raises(alike, network):
    """It ends the call as it ends the plain one, and the next goes on."""

    def program(w):
        model = network()
        optimizer = optim.AdamW(model.parameters(), lr=1e-2)

        def step(x, y):
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        f = w.graph(step)
        for i in range(16):
            optimizer.param_groups[0]["weight_decay"] = "much" if i == 9 else 0.1
            args = w.values(8, 16), w.values(8, 4)
            try:
                yield f(*args)
            except TypeError as error:
                yield str(error)
            yield model.state_dict(), _state(optimizer)
            yield [p.grad for p in model.parameters()]

    alike(program)


def test_hooks_run_in_their_order(skipped, network):
    """What is hooked to a step runs in front of it, or behind it, on every call."""

    def program(w):
        model = network()
        optimizer = optim.Adam(model.parameters(), lr=1e-2)

        def halve(*_):
            for each in model.parameters():
                each.grad.mul_(0.5)

        def decay(*_):
            with torch.no_grad():
                for each in model.parameters():
                    each.mul_(0.999)

        optimizer.register_step_post_hook(decay)
        optimizer.register_step_pre_hook(halve)

        def step(x, y):
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        yield from _trained(w, model, optimizer, step)

    skipped(program)


def test_groups_and_weights_that_come_later(alike, network):
    def program(w):
        model, late = network(), network()
        optimizer = optim.AdamW(model.parameters(), lr=1e-2)

        def step(x, y):
            optimizer.zero_grad()
            loss = F.mse_loss(model(x) + late(x), y)
            loss.backward()
            optimizer.step()
            return loss.detach()

        f = w.graph(step)
        for i in range(16):
            if i == 8:
                optimizer.add_param_group({"params": [*late.parameters()], "lr": 0.1})
            yield (
                f(w.values(8, 16), w.values(8, 4)),
                late.state_dict(),
                _state(optimizer),
            )

    alike(program)


def test_two_optimizers_take_turns(alike, network, replayed):
    def program(w):
        maker, judge = network(), network()
        first = optim.Adam(maker.parameters(), lr=1e-2)
        second = optim.Adam(judge.parameters(), lr=1e-2)

        def step(x, y):
            second.zero_grad()
            found = F.softplus(judge(x) - y).mean()
            found.backward()
            second.step()
            first.zero_grad()
            fooled = F.softplus(-judge(x) + maker(x)).mean()
            fooled.backward()
            first.step()
            return found.detach(), fooled.detach()

        for shown in _trained(w, maker, first, step):
            yield shown, judge.state_dict(), _state(second)

    replayed(alike(program), 7)
