"""A replay like the one before takes its storages again: never one that is held.

Whatever a program holds of an earlier result, and by whatever way, has the values that
it had, however many calls come after it.
"""

from __future__ import annotations

import gc
import random
import weakref
from functools import partial

import pytest

import sapwood as sw
from sapwood.tree.run.runner import Runner
from tests.support.threads import in_threads

torch = pytest.importorskip("torch")
nn = torch.nn

pytestmark = pytest.mark.gpu

AFTER = 20
"""Calls after one whose result is held: fast, recorded anew, and fast again."""


def randn(*shape):
    return torch.randn(*shape, device="cuda")


def work(x):
    """Two storages; two results view the first."""
    y = x * 2 + 1
    return {"all": y, "part": y[1:], "other": x.sin()}


def bend(x):
    return {"all": x.exp(), "sums": x.sum(1)}


def multiply(x):
    return {"all": (x @ x.t()).relu()}


def advance(x):
    return torch.sin(x) * 1.5 + 0.1


@pytest.fixture
def f(rt):
    """Return the function, replayed until its storages are kept."""
    made = rt.graph(work)
    settle(rt, lambda: made(randn(6, 7)))
    return made


def settle(rt, call):
    """Call, and drop the result, until a replay keeps its storages for the next."""
    for _ in range(64):
        call()
        if rt._recordings.kept:
            return
    pytest.fail("what is tested here is fast replays, and no call is one")


def test_what_is_held_stays(rt, f, same, hold):
    """Of one result alone something is held: later calls leave it as it is."""
    held = []
    for which in ("all", "part", "other", "all"):
        x = randn(6, 7)
        found, expected = f(x), work(x)
        held.append((hold(found[which]), hold(expected[which])))
        del found, expected
        for _ in range(AFTER):
            x = randn(6, 7)
            same(f(x), work(x))
    for found, expected in held:
        same(found(), expected())
    del held, found, expected
    gc.collect()
    settle(rt, lambda: same(f(x), work(x)))


def test_whatever_is_held_stays(rt, holds, same):
    """Three functions, results held in all ways at once, written to, and dropped."""
    functions = [(each, rt.graph(each)) for each in (work, bend, multiply)]
    drawn, held = random.Random(4), []
    for _ in range(900):
        eager, graphed = drawn.choice(functions)
        x = randn(6, 7)
        found, expected = graphed(x), eager(x)
        same(found, expected)
        deed, key = drawn.random(), drawn.choice([*expected])
        if deed < 0.2 and found[key].dim() == 2:
            hold = drawn.choice(holds)
            held.append((hold(found[key]), hold(expected[key])))
        elif deed < 0.3:
            found[key].fill_(torch.nan)
        del found, expected
        while held and (len(held) > 12 or drawn.random() < 0.1):
            mine, theirs = held.pop(drawn.randrange(len(held)))
            same(mine(), theirs())
            del mine, theirs
    for mine, theirs in held:
        same(mine(), theirs())


def test_what_is_known_weakly_is_gone(f):
    """A weak reference holds nothing: the next result may lie in the same place."""
    places = set()
    for _ in range(AFTER):
        found = f(randn(6, 7))
        known = [weakref.ref(each) for each in found.values()]
        places.add(found["all"].data_ptr())
        del found
        assert all(each() is None for each in known)
    assert len(places) == 1


def test_a_result_is_the_next_argument(rt, same):
    """An output that is passed in again is read before it is overwritten."""
    f = rt.graph(advance)
    settle(rt, lambda: f(randn(64)))
    for length in (1, 2, 3, AFTER):
        for _ in range(3):
            x = y = randn(64)
            for _ in range(length):
                x, y = f(x), advance(y)
            same(x, y)
            del x, y
            settle(rt, lambda: f(randn(64)))


def test_results_written_to_are_written_anew(f, same):
    """What a program does to a result that it drops is not seen by the next."""
    for _ in range(AFTER):
        x = randn(6, 7)
        found = f(x)
        same(found, work(x))
        for each in found.values():
            each.fill_(torch.nan)


def test_results_outlive_the_runtime(rt, f, same, holds):
    """Results that are held when the runtime is closed stay readable."""
    held = []
    for hold in holds:
        x = randn(6, 7)
        held.append((hold(f(x)["all"]), hold(work(x)["all"])))
    rt.close()
    junk = [randn(6, 7) for _ in range(AFTER)]
    for mine, theirs in held:
        same(mine(), theirs())
    del junk


def test_threads_hold_results_of_one_function(f, same):
    """Each of four threads has its own latest results, and drops them when it likes."""
    # Not drawn by the threads: torch refuses that while one of them captures.
    given = [[randn(6, 7) for _ in range(60)] for _ in range(4)]

    def run(seed):
        drawn, held = random.Random(seed), []
        for x in given[seed]:
            held.append((f(x), work(x)))
            while len(held) > 3 or (held and drawn.random() < 0.5):
                same(*held.pop(drawn.randrange(len(held))))

    in_threads(*(partial(run, seed) for seed in range(4)))


