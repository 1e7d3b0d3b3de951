"""Calls of torch's functions that stray behind an eager region go on as eager ones."""

from __future__ import annotations

import pytest

import sapwood as sw

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning"),
]


def test_an_optimizer_that_no_capture_steps(alike):
    """Adam raises in captures alone, here where a part has run and a region has."""

    def program(w):
        torch.manual_seed(3)
        model = nn.Linear(6, 3, device="cuda")
        optimizer, seen = torch.optim.Adam(model.parameters()), []
        log = sw.eager(lambda loss: seen.append(loss.item()))

        def step(x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            log(loss)
            optimizer.step()
            return loss.detach()

        f = w.graph(step)
        for i in range(6):
            yield f(w.values(4, 6)), *model.parameters(), seen
            assert len(seen) == i + 1

    alike(program)


def test_random_numbers_before_a_region_that_strays(alike):
    """Torch's generator is where it was when the call began."""

    def program(w):
        torch.manual_seed(3)
        calls = []

        @sw.eager
        def pick(h):
            calls.append(1)
            return h[: -1 if len(calls) > 6 else None] + 0

        def fn(x):
            h = F.dropout(x, 0.5)
            return pick(h) * 2 + torch.rand(1, device="cuda")

        f = w.graph(fn)
        for i in range(10):
            yield f(w.values(8))
            assert len(calls) == i + 1

    alike(program)
