"""Recordings from a store: counted, as cheap as any, restored again, no nuisance."""

from __future__ import annotations

import errno
import gc
import json
from types import SimpleNamespace

import numpy as np
import pytest

import sapwood as sw
from sapwood.persist.disk import DiskStore
from sapwood.view.schema import validate

COUNTS = ("warmups", "recordings", "restored", "replays", "passed_through")


def _counts(function):
    stats = function.stats()
    return {name: getattr(stats, name) for name in COUNTS if getattr(stats, name)}


def _bend(x, y):
    x += 1.0
    return x * y, (x - y)[1:]


def _call(rt, f, k):
    x, y = rt.array(np.arange(4.0) + k), rt.array(np.full(4, 2.0))
    whole, part = f(x, y)
    host = np.arange(4.0) + k + 1.0
    assert np.array_equal(np.asarray(x), host)
    assert np.array_equal(np.asarray(whole), host * 2.0)
    assert np.array_equal(np.asarray(part), (host - 2.0)[1:])


def _recorded(opened):
    """Record the function on a runtime, and so put it into its store."""
    f = opened.rt.graph(_bend)
    for k in range(3):
        _call(opened.rt, f, k)
    assert _counts(f) == {"warmups": 1, "recordings": 1, "replays": 1}
    return f


def test_a_second_runtime_records_nothing(open_runtime, store):
    """The first call restores, and further ones replay; the statistics say so."""
    _recorded(open_runtime(store))
    second = open_runtime(store)
    g = second.rt.graph(_bend)
    for k in range(4):
        _call(second.rt, g, k)
    assert _counts(g) == {"restored": 1, "replays": 3}
    assert second.rt.stats().restored == 1
    assert "1 restored" in g.explain()
    kinds = [type(event).__name__ for event in second.rt.events()]
    assert kinds.count("Restored") == 1
    assert "Recorded" not in kinds


def test_a_restored_hit_makes_as_many_driver_calls(open_runtime, store):
    """The same calls of the same kinds, replay for replay."""

    def calls(opened, f):
        x, y = opened.rt.array(np.ones(4)), opened.rt.array(np.ones(4))
        held = f(x, y)
        del held
        before = opened.driver.counts()
        held = f(x, y)
        after = opened.driver.counts()
        del held
        made = {name: n - before.get(name, 0) for name, n in after.items()}
        return {name: n for name, n in made.items() if n}

    first, second = open_runtime(store), open_runtime(store)
    f = _recorded(first)
    g = second.rt.graph(_bend)
    for k in range(3):
        _call(second.rt, g, k)
    assert calls(first, f) == calls(second, g) == {"launch_graph": 1}


def test_variants_are_restored_again(open_runtime, store):
    """Outputs that are held need other pages: linked anew, and not recorded."""
    _recorded(open_runtime(store))
    opened = open_runtime(store)
    g = opened.rt.graph(_bend, max_variants=3)
    y = opened.rt.array(np.full(4, 2.0))
    held = []
    for k in range(8):
        x = opened.rt.array(np.arange(4.0) + k)
        held.append((k, *g(x, y)))
    for k, whole, part in held:
        host = np.arange(4.0) + k + 1.0
        assert np.array_equal(np.asarray(whole), host * 2.0)
        assert np.array_equal(np.asarray(part), (host - 2.0)[1:])
    counts = _counts(g)
    assert counts["restored"] == 3  # two variants, and the one that escapes
    assert counts.keys() == {"restored", "replays"}
    assert g.stats().escaped > 0


def test_evicted_recordings_are_restored_again(open_runtime, store):
    """Two signatures that take turns in one place: neither is recorded here."""
    first = open_runtime(store)
    f = first.rt.graph(lambda x: x * 2.0, name="doubled")
    for size in (3, 3, 5, 5):
        f(first.rt.array(np.ones(size)))
    assert f.stats().recordings == 2
    opened = open_runtime(store)
    g = opened.rt.graph(lambda x: x * 2.0, name="doubled", max_recordings=1)
    for size in [3] * 4 + [5] * 6 + [3] * 6:
        result = g(opened.rt.array(np.full(size, 1.5)))
        assert np.array_equal(np.asarray(result), np.full(size, 3.0))
        del result
    assert g.stats().recordings == g.stats().warmups == 0
    assert g.stats().restored == 3
    assert g.stats().evicted == 2


def test_two_functions_that_feed_each_other(open_runtime, store):
    """What one gives the other reads where it lies, restored or not."""

    def grown(x):
        return x + 1.0

    def shrunk(x):
        return x * 0.5, x

    def through(rt):
        f, g = rt.graph(grown), rt.graph(shrunk)
        for k in range(6):
            half, same = g(f(rt.array(np.full(3, float(k)))))
            assert np.array_equal(np.asarray(half), np.full(3, (k + 1) / 2))
            assert np.array_equal(np.asarray(same), np.full(3, k + 1.0))
            del half, same
        return f, g

    through(open_runtime(store).rt)
    f, g = through(open_runtime(store).rt)
    assert f.stats().recordings == g.stats().recordings == 0
    assert min(f.stats().restored, g.stats().restored) >= 1
    assert g.stats().copied_bytes <= 24  # what was at hand is inherited


