"""The first law, of what is done outside: printed, logged, written to what C keeps.

No replay does it again, so whoever does it runs eagerly, and is told where it is done.
"""

from __future__ import annotations

import csv
import functools
import hashlib
import io
import logging
import os
import pickle
import pprint
import sqlite3
import subprocess
import sys
import threading
import types
import warnings
from contextlib import nullcontext, redirect_stdout
from pathlib import Path

import numpy as np
import pytest

import sapwood as sw
from tests.support.frameworks import on_host
from tests.support.tree_mutants import ACTING_MUTANTS

CALLS = 8
PROGRAM = [sys.executable, "-c", ""]
NAME = "sapwood.tests.acting"
LOG, ALIAS = logging.getLogger(NAME), print


class Lines:
    """A sink in Python."""

    def __init__(self):
        self.lines = []

    def write(self, text):
        self.lines.append(text)


class World:
    """What functions of these tests write to, and what shows of it."""

    def __init__(self, folder):
        self.path = folder / "written"
        self.path.write_text("", encoding="utf-8")
        self.file = self.path.open("a", encoding="utf-8")
        self.lines, self.out, self.bytes = Lines(), io.StringIO(), io.BytesIO()
        self.wrapper = io.TextIOWrapper(self.bytes)
        self.pickled = io.BytesIO()
        self.pickler = pickle.Pickler(self.pickled)
        self.hash = hashlib.sha256()
        self.table = sqlite3.connect(":memory:")
        self.table.execute("create table t (a)")
        self.handler = logging.StreamHandler(self.out)
        self.event = threading.Event()

    def shows(self):
        """Return all that is to be as after eager calls."""
        self.file.flush()
        self.wrapper.flush()
        rows = self.table.execute("select count(*) from t").fetchall()
        held = self.pickled.getvalue(), self.bytes.getvalue(), self.out.getvalue()
        text = self.path.read_text(encoding="utf-8")
        return *held, text, rows, self.hash.hexdigest(), [*self.lines.lines]

    def close(self):
        self.file.close()
        self.table.close()


def _by_the_way(world, x):
    with world.path.open("a", encoding="utf-8") as file:
        file.write("by the way")
    return x + 1


def _to(stream, x):
    stream.write("to")
    return x + 1


def _in_thread(function, *args):
    thread = threading.Thread(target=function, args=args)
    thread.start()
    thread.join()


ACTS = {
    "print": lambda _, x: (x + 1, print("printed"))[0],  # noqa: T201
    "print to": lambda w, x: (x + 1, print("to", file=w.lines))[0],
    "stdout": lambda _, x: (x + 1, sys.stdout.write("out"))[0],
    "a file": lambda w, x: (x + 1, w.file.write("line"))[0],
    "opened": _by_the_way,
    "path": lambda w, x: (x + 1, w.path.write_text("text", encoding="utf-8"))[0],
    "folder": lambda w, x: x * len(os.listdir(w.path.parent)),  # noqa: PTH208
    "logger": lambda _, x: (x + 1, LOG.warning("logged"))[0],
    "wrapper": lambda w, x: (x + 1, w.wrapper.write("wrapped"))[0],
    "pickler": lambda w, x: (x + 1, w.pickler.dump(1))[0],
    "hash": lambda w, x: (x + 1, w.hash.update(b"more"))[0],
    "digest": lambda w, x: x * w.hash.digest()[0],
    "table": lambda w, x: (x + 1, w.table.execute("insert into t values (1)"))[0],
    "process": lambda _, x: (x + 1, subprocess.run(PROGRAM, check=True))[0],
    "dumped": lambda w, x: (x + 1, pickle.dump(1, w.pickled))[0],
    "rows": lambda w, x: (x + 1, csv.writer(w.file).writerow([1]))[0],
    "argument": lambda w, x: _to(w.file, x),
    "logger of a name": lambda _, x: (x + 1, logging.getLogger(NAME).warning("n"))[0],
    "pprint": lambda _, x: (x + 1, pprint.pprint("shown"))[0],  # noqa: T203
    "alias": lambda _, x: (x + 1, ALIAS("alias"))[0],
    "thread": lambda w, x: (x + 1, _in_thread(w.lines.write, "thread"))[0],
    "asks": lambda _, x: x * logging.getLogger("sapwood.tests").isEnabledFor(10),
}


@pytest.fixture
def world(tmp_path):
    world = World(tmp_path)
    LOG.addHandler(world.handler)
    LOG.propagate = False
    yield world
    LOG.removeHandler(world.handler)
    LOG.setLevel(logging.NOTSET)
    world.close()


def _calls(fn, world, x):
    found = [on_host(fn(world, x)).tolist() for _ in range(CALLS)]
    return found, world.shows()


