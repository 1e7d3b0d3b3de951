"""The machine of the caching allocator catches every faulty variant, and only those."""

from __future__ import annotations

import sys

import pytest

from sapwood.testing.caching import Caching, small_caching_device
from sapwood.testing.caching_mutants import CACHING_MUTANTS
from sapwood.testing.seeded import steps_under, steps_until_caught

pytestmark = pytest.mark.deep
SEEDS = (1, 2, 3)


def _latest(_schedule, total, page):
    """Open the device on which a missing wait shows the most."""
    return small_caching_device("latest", total, page)


def _run(number, examples=200):
    return steps_until_caught(
        Caching, number, examples=examples, driver=staticmethod(_latest)
    )


@pytest.mark.parametrize("number", SEEDS)
def test_nothing_is_caught_where_nothing_is_wrong(number):
    """The machine passes on the library as it is, under the same seeds."""
    assert _run(number, examples=40) is None


@pytest.mark.parametrize("mutant", CACHING_MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_is_caught(mutant, capsys):
    """Under every seed; the steps to detection are printed."""
    steps = steps_under(mutant.name, mutant.patch, SEEDS, _run)
    with capsys.disabled():
        sys.stdout.write(f"\n{mutant.name}: caught after {steps} steps")
