"""Running a recording that fits: plan, perform, commit.

Everything that may fail comes before the commit, which only assigns.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, Final, NamedTuple

from sapwood.driver.streams import Stream
from sapwood.memory.storage import Storage
from sapwood.tree.call.signature import NONE, Arrays
from sapwood.tree.choose.recordings import Recordings
from sapwood.tree.node.copy_out import landed
from sapwood.tree.node.leases import Lease
from sapwood.tree.node.node import Node
from sapwood.tree.node.outputs import Bytes
from sapwood.units import Addr

_NONE: Final[Mapping[int, Storage]] = {}


class Done(NamedTuple):
    """What a replay gives: the result, the values to bind, and the new storages."""

    result: Any
    values: list[Any]
    storages: Sequence[Storage]


def replay(
    recordings: Recordings,
    node: Node,
    given: Arrays,
    ambient: Arrays,
    carried: Sequence[Storage] = (),
    keep: Callable[[Sequence[Storage]], object] = bool,
) -> Done:
    """Replay a node on a call; ``carried`` are storages of the parts before it.

    The new ones are given to ``keep``, before there are arrays over them. Raises
    `DriverError` or `OutOfMemory`, and then nothing of it counts as done.
    """
    device = recordings.device
    recordings.wake(node)
    stream = device.stream()
    lows = prepare(node, given, ambient, stream)
    device.pages.claim(stream, node.clobbers)
    escaped = escapes(recordings, node, carried, stream)
    launch(node, lows, stream)
    device.pages.writes += node.writes
    copy_out(recordings, node, carried, escaped, stream)
    leased = lease_outputs(recordings, node, escaped)
    keep(leased)
    return _commit(recordings, node, given, ambient, stream, escaped, leased, carried)


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


def give(
    recordings: Recordings, node: Node, given: Arrays, carried: Sequence[Storage]
) -> Any:
    """Return what a part gives that does nothing besides."""
    stream = recordings.device.stream()
    escaped = escapes(recordings, node, carried, stream)
    copy_out(recordings, node, carried, escaped, stream)
    return _commit(recordings, node, given, NONE, stream, escaped, (), carried).result


def copy_out(
    recordings: Recordings,
    node: Node,
    carried: Sequence[Storage],
    escaped: Mapping[int, Storage],
    stream: Stream,
) -> None:
    """Copy the outputs that escape to their storages, after the launch."""
    copy = recordings.device.driver.copy
    made: list[Bytes | Storage] = [*node.outputs.storages, *carried]
    for start, size, numbers in node.ferries:
        first = numbers[0]
        moved = escaped[first].address - made[first].address
        if size:
            copy(Addr(start + moved), start, size, stream.handle)


def escapes(
    recordings: Recordings, node: Node, carried: Sequence[Storage], stream: Stream
) -> Mapping[int, Storage]:
    """Return the storages of what is copied out, by their number.

    Behind its outputs these are the ``carried`` ones, of the parts before it.
    """
    if not node.ferries:
        return _NONE
    found: dict[int, Storage] = {}
    made: list[Bytes | Storage] = [*node.outputs.storages, *carried]
    recordings.busy.add(node)
    try:
        for ferry in node.ferries:
            new = landed(recordings.device, ferry, made, stream)
            found |= zip(ferry.storages, new, strict=True)
        return found
    finally:
        recordings.busy.discard(node)


def _commit(
    recordings: Recordings,
    node: Node,
    given: Arrays,
    ambient: Arrays,
    stream: Stream,
    escaped: Mapping[int, Storage],
    leased: Sequence[Storage],
    carried: Sequence[Storage],
) -> Done:
    for storage in escaped.values():
        recordings.leases.begin_loose(storage)
    rest, count = iter(leased), len(node.output_masks)
    storages = [escaped.get(k) or next(rest) for k in range(count)]
    for storage in (*storages, *escaped.values()):
        storage.writer = stream
    carried = [escaped.get(k, each) for k, each in enumerate(carried, count)]
    node.hits += 1
    node.last_used = recordings.tick()
    recordings.last = node
    recordings.ran_on(stream)
    result, values = node.outputs.make(
        recordings.integration, storages, given.arrays, ambient.arrays, carried
    )
    for i in node.revokes:
        recordings.leases.donate(given.storages[i], node.label)
    return Done(result, values, storages)


def lease_outputs(
    recordings: Recordings, node: Node, escaped: Container[int] = ()
) -> list[Storage]:
    """Return new storages of those outputs of a node that have not ``escaped``.

    They hold their pages.
    """
    leases, returns = recordings.leases, recordings.device.returns
    storages: list[Storage] = []
    masks = zip(node.outputs.storages, node.output_masks, strict=True)
    for k, (new, mask) in enumerate(masks):
        if k in escaped:
            continue
        lease = Lease(leases, node.range, mask)
        storage = Storage(new.address, new.size, lease, returns)
        leases.begin(lease, storage)
        storages.append(storage)
    return storages
