"""What cached functions and frameworks remember, and a recording uses where it is."""

from __future__ import annotations

from typing import NamedTuple

from sapwood.memory.storage import Storage
from sapwood.tree.call.integration import Array, Integration
from sapwood.tree.guards import Survey


class Memos(NamedTuple):
    """Arrays by their storages, and ``others`` that are to live as long as they."""

    arrays: dict[Storage, Array]
    others: list[object]

    def everything(self) -> list[object]:
        """Return all that a recording is to hold."""
        return [*self.arrays.values(), *self.others]


def memos_of(before: Survey, integration: Integration) -> Memos:
    """Return what is remembered just now, by functions that a survey has reached."""
    kept, is_array = [*integration.remembered()], integration.is_array
    arrays = [*before.memoised().values(), *filter(is_array, kept)]
    others = [each for each in kept if not is_array(each)]
    return Memos({integration.storage(each): each for each in arrays}, others)
