"""``y.record_stream(s)`` on outputs of replays: their bytes wait for the stream.

A side stream sleeps before it reads an output, which is dropped meanwhile. The replays
that come next write other values to the same place at once, where nothing is recorded:
`test_without_it_later_values_are_read` shows that they do.
"""

from __future__ import annotations

import gc
from contextlib import nullcontext
from functools import partial

import pytest

import sapwood as sw
from tests.support.threads import in_threads

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.gpu

SLEEP = 50_000_000
"""Cycles: far longer than all replays after it take."""

SHAPE = 256, 257
CALLS = 60
"""Calls before, so that those that are tested are fast replays."""

MODES = {
    "plain": nullcontext,
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
}
VIEWS = {
    "itself": lambda y: y,
    "part": lambda y: y[3:, 5:],
    "transposed": lambda y: y.t(),
    "flat": lambda y: y.view(-1),
    "detached": lambda y: y.detach(),
}


@pytest.fixture(params=["behind layers", "as it is"])
def rt(request):
    """Return a runtime of torch's tensors, leak-checked where it is behind layers."""
    if request.param == "as it is":
        with sw.Runtime(device="cuda:0", arrays="torch") as made:
            yield made
    else:
        yield request.getfixturevalue("rig").runtime


def full(value):
    return torch.full(SHAPE, float(value), device="cuda")


def work(x):
    return x * 2 + 1


def late(y, side, *, says=True):
    """Return twice what a side stream reads of a tensor, when it has slept."""
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(SLEEP)
        found = y * 2
    if says:
        y.record_stream(side)
    return found


def settled(rt, fn, given, **options):
    """Return a graphed function that was called until all calls are fast replays."""
    f = rt.graph(fn, **options)
    for i in range(CALLS):
        f(given[i % len(given)])
    assert f.stats().replays > CALLS // 2
    return f


def read(f, given, view=VIEWS["itself"], *, says=True, rounds=6):
    """Return what was read late of some results, and what should have been.

    Every result is dropped before it is read, and further ones come after it.
    """
    sides = [torch.cuda.Stream() for _ in range(rounds)]
    found = []
    for i, side in enumerate(sides):
        x = given[i % len(given)]
        y = f(x)
        place = y.data_ptr()
        found.append((late(view(y), side, says=says), x))
        del y
        # The last of them is another's: its values would be read.
        later = [f(given[(i + k) % len(given)]).data_ptr() for k in (1, 2)]
        assert place in later
    torch.cuda.synchronize()
    return [(z, view(work(x)) * 2) for z, x in found]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("view", VIEWS)
def test_what_is_recorded_is_read_first(rt, same, mode, view):
    """Whichever view of a result is recorded, in whatever mode, again and again."""
    with MODES[mode]():
        given = [full(k) for k in range(3)]
        f = settled(rt, work, given)
        for found, expected in read(f, given, VIEWS[view]):
            same(found, expected)


def test_without_it_later_values_are_read(rt):
    """Else the tests here would show nothing: some stream runs beside the replays."""
    given = [full(k) for k in range(3)]
    f = settled(rt, work, given)
    pairs = read(f, given, says=False, rounds=8)
    assert not all(torch.equal(*pair) for pair in pairs)


def test_replays_go_on_as_before(rt, same):
    """One result in many is recorded: it is right, and so are all others."""
    given = [full(k) for k in range(3)]
    f = settled(rt, work, given)
    side, found = torch.cuda.Stream(), []
    for i in range(200):
        x = given[i % 3]
        y = f(x)
        if i % 40 == 7:
            found.append((late(y, side), x))
        elif i % 7 == 3:
            same(y, work(x))
        y.record_stream(torch.cuda.current_stream())
        del y
    torch.cuda.synchronize()
    for z, x in found:
        same(z, work(x) * 2)
    assert f.stats().replays >= CALLS + 190


def test_results_of_several_storages(rt, same):
    """One of them is recorded, on two streams, and all are dropped."""

    def several(x):
        return x * 2 + 1, x - 1

    given = [full(k) for k in range(3)]
    f = settled(rt, several, given)
    sides, found = [torch.cuda.Stream() for _ in range(2)], []
    for i in range(8):
        x = given[i % 3]
        results = f(x)
        which = i // 2 % 2
        found += [(late(results[which], side), which, x) for side in sides]
        del results
        for k in (1, 2):
            f(given[(i + k) % 3])
    torch.cuda.synchronize()
    for z, which, x in found:
        same(z, several(x)[which] * 2)


