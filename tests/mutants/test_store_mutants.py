"""The machine of the store catches every faulty variant of it, and only those."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from sapwood.testing.seeded import steps_under, steps_until_caught
from sapwood.testing.store import Puts
from sapwood.testing.store_mutants import STORE_MUTANTS

pytestmark = pytest.mark.deep
SEEDS = (1, 2, 3, 4, 5)

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None


def _run(number, examples=240):
    return steps_until_caught(Puts, number, examples=examples, where=MEMORY)


@pytest.mark.parametrize("number", SEEDS)
def test_nothing_is_caught_where_nothing_is_wrong(number):
    """The machine passes on the library as it is, under the same seeds."""
    assert _run(number, examples=25) is None


@pytest.mark.parametrize("mutant", STORE_MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_is_caught(mutant, capsys):
    """Under every seed; the steps to detection are printed."""
    steps = steps_under(mutant.name, mutant.patch, SEEDS, _run)
    with capsys.disabled():
        sys.stdout.write(f"\n{mutant.name}: caught after {steps} steps")