def test_results_used_on_another_stream(f, same):
    """A stream that the caller waits for has read a result before it is overwritten.

    To record it as well, now and then, changes nothing.
    """
    side, here = torch.cuda.Stream(), torch.cuda.current_stream()
    sums = []
    for i in range(2 * AFTER):
        x = randn(6, 7)
        found = f(x)
        side.wait_stream(here)
        with torch.cuda.stream(side):
            sums.append((found["all"] * 3, (x * 2 + 1) * 3))
            x.record_stream(side)
            if i % 2:
                for each in found.values():
                    each.record_stream(side)
        here.wait_stream(side)
        del found
    torch.cuda.synchronize()
    for found, expected in sums:
        same(found, expected)


def test_streams_take_turns(f, same):
    """Replays on two streams, ordered by hand, with results that are held across."""
    streams, held = [torch.cuda.Stream(), torch.cuda.Stream()], []
    streams[1].wait_stream(torch.cuda.current_stream())
    for i in range(2 * AFTER):
        mine, other = streams[i // 3 % 2], streams[1 - i // 3 % 2]
        mine.wait_stream(other)
        with torch.cuda.stream(mine):
            x = randn(6, 7)
            held.append((f(x), work(x), x))
            # The one that is dropped was used on either stream.
            if len(held) > i % 4:
                found, expected, _ = held.pop(0)
                same(found, expected)
                del found, expected
    torch.cuda.synchronize()
    for found, expected, _ in held:
        same(found, expected)


# Gradients are results, too.


def network():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).cuda()


def step_of(module):
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)

    def step(x):
        optimizer.zero_grad(set_to_none=True)
        loss = module(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step


def gradients(module):
    return [each.grad for each in module.parameters()]


def test_gradients_and_losses_of_earlier_steps_stay(rt, holds, same):
    """``p.grad`` of any call, however it is held, is what eager's was."""
    mine, theirs = network(), network()
    f, eager = rt.graph(step_of(mine)), step_of(theirs)
    drawn, held = random.Random(5), []
    for i in range(120):
        x = randn(8, 16)
        loss, expected = f(x), eager(x).detach()
        same(loss, expected)
        same(gradients(mine), gradients(theirs))
        if i > 10 and drawn.random() < 0.3:
            hold, which = drawn.choice(holds), drawn.choice([0, 2])
            found, others = gradients(mine)[which], gradients(theirs)[which]
            held.append((loss, hold(found), expected, hold(others)))
            del found, others
        del loss, expected
        while held and (len(held) > 6 or drawn.random() < 0.1):
            old, read, expected, other = held.pop(drawn.randrange(len(held)))
            same((old, read()), (expected, other()))
            del old, read, expected, other
    for old, read, expected, other in held:
        same((old, read()), (expected, other()))
    same(list(mine.parameters()), list(theirs.parameters()))
    assert f.stats().replays > 100


def test_gradients_that_the_program_replaces(rt, same):
    """Between steps it drops, clips, swaps or keeps gradients: the next is eager's."""
    mine, theirs = network(), network()
    f, eager = rt.graph(step_of(mine)), step_of(theirs)
    drawn = random.Random(6)
    kept = []
    for _ in range(100):
        x = randn(8, 16)
        same(f(x), eager(x).detach())
        same(gradients(mine), gradients(theirs))
        deed = drawn.randrange(6)
        for module in (mine, theirs):
            if deed == 0:
                module.zero_grad(set_to_none=True)
            elif deed == 1:
                nn.utils.clip_grad_norm_(module.parameters(), 0.01)
            elif deed == 2:
                module[0].weight.grad = torch.ones_like(module[0].weight)
            elif deed == 3:
                kept.append(module[0].weight.grad)
        kept = kept[-4:]
    same(list(mine.parameters()), list(theirs.parameters()))
    for found, expected in zip(kept[::2], kept[1::2], strict=True):
        same(found, expected)


def test_random_numbers_are_drawn_anew_by_replays_in_c(monkeypatch):
    """A graph that draws is launched by torch alone, which moves its generator on."""
    decided, inner = [], Runner._decided
    monkeypatch.setattr(
        Runner, "_decided", lambda *call: (decided.append(1), inner(*call))[1]
    )
    x = torch.ones(64).cuda()
    with sw.Runtime(device="cuda:0", arrays="torch") as rt:
        f = rt.graph(lambda x: nn.functional.dropout(x * 2))
        torch.manual_seed(3)
        found = [f(x).tolist() for _ in range(60)]
    torch.manual_seed(3)
    assert found == [nn.functional.dropout(x * 2).tolist() for _ in range(60)]
    assert len({*map(tuple, found)}) == 60
    assert len(decided) < 30
