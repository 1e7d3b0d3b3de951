"""Whichever driver call fails, once, nothing is lost and nothing leaks.

A scenario is run with one call after another failing, of those that go through this
library's driver. What torch asks of CUDA by itself is not among them.
"""

from __future__ import annotations

import gc

import pytest

import sapwood as sw

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.gpu

SURVIVABLE = {"create", "allocate_host"}


class Trial:
    """One run of a scenario: its errors, and how each next call is checked."""

    def __init__(self, rt, bits):
        self.rt, self.bits = rt, bits
        self.errors = []

    def graph(self, fn, **options):
        """Graph a function of which nothing is skipped."""
        return self.rt.graph(fn, fullgraph=True, **options)

    def call(self, f, plain, tensors):
        """Call ``f``; if it works, it did what ``plain`` does to the state left.

        Returns the result, or None where it failed.
        """
        left = [each.clone() for each in tensors]
        try:
            result = f(*tensors)
        except sw.DriverError as error:
            self.errors.append(error.call)
            return None
        expected = plain(*left)
        assert self.bits(*result) == self.bits(*expected)
        assert self.bits(*tensors) == self.bits(*left)
        return result


def train(w, x):
    w *= 0.5
    w += x
    h = w + x
    return h, (h * h).sum()


def arguments():
    return torch.arange(8.0, device="cuda"), torch.ones(8, device="cuda")


def lasting(trial):
    """Warm-up, recording and replays with arguments that stay."""
    f, (w, x) = trial.graph(train), arguments()
    for _ in range(5):
        trial.call(f, train, (w, x))


def moving(trial):
    """Copied leaves, copied back where they are written."""
    f, x = trial.graph(train), arguments()[1]
    held = [arguments()[0] for _ in range(5)]
    for w in held:
        trial.call(f, train, (w, x))


def kept(trial):
    """Variants, and escapes."""
    f, (w, x) = trial.graph(train, max_variants=2), arguments()
    held = []
    for _ in range(6):
        out = trial.call(f, train, (w, x))
        if out is not None:
            held.append((out, trial.bits(*out)))
    for out, values in held:
        assert trial.bits(*out) == values


def double(h):
    return (h * 2,)


def evicting(trial):
    """Two shapes for one place; a parent that is evicted under its child."""
    f, g = trial.graph(double, max_recordings=1), trial.graph(double)
    x = torch.ones(1 << 20, device="cuda")
    for part in (x[:8], x):
        for _ in range(3):
            out = trial.call(f, double, (part,))
            if out is not None:
                trial.call(g, double, out)
        del out


def slots(trial):
    """Outputs that are bound."""
    holder, (h, x) = {}, arguments()
    holder["h"] = h

    def fn(x):
        holder["h"] = holder["h"] * 0.5 + x
        return (holder["h"] + 0.0,)

    f = trial.graph(fn)
    for _ in range(4):
        before = holder["h"].clone()
        out = trial.call(f, lambda x, before=before: (before * 0.5 + x + 0.0,), (x,))
        if out is not None:
            assert trial.bits(holder["h"])[0] == trial.bits(*out)[0]


def gradients(trial):
    """A step of training, by which gradients are bound."""
    module = torch.nn.Linear(4, 1).cuda()

    def fn(x):
        module.zero_grad(set_to_none=True)
        module(x).sum().backward()
        return (module.weight.detach() + 0.0,)

    f, x = trial.graph(fn), torch.ones(2, 4, device="cuda")
    for _ in range(4):
        out = trial.call(f, lambda _: (module.weight.detach() + 0.0,), (x,))
        if out is not None:
            assert trial.bits(module.weight.grad[0]) == trial.bits(x.sum(0))


SCENARIOS = {f.__name__: f for f in (lasting, moving, kept, evicting, slots, gradients)}


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_call_may_fail(rig, rt, bits, name, record_property):
    """A driver call fails once: a `DriverError`, no leak, and right afterwards."""
    faulty, scenario, fired = rig.faulty, SCENARIOS[name], 0
    whole, start = Trial(rt, bits), faulty.position
    scenario(whole)
    assert whole.errors == []
    count = faulty.position - start
    # Captures take their time: at most so many of all.
    for position in range(0, count, max(1, count // 30)):
        gc.collect()
        trial = Trial(rt, bits)
        faulty.fired, faulty.plan = None, {faulty.position + position}
        scenario(trial)
        faulty.plan = ()
        about = f"{name}: call {position}, {faulty.fired}, was made to fail"
        assert len(trial.errors) <= 1, about
        if faulty.fired is None:
            assert trial.errors == []
            continue
        fired += 1
        if faulty.fired not in SURVIVABLE:
            assert trial.errors == [faulty.fired], about
    assert fired > 10
    record_property("positions", fired)
