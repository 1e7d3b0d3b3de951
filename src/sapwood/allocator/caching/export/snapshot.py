"""A picture as JSON, and back: ``loads(dumps(picture)) == picture``.

The schema is in docs/allocator.md. Stacks are written once and named by their number.
`loads` checks every value; whether the picture keeps the allocator's laws is
`validate`'s matter.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, get_args

from sapwood.allocator.caching.export.strict import Item
from sapwood.allocator.caching.picture import (
    Action,
    BlockPicture,
    BlockState,
    Entry,
    Frame,
    Picture,
    PoolId,
    PoolPicture,
    SegmentPicture,
    SizeClass,
)
from sapwood.driver.api import StreamHandle
from sapwood.errors import MisuseError
from sapwood.units import Addr, Size

FORMAT = "sapwood.allocator"
VERSION = 1

Frames = tuple[Frame, ...]


def dumps(picture: Picture, *, indent: int | None = None) -> str:
    """Return ``picture`` as JSON text of the present version."""
    stacks: dict[Frames, int] = {(): 0}
    written = {
        "format": FORMAT,
        "version": VERSION,
        "device": picture.device,
        "total": picture.total,
        "free": picture.free,
        "limit": picture.limit,
        "settings": dict(picture.settings),
        "pools": [_pool(pool) for pool in picture.pools],
        "segments": [_segment(segment, stacks) for segment in picture.segments],
        "history": [_entry(entry, stacks) for entry in picture.history],
    }
    return json.dumps({**written, "stacks": list(stacks)}, indent=indent)


def _number(frames: Frames, stacks: dict[Frames, int]) -> int:
    return stacks.setdefault(frames, len(stacks))


def _pool(pool: PoolPicture) -> dict[str, Any]:
    return {
        "id": pool.id,
        "use_count": pool.use_count,
        "no_split": pool.no_split,
        "use_on_oom": pool.use_on_oom,
    }


def _segment(segment: SegmentPicture, stacks: dict[Frames, int]) -> dict[str, Any]:
    return {
        "address": segment.address,
        "size": segment.size,
        "stream": segment.stream,
        "size_class": segment.size_class,
        "pool": segment.pool,
        "expandable": segment.expandable,
        "blocks": [_block(block, stacks) for block in segment.blocks],
        "extents": segment.extents,
        "stack": _number(segment.frames, stacks),
    }


def _block(block: BlockPicture, stacks: dict[Frames, int]) -> dict[str, Any]:
    return {
        "address": block.address,
        "size": block.size,
        "requested": block.requested,
        "state": block.state,
        "users": block.users,
        "stack": _number(block.frames, stacks),
    }


def _entry(entry: Entry, stacks: dict[Frames, int]) -> dict[str, Any]:
    return {
        "action": entry.action,
        "address": entry.address,
        "size": entry.size,
        "stream": entry.stream,
        "time_us": entry.time_us,
        "pool": entry.pool,
        "stack": _number(entry.frames, stacks),
        "annotation": entry.annotation,
    }


def loads(text: str) -> Picture:
    """Return the picture that `dumps` wrote.

    Raises `MisuseError` for what is no JSON, another format or version, and for any
    value that is missing, unknown or of the wrong kind, with its place.
    """
    try:
        top = Item(json.loads(text), "snapshot")
    except (ValueError, RecursionError) as error:
        raise MisuseError(
            f"the snapshot is no JSON: {error}. Use the file as it was written"
        ) from None
    _check_version(top)
    return _read_picture(top)


def _check_version(top: Item) -> None:
    members = top.members()
    found = {
        name: members[name].value for name in ("format", "version") if name in members
    }
    if found != {"format": FORMAT, "version": VERSION}:
        raise MisuseError(
            f"the snapshot says {found}, not format {FORMAT!r} version {VERSION}. Read "
            "it with the release that wrote it, or write it again"
        )


def _read_picture(top: Item) -> Picture:
    names = ("device", "total", "free", "limit", "settings", "pools", "segments")
    of = top.record("format", "version", *names, "history", "stacks")
    stacks = [
        tuple(_read_frame(frame) for frame in stack.items())
        for stack in of["stacks"].items()
    ]
    return Picture(
        device=of["device"].integer(),
        total=Size(of["total"].integer()),
        free=Size(of["free"].integer()),
        limit=Size(of["limit"].integer()),
        segments=tuple(_read_segment(s, stacks) for s in of["segments"].items()),
        pools=tuple(_read_pool(pool) for pool in of["pools"].items()),
        settings={
            name: item.plain() for name, item in of["settings"].members().items()
        },
        history=tuple(_read_entry(entry, stacks) for entry in of["history"].items()),
    )


def _read_frame(item: Item) -> Frame:
    filename, line, name = item.items(3)
    return Frame(filename.text(), line.integer(), name.text())


def _read_stack(item: Item, stacks: list[Frames]) -> Frames:
    number = item.integer()
    if number >= len(stacks):
        raise item.refuse(f"the number of one of {len(stacks)} stacks")
    return stacks[number]


def _read_id(item: Item) -> PoolId:
    capture, user = item.items(2)
    return PoolId(capture.integer(), user.integer())


def _read_pool(item: Item) -> PoolPicture:
    of = item.record("id", "use_count", "no_split", "use_on_oom")
    return PoolPicture(
        _read_id(of["id"]),
        of["use_count"].integer(),
        of["no_split"].switch(),
        of["use_on_oom"].switch(),
    )


def _read_segment(item: Item, stacks: list[Frames]) -> SegmentPicture:
    names = ("address", "size", "stream", "size_class", "pool", "expandable")
    of = item.record(*names, "blocks", "extents", "stack")
    return SegmentPicture(
        address=Addr(of["address"].integer()),
        size=Size(of["size"].integer()),
        stream=StreamHandle(of["stream"].integer()),
        size_class=of["size_class"].choice(get_args(SizeClass)),
        pool=_read_id(of["pool"]),
        expandable=of["expandable"].switch(),
        blocks=tuple(_read_block(block, stacks) for block in of["blocks"].items()),
        extents=tuple(_read_extent(extent) for extent in of["extents"].items()),
        frames=_read_stack(of["stack"], stacks),
    )


def _read_extent(item: Item) -> tuple[Addr, Size]:
    address, size = item.items(2)
    return Addr(address.integer()), Size(size.integer())


def _read_block(item: Item, stacks: list[Frames]) -> BlockPicture:
    of = item.record("address", "size", "requested", "state", "users", "stack")
    return BlockPicture(
        address=Addr(of["address"].integer()),
        size=Size(of["size"].integer()),
        requested=Size(of["requested"].integer()),
        state=of["state"].choice(get_args(BlockState)),
        users=_read_streams(of["users"].items()),
        frames=_read_stack(of["stack"], stacks),
    )


def _read_streams(items: Iterable[Item]) -> tuple[StreamHandle, ...]:
    return tuple(StreamHandle(item.integer()) for item in items)


def _read_entry(item: Item, stacks: list[Frames]) -> Entry:
    names = ("action", "address", "size", "stream", "time_us", "pool")
    of = item.record(*names, "stack", "annotation")
    return Entry(
        action=of["action"].choice(get_args(Action)),
        address=Addr(of["address"].integer()),
        size=Size(of["size"].integer()),
        stream=StreamHandle(of["stream"].integer()),
        time_us=of["time_us"].integer(),
        pool=_read_id(of["pool"]),
        frames=_read_stack(of["stack"], stacks),
        annotation=of["annotation"].text(),
    )
