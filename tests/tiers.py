"""Which tests run: the tiers of `scripts/test`, drawn by a seed that is printed.

``fast`` runs each test on one kind of device, drawn by a hash of the test's name and
the seed, and leaves out what is marked ``deep``. ``deep`` runs what ``fast`` leaves out
under the same seed. ``all``, which plain pytest runs, leaves nothing out. Tests that
need a GPU are not generated where there is none. See docs/testing.md.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

KINDS = frozenset(
    {
        *("earliest", "latest", "random:1", "random:2"),
        *("restored", "poisoned", "inexact", "latest, in C", "cuda"),
    }
)
"""The parameters that name a kind of device, as tests' names have them."""

DEEP_SECONDS = 420.0
"""How long the deep tier takes on two idle cores; a budget takes its share of it."""

ParameterSet: type[Any] = type(pytest.param())

EVERY = 8
"""The fast tier makes every such driver call fail."""

LEFT_OUT = pytest.StashKey[Counter[str]]()
DEADLINE = pytest.StashKey[float]()

for _tier, _examples in (("fast", 30), ("deep", 60), ("all", 30), ("night", 3_000)):
    settings.register_profile(
        _tier,
        deadline=None,
        max_examples=_examples,
        database=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow],  # two busy cores are no fault
    )


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that `scripts/test` gives."""
    group = parser.getgroup("tiers")
    group.addoption("--tier", choices=["fast", "deep", "all"], default="all")
    group.addoption("--budget", type=_seconds, help="time for a slice, as in 20m or 90")
    group.addoption("--gpu", action="store_true", help="generate GPU tests anywhere")


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([sm]?)", text)
    if found is None:
        raise pytest.UsageError(f"{text!r} is no time: write 90, 90s or 20m")
    return float(found[1]) * (60 if found[2] == "m" else 1)


def pytest_configure(config: pytest.Config) -> None:
    """Load the tier's profile of Hypothesis, and note when the budget is spent."""
    tier = config.getoption("tier")
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", tier))
    config.stash[LEFT_OUT] = Counter()
    inherited = getattr(config, "workerinput", {}).get("deadline")
    budget = config.getoption("budget")
    end = time.time() + budget if budget else float("inf")
    config.stash[DEADLINE] = end if inherited is None else inherited


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Have all workers end at one time."""
    node.workerinput["deadline"] = node.config.stash[DEADLINE]


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say which tier runs, and its seed."""
    tier, seed = config.getoption("tier"), config.getoption("randomly_seed", 0)
    return None if tier == "all" else f"tier: {tier}, seed: {seed}"


def _has_gpu() -> bool:
    return Path("/proc/driver/nvidia/version").exists() and bool(find_spec("cuda"))


def _generates_all(config: pytest.Config) -> bool:
    return _has_gpu() or config.getoption("gpu")


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(
    collector: pytest.Collector, obj: object
) -> list[pytest.Item] | None:
    """Leave out functions that need a GPU where there is none."""
    if _generates_all(collector.config):
        return None
    own = getattr(obj, "pytestmark", ())
    marks = [*collector.iter_markers(), *(own if isinstance(own, list) else ())]
    return [] if any(mark.name == "gpu" for mark in marks) else None


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Leave out parameters that need a GPU where there is none."""
    if _generates_all(metafunc.config):
        return
    parametrize: Any = metafunc.parametrize

    def without(names: Any, values: Iterable[Any], *args: Any, **kwargs: Any) -> None:
        kept = [value for value in values if not _needs_gpu(value)]
        parametrize(names, kept, *args, **kwargs)

    metafunc.parametrize = without  # type: ignore[method-assign]


def _needs_gpu(value: object) -> bool:
    # Values of tests may have marks of their own.
    marks = value.marks if isinstance(value, ParameterSet) else ()
    return any(mark.name == "gpu" for mark in marks)


def drawn(seed: object, name: object, among: int) -> int:
    """Return a number below ``among`` that depends on seed and name alone."""
    digest = hashlib.sha256(f"{seed}\0{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % among


def split(item: pytest.Item) -> tuple[str, str]:
    """Return a test's name apart from its kind of device, and that kind, or nothing."""
    spec = getattr(item, "callspec", None)
    ids = spec.id.split("-") if spec else []
    name, _, _ = item.nodeid.partition("[")
    rest = [each for each in ids if each not in KINDS]
    return f"{name}[{'-'.join(rest)}]", "-".join(each for each in ids if each in KINDS)


