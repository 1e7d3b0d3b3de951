"""Every mutant still finds the line that it writes wrongly."""

from __future__ import annotations

import pytest

from sapwood.errors import InternalError, MisuseError
from sapwood.tree.call.miss import Miss, Why
from tests.support.faults import every_fault
from tests.support.tree_mutants import miswritten


def test_every_mutant_can_be_made():
    """Whether it is caught takes minutes to see; that it is one, a moment."""
    faults = every_fault()
    for fault in faults:
        assert fault.places() or fault.name == "caching: fraction ignored"
        with fault.patch():
            assert fault.mutant.name
    assert len(faults) > 130
    assert {"memory", "caching", "again", "c"} <= {fault.room for fault in faults}


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
