"""What every law does, frozen as data: its outcome, driver calls and graphed calls.

A law that passes is held against its row of ``frozen.csv``, when all is given back;
one that does otherwise fails, and says what is another number. ``scripts/freeze``
writes the file anew, from runs under several seeds, in orders of their own, with
hashes of strings of their own. What is not the same in all of them `VARIES`, as what
is held until a law asks for the youngest garbage alone to be collected.

`UNCOUNTED` are laws whose counts are nobody's choice. Others ran one way whatever had
run before in the process, but for when Python collects: memory that a cycle holds is
free only then. So nothing is collected while a law is counted that does not ask for
it. One law in `COLLECTING`, drawn by the seed, is not counted, and Python collects as
it does for users. The numbers are those of one minor version of Python: on others,
nothing is compared.
"""

from __future__ import annotations

import csv
import functools
import gc
import io
import json
import os
import sys
from collections import Counter, defaultdict
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.tiers import drawn, split

LAWS = Path(__file__).parent
TABLE = LAWS / "frozen.csv"
VARIES = "varies"
PYTHON = "Python {}.{}".format(*sys.version_info)

COLLECTING = 8
"""Of so many laws one runs while Python collects as usual."""

UNCOUNTED = (
    "test_deep.py::test_a_function_that_calls_itself_without",  # from where it began
    "test_finalisers.py::test_a_call_in_the_middle",  # begun when Python collects
    "test_region_calls.py::test_threads_meet",  # who comes first
    "test_threads.py",  # likewise
    "test_uncollected.py",  # needs that Python collects
)
"""How the names of laws begin that go as they happen to; `positions` are drawn, too."""

_NEVER = 1 << 30
"""So many more objects than before, after which Python collects."""

CALLS = {
    "addresses": ("reserve", "unreserve"),
    "create": ("create",),
    "release": ("release",),
    "map": ("map", "set_access", "unmap"),
    "copy": ("copy",),
    "upload": ("upload",),
    "download": ("download",),
    "launch": ("launch",),
    "launch_graph": ("launch_graph",),
    "capture": ("begin_capture", "end_capture", "capture_status"),
    "read": ("nodes", "edges", "node_op", "pointers"),
    "build": ("create_graph", "add_node", "surround", "destroy_graph"),
    "instantiate": ("instantiate", "destroy_exec"),
    "set_op": ("set_op",),
    "streams": ("create_stream", "destroy_stream"),
    "events": ("create_event", "destroy_event", "record_event", "wait_event"),
    "wait": ("synchronize", "synchronize_stream", "synchronize_event"),
    "ask": ("query_stream", "query_event", "memory_info"),
    "modules": ("load_module", "unload_module", "find_function"),
}
"""The driver calls that are counted together; any other is one of the ``others``."""

STATS = (
    *("warmups", "recordings", "replays", "restored", "skipped"),
    *("evicted", "escaped", "copied_bytes"),
)
COUNTED = (*CALLS, "others", *STATS)
COLUMNS = ("outcome", *COUNTED)

_GROUP = {call: group for group, calls in CALLS.items() for call in calls}
_COUNTS = pytest.StashKey()
_OUTCOME = pytest.StashKey()
COLLECTED = pytest.StashKey()
"""``(law, kind)`` of all laws, where all were collected."""


# What a law does.


class Counts:
    """What is counted while a law runs: by the drivers, and of graphed functions.

    Counters alone are held, as a law may be about what is let go of.
    """

    def __init__(self):
        self.drivers, self.tallies, self.skips = [], [], []

    def row(self, outcome):
        """Return what the columns say."""
        row = Counter(dict.fromkeys(COUNTED, 0))
        for call, count in _summed(self.drivers).items():
            row[_GROUP.get(call, "others")] += count
        tally = _summed(self.tallies)
        for name in STATS:
            row[name] = tally[name]
        row["skipped"] = _summed(self.skips).total()
        return {"outcome": outcome} | {name: str(row[name]) for name in COUNTED}


def _summed(counters):
    total = Counter()
    for counter in counters:
        total.update(counter)
    return total


