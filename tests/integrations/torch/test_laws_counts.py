"""What a replay costs, in driver calls. Counted, not timed."""

from __future__ import annotations

import pytest

from tests.support.frameworks import hit

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.gpu


def ones(*shape):
    return torch.ones(*shape, device="cuda")


@torch.no_grad()
def test_an_unchanged_call_is_one_driver_call(rig, rt):
    """Pinned arguments, parameters, buffers and constants cost nothing."""
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)).cuda()
    total = ones(4)

    def fn(x, n):
        total.add_(x[0] * n)
        return module(x), x[1:], x

    f, x = rt.graph(fn), ones(3, 4)
    for _ in range(5):
        f(x, 2)
    for _ in range(3):
        assert hit(rig, f, x, 2) == {"launch_graph": 1}


def test_a_training_step_is_one_driver_call(rig, rt):
    """Gradients are bound, and the parameters updated, at no other cost."""
    module = torch.nn.Linear(16, 4).cuda()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)

    def step(x):
        optimizer.zero_grad(set_to_none=True)
        loss = module(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    f, x = rt.graph(step), ones(8, 16)
    for _ in range(8):
        f(x)
    rig.recorded.reset()
    before = f.stats().replays
    for _ in range(6):
        f(x)
    assert f.stats().replays == before + 6
    assert rig.recorded.counts() == {"launch_graph": 6}
