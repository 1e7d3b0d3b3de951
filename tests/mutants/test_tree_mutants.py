"""The machine of calls catches every faulty variant of the tree, and only those."""

from __future__ import annotations

import sys

import pytest

from sapwood.errors import InternalError, MisuseError
from sapwood.testing.seeded import steps_under, steps_until_caught
from sapwood.testing.tree import Calls
from sapwood.testing.tree_mutants import TREE_MUTANTS, miswritten
from sapwood.tree.miss import Miss, Why

pytestmark = pytest.mark.deep
SEEDS = (1, 2, 3, 4, 5)


def _run(number):
    return steps_until_caught(Calls, number, examples=40)


@pytest.mark.parametrize("number", SEEDS)
def test_nothing_is_caught_where_nothing_is_wrong(number):
    """The machine passes on the library as it is, under the same seeds."""
    assert _run(number) is None


@pytest.mark.parametrize("mutant", TREE_MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_is_caught(mutant, capsys):
    """Under every seed; the steps to detection are printed."""
    steps = steps_under(mutant.name, mutant.patch, SEEDS, _run)
    with capsys.disabled():
        sys.stdout.write(f"\n{mutant.name}: caught after {steps} steps")


def test_a_mutant_is_gone_after_its_block():
    """And it is loud where the library does not say any more what it changes."""
    miss = Miss(Why.LIVE, "x")
    with miswritten(Miss.__str__, "if self.about", "if not self.about"):
        assert str(miss) == Why.LIVE.value
    assert str(miss) == f"{Why.LIVE.value}: x"
    with (
        pytest.raises(MisuseError, match="Write the mutant anew"),
        miswritten(Miss.__str__, "nothing of the kind", ""),
    ):
        raise InternalError("a mutant that changes nothing is no mutant")
