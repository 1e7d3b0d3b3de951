"""Recordings in a long life: nothing grows, nothing is overwritten, nothing hangs.

$SAPWOOD_STRESS is how many seconds threads allocate beside captures, 5 by default.
"""

from __future__ import annotations

import gc
import os
import random
import threading
import time
import weakref

import pytest

import sapwood as sw

torch = pytest.importorskip("torch")
nn = torch.nn

if torch.cuda.is_available():
    from sapwood.integrations.torch.capture import _orphans, close_orphans

pytestmark = pytest.mark.gpu

MIB = 1 << 20


def randn(*shape):
    return torch.randn(*shape, device="cuda")


def product(a, b):
    return a @ b


def held(rt):
    """Pages of recordings, torch's bytes, and the device's, if they are ours alone."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    stats, (free, total) = rt.memory_stats(), torch.cuda.mem_get_info()
    shared = "PYTEST_XDIST_WORKER" in os.environ
    return {
        "pages": stats["pages.mapped"],
        "heap": stats["heap.pages"],
        "torch's": torch.cuda.memory_reserved(),
        "device": 0 if shared else total - free,
    }


def test_ten_thousand_replays_need_no_more_memory(rt):
    """Results are kept and dropped at random; all that are kept stay."""

    def work(x):
        return x * 2, x.sum()

    f, drawn, kept = rt.graph(work), random.Random(1), []
    arguments = [randn(1 << 16) for _ in range(5)]
    expected = [work(x) for x in arguments]
    marks = []
    for i in range(10_000):
        which = drawn.randrange(5)
        kept.append((which, f(arguments[which])))
        while len(kept) > 6 or (kept and drawn.random() < 0.5):
            which, found = kept.pop(drawn.randrange(len(kept)))
            if i % 8 == 0:
                assert all(map(torch.equal, found, expected[which]))
            del found
        if i in (2_000, 9_999):
            kept.clear()
            marks.append(held(rt))
    before, after = marks
    assert all(after[name] <= before[name] for name in before), marks
    assert f.stats().replays > 9_900


def test_three_recordings_among_heavy_eager_work(rt, same):
    """Eager work allocates, frees and gives back much between replays of three."""
    torch.manual_seed(2)
    modules = [
        nn.Sequential(nn.Linear(64, width), nn.GELU(), nn.Linear(width, 64)).cuda()
        for width in (256, 1024, 4096)
    ]
    functions = [rt.graph(module) for module in modules]
    drawn, kept, junk = random.Random(3), [], []
    with torch.no_grad():
        for i in range(300):
            x = randn(drawn.choice([8, 512]), 64)
            which = drawn.randrange(3)
            kept.append((functions[which](x), modules[which](x)))
            size = drawn.randrange(1, 32 * MIB)
            junk.append(torch.full((size,), 7.0, device="cuda"))
            while len(junk) > 3 or (junk and drawn.random() < 0.5):
                assert bool((junk.pop(drawn.randrange(len(junk))) == 7).all())
            if i % 40 == 39:
                torch.cuda.empty_cache()
            while len(kept) > 5:
                same(*kept.pop(drawn.randrange(len(kept))))
    for pair in kept:
        same(*pair)


def test_a_workspace_first_made_inside_a_capture(rt, same):
    """Products that need a workspace have theirs in each recording, eager ones not."""
    shapes = [(64, 16384, 64), (128, 8192, 32), (32, 32768, 96)]
    pairs = [(randn(n, k), randn(k, m)) for n, k, m in shapes]
    functions = [rt.graph(product, name=f"product {n}") for n in range(3)]
    results = []

    def capture():
        # This thread has no workspace yet, and the others' are gone.
        torch._C._cuda_clearCublasWorkspaces()
        for f, pair in zip(functions, pairs, strict=True):
            results.append(f(*pair))

    for f, pair in zip(functions, pairs, strict=True):
        f(*pair)
    thread = threading.Thread(target=capture)
    thread.start()
    thread.join()
    expected = [product(*pair) for pair in pairs]
    same(results, expected)
    torch._C._cuda_clearCublasWorkspaces()
    junk = [torch.full((8 * MIB,), torch.nan, device="cuda") for _ in range(4)]
    for i in range(30):
        # One after another without a wait: each must leave the others' alone.
        found = [f(*pair) for f, pair in zip(functions, pairs, strict=True)]
        again = [product(*pair) for pair in pairs]
        same(found, expected)
        same(again, expected)
        if i % 10 == 9:
            torch._C._cuda_clearCublasWorkspaces()
    assert all(bool(each.isnan().all()) for each in junk)
    assert all(f.stats().replays >= 20 for f in functions)


def test_only_autograd_has_it(rt, same):
    """A result that eager autograd alone has saved is there for its way back."""
    f, weight = rt.graph(lambda x: x.exp()), randn(64).requires_grad_()
    waiting = []
    for _ in range(40):
        x = randn(64)
        waiting.append(((f(x) * weight).sum(), x.exp()))
        if len(waiting) > 5:
            total, expected = waiting.pop(0)
            (found,) = torch.autograd.grad(total, weight)
            same(found, expected)
            del total, found


class Allocating(threading.Thread):
    """Allocates, fills, checks and frees, here and on a stream of its own."""

    def __init__(self, seed, until):
        super().__init__()
        self.drawn, self.until = random.Random(seed), until
        self.count, self.died, self.wrong = 0, 0, []

    def run(self):
        try:
            self.work()
        except BaseException as error:  # noqa: BLE001 - the test itself reports it
            self.wrong.append(error)

    def work(self):
        mine, stream = [], torch.cuda.Stream()
        with torch.cuda.stream(stream):
            while time.monotonic() < self.until:
                size, mark = self.drawn.choice([8, 999, 70_000, MIB]), self.count
                tensor = torch.full((size,), float(mark % 512), device="cuda")
                weakref.finalize(tensor, self.note)
                cycle = [tensor]
                cycle.append(cycle)
                mine.append((tensor, mark % 512))
                self.count += 1
                del tensor, cycle
                if len(mine) > 12:
                    found, mark = mine.pop(self.drawn.randrange(len(mine)))
                    assert bool((found == mark).all()), "overwritten"
                    del found
        stream.synchronize()

    def note(self):
        self.died += 1


def test_threads_allocate_and_free_beside_captures(rt, same):
    """Captures and the allocator's users neither wait for ever nor disturb another."""
    seconds = float(os.environ.get("SAPWOOD_STRESS", "5"))
    until = time.monotonic() + seconds
    threads = [Allocating(seed, until) for seed in range(4)]
    for each in threads:
        each.start()
    captures = 0
    try:
        while time.monotonic() < until:
            width = 16 + captures % 40 * 8
            module = nn.Sequential(nn.Linear(width, width), nn.GELU()).cuda()
            f = rt.graph(module)
            with torch.no_grad():
                for _ in range(4):
                    x = randn(8, width)
                    same(f(x), module(x))
            captures += f.stats().recordings
            if captures % 16 == 0:
                gc.collect()
    finally:
        for each in threads:
            each.join(60)
    assert not [error for each in threads for error in each.wrong]
    assert not any(each.is_alive() for each in threads)
    assert all(each.count > 20 and each.died for each in threads)
    assert captures >= seconds


