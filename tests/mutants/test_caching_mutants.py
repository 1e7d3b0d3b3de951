"""The machine of the caching allocator catches every faulty variant, and only those."""

from __future__ import annotations

import sys

import pytest
from hypothesis import HealthCheck, Phase, Verbosity, seed, settings
from hypothesis.errors import Flaky
from hypothesis.stateful import run_state_machine_as_test

from sapwood.errors import SapwoodError
from sapwood.testing.caching import Caching, small_caching_device
from sapwood.testing.caching_mutants import CACHING_MUTANTS

SEEDS = (1, 2, 3)
SETTINGS = settings(
    max_examples=200,
    stateful_step_count=30,
    deadline=None,
    database=None,
    derandomize=False,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
    verbosity=Verbosity.quiet,
)
SOME = settings(SETTINGS, max_examples=40)


def _latest(_schedule, total, page):
    """Open the device on which a missing wait shows the most."""
    return small_caching_device("latest", total, page)


def _steps_until_caught(number, chosen):
    """Run the machine under one seed; return the steps until a law broke, or None."""

    class Seeded(Caching):
        driver = staticmethod(_latest)
        steps, caught = 0, None

    try:
        run_state_machine_as_test(seed(number)(Seeded), settings=chosen)
    except (SapwoodError, Flaky):  # what no wait orders may differ when run again
        if Seeded.caught is None:
            raise
    return Seeded.caught


@pytest.mark.parametrize("number", SEEDS)
def test_nothing_is_caught_where_nothing_is_wrong(number):
    """The machine passes on the library as it is, under the same seeds."""
    assert _steps_until_caught(number, SOME) is None


@pytest.mark.parametrize("mutant", CACHING_MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_is_caught(mutant, capsys):
    """Under every seed; the steps to detection are printed."""
    steps = []
    for number in SEEDS:
        with mutant.patch():
            found = _steps_until_caught(number, SETTINGS)
        assert found is not None, f"{mutant.name} lives under seed {number}"
        steps.append(found)
    with capsys.disabled():
        sys.stdout.write(f"\n{mutant.name}: caught after {steps} steps")
