"""Graphed inside graphed, methods, exceptions, and functions that cannot be graphed."""

from __future__ import annotations

import threading
import types

import pytest

import sapwood as sw

torch = pytest.importorskip("torch")
nn = torch.nn

pytestmark = pytest.mark.gpu


def test_a_graphed_part_of_a_training_step(rt, same):
    """A graphed model inside a graphed step, and for itself, under its own mode."""
    worlds = []
    for _ in range(2):
        torch.manual_seed(3)
        module = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)).cuda()
        worlds.append((module, torch.optim.SGD(module.parameters(), lr=0.1)))

    def stepping(forward, optimizer):
        def step(x):
            optimizer.zero_grad(set_to_none=True)
            loss = forward(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    (mine, one), (theirs, two) = worlds
    forward = rt.graph(mine)
    f, eager = rt.graph(stepping(forward, one)), stepping(theirs, two)
    for _ in range(8):
        x = torch.randn(4, 8, device="cuda")
        same(f(x), eager(x))
        same(list(mine.parameters()), list(theirs.parameters()))
        with torch.no_grad():
            same(forward(x), theirs(x))
    assert f.stats().replays >= 4
    assert forward.stats().replays >= 4


@torch.no_grad()
def test_methods_of_two_modules(alike):
    """So have the methods of modules, with parameters of their own."""

    def program(w):
        class Block(nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = nn.Parameter(w.values(4, 4))

            @w.graph
            def project(self, x):
                return x @ self.weight

            def forward(self, x):
                return self.project(x).relu()

        blocks, x = [Block(), Block()], w.values(2, 4)
        for i in range(8):
            if i == 5:
                blocks[0].weight = nn.Parameter(w.values(4, 4))
            yield [block(x) for block in blocks], blocks[1].project(x)

    alike(program)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_exit_on_the_recording_call(rt, bits, error):
    """A function that ends the program only when it is captured has run that once."""
    x, y = torch.ones(3, device="cuda"), torch.ones(3, device="cuda")
    kept, turns = types.SimpleNamespace(h=x * 0), threading.Semaphore(1)

    def fn(x):
        x += 1
        kept.h = x * 3
        if torch.cuda.is_current_stream_capturing() and turns.acquire(blocking=False):
            raise error
        return x * 2

    f = rt.graph(fn)
    f(x)
    with pytest.raises(error):
        f(x)
    y += 2
    assert bits(x, kept.h) == bits(y, y * 3)
    for _ in range(4):
        found = f(x)
        y += 1
        assert bits(found, kept.h) == bits(y * 2, y * 3)


def _yields(self, x):
    del self
    yield x


async def _waits(self, x):
    del self
    return x


@pytest.mark.parametrize("forward", [_yields, _waits])
def test_modules_that_cannot_be_graphed(rt, forward):
    """So are modules whose ``forward`` is one of those."""
    module = type("Odd", (nn.Module,), {"forward": forward})()
    with pytest.raises(sw.MisuseError):
        rt.graph(module)