def _of_other_kinds(items: list[pytest.Item], seed: object) -> set[pytest.Item]:
    """Return the tests whose kind of device is not the one that is drawn for them."""
    groups: dict[str, dict[str, pytest.Item]] = {}
    for item in items:
        name, kind = split(item)
        if kind and not item.get_closest_marker("every_kind"):
            groups.setdefault(name, {})[kind] = item
    left: set[pytest.Item] = set()
    for name, by_kind in groups.items():
        kept = sorted(by_kind)[drawn(seed, name, len(by_kind))]
        left |= {item for kind, item in by_kind.items() if kind != kept}
    return left


def _passed_over(items: list[pytest.Item], seed: object) -> set[pytest.Item]:
    """Return those of the many alike that are not drawn."""
    left = set()
    for item in items:
        mark = item.get_closest_marker("one_in")
        if mark is not None and drawn(seed, item.nodeid, mark.args[0]):
            left.add(item)
    return left


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Keep the tests of the tier, or of the budget's slice of it."""
    tier, seed = config.getoption("tier"), config.getoption("randomly_seed", 0)
    if tier == "all":
        return
    _leave(config, items, _marked(items, "style"), "are rules of scripts/check")
    deep, others = _marked(items, "deep"), _of_other_kinds(items, seed)
    over = _passed_over(items, seed)
    if tier == "fast":
        _leave(config, items, deep, "are deep")
        _leave(config, items, others, "are of other kinds of devices")
        _leave(config, items, over, "are among many alike")
        return
    # Whatever takes positions takes all of them here.
    whole = {i for i in items if "positions" in getattr(i, "fixturenames", ())}
    _leave(config, items, {*items} - deep - others - over - whole, "are fast")
    share = (config.getoption("budget") or DEEP_SECONDS) / DEEP_SECONDS
    beyond = {i for i in items if drawn(seed, i.nodeid, 10_000) >= share * 10_000}
    _leave(config, items, beyond, "are beyond the budget")


def _marked(items: list[pytest.Item], name: str) -> set[pytest.Item]:
    return {item for item in items if item.get_closest_marker(name)}


def _leave(
    config: pytest.Config, items: list[pytest.Item], left: set[pytest.Item], why: str
) -> None:
    config.stash[LEFT_OUT][why] += sum(item in left for item in items)
    items[:] = [item for item in items if item not in left]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    """Leave out what would begin when the budget is spent."""
    if time.time() < item.config.stash[DEADLINE]:
        return None
    item.config.stash[LEFT_OUT]["found the budget spent"] += 1
    return True


@pytest.fixture
def positions(request: pytest.FixtureRequest) -> Iterator[int]:
    """Return the positions of the calls that shall fail: in the fast tier, an eighth.

    The first is always one of them; a test ends where there are no more calls.
    """
    if request.config.getoption("tier") != "fast":
        return itertools.count()
    seed = request.config.getoption("randomly_seed", 0)
    start = drawn(seed, request.node.nodeid, EVERY)
    return itertools.chain([0] if start else [], itertools.count(start, EVERY))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Have a worker tell what it has left out."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = dict(session.config.stash[LEFT_OUT])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Hear what a worker has left out: all leave out the same, but by time."""
    told, own = getattr(node, "workeroutput", {}), node.config.stash[LEFT_OUT]
    for why, count in told.get("left_out", {}).items():
        spent = why == "found the budget spent"
        own[why] = own[why] + count if spent else count


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say what was left out, and how to run it."""
    left = {why: n for why, n in config.stash[LEFT_OUT].items() if n}
    if not left:
        return
    seed, tier = config.getoption("randomly_seed", 0), config.getoption("tier")
    terminalreporter.section("left out")
    for why, count in left.items():
        terminalreporter.write_line(f"{count:6} tests {why}")
    if not _generates_all(config):
        terminalreporter.write_line("and all tests that need a GPU: see scripts/gpu")
    other = "--deep " if tier == "fast" else ""
    if tier != "all":
        terminalreporter.write_line(
            f"The other tier of this seed:  scripts/test {other}--seed {seed}"
        )
