"""What depends on what is ordered on several streams, and right on several threads."""

from __future__ import annotations

import gc
import queue

import pytest

from tests.support.threads import in_threads

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.gpu

SIZE = 1 << 18


def work(x, y):
    h = x * 2
    h += y
    return h, (h * h).sum()


def test_torchs_streams_come_round(rt, same):
    """Torch gives the same few streams out again: one of them is that of captures."""
    x = torch.arange(8.0, device="cuda")
    for k in range(40):
        f, stream = rt.graph(lambda x, k=k: x * 2 + k), torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            found = [f(x) for _ in range(3)]
        torch.cuda.current_stream().wait_stream(stream)
        same(found, [x * 2 + k] * 3)
        del found


def test_memory_of_streams_that_are_gone_is_given_back(rt, same):
    """Torch waits for every stream that it has allocated for, dropped or not."""
    f, x = rt.graph(lambda x: x * 2), torch.randn(SIZE, device="cuda")
    for _ in range(4):
        stream = rt.stream()
        with stream:
            y = f(x) + torch.ones(SIZE, device="cuda")
        same(y, x * 2 + 1)
        del stream, y
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


# Threads.


@pytest.fixture
def garbage():
    """Collect garbage inside nearly every allocation of a Python object."""
    threshold = gc.get_threshold()
    gc.set_threshold(7, 1, 1)
    yield
    gc.set_threshold(*threshold)


def job_of(f, calls, *, cycles):
    """Return a job that calls ``f`` on tensors of its own and checks every result.

    They are made here: while a thread captures, torch lets no other draw.
    """
    given = [torch.randn(16, device="cuda") for _ in range(calls)]
    y = torch.randn(16, device="cuda")
    expected = [work(x, y) for x in given]
    torch.cuda.synchronize()

    def job():
        kept = []
        for i, x in enumerate(given):
            kept.append([f(x, y), expected[i]])
            if cycles:
                kept[-1].append(kept[-1])
            if len(kept) > i % 5:
                found, wanted = kept.pop(0)[:2]
                assert all(map(torch.equal, found, wanted))

    return job


@pytest.mark.parametrize("functions", [1, 2, 4])
@pytest.mark.parametrize("collecting", [False, True])
def test_four_threads(rt, request, functions, collecting):
    """Four threads call the same function, or different ones, on their own tensors.

    So they do while garbage is collected inside every call, outputs among it.
    """
    if collecting:
        request.getfixturevalue("garbage")
    fs = [rt.graph(lambda x, y: work(x, y)) for _ in range(functions)]
    calls = 15 if collecting else 40
    jobs = (job_of(fs[i % functions], calls, cycles=collecting) for i in range(4))
    in_threads(*jobs)
    for f in () if collecting else fs:
        stats = f.stats()
        done = stats.warmups + stats.recordings + stats.replays + stats.passed_through
        assert done == 160 // functions
        assert stats.replays > 0


def test_threads_hand_outputs_over(rt):
    """Outputs made on one thread are read and dropped on another."""
    make, use = rt.graph(lambda x: x * 3), rt.graph(lambda h: h + 1)
    handed, given = queue.Queue(5), [torch.full((8,), i / 4) for i in range(60)]
    given = [each.cuda() for each in given]

    def produce():
        for x in given:
            handed.put((x, make(x)), timeout=30)

    def consume():
        for _ in given:
            x, h = handed.get(timeout=30)
            assert torch.equal(use(h), x * 3 + 1)
            del h

    in_threads(produce, consume)