def test_nobody_is_given_the_stream_of_captures(rt, same):
    """Torch has 32 streams, and gives them out in turn."""
    seen, x = set(), randn(16)

    def work(x):
        seen.add(torch.cuda.current_stream().cuda_stream)
        return x * 2

    f = rt.graph(work)
    for _ in range(4):
        same(f(x), x * 2)
    assert f.stats().replays
    given = {torch.cuda.Stream().cuda_stream for _ in range(64)}
    assert seen - {torch.cuda.current_stream().cuda_stream}
    assert not seen & given


def test_what_captures_made_outlives_their_runtime():
    """Tensors in cycles, whose runtime is closed and gone: torch finds them all."""
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8)
    ).cuda()
    gc.collect()
    close_orphans()
    others = {*_orphans}
    gc.disable()
    try:
        for _ in range(4):
            _leave_behind(model)
            model.zero_grad(set_to_none=True)
    finally:
        gc.enable()
    gc.collect()
    close_orphans()
    assert not {*_orphans} - others


def _leave_behind(model):
    shown = {}
    shown["itself"] = shown
    runtime = sw.Runtime(device="cuda:0", arrays="torch")

    @runtime.graph
    def step(x):
        shown["h"] = model(x)
        loss = shown["h"].square().mean()
        loss.backward()
        return loss.detach()

    kept = [step(torch.randn(16, 64, device="cuda")) for _ in range(8)]
    assert len({each.data_ptr() for each in kept}) == len(kept)
    assert step.stats().recordings
    shown["kept"] = kept
    runtime.close()
