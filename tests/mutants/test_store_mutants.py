"""The machine of the store catches every faulty variant of it, and only those."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, Verbosity, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from sapwood.errors import SapwoodError
from sapwood.testing.store import Puts
from sapwood.testing.store_mutants import STORE_MUTANTS

SEEDS = (1, 2, 3, 4, 5)
MEMORY = "/dev/shm"
SETTINGS = settings(
    max_examples=60,
    stateful_step_count=30,
    deadline=None,
    database=None,
    derandomize=False,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
    verbosity=Verbosity.quiet,
)


def _steps_until_caught(number, examples=240):
    """Run the machine under one seed; return the steps until a law broke, or None."""

    class Seeded(Puts):
        steps, caught = 0, None
        where = MEMORY if Path(MEMORY).is_dir() else None

    with suppress(SapwoodError):
        run_state_machine_as_test(
            seed(number)(Seeded), settings=settings(SETTINGS, max_examples=examples)
        )
    return Seeded.caught


@pytest.mark.parametrize("number", SEEDS)
def test_nothing_is_caught_where_nothing_is_wrong(number):
    """The machine passes on the library as it is, under the same seeds."""
    assert _steps_until_caught(number, examples=25) is None


@pytest.mark.parametrize("mutant", STORE_MUTANTS, ids=lambda mutant: mutant.name)
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
