"""Many shapes share memory; where there is too little, that is said, not suffered."""

from __future__ import annotations

import gc

import pytest

import sapwood as sw
from tests.support.rig import Rig

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.gpu

MIB = 1 << 20
BATCHES = (8, 1, 64, 2, 128, 32, 4, 16)
ORDERS = {
    "given": BATCHES,
    "rising": tuple(sorted(BATCHES)),
    "falling": tuple(sorted(BATCHES, reverse=True)),
}
WIDTH = 1 << 16


@pytest.fixture
def make_rig():
    """Return a maker of runtimes, leak-checked when the test is over."""
    made = []

    def make(**options):
        made.append(Rig("cuda", arrays="torch", **options))
        return made[-1]

    yield make
    for each in made:
        each.finish()


def layers(x, w):
    h = (x * w).relu()
    h = h * 2 + x
    return (h * h)[:, ::2] - 1


def weights():
    return torch.linspace(-1, 1, WIDTH, device="cuda")


def of_sizes(sizes):
    return [torch.randn(size, device="cuda") for size in sizes]


def run_all(rt, same, batches, rounds=3):
    f, w = rt.graph(layers), weights()
    for _ in range(rounds):
        for batch in batches:
            x = torch.randn(batch, WIDTH, device="cuda")
            same(f(x, w), layers(x, w))
    return f


@pytest.mark.parametrize("order", ORDERS)
def test_eight_batch_sizes_share_pages(make_rig, same, order):
    """All of them take hardly more memory than the largest alone."""
    alone = make_rig().runtime
    lasting = run_all(alone, same, [max(BATCHES)])
    largest = alone.memory_stats()["pages.mapped"]
    rt = make_rig().runtime
    f = run_all(rt, same, ORDERS[order])
    stats = rt.memory_stats()
    assert lasting.stats().recordings == 1
    assert f.stats().recordings == f.stats().replays == len(BATCHES)
    assert stats["pages.live"] == 0
    assert stats["pages.mapped"] <= 1.1 * largest
    assert stats["ranges.pages"] > stats["pages.mapped"]


def test_batch_sizes_with_outputs_held(make_rig, same):
    """What is held comes on top, and no more than that."""
    alone = make_rig().runtime
    lasting = run_all(alone, same, [max(BATCHES)])
    largest = alone.memory_stats()["pages.mapped"]
    rt = make_rig().runtime
    f, w, held = rt.graph(layers), weights(), {}
    for _ in range(3):
        for batch in BATCHES:
            x = torch.randn(batch, WIDTH, device="cuda")
            held[batch] = f(x, w), layers(x, w)
    for pair in held.values():
        same(*pair)
    stats = rt.memory_stats()
    assert lasting.stats().recordings == 1
    assert stats["pages.mapped"] <= 1.1 * largest + 2 * stats["pages.live"]
    assert f.stats().evicted == 0


def test_shapes_in_a_cycle(rt, same):
    """200 shapes in turn: right, what fits is replayed, nothing recorded for ever."""
    limit, most, given = 16, 0, of_sizes(range(1, 201))
    f = rt.graph(lambda x: (x * 2, x.sum()), max_recordings=limit)
    for _ in range(4):
        for x in given:
            same(f(x), (x * 2, x.sum()))
            x.add_(1)
        most = max(most, rt.memory_stats()["ranges"])
    stats = f.stats()
    assert most <= limit
    assert stats.warmups == 200
    assert stats.recordings <= 2 * limit
    assert stats.replays >= 2 * limit
    assert stats.passed_through >= 2 * (200 - limit)


# Too little.


def test_out_of_memory_while_recording(make_rig, same):
    """What does not fit is an `OutOfMemory` that says who has the memory."""
    rt = make_rig(memory_limit=96 * MIB).runtime
    small, x = rt.graph(lambda x: x + 1, name="small"), torch.randn(100, device="cuda")
    for _ in range(4):
        held, expected = small(x), x + 1

    def sums(x):
        parts = [x + i for i in range(9)]
        return sum(part.sum() for part in parts)

    large, big = rt.graph(sums, fullgraph=True), torch.zeros(8 * MIB, device="cuda")
    with pytest.raises(sw.OutOfMemory) as failed:
        for _ in range(3):
            large(big)
    error = failed.value
    assert isinstance(error, MemoryError)
    assert error.asked > 0
    assert error.free >= 0
    assert error.largest >= 0
    assert all(size > 0 for _, size in error.holders)
    del failed, error
    same((held, large.__wrapped__(big)), (expected, sums(big)))
    for _ in range(4):
        same(small(x), x + 1)
        x += 1
    assert not big.any()
    with sw.disabled():
        same(large(big), sums(big))


@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
def test_held_outputs_are_never_evicted(make_rig, same):
    """Live outputs are not given to anybody, and calls get their memory elsewhere.

    Past the limit they run eagerly, which has memory of its own.
    """
    rt = make_rig(memory_limit=96 * MIB).runtime
    f = rt.graph(lambda x: x + 1, max_variants=8)
    x, kept = torch.zeros(2 * MIB, device="cuda"), []
    for _ in range(40):
        kept.append((f(x), x + 1))
        x += 1
    for pair in kept:
        same(*pair)
    assert float(x[0]) == len(kept) == 40
    kept.clear()
    gc.collect()
    for _ in range(4):
        same(f(x), x + 1)


def test_closing_gives_everything_back(rig, rt, same):
    """After `close`, only what is held remains, and it goes with its holder."""
    f, w = rt.graph(layers), weights()
    x = torch.randn(4, WIDTH, device="cuda")
    kept = [f(x, w) for _ in range(5)]
    rt.close()
    assert rig.device.live_handles()["execs"] == 0
    for each in kept:
        same(each, layers(x, w))
    del each
    kept.clear()
    gc.collect()
    held = rig.device.live_handles()
    assert [held[each] for each in ("reservations", "extents", "mappings")] == [0] * 3
    with pytest.raises(sw.MisuseError):
        rt.array([0.0])
