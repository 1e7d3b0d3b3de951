"""Calls by the hundred catch every fault of encores, and only those."""

from __future__ import annotations

import sys

import pytest

from sapwood.testing import CUDA, VARIANTS
from sapwood.testing.repeats import steps_until_wrong
from sapwood.testing.seeded import steps_under
from sapwood.testing.tree_mutants import ENCORE_MUTANTS

pytestmark = pytest.mark.deep
SEEDS = (1, 2, 3, 4, 5)
DEVICES = (*VARIANTS, pytest.param(CUDA, marks=pytest.mark.gpu))


@pytest.mark.parametrize("variant", DEVICES)
@pytest.mark.parametrize("number", SEEDS)
def test_repeated_calls_agree(number, variant):
    """Hundreds of calls like the ones before give what NumPy gives, held or not."""
    assert steps_until_wrong(number, variant) is None


@pytest.mark.parametrize("mutant", ENCORE_MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_is_caught(mutant, capsys):
    """Under every seed; the turns to detection are printed."""
    steps = steps_under(mutant.name, mutant.patch, SEEDS, steps_until_wrong)
    with capsys.disabled():
        sys.stdout.write(f"\n{mutant.name}: caught after {steps} turns")