def test_state_is_found_and_bound_in_the_new_process(open_runtime, store):
    """Attributes, dict items and generators are those of the runtime at hand."""

    def program(rt):
        o = SimpleNamespace(h=rt.array(np.zeros(3)), table={}, rate=0.5)
        rng = rt.generator(7)

        def f(x):
            o.h = o.h * o.rate + x
            o.table["last"] = o.h[::-1] + 0.0
            return rng.random(3)

        f = rt.graph(f, name="stateful")
        shown = []
        for k in range(5):
            drawn = f(rt.array(np.full(3, float(k))))
            arrays = drawn, o.h, o.table["last"]
            shown.append([np.asarray(array).tolist() for array in arrays])
        return shown, _counts(f)

    first, counts = program(open_runtime(store).rt)
    assert counts["recordings"] >= 1
    second, counts = program(open_runtime(store).rt)
    assert second == first
    assert "recordings" not in counts
    assert counts["restored"] >= 1


def test_devices_with_other_pages_have_other_keys(open_runtime, store):
    """What was laid out for pages of one size is no use for another."""
    _recorded(open_runtime(store))
    _recorded(open_runtime(store, page=1 << 17))
    other = open_runtime(store, page=1 << 17)
    g = other.rt.graph(_bend)
    _call(other.rt, g, 0)
    assert _counts(g) == {"restored": 1}


def test_names_tell_functions_apart(open_runtime, store):
    """The same code under another name is another function."""
    _recorded(open_runtime(store))
    opened = open_runtime(store)
    g = opened.rt.graph(_bend, name="another")
    _call(opened.rt, g, 0)
    assert _counts(g) == {"warmups": 1}
    assert "nothing is stored under this key" in g.explain()


def test_overlap_is_part_of_what_was_recorded(open_runtime, store):
    """Arguments that share memory are not served by a recording of ones that do not."""

    def both(x, y):
        x += 1.0
        return x + y

    first = open_runtime(store)
    f = first.rt.graph(both)
    for _ in range(2):
        f(first.rt.array(np.zeros(4)), first.rt.array(np.ones(4)))
    opened = open_runtime(store)
    g, x = opened.rt.graph(both), opened.rt.array(np.zeros(5))
    for k in range(4):
        # A copy: NumPy itself keeps values apart that overlap.
        assert np.array_equal(np.asarray(g(x[1:], x[:-1])), _both_on_host(k))
    assert g.stats().restored == 0


def _both_on_host(k):
    x = np.zeros(5)
    for _ in range(k + 1):
        x[1:] += 1.0
    return x[1:] + x[:-1]


def _apart(rt):
    return rt.array(np.zeros(3)), rt.array(np.zeros(3))


def _together(rt):
    x = rt.array(np.zeros(3))
    return x[:], x[:]


def _reads_both(a, b):
    def f(x):
        a[...] += x
        return a + b

    return f, None


def _reads_one(a, b):
    def f(x):
        x += 1.0
        return a + x

    return f, b


@pytest.mark.parametrize("reads", [_reads_both, _reads_one])
def test_overlap_with_what_is_read_is_part_of_it(open_runtime, store, reads):
    """So is sharing between arrays that the function reads, and with an argument."""

    def program(make):
        rt = open_runtime(store).rt
        fn, passed = reads(*make(rt))
        f = rt.graph(fn, name="overlap")
        shown = []
        for _ in range(4):
            y = f(rt.array(np.ones(3)) if passed is None else passed)
            shown.append(np.asarray(y).tolist())
        return shown, f

    turns = _apart, _together, _apart, _together, _together, _apart
    for turn, make in enumerate(turns):
        shown, f = program(make)
        total = 1.0 if make is _apart else 2.0
        assert shown == [[total * k] * 3 for k in range(1, 5)], f.explain()
        if reads is _reads_both and turn in {1, 2, 3}:
            assert f.stats().restored == 0
            assert "other arrays share memory" in f.explain()
        if reads is _reads_both and turn == 4:
            assert f.stats().recordings == 0


class Failing:
    """A store of which some methods raise."""

    def __init__(self, store, methods, error):
        self.store, self.methods, self.error = store, methods, error

    def __getattr__(self, name):
        if name in self.methods:
            kind, *words = self.error  # made anew: it keeps its traceback's frames
            raise kind(*words)
        return getattr(self.store, name)


