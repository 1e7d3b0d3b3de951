"""What laws do is held against what is frozen of it, and none is left out."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from types import SimpleNamespace

import numpy as np
import pytest

import sapwood as sw
from tests.laws import frozen
from tests.laws.frozen import COLUMNS, COUNTED, VARIES, Counts

KEY = "test_any.py::test_one[a]", "latest"
ROW = Counts().row("passed") | {"launch": "5", "release": "2"}


def test_every_law_has_a_row_and_every_row_a_law(request):
    """A law that is dropped or has another name is noticed, and one that is new."""
    python, table = frozen.parsed(frozen.TABLE.read_text())
    keys = request.config.stash.get(frozen.COLLECTED, None)
    if keys is None or python != frozen.PYTHON:
        pytest.skip(f"not all laws are collected, or this is not {python}")
    assert max(Counter(keys).values()) == 1
    assert frozen.astray(table, {*keys}) == ([], [])


def test_a_law_without_a_row_is_noticed_and_a_row_without_a_law():
    """By the kind of device where a row has one."""
    law, _ = KEY
    keys = {KEY, (law, "poisoned")}
    assert frozen.astray({(law, ""): ROW}, keys) == ([], [])
    assert frozen.astray({KEY: ROW}, keys) == ([(law, "poisoned")], [])
    others = {(law, ""): ROW, (law, "random:1"): ROW, ("gone", ""): ROW}
    assert frozen.astray(others, keys) == ([], [("gone", ""), (law, "random:1")])


@pytest.mark.parametrize("column", COLUMNS)
def test_another_number_is_a_difference(column):
    """It is named, with what was and what is; where a count varies, none is."""
    row = ROW | {column: "7"}
    assert frozen.differences(ROW, ROW) == []
    assert frozen.differences(ROW, row) == [f"{column}: was {ROW[column]}, is 7"]
    assert frozen.differences(ROW | {column: VARIES}, row) == []
    assert frozen.differences(ROW, row | {column: VARIES}) == []


def test_every_call_is_counted():
    """Those that have no column of their own as others, the skipped by no reason."""
    counts = Counts()
    counts.drivers += [Counter(launch=2, map=1), Counter(unmap=1, set=3)]
    counts.tallies += [Counter(replays=4), Counter(replays=1, warmups=2)]
    counts.skips += [Counter({"it is late": 2, "replays": 1})]
    found = {name: n for name, n in counts.row("passed").items() if n != "0"}
    assert found == {
        "outcome": "passed",
        "launch": "2",
        "map": "2",
        "others": "3",
        "warmups": "2",
        "replays": "5",
        "skipped": "3",
    }


def test_a_table_is_read_as_it_was_written():
    """Most kinds of device have one row; the text is the same in whatever order."""
    law, kinds = KEY[0], ("latest", "poisoned", "random:1", "restored")
    rows = {(law, kind): ROW for kind in kinds}
    rows[law, "restored"] = ROW | {"launch": "9", "wait": VARIES}
    rows["a, or b", ""] = ROW
    text = frozen.written(rows)
    assert text == frozen.written(dict(reversed(rows.items())))
    python, table = frozen.parsed(text)
    assert python == frozen.PYTHON
    assert [*table] == [("a, or b", ""), (law, ""), (law, "restored")]
    assert {key: frozen.of(table, *key) for key in rows} == rows
    assert frozen.parsed(text.replace("launch,", "launches,"))[1] == {}


def test_what_differs_between_runs_varies():
    """In all cases of a test; where two columns do, all do, but for the outcome."""
    other, same = ("test_any.py::test_one[b]", "latest"), ("test_any.py::test_two", "")
    keys = {KEY, other, same}
    runs = [(key, ROW) for key in sorted(keys)]
    assert frozen.agreed(runs, {}, keys) == dict.fromkeys(keys, ROW)
    once = [*runs, (KEY, ROW | {"launch": "6"})]
    varied = ROW | {"launch": VARIES}
    found = {KEY: varied, other: varied, same: ROW}
    assert frozen.agreed(once, {}, keys) == found
    twice = [*once, (other, ROW | {"release": "3"})]
    all_of_it = ROW | dict.fromkeys(COUNTED, VARIES)
    assert frozen.agreed(twice, {}, keys)[KEY] == all_of_it
    # What is known to vary does, if it did not this time; the rest is as it is now.
    again = [(same, ROW | {"launch": "8"})]
    assert frozen.agreed(again, found, keys) == found | {same: ROW | {"launch": "8"}}
    assert frozen.agreed(runs, found, keys) == found
    assert frozen.agreed([], found, {KEY}) == {KEY: varied}


class Law:
    """A test as a plugin sees it, which made one graphed call and launched twice."""

    def __init__(self, config):
        law, kind = KEY
        self.nodeid, self.path = (
            f"tests/laws/{law}",
            frozen.LAWS / law.partition(":")[0],
        )
        self.callspec = SimpleNamespace(id=f"{kind}-a")
        self.config, self.stash = config, pytest.Stash()

    def get_closest_marker(self, _):
        return None

    def ran(self, *, passed=True):
        """Return the report of its end, as the plugin leaves it."""
        with frozen.counting(self) as counts:
            counts.drivers.append(Counter(launch=2))
        for when in ("setup", "call", "teardown"):
            outcome = "passed" if passed or when != "call" else "failed"
            report = SimpleNamespace(when=when, outcome=outcome, longrepr=None)
            report.passed = outcome == "passed"
            hook = frozen.pytest_runtest_makereport(self)
            next(hook)
            with suppress(StopIteration):
                hook.send(report)
        return report


class Config:
    """The options of a run."""

    def __init__(self, **options):
        self.options = options

    def getoption(self, name, default=None):
        return self.options.get(name, default)


@pytest.mark.parametrize("launches", ["2", "3", VARIES])
def test_a_law_fails_that_does_otherwise(monkeypatch, launches):
    """At its end, and says what; one that failed before, or is let be, does not."""
    table = {KEY: Counts().row("passed") | {"launch": launches}}
    monkeypatch.setattr(frozen, "frozen", lambda: table)
    report = Law(Config()).ran()
    assert report.outcome == ("failed" if launches == "3" else "passed")
    if launches == "3":
        assert "launch: was 3, is 2" in report.longrepr
        assert "scripts/freeze tests/laws/test_any.py::test_one" in report.longrepr
    for left in (Law(Config()).ran(passed=False), Law(Config(thawed=True)).ran()):
        assert (left.outcome, left.longrepr) == ("passed", None)


def test_functions_that_are_gone_are_counted():
    """What graphed functions did is counted while a law runs, whoever holds them."""
    law = Law(Config())
    with sw.Runtime("emulated") as rt, frozen.counting(law) as counts:
        f, x = rt.graph(lambda x: x + 1), rt.array(np.ones(3))
        for _ in range(5):
            f(x)
        del f
    row = counts.row("passed")
    found = [row[name] for name in ("warmups", "recordings", "replays")]
    assert found == ["1", "1", "3"]
