"""Packing known lifetimes into one range: dynamic storage allocation, offline.

`plan` searches for offsets within a time; `largest_first` does without a search.
`lower_bound` is what no plan can beat, `violations` looks a plan over.
"""

from __future__ import annotations

from sapwood.memory.planner.bound import lower_bound
from sapwood.memory.planner.buffers import Buffer
from sapwood.memory.planner.check import Violation, violations
from sapwood.memory.planner.fit import largest_first
from sapwood.memory.planner.plan import Plan, plan

__all__ = [
    "Buffer",
    "Plan",
    "Violation",
    "largest_first",
    "lower_bound",
    "plan",
    "violations",
]
