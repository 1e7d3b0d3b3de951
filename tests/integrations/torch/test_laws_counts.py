"""What a replay costs, in driver calls. Counted, not timed."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.gpu

ALLOCATING = {
    *("create", "map", "reserve", "set_access", "unmap", "release", "unreserve"),
    *("allocate_host", "free_host", "instantiate", "adopt_exec", "adopt_graph"),
    *("create_event", "create_stream", "begin_capture", "add_node", "surround"),
}


def hit(rig, f, *args):
    """Return the driver calls that one call makes, which must be a replay.

    Layers stand before the driver here, so that replays are played in Python.
    """
    before, memory = f.stats(), rig.runtime.memory_stats()
    reserved = torch.cuda.memory_stats()["allocation.all.allocated"]
    rig.recorded.reset()
    f(*args)
    counts = rig.recorded.counts()
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == reserved
    assert f.stats().replays == before.replays + 1
    assert f.stats().escaped == before.escaped
    assert rig.runtime.memory_stats() == memory
    assert not ALLOCATING & counts.keys()
    return counts


def ones(*shape):
    return torch.ones(*shape, device="cuda")


@pytest.mark.parametrize("k", [0, 1, 2, 3, 8])
def test_copied_leaves_cost_a_call_each_at_most(rig, rt, k):
    """With k copied leaves that moved, k calls more, no allocation, no mapping."""
    f = rt.graph(lambda fixed, *moving: sum(moving, fixed) * 2)
    fixed, held = ones(8), [[ones(8) for _ in range(k)] for _ in range(12)]
    for moving in held[:5]:
        f(fixed, *moving)
    for moving in held[5:]:
        counts = hit(rig, f, fixed, *moving)
        assert counts["launch_graph"] == 1
        assert sum(counts.values()) <= k + 1


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
