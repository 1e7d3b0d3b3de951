"""Every mutant still finds the line that it writes wrongly."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path

import sapwood.testing
from sapwood.testing.gap_mutants import C_MUTANTS


def test_every_mutant_can_be_made():
    """Whether it is caught takes minutes to see; that it is one, a moment."""
    made = []
    for room in pkgutil.iter_modules(sapwood.testing.__path__, "sapwood.testing."):
        if not room.name.endswith("mutants"):
            continue
        module = importlib.import_module(room.name)
        for name in module.__all__:
            if name.endswith("_MUTANTS") and name != "C_MUTANTS":
                for mutant in getattr(module, name):
                    with mutant.patch():
                        made.append(mutant.name)
    assert len(made) > 100


def test_every_mutant_of_c_can_be_made():
    """What it writes wrongly is in its file once, so that it is one place alone."""
    (source,) = sapwood.__path__
    for name, path, right, wrong in C_MUTANTS:
        assert right != wrong, name
        assert (Path(source) / path).read_text().count(right) == 1, name
