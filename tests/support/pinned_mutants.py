"""Faulty variants of pinned memory, which `PinnedBlocks` must catch."""

from __future__ import annotations

from typing import Final

from sapwood.allocator.caching.pending import Pending
from sapwood.allocator.pinned.intake import Intake
from sapwood.allocator.pinned.stock import Pool, Stock
from tests.support.tree_mutants import mutant

__all__ = ["PINNED_MUTANTS"]


PINNED_MUTANTS: Final = (
    mutant(
        "copies ignored", Intake.let_go, "if not block.users or block.captured", "if 1"
    ),
    mutant(
        "one copy of several waited for",
        Pending.end,
        "if self._count_down(use.block) and",
        "if (self._count_down(use.block) or True) and",
    ),
    mutant(
        "events not asked",
        Intake._is_done,
        "self._driver.query_event(use.event)",
        "True",
    ),
    mutant("captures ignored", Stock.put, "if block.captured:", "if False:"),
    mutant(
        "replays of a released pool ignored",
        Stock.release,
        "block.users.update(after)",
        "pass",
    ),
    mutant(
        "blocks kept for ever",
        Stock.release,
        "self._kept.difference_update(loose)",
        "loose.clear()",
    ),
    mutant(
        "coalescing skipped",
        Pool.put,
        "self._begins.get(block.end))",
        "None)",
    ),
    mutant(
        "split without an end",
        Pool.split,
        "Block(block.end, rest,",
        "Block(block.address, rest,",
    ),
    mutant(
        "a block too far",
        Stock.containing,
        "bisect_right(self._starts, address)):",
        "bisect_right(self._starts, address) - 1):",
    ),
)
