"""What happens to Python when it is recorded: it runs twice, and then never again."""

from __future__ import annotations

import random
import threading
import time

import numpy as np
import pytest

import sapwood as sw


def test_who_prints_runs_eagerly(rt, capsys):
    """A `print` inside a graphed function shows in every call: it is not recorded.

    A replay runs no Python. Print outside, or in an eager region (`@sw.eager`), and the
    rest is recorded.
    """

    def f(x):
        print("running")  # noqa: T201 - the surprise
        return x + 1

    g, x = rt.graph(f), rt.array(np.zeros(2))
    with pytest.warns(sw.GraphSkipWarning, match=r"it calls print\(\)"):
        assert len([g(x) for _ in range(5)]) == 5
    assert capsys.readouterr().out == "running\n" * 5
    assert g.stats().replays == 0


def test_who_starts_threads_runs_eagerly(rt, capsys):
    """No replay would start a thread, so that the function is not recorded.

    Work on arrays belongs on the calling thread, or in an eager region.
    """

    def work(x):
        np.add(x, 1)
        print("worked")  # noqa: T201 - says when

    def f(x):
        thread = threading.Thread(target=work, args=(x,))
        thread.start()
        thread.join()
        print("joined")  # noqa: T201 - says when
        return x + 1

    g, x = rt.graph(f), rt.array(np.zeros(2))
    with pytest.warns(sw.GraphSkipWarning, match=r"it calls start_\w*thread\(\)"):
        assert len([g(x) for _ in range(5)]) == 5
    assert capsys.readouterr().out.split() == ["worked", "joined"] * 5
    assert g.stats().replays == 0


def test_printed_arrays_are_refused(rt, capsys):
    """Printing an array makes a function eager, with `fullgraph=True` an error.

    Its values are needed on the host, where a function may go by what they look like.
    Print outside, or in an eager region (`@sw.eager`), which runs on every call.
    """

    @sw.eager
    def show(x):
        print(x)  # noqa: T201

    prints = lambda x: (print(x), x + 1)[1]  # noqa: E731, T201
    g, x = rt.graph(prints, fullgraph=True), rt.array(np.zeros(2))
    with pytest.raises(sw.CaptureError, match="@sw"):
        g(x)
    assert capsys.readouterr().out == ""
    h = rt.graph(lambda x: (show(x), x + 1)[1])
    for _ in range(3):
        h(x)
    assert capsys.readouterr().out == "[0. 0.]\n" * 3


def test_counters_count(rt):
    """`self.n += 1` inside a graphed function counts replays, too.

    Where its value decides something, there are no replays: a replay runs no Python.
    Count in a device array, then, which replays do write.
    """
    count, x = {"calls": 0, "used": 0}, rt.array(np.zeros(2))

    def f(x):
        count["calls"] += 1
        return x + 1

    g = rt.graph(f, fullgraph=True)
    for _ in range(5):
        g(x)
    assert (count["calls"], g.stats().replays) == (5, 3)

    def used(x):
        count["used"] += 1
        return x + count["used"]

    g = rt.graph(used, fullgraph=True)
    with pytest.raises(sw.CaptureError, match="used"):
        for _ in range(10):
            g(x)

    steps = rt.array(np.zeros((), dtype=np.int64))

    def counted(x):
        nonlocal_steps = steps
        nonlocal_steps += 1
        return x + 1

    g = rt.graph(counted, fullgraph=True)
    for _ in range(5):
        g(x)
    assert int(steps) == 5


def test_the_refused_call_has_run(rt):
    """A `CaptureError` for a Python write comes after the write.

    Only when the function has run can it be seen what it wrote. Nothing is undone:
    the call did what the plain function does, and then said that it cannot be
    recorded.
    """
    log = []
    with pytest.raises(sw.CaptureError, match="log"):
        rt.graph(lambda x: (log.append(1), x + 1)[1], fullgraph=True)(
            rt.array(np.zeros(2))
        )
    assert log == [1]


def test_appending_losses_inside_is_refused(rt):
    """`losses.append(loss)` belongs outside the graphed function.

    Inside, it would change a list's length, once per recording and never in a replay.
    Outside, it is right: outputs that are kept are never overwritten.
    """
    losses, x = [], rt.array(np.arange(3.0))
    with pytest.raises(sw.CaptureError, match="losses"):
        rt.graph(lambda x: losses.append(x.sum()), fullgraph=True)(x)
    losses.clear()
    step = rt.graph(lambda x: x.sum(), fullgraph=True)
    for _ in range(6):
        losses.append(step(x))
        x += 1
    assert [float(loss) for loss in losses] == [3, 6, 9, 12, 15, 18]


def test_host_random_numbers_are_refused(rt):
    """`random.random()` in a graphed function would be the same number for ever.

    It is an error instead. Draw from a device generator, which replays move on.
    """
    x = rt.array(np.ones(3))
    with pytest.raises(sw.CaptureError, match="random"):
        rt.graph(lambda x: x * random.random(), fullgraph=True)(x)
    rng, same = rt.generator(1), np.random.Generator(np.random.Philox(1))
    f = rt.graph(lambda x: x * rng.random(3), fullgraph=True)
    for _ in range(5):
        assert np.asarray(f(x)).tolist() == same.random(3).tolist()


def test_the_clock_is_refused_late(rt):
    """`time.time()` feeding a computation is an error, but on the second call.

    One run cannot show that a number changes: the recording differs from the warm-up.
    """
    f, x = (
        rt.graph(lambda x: x + time.perf_counter(), fullgraph=True),
        rt.array(np.ones(3)),
    )
    f(x)
    with pytest.raises(sw.CaptureError, match="differs"):
        f(x)


@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
def test_branches_on_values_are_refused(rt):
    """`if x.sum() > 0:` asks the device in the middle of the function.

    Only one branch would be recorded. Choose with `np.where`, split the function in
    two with the `if` between them, or let it run eagerly.
    """

    def f(x):
        return x if x.sum() > 0 else -x

    x = rt.array(np.full(2, -1.0))
    with pytest.raises(sw.CaptureError, match="host"):
        rt.graph(f, fullgraph=True)(x)
    assert np.asarray(rt.graph(f)(x)).tolist() == [1, 1]
    g = rt.graph(lambda x: np.where(x.sum() > 0, x, -x), fullgraph=True)
    for _ in range(4):
        assert np.asarray(g(x)).tolist() == [1, 1]
    assert g.stats().replays == 2


def test_returned_constants_are_from_the_recording(rt):
    """A plain value in the result is the recorded one, and must not change.

    Here it depends on the shape, which is part of the signature: so it is right.
    """
    f = rt.graph(lambda x: (x + 1, len(x)))
    for size in (2, 3) * 4:
        assert f(rt.array(np.zeros(size)))[1] == size
    assert f.stats().recordings == 2


def test_exceptions_inside_are_not_repeated(rt):
    """`try/except` inside is decided while recording, like every other Python."""

    def f(x, table):
        try:
            scale = table["scale"]
        except KeyError:
            scale = 2
        return x * scale

    g, x = rt.graph(f), rt.array(np.ones(2))
    for table in ({}, {"scale": 5}) * 4:
        expected = table.get("scale", 2)
        assert np.asarray(g(x, table)).tolist() == [expected] * 2
    assert g.stats().recordings == 2


def test_generators_and_coroutines_are_refused(rt):
    """A function that pauses cannot be replayed: it is refused when decorated."""

    def pausing(x):
        yield x

    async def waiting(x):
        return x

    for fn in (pausing, waiting):
        with pytest.raises(sw.MisuseError):
            rt.graph(fn)
