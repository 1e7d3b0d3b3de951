"""Making the plan of one instance better, by whatever has worked least so far."""

from __future__ import annotations

from sapwood.allocator.planner.effort import Effort
from sapwood.allocator.planner.instance import Instance, Wholes
from sapwood.allocator.planner.mend import Mend
from sapwood.allocator.planner.search import FEW, Search

__all__ = ["Improver", "improve"]


class Improver:
    """The best plan so far of an exact instance with buffers, and its height in bytes.

    Few buffers are both mended and searched, for about as long; many only mended.
    """

    def __init__(self, instance: Instance, begins: Wholes, seed: int) -> None:
        self._instance, self._seed = instance, seed
        self._tools: tuple[Mend | Search, ...] = ()
        self.begins, self.height = begins, instance.height(begins)

    def step(self, effort: Effort) -> None:
        """Try once to get lower."""
        if not self._tools:
            self._tools = self._make_tools()
        tool = min(self._tools, key=lambda each: each.work)
        self.begins = tool.improve(self.begins, effort)
        self.height = self._instance.height(self.begins)

    def _make_tools(self) -> tuple[Mend | Search, ...]:
        mend = Mend(self._instance, self.begins, self._seed)
        if self._instance.count > FEW:
            return (mend,)
        return mend, Search(self._instance, self._seed)


def improve(instance: Instance, begins: Wholes, effort: Effort, seed: int) -> Wholes:
    """Return the best plan found, at least as good as ``begins``, in grains.

    ``instance`` is exact, and has buffers. Where no buffer is in use, it falls apart;
    each step makes the part better that is highest.
    """
    best = begins.copy()
    parts = [
        (start, Improver(part, begins[start : start + part.count], seed))
        for start, part in instance.parts()
    ]
    while effort.step(max(part.height for _, part in parts)):
        start, part = max(parts, key=lambda each: each[1].height)
        part.step(effort)
        best[start : start + len(part.begins)] = part.begins
    return best
