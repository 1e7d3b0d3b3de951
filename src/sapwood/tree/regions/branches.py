"""Recordings of one call that part ways behind a region, by the values it returned.

Each is a whole chain. A call begins with one of them; where a region returns what
another one was recorded with, it goes on with the rest of that one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from sapwood.tree.node.node import Node, Undone
from sapwood.tree.regions.crossing import Returned


def way(node: Node) -> tuple[object, ...]:
    """Return what tells the way of a chain from others: what ran in it, and gave."""
    lives = (link.live for link in node.chain)
    return tuple((live.done, live.key, live.shared) for live in lives if live)


def branches(
    node: Node, nodes: Sequence[Node], region: int, got: Returned
) -> Iterator[Node]:
    """Yield the chains to go on with where a region of ``node`` has returned ``got``.

    ``region`` is its number. All chains are of one call, so that they read the same.
    """
    live = node.chain[region].live
    done = None if live is None else live.done
    passed = (*way(node)[:region], (done, got.key, got.shared))
    for other in nodes:
        # Its parts take what others have made from wherever that is.
        if not other.escapes or way(other)[: region + 1] != passed:
            continue
        made = zip(node.chain, other.chain[: region + 1], strict=False)
        alike = all(_makes(one.part) == _makes(two.part) for one, two in made)
        if alike and _names(other) == _names(node):
            yield other


def _makes(part: Node) -> list[object]:
    return [storage.size for storage in part.outputs.storages]


def join(nodes: Sequence[Node]) -> None:
    """Have each chain save what any needs that a call may come to behind a region.

    Only those of the same places: a call goes on with no other.
    """
    asks = any(node.asks for node in nodes)
    changes = any(node.changes for node in nodes)
    is_seen = any(node.is_seen for node in nodes)
    alike = defaultdict[tuple[str, ...], list[Undone]](list)
    for node in nodes:
        node.asks, node.changes, node.is_seen = asks, changes, is_seen
        if node.undone is not None:
            alike[_names(node)].append(node.undone)
    for node in nodes:
        if node.undone is not None:
            node.undone = _joint(alike[_names(node)])


def _joint(every: Sequence[Undone]) -> Undone:
    written = {i for each in every for i in each.places}
    read = {i for each in every for i in each.read} - written
    reached = {i for each in every for i in each.reached} & read
    return Undone(
        tuple(sorted(written)),
        tuple(sorted(read)),
        tuple(sorted(reached)),
        frozenset().union(*(each.results for each in every)),
        needed=any(each.needed for each in every),
    )


def _names(node: Node) -> tuple[str, ...]:
    return tuple(use.name for use in node.places)
