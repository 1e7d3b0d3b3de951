"""The machine of pinned memory catches every faulty variant of it, and only those."""

from __future__ import annotations

import sys

import pytest

from sapwood.testing.pinned import PinnedBlocks
from sapwood.testing.pinned_mutants import PINNED_MUTANTS
from sapwood.testing.seeded import steps_under, steps_until_caught

SEEDS = (1, 2, 3, 4, 5)

EXPECTED = (ArithmeticError, LookupError, ValueError)


def _run(number):
    return steps_until_caught(PinnedBlocks, number, examples=120, expected=EXPECTED)


@pytest.mark.parametrize("number", SEEDS)
@pytest.mark.deep
def test_nothing_is_caught_where_nothing_is_wrong(number):
    """The machine passes on the library as it is, under the same seeds."""
    assert _run(number) is None


@pytest.mark.parametrize("mutant", PINNED_MUTANTS, ids=lambda mutant: mutant.name)
@pytest.mark.deep
def test_every_mutant_is_caught(mutant, capsys):
    """Under every seed; the steps to detection are printed."""
    steps = steps_under(mutant.name, mutant.patch, SEEDS, _run)
    with capsys.disabled():
        sys.stdout.write(f"\n{mutant.name}: caught after {steps} steps")
