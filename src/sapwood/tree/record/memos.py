"""What cached functions and frameworks remember, and a recording uses where it is."""

from __future__ import annotations

from sapwood.memory.storage import Storage
from sapwood.tree.call.integration import Array, Integration
from sapwood.tree.guards import Survey


def memos_of(
    before: Survey, integration: Integration
) -> tuple[dict[Storage, Array], list[object]]:
    """Return what is remembered just now, by functions that a survey has reached.

    That is arrays by their storages, and all that a recording is to hold.
    """
    kept, is_array = [*integration.remembered()], integration.is_array
    arrays = [*before.memoised().values(), *filter(is_array, kept)]
    known = {integration.storage(each): each for each in arrays}
    return known, [*known.values(), *(each for each in kept if not is_array(each))]