@contextmanager
def counting(item):
    """Count what is done for a law by functions graphed in it, as `Runtime.stats` does.

    That of functions which are gone is counted, too: those of a law go as it ends.
    """
    from sapwood.runtime.core import Runtime

    counts = item.stash[_COUNTS] = Counts()
    make, usual = Runtime.runner, gc.get_threshold()

    @functools.wraps(make)
    def runner(self, *args):
        made = make(self, *args)
        counts.tallies.append(made.call_log.tally)
        counts.skips.append(made.skips.counts)
        return made

    Runtime.runner = runner
    if _is_counted(item):
        gc.set_threshold(_NEVER, *usual[1:])
    try:
        yield counts
    finally:
        Runtime.runner = make
        gc.set_threshold(*usual)


def _is_counted(item):
    """Return whether a law is counted, and nothing collected meanwhile."""
    option, key = item.config.getoption, named(item)
    if key is None or key[0].startswith(UNCOUNTED):
        return False
    if "positions" in getattr(item, "fixturenames", ()):
        return False
    if option("freeze"):
        return True
    seed = option("randomly_seed", 0)
    return not option("thawed") and drawn(seed, item.nodeid, COLLECTING) != 0


def _row(item):
    """Return a law's row after it ran, or None where it did not pass."""
    outcome = item.stash.get(_OUTCOME, "failed")
    if outcome == "failed":
        return None
    counts = item.stash.get(_COUNTS, None) or Counts()
    item.stash[_COUNTS] = None
    row = counts.row(outcome)
    return row if _is_counted(item) else row | dict.fromkeys(COUNTED, VARIES)


def named(item):
    """Return the name of a law, and its kind of device; None for other tests."""
    if LAWS not in item.path.parents or item.get_closest_marker("gpu"):
        return None
    from tests.support.frameworks import MINIMAL, TORCH_ON_HOST

    name, kind = split(item)
    params = getattr(getattr(item, "callspec", None), "params", {})
    # Nothing is recorded on the host; of the template only results are compared.
    if params.get("make_rig") in {MINIMAL, TORCH_ON_HOST}:
        return None
    return name.partition("tests/laws/")[2].removesuffix("[]"), kind


# What is frozen.


def differences(was, row):
    """Return what a law does now that it did not."""
    return [
        f"{name}: was {was[name]}, is {row[name]}"
        for name in COLUMNS
        if was[name] != row[name] and VARIES not in {was[name], row[name]}
    ]


def of(table, law, kind):
    """Return a law's row; that without a kind is of all that have none, or None."""
    return table.get((law, kind), table.get((law, "")))


def parsed(text):
    """Return with which Python a table was made, and its rows by law and kind.

    None where its columns are others.
    """
    python, _, text = text.partition("\n")
    rows = csv.DictReader(io.StringIO(text))
    if tuple(rows.fieldnames or ()) != ("law", "kind", *COLUMNS):
        return python, {}
    table = {}
    for row in rows:
        key = row.pop("law"), row.pop("kind")
        table[key] = {name: count or "0" for name, count in row.items()}
    return python, table


def written(table):
    """Return a table as text: what most kinds of device do has no kind."""
    file = io.StringIO()
    out = csv.writer(file, lineterminator="\n")
    file.write(f"{PYTHON}\n")
    out.writerow(("law", "kind", *COLUMNS))
    for (law, kind), row in sorted(_folded(table).items()):
        out.writerow((law, kind, *("" if n == "0" else n for n in row.values())))
    return file.getvalue()


def _folded(table):
    """Return the rows of one kind each, and one of each law for the most of its kinds.

    That is the row of the first of them, where as many do one thing as another.
    """
    kinds = defaultdict(dict)
    for (law, kind), row in sorted(table.items()):
        kinds[law][kind] = row
    found = {}
    for law, rows in kinds.items():
        alike = Counter(tuple(row.values()) for row in rows.values())
        (most, _), *_ = alike.most_common(1)
        found[law, ""] = dict(zip(COLUMNS, most, strict=True))
        found |= {
            (law, kind): row
            for kind, row in rows.items()
            if tuple(row.values()) != most
        }
    return found


def agreed(runs, before, keys):
    """Return the table of ``keys`` by the rows of several runs: ``(key, row)`` pairs.

    What varies in one case of a test, or did ``before``, varies in all of them. Where
    two columns do, the run as a whole goes another way, and all of them do. What did
    not run has the row from before.
    """
    rows, varying = {}, defaultdict(set)
    for key, row in (*((key, row) for key in keys if (row := of(before, *key))), *runs):
        varying[_test(key)] |= {name for name in COLUMNS if row[name] == VARIES}
    for key, row in runs:
        first = rows.setdefault(key, row)
        varying[_test(key)] |= {name for name in COLUMNS if row[name] != first[name]}
    table = {}
    for key in sorted(keys):
        row = rows.get(key) or of(before, *key)
        if row is not None:
            names = varying[_test(key)]
            names = COUNTED if len(names) > 1 else names
            table[key] = row | dict.fromkeys(names, VARIES)
    return table