@pytest.mark.parametrize(
    "error",
    [
        (OSError, errno.EROFS, "read-only"),
        (OSError, errno.ENOSPC, "full"),
        (OSError, errno.EACCES, "another user's"),
        (OSError, errno.EIO, "broken"),
        (OSError, errno.ENOENT, "missing"),
        (sw.StoreError, "damaged"),
    ],
    ids=lambda error: error[-1],
)
@pytest.mark.parametrize(
    "methods", [("get",), ("put",), ("get", "put", "delete", "scan")], ids=str
)
def test_a_call_never_fails_because_of_the_store(open_runtime, store, methods, error):
    """Whatever it refuses, the call is run as if there were no store."""
    _recorded(open_runtime(store))
    opened = open_runtime(Failing(store, methods, error))
    g = opened.rt.graph(_bend)
    for k in range(3):
        _call(opened.rt, g, k)
    counts = _counts(g)
    assert sum(counts.values()) == 3
    assert ("restored" in counts) == ("get" not in methods)
    snapshot = opened.rt.snapshot()
    validate(snapshot)
    assert snapshot["store"]["errors"] + snapshot["store"]["puts"] >= 0


def test_a_store_that_only_reads_serves_and_keeps_nothing(open_runtime, tmp_path):
    """A folder opened to be read: hits are hits, and recordings are not kept."""
    _recorded(open_runtime(tmp_path / "store"))
    before = sorted(tmp_path.rglob("*-*"))
    opened = open_runtime(DiskStore(tmp_path / "store", 1 << 24, read_only=True))
    g = opened.rt.graph(_bend)
    _call(opened.rt, g, 0)
    assert _counts(g) == {"restored": 1}
    h = opened.rt.graph(_bend, name="another")
    for k in range(3):
        _call(opened.rt, h, k)
    assert h.stats().recordings == 1
    assert sorted(tmp_path.rglob("*-*")) == before


def test_a_store_where_no_folder_can_be(open_runtime, tmp_path):
    """A path that leads through a file is told once; calls do not mind."""
    (tmp_path / "file").write_text("no folder")
    with pytest.warns(sw.StoreWarning, match="Not a directory"):
        opened = open_runtime(tmp_path / "file" / "store")
    _recorded(opened)
    assert opened.rt.snapshot()["store"]["entries"] == 0


def test_the_snapshot_tells_of_restored_calls(open_runtime, store, tmp_path):
    """It keeps to its schema and can be drawn, also when all is over."""
    _recorded(open_runtime(store))
    opened = open_runtime(store)
    g = opened.rt.graph(_bend)
    for k in range(3):
        _call(opened.rt, g, k)
    snapshot = json.loads(json.dumps(opened.rt.snapshot()))
    validate(snapshot)
    kinds = [call["kind"] for call in snapshot["calls"]]
    assert kinds == ["restore", "replay", "replay"]
    assert [each["restored"] for each in snapshot["recordings"]] == [True]
    assert snapshot["functions"][0]["restored"] == 1
    assert snapshot["store"]["hits"] == 1
    assert snapshot["store"]["entries"] == 1
    opened.rt.report(tmp_path / "open.html")
    held = g(opened.rt.array(np.zeros(4)), opened.rt.array(np.zeros(4)))
    opened.rt.close()
    validate(json.loads(json.dumps(opened.rt.snapshot())))
    opened.rt.report(tmp_path / "closed.html")
    del held
    gc.collect()
    validate(json.loads(json.dumps(opened.rt.snapshot())))
    opened.rt.report(tmp_path / "over.html")
    for name in ("open", "closed", "over"):
        page = (tmp_path / f"{name}.html").read_text()
        assert page.startswith("<!doctype html>")
        assert "_bend" in page


def test_keys_that_look_alike_are_told_apart(open_runtime, store):
    """Slots whose names are shortened to the same text are different slots."""
    long = "a name so long that what is shown of it cannot tell it from others: "

    def program(rt):
        table = {f"{long}{i}": rt.array(np.full(2, float(i))) for i in range(4)}
        f = rt.graph(lambda x: x + table[long + "1"], name="long")
        shown = [np.asarray(f(rt.array(np.zeros(2)))).tolist() for _ in range(3)]
        return shown, f.stats().restored

    assert program(open_runtime(store).rt) == ([[1.0, 1.0]] * 3, 0)
    assert program(open_runtime(store).rt) == ([[1.0, 1.0]] * 3, 1)


def test_slots_that_hold_one_array_are_told_from_two(open_runtime, store):
    """One that binds a slot to what it holds does not serve where it holds another."""

    def program(rt, held):
        own = {"w": rt.array(np.ones(3)), "s": rt.array(np.zeros(3))}
        if held:
            own["s"] = own["w"]

        def f(x):
            own["s"] = own["w"]
            return x + 1

        f, x = rt.graph(f, name="held"), rt.array(np.ones(3))
        for _ in range(4):
            if not held:
                own["s"] = rt.array(np.zeros(3))
            f(x)
            assert own["s"] is own["w"]
        return _counts(f)

    assert program(open_runtime(store).rt, held=True)["recordings"] >= 1
    program(open_runtime(store).rt, held=False)
    assert program(open_runtime(store).rt, held=True)["restored"] >= 1
