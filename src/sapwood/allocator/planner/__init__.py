"""Packing known lifetimes into one range: dynamic storage allocation, offline.

`plan` searches for offsets within a time; `largest_first` does without a search.
`lower_bound` is what no plan can beat, `violations` looks a plan over.
"""

from __future__ import annotations

from sapwood.allocator.planner.bound import lower_bound
from sapwood.allocator.planner.buffers import Buffer
from sapwood.allocator.planner.check import Violation, violations
from sapwood.allocator.planner.fit import largest_first
from sapwood.allocator.planner.plan import Plan, plan

__all__ = [
    "Buffer",
    "Plan",
    "Violation",
    "largest_first",
    "lower_bound",
    "plan",
    "violations",
]
