"""For every seed, what the fast tier leaves out is what the deep tier runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SEEDS = range(1, 6)
KINDS = ("earliest", "latest", "random:1", "restored", "cuda")
TESTS = """
import pytest

KINDS = ["earliest", "latest", "random:1", "restored"]
KINDS.append(pytest.param("cuda", marks=pytest.mark.gpu))
on_kinds = pytest.mark.parametrize("kind", KINDS)
deep, style, every_kind = pytest.mark.deep, pytest.mark.style, pytest.mark.every_kind


def many(count):
    return pytest.mark.parametrize("n", range(count))


def test_plain(): pass

@on_kinds
def test_kinds(kind): pass

@on_kinds
@many(4)
def test_kinds_of_several(kind, n): pass

@every_kind
@on_kinds
def test_every_kind(kind): pass

@pytest.mark.one_in(3)
@many(24)
def test_alike(n): pass

@pytest.mark.one_in(2)
@many(8)
@on_kinds
def test_alike_on_kinds(n, kind): pass

@pytest.mark.one_in(2)
@many(8)
@every_kind
@on_kinds
def test_alike_on_every_kind(n, kind): pass

@deep
def test_deep(): pass

@deep
@pytest.mark.one_in(2)
@many(4)
@on_kinds
def test_deep_and_alike(n, kind): pass

@on_kinds
def test_calls_that_fail(kind, positions): pass

@deep
def test_deep_calls_that_fail(positions): pass

@style
@on_kinds
def test_style(kind): pass
"""
COLLECT = """
import json, sys
import pytest

class Kept:
    def pytest_collection_finish(self, session):
        self.names = [item.name for item in session.items]

runs, place = sys.argv[1:]
options = ["-q", "--collect-only", "--gpu", "-p", "randomly"]
for slow in ("cacheprovider", "unraisableexception"):
    options += ["-p", f"no:{slow}"]
names = []
for run in json.loads(runs):
    kept = Kept()
    code = pytest.main([*options, *run], [kept])
    if code:
        sys.exit(f"pytest {run} ended with {code!r}")
    names.append(kept.names)
with open(place, "w") as file:
    json.dump(names, file)
"""
RUNS = {"all": []} | {
    (tier, seed): ["--tier", tier, "--randomly-seed", str(seed)]
    for tier in ("fast", "deep")
    for seed in SEEDS
}
BUDGETS = ("105", "210s", "14m")
RUNS |= {budget: [*RUNS["deep", 1], "--budget", budget] for budget in BUDGETS}
MARKS = ("deep", "every_kind", "gpu", "one_in(n)", "style")


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Return the names of the tests that each of `RUNS` has.

    One process collects them all, which has nothing of the options of this one.
    """
    place = tmp_path_factory.mktemp("tiers")
    (place / "pytest.ini").write_text("\n    ".join(("[pytest]\nmarkers =", *MARKS)))
    (place / "conftest.py").write_text('pytest_plugins = ("tests.tiers",)\n')
    (place / "test_generated.py").write_text(TESTS)
    own = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(ROOT)}
    left = ("PYTEST_", "HYPOTHESIS_", "COV_")
    kept = {key: v for key, v in os.environ.items() if not key.startswith(left)}
    names = place / "names.json"
    command = [sys.executable, "-c", COLLECT, json.dumps([*RUNS.values()]), names]
    subprocess.run(command, cwd=place, env=kept | own, check=True)
    return dict(zip(RUNS, json.loads(names.read_text()), strict=True))


@pytest.fixture(scope="module")
def every(found):
    """Return the names of all tests."""
    return {*found["all"]}


def _of(names, test):
    """Return the names of the cases of one test."""
    return {name for name in names if name.partition("[")[0] == test}


def _kind(name):
    return next((kind for kind in KINDS if kind in name), None)


def _others(name):
    """Return a test's name without the kind of device."""
    return name.replace(_kind(name) or "", "")


@pytest.mark.parametrize("seed", SEEDS)
def test_each_test_is_in_one_tier(found, every, seed):
    """But rules of style in none, and what fails calls in turn always in the deep."""
    fast, deep = found["fast", seed], found["deep", seed]
    style = _of(every, "test_style")
    turns = _of(every, "test_calls_that_fail")
    assert len(style) == len(turns) == len(KINDS)
    assert turns < {*deep}
    once = [name for name in (*fast, *deep) if name not in turns]
    assert Counter(once) == Counter(every - style - turns)


@pytest.mark.parametrize("seed", SEEDS)
def test_the_fast_tier_draws(found, every, seed):
    """One kind of device for each test, some of many alike, and nothing deep."""
    fast = found["fast", seed]
    assert not any(name.startswith("test_deep") for name in fast)
    assert {"test_plain", *_of(every, "test_every_kind")} <= {*fast}
    for test in ("test_kinds", "test_kinds_of_several", "test_calls_that_fail"):
        drawn = Counter(map(_others, _of(fast, test)))
        assert drawn == dict.fromkeys(map(_others, _of(every, test)), 1)
    for test in ("test_alike", "test_alike_on_kinds", "test_alike_on_every_kind"):
        assert 0 < len(_of(fast, test)) < len(_of(every, test))
    assert max(Counter(map(_others, _of(fast, "test_alike_on_kinds"))).values()) == 1


def test_seeds_draw_differently(found):
    """What one seed leaves out of the fast tier, others do not."""
    draws = [found["fast", seed] for seed in SEEDS]
    assert len({frozenset(_of(fast, "test_alike")) for fast in draws}) == len(SEEDS)
    several = [_of(fast, "test_kinds_of_several") for fast in draws]
    assert {_kind(name) for names in several for name in names} == {*KINDS}


def test_a_budget_runs_a_slice_of_the_deep_tier(found):
    """As large a part of its tests as of its time; a larger budget has more."""
    short, longer, long = ({*found[budget]} for budget in BUDGETS)
    assert short < longer < long == {*found["deep", 1]}
    assert 0.1 < len(short) / len(long) < 0.4 < len(longer) / len(long) < 0.6