def _test(key):
    return key[0].partition("[")[0]


def astray(table, keys):
    """Return the laws without a row, and the rows without a law."""
    without = sorted(key for key in keys if of(table, *key) is None)
    laws = {law for law, _ in keys}
    rows = {
        key for key in table if not (key in keys or (key[1] == "" and key[0] in laws))
    }
    return without, sorted(rows)


# While tests run.


@functools.cache
def frozen():
    """Return the rows by law and kind; none on another version of Python."""
    python, table = parsed(TABLE.read_text()) if TABLE.exists() else ("", {})
    return table if python == PYTHON else {}


def pytest_addoption(parser):
    """Add the option that `scripts/freeze` gives, and one to be left alone."""
    group = parser.getgroup("frozen")
    group.addoption("--freeze", metavar="FOLDER", help="write what laws do there")
    group.addoption("--thawed", action="store_true", help="have laws do otherwise")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Note which laws there are, before any is left out."""
    here = config.invocation_params.dir
    places = {Path(os.path.normpath(here / each)) for each in config.args}
    if places & {LAWS, *LAWS.parents}:
        keys = [key for item in items if (key := named(item))]
        config.stash[COLLECTED] = keys
        _write(config, "collected", keys)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item):
    """When all is given back, hold what a law did against its row."""
    report = yield
    if report.when != "teardown":
        if report.when == "call" or not report.passed:
            item.stash[_OUTCOME] = report.outcome
        return report
    key = named(item)
    if key is None or not report.passed or (row := _row(item)) is None:
        return report
    if item.config.getoption("freeze"):
        _write(item.config, "rows", [(key, row)])
    elif not item.config.getoption("thawed"):
        was = of(frozen(), *key)
        if was is not None and (others := differences(was, row)):
            report.outcome, report.longrepr = "failed", _told(key, others)
    return report


def _told(key, others):
    return "\n".join(
        (
            f"{key[0]} on {key[1] or 'any device'} does otherwise than is frozen:",
            *(f"    {each}" for each in others),
            f"Where that is meant: scripts/freeze tests/laws/{_test(key)}",
        )
    )


def _write(config, what, pairs):
    if folder := config.getoption("freeze"):
        worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
        with Path(folder, f"{what}.{worker}").open("a") as file:
            file.writelines(f"{json.dumps(pair)}\n" for pair in pairs)


# What scripts/freeze runs when the laws have run.


def _read(folder, what):
    for place in sorted(Path(folder).glob(f"{what}.*")):
        for line in place.read_text().splitlines():
            yield json.loads(line)


def main(folder):
    """Write the table of what was written to a folder, and say what there is."""
    runs = [(tuple(key), row) for key, row in _read(folder, "rows")]
    keys = {tuple(key) for key in _read(folder, "collected")}
    python, before = parsed(TABLE.read_text()) if TABLE.exists() else (PYTHON, {})
    if python != PYTHON:
        before = {}
    table = agreed(runs, before, keys)
    text = written(table)
    TABLE.write_text(text)
    for line in _summary(table, before, text):
        sys.stdout.write(f"{line}\n")


def _summary(table, before, text):
    varying = defaultdict(dict)
    for key, row in table.items():
        if names := [name for name in COLUMNS if row[name] == VARIES]:
            varying[_test(key)][key] = names
    for test, cases in sorted(varying.items()):
        names = next(iter(cases.values()))
        told = "all counts" if len(names) == len(COUNTED) else ", ".join(names)
        yield f"{test} varies, {len(cases)} cases: {told}"
    others = sum(of(before, *key) != row for key, row in table.items())
    cases, laws = sum(map(len, varying.values())), len(table)
    yield f"{laws} laws, {cases} of which vary; {others} are not as they were"
    yield f"{TABLE}: {text.count(chr(10)) - 2} rows, {len(text.encode()) >> 10} KiB"


if __name__ == "__main__":
    main(sys.argv[1])
