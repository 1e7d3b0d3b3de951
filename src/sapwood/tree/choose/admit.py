"""May this recording be replayed now? The whole invariant. Pure.

A replay clobbers pages, so none of them may be live; and what it has baked in must
be as it was: addresses, which arrays overlap, and ambient values (asked once for all
recordings that share them, by whoever calls this).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from sapwood.tree.call.miss import Miss, Why
from sapwood.tree.call.roles import Role
from sapwood.tree.call.signature import Arrays
from sapwood.tree.node.node import Node, PlaceUse, Shared
from sapwood.units import Addr, Mask, hex_address


def rejects(node: Node, live: Mask, given: Arrays, ambient: Arrays) -> Why | None:
    """Return why a node may not be replayed on this call, or None.

    ``given`` are the call's arrays, ``ambient`` those that the function reads besides.
    """
    if node.clobbers & live:
        return Why.LIVE
    lows = given.lows
    if any(lows[i] != address for i, address in node.fixed):
        return Why.MOVED
    if ambient.sharing != node.ambient_sharing:
        return Why.OVERLAP
    first = node.argument_places
    if ambient.lows != node.ambient_lows and _moved(node, first, ambient.lows):
        return Why.MOVED
    # Behind an eager region it may count which arrays share a storage, even of arrays
    # that no op uses: so all of them are compared.
    regrouped = node.chain and sharing(ambient, given) != node.chain[0].shared
    if regrouped or overlap(node, [*lows, *ambient.lows]):
        return Why.OVERLAP
    return None


def sharing(arrays: Arrays, carried: Arrays) -> Shared:
    """Return which places of ``arrays`` have the storage of a carried place."""
    owners = dict(zip(carried.storages, count()))
    if owners.keys().isdisjoint(arrays.storages):
        return (None,) * len(arrays.storages)
    return tuple(
        None if i is None else (i, low - carried.lows[i])
        for i, low in zip(map(owners.get, arrays.storages), arrays.lows, strict=True)
    )


def explain(
    node: Node, why: Why, live: Mask, given: Arrays, ambient: Arrays | None
) -> Miss:
    """Return the miss that `rejects` found, and what it is about."""
    match why:
        case Why.LIVE:
            return Miss(why, f"{(node.clobbers & live).bit_count()} page(s)")
        case Why.MOVED:
            moved = _moved(node, 0, given.lows)
            if moved is None and ambient is not None:
                moved = _moved(node, node.argument_places, ambient.lows)
            return Miss(why, "" if moved is None else _text(*moved))
        case Why.AMBIENT:
            return Miss(why, node.ambient.miss() or "")
        case _:
            return Miss(why)


def _moved(
    node: Node, first: int, lows: Sequence[Addr]
) -> tuple[PlaceUse, Addr] | None:
    """Return the first fixed place that is not where it was, and where it is."""
    for i, low in enumerate(lows, first):
        use = node.places[i]
        if use.role.fixed and low != use.address:
            return use, low
    return None


def overlap(node: Node, lows: Sequence[Addr]) -> bool:
    """Return whether bytes that may be anywhere are others' too, with places there."""
    if not node.watches_overlap:
        return False
    spans = sorted(
        (low, low + use.size, use.role.fixed)
        for low, use in zip(lows, node.places, strict=False)
        if use.used and use.size
    )
    reached = loose = 0  # how far all reach, and those that may be anywhere
    for low, end, fixed in spans:
        if low < (loose if fixed else reached):
            return True
        reached, loose = max(reached, end), loose if fixed else max(loose, end)
    return False


def _text(use: PlaceUse, now: Addr) -> str:
    verb = "came from" if use.role is Role.INHERITED else "was at"
    return f"{use.name} {verb} {hex_address(use.address)}, is at {hex_address(now)}"
