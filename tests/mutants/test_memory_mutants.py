"""The machine of memory catches every faulty variant of it, and only those."""

from __future__ import annotations

import sys

import pytest

from sapwood.testing.memory import Allocations, small_device
from sapwood.testing.mutants import MEMORY_MUTANTS
from sapwood.testing.seeded import steps_under, steps_until_caught

pytestmark = pytest.mark.deep
SEEDS = (1, 2, 3, 4, 5)


def _latest(_schedule, pages):
    """Open the device on which a missing wait shows the most."""
    return small_device("latest", pages)


def _run(number):
    return steps_until_caught(
        Allocations, number, examples=200, driver=staticmethod(_latest)
    )


@pytest.mark.parametrize("number", SEEDS)
def test_nothing_is_caught_where_nothing_is_wrong(number):
    """The machine passes on the library as it is, under the same seeds."""
    assert _run(number) is None


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("mutant", MEMORY_MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_is_caught(mutant, capsys):
    """Under every seed; the steps to detection are printed."""
    steps = steps_under(mutant.name, mutant.patch, SEEDS, _run)
    with capsys.disabled():
        sys.stdout.write(f"\n{mutant.name}: caught after {steps} steps")
