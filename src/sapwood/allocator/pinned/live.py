"""The blocks that are handed out, found by any address inside them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator

from sapwood.allocator.pinned.block import Block
from sapwood.units import Addr

__all__ = ["Live"]


class Live:
    """Blocks by address; all but `take` is for the holder of the allocator's lock."""

    def __init__(self) -> None:
        self._blocks: dict[Addr, Block] = {}
        self._starts: list[Addr] = []

    def add(self, block: Block) -> None:
        """Let a block be found."""
        self._blocks[block.address] = block
        insort(self._starts, block.address)

    def take(self, address: Addr) -> Block | None:
        """Take out the block that begins at an address, if one does.

        Of several threads that do, one gets it. `settle` follows.
        """
        return self._blocks.pop(address, None)

    def settle(self, block: Block) -> None:
        """Finish what `take` has begun."""
        del self._starts[bisect_left(self._starts, block.address)]

    def containing(self, address: Addr) -> Block | None:
        """Return the block that an address lies in, if any."""
        found = self._blocks.get(address)
        if found is not None:
            return found
        index = bisect_right(self._starts, address) - 1
        if index < 0:
            return None
        found = self._blocks.get(self._starts[index])
        inside = found is not None and address < found.address + found.size
        return found if inside else None

    def __iter__(self) -> Iterator[Block]:
        return iter(list(self._blocks.values()))
