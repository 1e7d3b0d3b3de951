"""Every mutant still finds the line that it writes wrongly."""

from __future__ import annotations

import importlib
import pkgutil

import sapwood.testing


def test_every_mutant_can_be_made():
    """Whether it is caught takes minutes to see; that it is one, a moment."""
    made = []
    for room in pkgutil.iter_modules(sapwood.testing.__path__, "sapwood.testing."):
        if not room.name.endswith("mutants"):
            continue
        module = importlib.import_module(room.name)
        for name in module.__all__:
            if name.endswith("_MUTANTS"):
                for mutant in getattr(module, name):
                    with mutant.patch():
                        made.append(mutant.name)
    assert len(made) > 100
