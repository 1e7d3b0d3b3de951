"""Laws 6 and 16: many shapes share memory; too little of it is said, not suffered."""

from __future__ import annotations

import gc
import random

import numpy as np
import pytest

import sapwood as sw
from sapwood import events
from tests.support.frameworks import on_host

PAGE = 1 << 16
BATCHES = (8, 1, 64, 2, 128, 32, 4, 16)
WIDTH = 2048


def _mlp(x, w):
    h = np.maximum(x * w, 0)
    h = h * 2 + x
    return (h * h)[:, ::2] - 1


def _host(batch, seed=0):
    return np.random.default_rng(seed).standard_normal((batch, WIDTH))


def _run_all(rt, batches, rounds=3):
    f, w = rt.graph(_mlp), rt.array(np.linspace(-1, 1, WIDTH))
    host_w = np.linspace(-1, 1, WIDTH)
    for seed in range(rounds):
        for batch in batches:
            host = _host(batch, seed)
            # Each input is made while the one before is there: none is where that was.
            x = rt.array(host)
            out = f(x, w)
            assert np.asarray(out).tobytes() == _mlp(host, host_w).tobytes()
            del out
    return f


@pytest.mark.parametrize("order", ["given", "rising", "falling"])
def test_eight_batch_sizes_share_pages(make_rig, order):
    """All of them take hardly more memory than the largest alone."""
    batches = {
        "given": BATCHES,
        "rising": tuple(sorted(BATCHES)),
        "falling": tuple(sorted(BATCHES, reverse=True)),
    }[order]
    alone = make_rig().runtime
    f = _run_all(alone, [max(BATCHES)])
    largest = alone.memory_stats()["pages.mapped"]
    rt = make_rig().runtime
    g = _run_all(rt, batches)
    stats = rt.memory_stats()
    assert g.stats().recordings == len(BATCHES)
    assert g.stats().replays == len(BATCHES)
    assert f.stats().recordings == 1
    assert stats["pages.live"] == 0
    assert stats["pages.mapped"] <= 1.1 * largest
    assert stats["ranges.pages"] > 1.5 * stats["pages.mapped"]


def test_batch_sizes_with_outputs_held(make_rig):
    """What is held comes on top, and no more than that."""
    alone = make_rig().runtime
    f = _run_all(alone, [max(BATCHES)])
    largest = alone.memory_stats()["pages.mapped"]
    rt = make_rig().runtime
    g, w = rt.graph(_mlp), rt.array(np.linspace(-1, 1, WIDTH))
    held = {}
    for seed in range(3):
        for batch in BATCHES:
            held[batch] = seed, g(rt.array(_host(batch, seed)), w)
    for batch, (seed, out) in held.items():
        expected = _mlp(_host(batch, seed), np.linspace(-1, 1, WIDTH))
        assert np.asarray(out).tobytes() == expected.tobytes()
    kept = sum(out.nbytes for _, out in held.values()) / PAGE
    assert rt.memory_stats()["pages.mapped"] <= 1.1 * largest + 2 * kept
    assert f.stats().evicted == 0


def test_shapes_in_a_cycle(agree):
    """200 shapes in turn: right, what fits is replayed, nothing recorded for ever."""

    def program(w):
        f = w.graph(lambda x: (x * 2, x.sum()))
        for _ in range(5):
            for size in range(1, 201):
                yield f(w.values(size))

    world = agree(program)
    assert world.count("warmups") == 200
    assert world.count("recordings") <= 2 * 64
    assert world.count("replays") >= 2 * 64
    assert world.count("passed_through") >= 2 * (200 - 64)
    assert world.count("evicted") <= 64


