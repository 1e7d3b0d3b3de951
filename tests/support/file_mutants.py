"""Faulty variants of what reads recordings, which quick checks must catch.

Each is one line of the library written wrongly; `mutant` says how it is put there.
"""

from __future__ import annotations

from typing import Final

from sapwood.graphs.relocate import resolve
from sapwood.persist import archive, restore, source
from sapwood.persist import format as sections
from sapwood.persist.bundle import Bundle
from sapwood.persist.restore import Finder
from tests.support.tree_mutants import mutant

__all__ = ["FILE_MUTANTS"]


FILE_MUTANTS: Final = (
    mutant(
        "relocation missed: addend",
        resolve,
        "addresses[relocation.symbol] + relocation.addend",
        "addresses[relocation.symbol]",
    ),
    mutant(
        "relocation missed: symbol",
        resolve,
        "addresses[relocation.symbol] + relocation.addend",
        "addresses[0] + relocation.addend",
    ),
    mutant(
        "touches not checked",
        restore._check_bounds,
        "stray = strays(recording, bounds)",
        "stray = []",
    ),
    mutant(
        "kernels not checked",
        restore._check_ops,
        "integration.files.check_op(op.name, op.params)",
        "pass",
    ),
    mutant(
        "digest unchecked",
        sections._check_digest,
        "if _digest(name, body) != digest:",
        "if False:",
    ),
    mutant(
        "output outside its storage",
        archive._load_outputs,
        'expect(inside, "an output outside its storage")',
        "pass",
    ),
    mutant(
        "key component dropped: signature",
        source.key_of,
        '("signature", signature),',
        "",
    ),
    mutant(
        "key component dropped: what is read",
        source.key_of,
        '*((f"reads {label}", value) for label, value in parts),',
        "",
    ),
    mutant(
        "what is not proved taken up",
        source.key_of,
        "if unproved:",
        "if False:",
    ),
    mutant(
        "sharing not compared",
        restore.restore,
        "if everything.sharing != archive.sharing:",
        "if False:",
    ),
    mutant(
        "ambient path not compared",
        Finder.ambient,
        "if [(slot.start, slot.steps) for slot in ambient.arrays] != ways:",
        "if False:",
    ),
    mutant(
        "contents of another array",
        Bundle.arrays,
        "storage = made[kept.storage]",
        "storage = made[-1 - kept.storage]",
    ),
)
