"""The machine of pinned memory catches every faulty variant of it, and only those."""

from __future__ import annotations

import sys

import pytest
from hypothesis import HealthCheck, Phase, Verbosity, seed, settings
from hypothesis.errors import Flaky
from hypothesis.stateful import run_state_machine_as_test

from sapwood.errors import SapwoodError
from sapwood.testing.pinned import PinnedBlocks
from sapwood.testing.pinned_mutants import PINNED_MUTANTS

SEEDS = (1, 2, 3, 4, 5)
SETTINGS = settings(
    max_examples=120,
    stateful_step_count=30,
    deadline=None,
    database=None,
    derandomize=False,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
    verbosity=Verbosity.quiet,
)


def _steps_until_caught(number):
    """Run the machine under one seed; return the steps until a law broke, or None."""

    class Seeded(PinnedBlocks):
        steps, caught = 0, None

    try:
        run_state_machine_as_test(seed(number)(Seeded), settings=SETTINGS)
    except (SapwoodError, Flaky, ArithmeticError, LookupError, ValueError):
        if Seeded.caught is None:
            raise
    return Seeded.caught


@pytest.mark.parametrize("number", SEEDS)
def test_nothing_is_caught_where_nothing_is_wrong(number):
    """The machine passes on the library as it is, under the same seeds."""
    assert _steps_until_caught(number) is None


@pytest.mark.parametrize("mutant", PINNED_MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_is_caught(mutant, capsys):
    """Under every seed; the steps to detection are printed."""
    steps = []
    for number in SEEDS:
        with mutant.patch():
            found = _steps_until_caught(number)
        assert found is not None, f"{mutant.name} lives under seed {number}"
        steps.append(found)
    with capsys.disabled():
        sys.stdout.write(f"\n{mutant.name}: caught after {steps} steps")
