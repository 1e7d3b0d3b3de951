"""Folded recordings show every fault of folding, and only those."""

from __future__ import annotations

import sys

import pytest

from sapwood.testing.folded import steps_until_wrong
from sapwood.testing.mutants import FOLD_MUTANTS
from sapwood.testing.seeded import steps_under

pytestmark = pytest.mark.deep
SEEDS = (1, 2, 3, 4, 5)


@pytest.mark.parametrize("number", SEEDS)
def test_folded_recordings_give_what_their_steps_give(number):
    """Replayed a hundred times, their outputs kept or not, idle memory poisoned."""
    assert steps_until_wrong(number) is None


@pytest.mark.parametrize("mutant", FOLD_MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_is_caught(mutant, capsys):
    """Under every seed; the turns to detection are printed."""
    steps = steps_under(mutant.name, mutant.patch, SEEDS, steps_until_wrong)
    with capsys.disabled():
        sys.stdout.write(f"\n{mutant.name}: caught after {steps} turns")
