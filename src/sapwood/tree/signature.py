"""A call, flattened: its arrays, its places, and a key that says what kind it is.

The key holds everything about the arguments but the addresses: their nesting, plain
values by type and bits, layouts, and which arrays share a storage at which offsets.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

from sapwood.memory.storage import Storage
from sapwood.tree.adapter import Adapter, Array
from sapwood.tree.containers import constant_key, flatten
from sapwood.units import Addr

__all__ = ["Call", "Place", "describe", "places_of"]


class Place(NamedTuple):
    """The bytes of arrays that share a storage; ``lo`` and ``hi`` bound them all.

    ``arrays`` are positions in the call's list of arrays.
    """

    storage: Storage
    lo: Addr
    hi: Addr
    arrays: tuple[int, ...]


class Call(NamedTuple):
    """One call of a graphed function."""

    key: Hashable
    leaves: Sequence[Any]
    structure: Hashable
    arrays: list[Array]
    positions: list[int]
    """Where in ``leaves`` each array stands."""
    places: list[Place]

    def addresses(self) -> list[Addr]:
        """Return the address of every place."""
        return [place.lo for place in self.places]


def describe(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], adapter: Adapter
) -> Call:
    """Flatten a call's arguments.

    Raises `TypeError` for a value that the adapter refuses, `StaleOutput` for an
    array that was revoked, `MisuseError` for a container that contains itself.
    """
    leaves, structure = flatten((args, kwargs), adapter.is_array)
    parts: list[Hashable] = []
    arrays: list[Array] = []
    positions: list[int] = []
    for i, leaf in enumerate(leaves):
        if adapter.is_array(leaf):
            parts.append(adapter.layout(leaf))
            arrays.append(leaf)
            positions.append(i)
        else:
            refusal = adapter.refusal(leaf)
            if refusal is not None:
                raise TypeError(refusal)
            parts.append(constant_key(leaf))
    places, sharing = places_of(arrays, adapter)
    key = (structure, tuple(parts), sharing)
    return Call(key, leaves, structure, arrays, positions, places)


def places_of(
    arrays: Sequence[Array], adapter: Adapter
) -> tuple[list[Place], Hashable]:
    """Group arrays by storage, and say how they share, offsets included."""
    storage_of, span_of = adapter.storage, adapter.span
    storages = [storage_of(array) for array in arrays]
    spans = [span_of(array) for array in arrays]
    if len({id(storage) for storage in storages}) == len(storages):
        return [
            Place(storage, *span, (i,))
            for i, (storage, span) in enumerate(zip(storages, spans, strict=True))
        ], None
    groups: dict[int, list[int]] = {}
    for i, storage in enumerate(storages):
        groups.setdefault(id(storage), []).append(i)
    places = [
        Place(
            storages[group[0]],
            min(spans[i][0] for i in group),
            max(spans[i][1] for i in group),
            tuple(group),
        )
        for group in groups.values()
    ]
    sharing = tuple(
        (place.arrays, tuple(spans[i][0] - place.lo for i in place.arrays))
        for place in places
    )
    return places, sharing