def test_results_that_escape(rt, same):
    """Where a recording's output is held, results lie in ordinary memory of ours."""
    given = [full(k) for k in range(3)]
    f = rt.graph(work, max_variants=1)
    held = []
    for i in range(CALLS):
        y = f(given[i % 3])
        if len(held) < 2:
            held.append((y, given[i % 3]))
        del y
    assert f.stats().escaped > 0
    sides = [torch.cuda.Stream() for _ in range(6)]
    found = []
    for i, side in enumerate(sides):
        found.append((late(f(given[i % 3]), side), given[i % 3]))
        for k in (1, 2):
            f(given[(i + k) % 3])
    torch.cuda.synchronize()
    for z, x in found:
        same(z, work(x) * 2)
    for y, x in held:
        same(y, work(x))


def test_a_stream_of_the_runtime(rt, same):
    """One that this library has made is known by its number."""
    given = [full(k) for k in range(3)]
    f, ours, found = settled(rt, work, given), rt.stream(), []
    for i in range(4):
        y = f(given[i % 3])
        with ours:
            torch.cuda._sleep(SLEEP)
            found.append((y * 2, given[i % 3]))
            y.record_stream(torch.cuda.current_stream())
        del y
        f(given[(i + 1) % 3])
    torch.cuda.synchronize()
    for z, x in found:
        same(z, work(x) * 2)


def test_a_result_that_outlives_its_runtime(rt, same):
    """It is recorded before or after the end: the pages go when the stream is done."""
    given = [full(k) for k in range(3)]
    f, side = settled(rt, work, given), torch.cuda.Stream()
    one, other = f(given[1]), f(given[2])
    before = late(one, side)
    rt.close()
    after = late(other, side)
    del one, other
    gc.collect()
    junk = [full(7) for _ in range(20)]
    torch.cuda.synchronize()
    same(before, work(given[1]) * 2)
    same(after, work(given[2]) * 2)
    del junk


def test_results_that_outlive_everything(same):
    """A tensor alone keeps its bytes, when runtime and function are garbage."""
    runtime = sw.Runtime(device="cuda:0", arrays="torch")
    x = full(3)
    f = settled(runtime, work, [x])
    y, side = f(x), torch.cuda.Stream()
    runtime.close()
    del runtime, f
    gc.collect()
    junk = [full(7) for _ in range(20)]
    same(y, work(x))
    found = late(y, side)
    del y
    gc.collect()
    torch.cuda.synchronize()
    same(found, work(x) * 2)
    del junk


def test_threads_record_results_of_one_function(rt, same):
    """Each of four threads reads its results on a stream of its own, late."""
    given = [full(k) for k in range(3)]
    f = settled(rt, work, given)

    def run(number):
        side, found = torch.cuda.Stream(), []
        for i in range(6):
            x = given[(i + number) % 3]
            found.append((late(f(x), side), x))
        side.synchronize()
        for z, x in found:
            same(z, work(x) * 2)

    in_threads(*(partial(run, number) for number in range(4)))


# What is torch's own.


@pytest.mark.parametrize("mode", MODES)
def test_torchs_own_memory_is_not_reused_early(rt, same, mode):
    """What torch has allocated is torch's to look after, as ever."""
    assert not rt.closed
    with MODES[mode]():
        torch.cuda.empty_cache()
        side = torch.cuda.Stream()
        y = full(5)
        place = y.data_ptr()
        found = late(y, side)
        del y
        # Of the same size, on the stream that allocated the first.
        others = [full(7) for _ in range(4)]
        assert place not in [each.data_ptr() for each in others]
        torch.cuda.synchronize()
        same(found, full(5) * 2)


@pytest.mark.parametrize("which", ["temporary", "argument"])
def test_a_function_may_record(rt, same, which):
    """What a graphed function records inside is nothing to its replays."""

    def records(x):
        y = x * 2
        told = y if which == "temporary" else x
        told.record_stream(torch.cuda.default_stream())
        del told
        return y + 1

    given = [full(k) for k in range(3)]
    first, f = settled(rt, work, given), rt.graph(records)
    for i in range(12):
        x = first(given[i % 3])
        same(f(x), work(x))
        same(f(given[i % 3]), work(given[i % 3]))
        del x
    assert f.stats().replays >= 8


def test_a_function_with_a_side_stream_may_record(rt, same):
    """A temporary that is used on another stream, inside, is captured all the same."""
    side = torch.cuda.Stream()

    def forks(x):
        here = torch.cuda.current_stream()
        y = x * 2
        side.wait_stream(here)
        with torch.cuda.stream(side):
            z = y + 1
        y.record_stream(side)
        del y
        here.wait_stream(side)
        z.record_stream(here)
        return z * 3

    f = rt.graph(forks)
    for i in range(12):
        same(f(full(i)), work(full(i)) * 3)
    assert f.stats().replays >= 6


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_a_stream_of_another_gpu_is_refused(rt):
    """No replay could wait for it: the error says what can be waited for."""
    f = settled(rt, work, [full(1)])
    y = f(full(1))
    with pytest.raises(sw.MisuseError, match=r"on cuda:0 .* stream of cuda:1"):
        y.record_stream(torch.cuda.Stream("cuda:1"))