@pytest.mark.every_framework
@pytest.mark.parametrize("name", ACTS)
def test_what_acts_outside_does_so_in_every_call(rt, tmp_path, name):
    """It is skipped, once, with the user's line and the remedy."""
    x, seen = rt.array(np.array([3.0, 4.0])), []
    for make in (lambda f: f, rt.graph):
        (tmp_path / make.__name__).mkdir()
        world = World(tmp_path / make.__name__)
        LOG.handlers, LOG.propagate = [world.handler], False
        with warnings.catch_warnings(record=True) as told, redirect_stdout(world.out):
            warnings.simplefilter("always")
            f = make(ACTS[name])
            seen.append(_calls(f, world, x))
        world.close()
    LOG.handlers, LOG.propagate = [], True
    assert seen[0] == seen[1]
    (warning,) = [w for w in told if issubclass(w.category, sw.GraphSkipWarning)]
    text = str(warning.message)
    assert "no replay would do that again" in text
    assert "@sw.eager" in text
    assert Path(__file__).name in text
    assert f.stats().replays == 0


@pytest.mark.every_framework
def test_what_is_not_come_to_keeps_nobody_from_replays(rt):
    """Nor what only one of two kinds of calls does, nor an eager region."""
    shown = []

    @sw.eager
    def show(text):
        shown.append(text)
        print(text)  # noqa: T201

    def step(x, verbose):
        if verbose:
            print("verbose")  # noqa: T201
        show("region")
        return x * 2

    f, out = rt.graph(step), io.StringIO()
    with warnings.catch_warnings(), redirect_stdout(out):
        warnings.simplefilter("ignore", sw.GraphSkipWarning)
        for turn in range(2 * CALLS):
            x = rt.array(np.full(2, float(turn)))
            assert on_host(f(x, turn % 4 == 0)).tolist() == [turn * 2.0] * 2
    assert out.getvalue().count("verbose") == CALLS // 2
    assert shown == ["region"] * 2 * CALLS
    assert f.stats().replays >= CALLS


@pytest.mark.every_framework
def test_what_is_made_and_ends_within_is_nobodys_affair(rt):
    """Hashes and streams of the function's own."""

    def step(x):
        text = io.StringIO()
        text.write("own")
        key = hashlib.sha256(text.getvalue().encode()).digest()
        return x * key[0]

    f, x = rt.graph(step), rt.array(np.ones(2))
    for _ in range(4):
        assert on_host(f(x)).tolist() == on_host(step(x)).tolist()
    assert f.stats().replays >= 2


def test_what_launches_on_streams_of_its_own_is_skipped(rt, monkeypatch):
    """An attempt at recording would have it run, and the eager run once more."""
    warp = types.ModuleType("warp")
    exec("seen = []\ndef launch():\n    seen.append(1)", vars(warp))
    monkeypatch.setitem(sys.modules, "warp", warp)
    f, x = rt.graph(lambda x: (x + 1, warp.launch())[0]), rt.array(np.ones(2))
    with pytest.warns(sw.GraphSkipWarning, match="calls warp, which has streams"):
        assert len([f(x) for _ in range(CALLS)]) == CALLS
    assert len(warp.seen) == CALLS


