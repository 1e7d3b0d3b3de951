"""May this recording be replayed now? The whole invariant. Pure.

A replay clobbers pages, so none of them may be live; and what it has baked in must
be as it was: addresses, which arrays overlap, and ambient values (asked once for all
recordings that share them, by whoever calls this).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from sapwood.tree.miss import Miss, Why
from sapwood.tree.node import Node, PlaceUse
from sapwood.tree.roles import Role
from sapwood.tree.signature import Place
from sapwood.units import Addr, Mask, hex_address

__all__ = ["explain", "rejects"]


def rejects(
    node: Node,
    live: Mask,
    places: Sequence[Place],
    ambient: tuple[Addr, ...],
    ambient_places: Sequence[Place],
    sharing: Hashable,
) -> Why | None:
    """Return why a node may not be replayed on this call, or None.

    ``ambient`` are the addresses of the arrays that the function reads besides its
    arguments, ``ambient_places`` their storages, ``sharing`` how they share them.
    """
    if node.clobbers & live:
        return Why.LIVE
    for i, address in node.fixed:
        if places[i].lo != address:
            return Why.MOVED
    if node.ambient_addresses != ambient:
        if sharing != node.ambient_sharing:
            return Why.OVERLAP
        if _moved(node, node.argument_places, ambient_places) is not None:
            return Why.MOVED
    if node.watches_overlap and _overlap(node, (*places, *ambient_places)):
        return Why.OVERLAP
    return None


def explain(
    node: Node,
    why: Why,
    live: Mask,
    places: Sequence[Place],
    ambient_places: Sequence[Place],
) -> Miss:
    """Return the miss that `rejects` found, and what it is about."""
    match why:
        case Why.LIVE:
            return Miss(why, f"{(node.clobbers & live).bit_count()} page(s)")
        case Why.MOVED:
            moved = _moved(node, 0, places)
            if moved is None:
                moved = _moved(node, node.argument_places, ambient_places)
            return Miss(why, "" if moved is None else _text(*moved))
        case Why.AMBIENT:
            return Miss(why, node.ambient.miss() or "")
        case _:
            return Miss(why)


def _moved(
    node: Node, first: int, places: Sequence[Place]
) -> tuple[PlaceUse, Addr] | None:
    """Return the first fixed place that is not where it was, and where it is."""
    for i, place in enumerate(places, first):
        use = node.places[i]
        if use.role.fixed and place.lo != use.address:
            return use, place.lo
    return None


def _overlap(node: Node, places: Sequence[Place]) -> bool:
    """Return whether bytes that are found by themselves overlap any others."""
    for i, use in enumerate(node.places):
        if use.role.fixed or not use.used:
            continue
        for j, other in enumerate(places):
            if j != i and node.places[j].used and _meet(places[i], other):
                return True
    return False


def _meet(a: Place, b: Place) -> bool:
    return a.lo < b.hi and b.lo < a.hi


def _text(use: PlaceUse, now: Addr) -> str:
    verb = "came from" if use.role is Role.INHERITED else "was at"
    return f"{use.name} {verb} {hex_address(use.address)}, is at {hex_address(now)}"
