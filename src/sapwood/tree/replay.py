"""Running a recording that fits: plan, perform, commit.

Everything that may fail comes before the commit, which only assigns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sapwood.driver.streams import Stream
from sapwood.memory.storage import Storage
from sapwood.tree.forest import Forest
from sapwood.tree.leases import Lease
from sapwood.tree.node import Node
from sapwood.tree.signature import Arrays
from sapwood.units import Addr

__all__ = [
    "Done",
    "lease_outputs",
    "order",
    "prepare",
    "replay",
    "replay_in_place",
]


class Done(NamedTuple):
    """What a replay gives: the result, the values to bind, and the new storages."""

    result: Any
    values: list[Any]
    storages: Sequence[Storage]


def replay(
    forest: Forest,
    node: Node,
    given: Arrays,
    ambient: Arrays,
    carried: Sequence[Storage] = (),
) -> Done:
    """Replay a node on a call; ``carried`` are storages of the parts before it.

    Raises `DriverError` or `OutOfMemory`, and then nothing of it counts as done.
    """
    device = forest.device
    stream = device.stream()
    lows = prepare(node, given, ambient, stream)
    device.pages.claim(stream, node.clobbers)
    escaped = _escape_storages(forest, node, stream) if node.escapes else None
    if escaped is not None and node.made:
        lows = [*lows, *(storage.address for storage in escaped)]
    launch(node, lows, stream)
    if escaped is not None:
        for storage, new in zip(node.outputs.storages, escaped, strict=True):
            if storage.size and not node.made:
                device.driver.copy(
                    new.address, storage.address, storage.size, stream.handle
                )
    return _commit(forest, node, given, ambient, stream, escaped, carried)


def replay_in_place(
    forest: Forest, node: Node, given: Arrays, ambient: Arrays, new: Sequence[Storage]
) -> None:
    """Launch a node on the very storages that it was captured with.

    What is ``new`` and outlives it is leased from now on, at the same address.
    """
    stream = forest.device.stream()
    lows = prepare(node, given, ambient, stream)
    made = [storage.address for storage in new if not storage.captured]
    forest.device.pages.claim(stream, node.clobbers)
    launch(node, [*lows, *made], stream)
    leases = forest.leases
    leases.cross(new)
    for storage, mask in zip(new, node.output_masks, strict=True):
        storage.writer, storage.readers = stream, ()
        if storage.captured:
            lease = Lease(leases, node.range, mask)
            storage.token, storage.captured = lease, False
            leases.begin(lease, storage)
        else:
            leases.begin_loose(storage)
    for i in node.revokes:
        leases.donate(given.storages[i], node.label)


def prepare(
    node: Node, given: Arrays, ambient: Arrays, stream: Stream
) -> Sequence[Addr]:
    """Order a stream after the uses of what a node uses; return where that starts."""
    storages: Sequence[Storage] = given.storages
    lows: Sequence[Addr] = given.lows
    if ambient.arrays:
        storages, lows = [*storages, *ambient.storages], [*lows, *ambient.lows]
    order(node.used, storages, stream)
    return lows


def order(
    used: Sequence[tuple[int, bool]], storages: Sequence[Storage], stream: Stream
) -> None:
    """Order a stream after the uses of storages that it is to use, or write."""
    for i, written in used:
        storage = storages[i]
        if storage.writer is stream and not (written and storage.readers):
            continue  # it was this stream that used the bytes last
        if not written and stream in storage.readers:
            continue  # it is ordered after the last write
        if written:
            storage.order_write(stream)
        else:
            storage.order_read(stream)


def launch(node: Node, lows: Sequence[Addr], stream: Stream) -> None:
    """Run a node's ops on a stream that is prepared for it."""
    for i in node.aimed:
        node.exec.aim(i + 1, lows[i])
    node.exec.launch(stream.handle)


def _escape_storages(forest: Forest, node: Node, stream: Stream) -> list[Storage]:
    forest.busy.add(node)
    try:
        return [
            forest.device.allocate_on_heap(storage.size, stream)
            for storage in node.outputs.storages
        ]
    finally:
        forest.busy.discard(node)


def _commit(
    forest: Forest,
    node: Node,
    given: Arrays,
    ambient: Arrays,
    stream: Stream,
    escaped: list[Storage] | None,
    carried: Sequence[Storage],
) -> Done:
    storages = lease_outputs(forest, node) if escaped is None else escaped
    for storage in storages:
        storage.writer = stream
        if escaped is not None:
            forest.leases.begin_loose(storage)
    node.hits += 1
    node.last_used = forest.tick()
    forest.last = node
    forest.ran_on(stream)
    result, values = node.outputs.make(
        forest.adapter, storages, given.arrays, ambient.arrays, carried
    )
    for i in node.revokes:
        forest.leases.donate(given.storages[i], node.label)
    return Done(result, values, storages)


def lease_outputs(forest: Forest, node: Node) -> list[Storage]:
    """Return new storages of a node's outputs, which hold their pages."""
    leases, returns = forest.leases, forest.device.returns
    storages: list[Storage] = []
    for new, mask in zip(node.outputs.storages, node.output_masks, strict=True):
        lease = Lease(leases, node.range, mask)
        storage = Storage(new.address, new.size, lease, returns)
        leases.begin(lease, storage)
        storages.append(storage)
    return storages
