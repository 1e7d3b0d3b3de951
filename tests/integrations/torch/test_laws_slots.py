"""Tensors in slots: those that a function binds, and those that get other memory."""

from __future__ import annotations

import types

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn

pytestmark = pytest.mark.gpu


class Cell(nn.Module):
    """A module that keeps what it computes in slots of its own, of each kind."""

    def __init__(self, start):
        super().__init__()
        self.register_buffer("state", start)
        self.register_buffer("lazy", None)
        self.last, self.none = start, None

    def forward(self, x):
        if self.lazy is None:
            self.lazy = x * 0
        self.lazy += x
        self.state = (self.state + x).sin()
        self.last, self.fresh = self.state * 2, self.lazy - x
        self.none = x[1:]
        return self.state + self.lazy


@pytest.mark.parametrize("fresh", [True, False])
@torch.no_grad()
def test_modules_keep_tensors(alike, fresh):
    """Buffers that are assigned, lazy ones and plain attributes are as eagerly."""

    def program(w):
        cell = Cell(w.values(4))
        f, x, kept = w.graph(cell), w.values(4), []
        for _ in range(9):
            x = w.values(4) if fresh else x
            out = f(x)
            kept.append((out, dict(cell.named_buffers()), cell.last, cell.fresh))
            yield out, cell.state, cell.lazy, cell.last, cell.fresh, cell.none
        yield kept

    assert alike(program).count("passed_through") == 0


class Lazy(nn.Module):
    """A module that registers its buffer when it is first called."""

    def forward(self, x):
        if not hasattr(self, "cache"):
            self.register_buffer("cache", x * 0)
        self.cache += x
        return self.cache * 2


@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
@torch.no_grad()
def test_a_module_may_register_a_buffer(alike):
    """So is a buffer that a module comes to have."""

    def program(w):
        f = w.graph(Lazy())
        for _ in range(6):
            yield f(w.values(4))

    alike(program)


def test_a_state_carried_by_a_slot_settles(rt, same):
    """``o.h = o.h + x`` needs no more recordings than ``h = f(h)`` does."""
    start, x = torch.zeros(8, device="cuda"), torch.ones(8, device="cuda")
    o, plain = types.SimpleNamespace(h=start), start.clone()

    def carry(x):
        o.h = o.h * 0.5 + x
        return o.h - 1

    f = rt.graph(carry)
    for _ in range(40):
        f(x)
        plain = plain * 0.5 + x
    same(o.h, plain)
    recordings, o.h = f.stats().recordings, None
    assert recordings <= 3


def test_tensors_given_other_memory_are_noticed(alike):
    """Those whose ``data`` becomes another's, as those that are written."""

    def program(w):
        layer = types.SimpleNamespace(weight=w.values(4))
        f, x = w.graph(lambda x: x * layer.weight), w.values(4)
        for change in ("data", "write", "data") * 2:
            if change == "data":
                layer.weight.data = w.values(4)
            else:
                layer.weight.mul_(2)
            for _ in range(4):
                yield f(x), x

    alike(program)