@pytest.mark.every_framework
def test_levels_and_events_are_seen(rt, world):
    """Of a logger that logs when it is told to, and of what `threading.Event` says."""

    def step(w, x):
        LOG.debug("fine")
        if w.event.is_set():
            return x * 2
        return x + 1

    f, x = rt.graph(step), rt.array(np.array([3.0]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sw.GraphSkipWarning)
        assert [on_host(f(world, x))[0] for _ in range(4)] == [4.0] * 4
        assert f.stats().replays >= 2
        world.event.set()
        assert [on_host(f(world, x))[0] for _ in range(4)] == [6.0] * 4
        LOG.setLevel(logging.DEBUG)
        assert [on_host(f(world, x))[0] for _ in range(4)] == [6.0] * 4
    assert world.out.getvalue() == "fine\n" * 4


@pytest.mark.every_framework
def test_who_sets_an_event_wakes_who_waits_in_every_call(rt):
    """An attribute that is assigned would wake nobody."""
    event, x = threading.Event(), rt.array(np.ones(1))
    f = rt.graph(lambda x: (x + 1, event.set())[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sw.GraphSkipWarning)
        for _ in range(CALLS):
            event.clear()
            assert on_host(f(x)).tolist() == [2.0]
            assert event.is_set()
    assert any("event.is_set()" in reason for reason, _ in f.stats().skipped)


@pytest.mark.every_framework
def test_classes_that_are_made_at_run_time_are_seen(rt):
    """`types.new_class` says that they are of `types`."""
    cls = types.new_class("Scale", (), {}, lambda space: space.update(factor=2.0))
    scale = cls()
    f, x = rt.graph(lambda x: x * scale.factor), rt.array(np.ones(1))
    assert [on_host(f(x))[0] for _ in range(4)] == [2.0] * 4
    cls.factor = 3.0
    assert [on_host(f(x))[0] for _ in range(4)] == [3.0] * 4


def test_who_asks_for_a_full_graph_is_told_before_it_is_done(rt, capsys):
    """Nothing is printed."""
    f = rt.graph(lambda _: print("printed"), fullgraph=True)  # noqa: T201
    with pytest.raises(sw.CaptureError, match=r"it calls print\(\)"):
        f(rt.array(np.ones(2)))
    assert capsys.readouterr().out == ""


@pytest.mark.every_framework
def test_what_is_done_once_keeps_nobody_from_replays(rt, capsys):
    """In the first call alone, where no guard sees that it was."""

    @functools.cache
    def configured():
        print("configured")  # noqa: T201
        return 3.0

    f, x = rt.graph(lambda x: x * configured()), rt.array(np.ones(2))
    for _ in range(CALLS):
        assert on_host(f(x)).tolist() == [3.0, 3.0]
    assert capsys.readouterr().out == "configured\n"
    assert f.stats().replays >= CALLS - 4


def _called(rt, fn):
    """Graph a function and call it, whether it is skipped or not."""
    f, x = rt.graph(fn), rt.array(np.ones(2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sw.GraphSkipWarning)
        for _ in range(CALLS):
            f(x)
    return f


def test_a_function_that_is_called_by_a_region_is_heard(rt, capsys):
    """Whoever calls it listens, too."""
    g = rt.graph(lambda x: (x + 1, print("inner"))[0])  # noqa: T201

    @sw.eager
    def region(x):
        g(x)

    def outer(x):
        if x is None:
            print("never")  # noqa: T201
        y = x * 2
        region(x)
        return y * 3

    f = _called(rt, outer)
    assert capsys.readouterr().out == "inner\n" * CALLS
    assert f.stats().replays > 0
    assert sys.getprofile() is None


def test_one_that_is_told_within_leaves_the_other_to_hear(rt, capsys):
    """It raises there, which a region catches; what comes behind is heard, too."""
    g = rt.graph(lambda x: print("never"), fullgraph=True)  # noqa: ARG005, T201

    @sw.eager
    def region(x):
        with pytest.raises(sw.CaptureError):
            g(x)

    def outer(x):
        region(x)
        print("behind")  # noqa: T201
        return x * 3

    _called(rt, outer)
    assert capsys.readouterr().out == "behind\n" * CALLS


def test_a_profiler_of_the_users_stays(rt, capsys):
    """One that is there, and one that the function sets; all is done in each call."""

    def told(*_):
        pass

    def sets(x):
        sys.setprofile(told)
        return x + 1

    f = rt.graph(lambda x: (x + 1, print("told"))[0])  # noqa: T201
    g, x = rt.graph(sets), rt.array(np.ones(2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sw.GraphSkipWarning)
        try:
            for turn in range(CALLS):
                sys.setprofile(told if turn < 3 else None)
                f(x)
                assert sys.getprofile() is (told if turn < 3 else None)
                sys.setprofile(None)
                g(x)
                assert sys.getprofile() is told
        finally:
            sys.setprofile(None)
    assert capsys.readouterr().out == "told\n" * CALLS


def test_no_code_of_objects_is_asked(rt):
    """Of those, for one, that say that they are of another class."""

    class Lazy(list):
        @property
        def __class__(self):
            raise RuntimeError("lazy")

    def fn(x):
        if x is None:
            print("never")  # noqa: T201
        lazy = Lazy([2])
        lazy.append(1)
        return x + len(lazy)

    f, x = rt.graph(fn), rt.array(np.ones(2))
    for _ in range(CALLS):
        assert on_host(f(x)).tolist() == [3.0, 3.0]


def _all(rt, out):
    """See that what the user does is done in each call, and what others do is not."""
    live, x = sw.eager(lambda: print("live", file=out)), rt.array(np.ones(2))
    held = out.write

    def parts(x):
        if x is None:
            print("never", file=out)
        y = x + 1
        live()
        return y * 2

    f = rt.graph(parts)
    named = rt.graph(lambda x: (x + 1, __import__("builtins").print("named"))[0])
    through = rt.graph(lambda x: (x + 1, held("held"))[0])
    package = rt.graph(lambda x: (x + 1, np.savetxt(out, [[7.0]]))[0])
    with warnings.catch_warnings(), redirect_stdout(out):
        warnings.simplefilter("ignore", sw.GraphSkipWarning)
        for _ in range(CALLS):
            for each in (f, named, through, package):
                each(x)
    out.flush()
    text = out.buffer.getvalue().decode()
    assert [text.count(each) for each in ("live", "named", "held")] == [CALLS] * 3
    assert f.stats().replays > 0
    assert package.stats().replays > 0


@pytest.mark.parametrize("mutant", [None, *ACTING_MUTANTS], ids=lambda m: m and m.name)
def test_mutants(mutant):
    """Each fault is seen; without one all is well."""
    raises = nullcontext() if mutant is None else pytest.raises(AssertionError)
    with (
        mutant.patch() if mutant else nullcontext(),
        sw.Runtime("emulated") as rt,
        raises,
    ):
        _all(rt, io.TextIOWrapper(io.BytesIO()))