@pytest.mark.every_framework
# Where few recordings are ever replayed, that is told, once.
@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
def test_shapes_at_random(rt, framework):
    """200 shapes at random: bounded, mostly not recording, evictions reported."""
    draw, limit = random.Random(3), 16
    f = rt.graph(lambda x: x * 2, max_recordings=limit)
    given = [rt.array(np.arange(float(size))) for size in range(1, 201)]
    most, calls = 0, 1500 if framework.xp is np else 800
    for _ in range(calls):
        x = draw.choice(given)
        # Torch's tensors stay where they are: each that moves is recorded once more.
        x = rt.array(on_host(x)) if framework.xp is np else x
        assert on_host(f(x)).tobytes() == (on_host(x) * 2).tobytes()
        most = max(most, rt.memory_stats()["ranges"])
    stats = f.stats()
    assert most <= limit
    assert stats.recordings < calls / 3
    assert stats.evicted >= stats.recordings - limit
    told = [e for e in rt.events() if isinstance(e, events.Evicted)]
    assert told
    assert all(event.reason for event in told)
    assert "evict" in f.explain()


@pytest.mark.every_framework
def test_a_new_set_of_shapes_is_recorded_at_last(rt):
    """D test_graph_capture_reset_recapture: newcomers replace what is not used."""
    f = rt.graph(lambda x: x + 1, max_recordings=4)
    for sizes in ((1, 2, 3, 4), (5, 6, 7, 8)):
        given = [rt.array(np.zeros(size)) for size in sizes]
        for _ in range(8):
            for x in given:
                f(x)
        before = f.stats().replays
        for x in given:
            x[...] = 2.0
            assert on_host(f(x)).tolist() == [3] * len(x)
        assert f.stats().replays == before + 4
    assert f.stats().evicted == 4


@pytest.mark.every_framework
def test_memory_returns_with_the_function(rig):
    """A function that is gone takes its recordings and their pages with it."""
    rt = rig.runtime
    x = rt.array(np.zeros(10))
    before = rt.memory_stats()
    for i in range(3):
        f = rt.graph(lambda x: (x + 1, x - 1))
        for _ in range(5):
            kept = f(x)
        del f
        gc.collect()
        assert [on_host(each).tolist() for each in kept] == [[i + 1] * 10, [i - 1] * 10]
        del kept
        x += 1
    gc.collect()
    rt.synchronize()
    x += 1
    assert rt.memory_stats()["ranges"] == before["ranges"] == 0
    assert rt.memory_stats()["pages.mapped"] == 0
    assert rig.device.live_handles()["execs"] == 0


