"""What depends on what is ordered on several streams, and right on several threads."""

from __future__ import annotations

import contextlib
import gc
import queue
import random
import threading

import pytest

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.gpu

SIZE = 1 << 18


def work(x, y):
    h = x * 2
    h += y
    return h, (h * h).sum()


def advance(state, x):
    state += x
    return state.sum()


class Side:
    """A stream of torch's own, ordered by hand as `Runtime.stream` orders its."""

    def __init__(self):
        self.stream, self.inside = torch.cuda.Stream(), None

    def __enter__(self):
        self.around = torch.cuda.current_stream()
        self.stream.wait_stream(self.around)
        self.inside = torch.cuda.stream(self.stream)
        self.inside.__enter__()

    def __exit__(self, *error):
        self.inside.__exit__(*error)
        self.around.wait_stream(self.stream)


@pytest.fixture(params=["torch's", "the runtime's"])
def streams(request):
    """Return what makes two streams, ordered by hand or by the runtime.

    Whoever asks for them drops them, too, before the runtime is closed.
    """
    if request.param == "torch's":
        return lambda _: (Side(), Side())
    return lambda rt: (rt.stream(), rt.stream())


def test_two_streams_with_dependent_data(alike, streams):
    """Replays and eager work on two streams read what the other has written."""

    def program(w):
        one, two = streams(w.rt)
        f, g = w.graph(work), w.graph(lambda h: h - 1)
        x, y = w.values(SIZE), w.values(SIZE)
        kept = []
        for _ in range(8):
            kept += [x, y]
            with one:
                h, total = f(x, y)
            with two:
                x = g(h) * 0.25
                y = y + total * 1e-6
        yield x, y, h, total

    assert alike(program).count("replays") > 0


def test_a_read_is_over_before_its_bytes_are_written(alike, streams):
    """``y`` read on one stream, dropped, and overwritten from another."""

    def program(w):
        one, two = streams(w.rt)
        f, x, out = w.graph(lambda x: x + 1), w.values(SIZE), []
        for i in range(12):
            with one:
                y = f(x)
            with two:
                out.append(y * 2 + y)
            del y
            with one:
                x += i
                f(x)
        yield out, x

    assert alike(program).count("replays") > 8


def test_a_replay_waits_for_readers_of_what_it_writes(alike, streams):
    """An argument that another stream still reads is written only afterwards."""

    def program(w):
        one, two = streams(w.rt)
        f, state, x = w.graph(advance), w.values(SIZE), w.values(SIZE)
        out, kept = [], []
        for _ in range(10):
            kept.append(x)
            with two:
                out.append(state * 3)
            with one:
                total = f(state, x)
            with two:
                x = x * 0.5 + total * 1e-6
        yield out, state, x

    assert alike(program).count("replays") > 0


def test_a_copied_argument_is_read_before_it_is_written(alike, streams):
    """Arguments that replays copy in may be overwritten from another stream."""

    def program(w):
        one, two = streams(w.rt)
        f, y, out, kept = w.graph(work), w.values(SIZE), [], []
        for i in range(10):
            x = w.values(SIZE)
            kept.append(x)
            with one:
                out.append(f(x, y))
            with two:
                x += 100
                y[i] = i
        yield out, y, kept

    assert alike(program).count("replays") > 0


def test_warm_up_record_and_replay_on_different_streams(alike, streams):
    """Where a recording was made says nothing about where it runs."""

    def program(w):
        around = *streams(w.rt), contextlib.nullcontext()
        f, x, y = w.graph(work), w.values(SIZE), w.values(SIZE)
        for i in range(12):
            with around[i % 3]:
                h, total = f(x, y)
            if i % 2:
                x += 1
            else:
                with around[(i + 1) % 3]:
                    y -= total * 1e-6
        yield h, total, x, y

    assert alike(program).count("recordings") <= 3


def in_place(a, b):
    a *= 0.5
    a += b * 0.25
    return a - b


def test_random_programs_on_three_streams(alike, streams):
    """Any order of replays, eager work, writes and drops over three streams."""

    def program(w):
        draw, around = random.Random(21), (*streams(w.rt), contextlib.nullcontext())
        fs = [
            w.graph(lambda a, b: (a + b) * 0.5),
            w.graph(lambda a, b: (a - b) * 0.5),
            w.graph(in_place),
        ]
        pool, kept = [w.values(SIZE) for _ in range(5)], []
        for _ in range(120):
            a, b, to = (draw.randrange(5) for _ in range(3))
            with draw.choice(around):
                act = draw.randrange(6)
                kept = [*kept[-30:], pool[to]]
                if act < 3:
                    pool[to] = fs[act](pool[a], pool[b])
                elif act == 3:
                    pool[to] = pool[a] * 0.5 + pool[b].flip(0) * 0.25
                elif act == 4:
                    pool[to] += pool[a] * 0.125
                else:
                    pool[to] = pool[a]
        yield pool

    assert alike(program).count("replays") > 10


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


def test_a_stream_that_is_dropped(rt, same):
    """Streams may die while their work is pending."""
    f, x = rt.graph(lambda x: x * 2), torch.randn(SIZE, device="cuda")
    for _ in range(8):
        stream = rt.stream()
        with stream:
            y = f(x)
        z = y + 1
        del stream, y
        gc.collect()
        same(z, x * 2 + 1)


# Threads.


def in_threads(*jobs, seconds=60):
    """Run jobs at once; raise what they raise, and fail where one never ends."""
    errors, ready = [], threading.Barrier(len(jobs))

    def run(job):
        try:
            ready.wait()
            job()
        except BaseException as error:  # noqa: BLE001 - handed to the test
            errors.append(error)

    threads = [threading.Thread(target=run, args=(job,), daemon=True) for job in jobs]
    for each in threads:
        each.start()
    for each in threads:
        each.join(seconds)
        assert not each.is_alive(), "waits for ever"
    if errors:
        raise errors.pop()


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
def test_four_threads(rt, functions):
    """Four threads call the same function, or different ones, on their own tensors."""
    fs = [rt.graph(lambda x, y: work(x, y)) for _ in range(functions)]
    in_threads(*(job_of(fs[i % functions], 40, cycles=False) for i in range(4)))
    for f in fs:
        stats = f.stats()
        calls = stats.warmups + stats.recordings + stats.replays + stats.passed_through
        assert calls == 160 // functions
        assert stats.replays > 0


@pytest.mark.parametrize("functions", [1, 2, 4])
@pytest.mark.usefixtures("garbage")
def test_four_threads_under_garbage_collection(rt, functions):
    """So they do while garbage is collected inside every call, outputs among it."""
    fs = [rt.graph(lambda x, y: work(x, y)) for _ in range(functions)]
    in_threads(*(job_of(fs[i % functions], 15, cycles=True) for i in range(4)))


def test_threads_share_a_state(rt):
    """Updates in place of one shared tensor, from four threads: none is lost."""

    def add(state, n):
        state += n
        return state * 1

    f, state = rt.graph(add), torch.zeros(8, device="cuda")

    def job(n):
        return lambda: [f(state, n) for _ in range(25)]

    in_threads(*(job(n) for n in (1, 2, 4, 8)))
    assert state.tolist() == [25 * 15] * 8


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
