"""Packing known lifetimes into one range: dynamic storage allocation, offline.

`plan` searches for offsets within a time; `largest_first` does without a search.
`lower_bound` is what no plan can beat, `violations` looks a plan over.
"""

from sapwood.allocator.planner.buffers import Buffer, Violation, lower_bound, violations
from sapwood.allocator.planner.orders import largest_first
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