@pytest.mark.every_kind
def test_outputs_of_a_function_that_is_gone_go_one_by_one(rig):
    """Each takes its pages along, whoever has the others of the same recording."""
    rt, words = rig.runtime, 3 * rig.checked.abilities.page // 8
    f = rt.graph(lambda x: (x + 1, x + 2, x + 3))
    x = rt.array(np.zeros(words))
    for _ in range(4):
        kept = list(f(x))
    del f
    gc.collect()
    rt.synchronize()
    mapped = [rt.memory_stats()["pages.mapped"]]
    for left in (2, 1, 0):
        del kept[left // 2]
        gc.collect()
        rt.synchronize()
        mapped.append(rt.memory_stats()["pages.mapped"])
        assert mapped[-2] - mapped[-1] >= 2
        assert all(len(set(np.asarray(out).tolist())) == 1 for out in kept)
    assert mapped[-1] == 0
    assert rt.memory_stats()["ranges"] == 0


def test_evicted_memory_returns(rig):
    """One recording at a time needs the memory of one."""
    rt = rig.runtime
    f = rt.graph(lambda x: x * 2 + 1, max_recordings=1)
    most = 0
    for size in (10_000, 20_000, 40_000, 10_000):
        for _ in range(5):
            f(rt.array(np.zeros(size)))
        most = max(most, rt.memory_stats()["pages.mapped"])
    stats = rt.memory_stats()
    assert stats["ranges"] == 1
    assert most <= 3 * -(-40_000 * 8 // PAGE) + 2
    assert stats["pages.mapped"] < most
    assert rig.device.live_handles()["execs"] == 1


def test_a_short_memory_evicts_and_goes_on(make_rig):
    """Recordings give way when memory is short; nothing is lost, all is right."""
    rig = make_rig(total=120 * PAGE)
    rt = rig.runtime
    f = rt.graph(lambda x: (x * 2 + 1, x.sum()))
    for turn in range(3):
        for pages in (2, 10, 4, 12, 6, 14, 8, 16, 3, 5, 7, 9):
            host = np.arange(pages * PAGE / 8) + turn
            for _ in range(3):
                out, total = f(rt.array(host))
                assert np.asarray(out).tobytes() == (host * 2 + 1).tobytes()
                assert float(total) == host.sum()
                del out, total


@pytest.mark.parametrize("kind", ["device", "limit"])
def test_out_of_memory_while_recording(make_rig, kind):
    """What does not fit is an `OutOfMemory` that says who has the memory."""
    pages = 40
    options = (
        {"total": pages * PAGE} if kind == "device" else {"memory_limit": pages * PAGE}
    )
    rt = make_rig(**options).runtime
    small = rt.graph(lambda x: x + 1, name="small_one")
    x = rt.array(np.arange(100.0))
    for _ in range(3):
        held = small(x)
    large = rt.graph(lambda x: _chain_of_temporaries(x), name="large_one")
    big = rt.array(np.zeros(6 * PAGE // 8))
    with sw.disabled():
        total = float(large(big[:10]))
    assert total == 360.0
    with pytest.raises(sw.OutOfMemory) as failed:
        for _ in range(3):
            large(big)
    error = failed.value
    assert isinstance(error, MemoryError)
    assert error.asked > 0
    assert error.free >= 0
    assert error.largest >= 0
    assert error.holders
    assert all(size > 0 for _, size in error.holders)
    assert "eager" in str(error)
    del failed, error
    assert np.asarray(held).tobytes() == (np.arange(100.0) + 1).tobytes()
    for i in range(4):
        assert np.asarray(small(x)).tobytes() == (np.arange(100.0) + i + 1).tobytes()
        x += 1
    assert np.asarray(big).tobytes() == bytes(big.nbytes)


def _chain_of_temporaries(x):
    parts = [x + i for i in range(9)]
    return sum(part.sum() for part in parts)


@pytest.mark.every_framework
def test_recordings_are_evicted_before_memory_runs_out(make_rig, framework):
    """A recording that is in nobody's use gives its pages to a new one."""
    limit, size = 30 * PAGE, 6 * PAGE // 8
    if framework.xp is not np:
        limit, size = 112 << 20, 8 << 20
    rt = make_rig(memory_limit=limit).runtime
    one = rt.graph(lambda x: (x + 1) * 2, name="one")
    two = rt.graph(lambda x: (x - 1, x - 2), name="two")
    host = np.linspace(-1, 1, size).astype(framework.dtype)
    x = framework.array(rt, host)
    for _ in range(4):
        for _ in range(4):
            assert on_host(one(x)).tobytes() == ((host + 1) * 2).tobytes()
        for _ in range(4):
            parts = two(x)
            assert [on_host(part).tobytes() for part in parts] == [
                (host - 1).tobytes(),
                (host - 2).tobytes(),
            ]
            del parts
    total = rt.stats()
    assert total.evicted > 0
    assert total.replays > 0
    reasons = {e.reason for e in rt.events() if isinstance(e, events.Evicted)}
    assert any("memory" in reason for reason in reasons)


@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
def test_held_outputs_are_never_evicted(make_rig):
    """Live outputs are not given to anybody, however short memory is."""
    rt = make_rig(memory_limit=30 * PAGE).runtime
    f = rt.graph(lambda x: x + 1, max_variants=8)
    x = rt.array(np.zeros(2 * PAGE // 8))
    kept = []
    with pytest.raises(sw.OutOfMemory, match="live outputs"):
        for _ in range(40):
            kept.append(f(x))
            x += 1
    assert len(kept) > 3
    for i, out in enumerate(kept):
        assert np.asarray(out).tobytes() == np.full(2 * PAGE // 8, i + 1.0).tobytes()
    state = float(x[0])
    assert state == len(kept)
    kept.clear()
    for _ in range(4):
        assert float(f(x)[0]) == state + 1


@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
@pytest.mark.parametrize("limit", [30, 61])
@pytest.mark.parametrize("pages", [1, 2, 3])
def test_as_many_outputs_are_kept_as_without_recordings(make_rig, pages, limit):
    """Where there is no room to copy one out, recordings go, and the call is eager."""
    counts = []
    for graphed in (False, True):
        rt = make_rig(memory_limit=limit * PAGE).runtime
        f = rt.graph(lambda x: x + 1) if graphed else (lambda x: x + 1)
        x = rt.array(np.zeros(pages * PAGE // 8))
        kept = []
        with pytest.raises(sw.OutOfMemory):
            for _ in range(limit):
                kept.append(f(x))
                x += 1
        assert [float(out[-1]) for out in kept] == [*range(1, len(kept) + 1)]
        counts.append(len(kept))
        kept.clear()
    assert counts[1] == counts[0] == limit // pages - 1
    assert f.stats().replays + f.stats().evicted > 0
    assert "memory is short" in str(f.stats().skipped)
    x -= x
    for _ in range(70):
        assert float(f(x)[0]) == 1
    assert f.stats().replays > 40


def test_closing_gives_everything_back(rig, bits):
    """After `close`, only what is held remains, and it goes with its holder."""
    rt = rig.runtime
    f = rt.graph(_mlp)
    x, w = rt.array(_host(4)), rt.array(np.ones(WIDTH))
    kept = [f(x, w) for _ in range(4)]
    expected = _mlp(_host(4), np.ones(WIDTH))
    del x, w, f
    rt.close()
    rt.close()
    assert rig.device.live_handles()["execs"] == 0
    assert {leaf[-1] for leaf in bits(*kept)} == {expected.tobytes()}
    kept.clear()
    gc.collect()
    rig.check_leaks()
    with pytest.raises(sw.MisuseError):
        rt.array(np.zeros(1))


@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
@pytest.mark.parametrize("pages", range(3, 16))
def test_nothing_of_a_limit_is_left_unexplained(make_rig, pages):
    """Who is named holds all that is not free, and only what is held is to be freed."""
    rt = make_rig(memory_limit=pages * PAGE).runtime
    f = rt.graph(lambda x: (x + 1, (x * 2).sum()), max_variants=8)
    kept = []
    with pytest.raises(sw.OutOfMemory) as failed:
        x = rt.array(np.zeros(PAGE // 8))
        for _ in range(40):
            kept.append(f(x))
            x += 1
    error, text = failed.value, str(failed.value)
    assert sum(size for _, size in error.holders) + error.free >= pages * PAGE
    names = [who for who, _ in error.holders]
    assert ("drop outputs" in text.lower()) == ("live outputs" in names)
    assert ("drop arrays" in text.lower()) == ("eager arrays" in names)
    recorded = any(who.startswith("outputs and temporaries of") for who in names)
    assert ("max_recordings" in text) == recorded
    assert "memory_limit" in text


@pytest.mark.parametrize("limit", [None, 4 * PAGE])
def test_what_is_larger_than_all_there_is_is_not_blamed_on_anybody(make_rig, limit):
    """Nobody is told to drop what is not there, nor to raise what is not set."""
    rt = make_rig(total=64 * PAGE, memory_limit=limit).runtime
    with pytest.raises(sw.OutOfMemory, match="sk for less at once") as failed:
        rt.array(np.zeros(128 * PAGE // 8))
    text = str(failed.value)
    assert ("memory_limit" in text) == (limit is not None)
    assert "max_recordings" not in text
    assert "outputs" not in text


@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
def test_nearly_as_much_is_kept_as_without_recordings(make_rig):
    """Of outputs that need parts of pages, where memory is limited."""
    limit, kept = 32 * PAGE, {}
    for graphed in (False, True):
        rt, held = make_rig(memory_limit=limit).runtime, []
        step = lambda x: (x * 2, x + 1)  # noqa: E731
        f = rt.graph(step) if graphed else step
        with pytest.raises(sw.OutOfMemory):
            for k in range(1000):
                held.append(f(rt.array(np.ones(200 + k // 5 * 20))))  # noqa: PERF401
        kept[graphed] = sum(each.nbytes for pair in held for each in pair)
        del held
    assert kept[True] >= 0.85 * kept[False]
