"""Pictures in the structure of PyTorch's memory snapshots, and back.

``torch.cuda._memory_viz`` reads what `to_torch` returns, and pickles of it. As in
PyTorch, each contiguous mapped range of an expandable segment is a segment there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, get_args

from sapwood.allocator.caching.export.pickled import dump_plain, load_plain
from sapwood.allocator.caching.export.strict import Item
from sapwood.allocator.caching.picture import (
    DEFAULT_POOL,
    Action,
    BlockPicture,
    BlockState,
    Entry,
    Frame,
    Picture,
    PoolId,
    PoolPicture,
    SegmentPicture,
)
from sapwood.allocator.caching.settings import Settings
from sapwood.driver.api import StreamHandle
from sapwood.errors import MisuseError
from sapwood.units import Addr, Size

_STATES: dict[BlockState, str] = {
    "allocated": "active_allocated",
    "pending": "active_pending_free",
    "free": "inactive",
}
_STATES_READ: dict[str, BlockState] = {
    **{theirs: ours for ours, theirs in _STATES.items()},
    "active_awaiting_free": "pending",
}


def to_torch(*pictures: Picture) -> dict[str, Any]:
    """Return the pictures, one per device, as one dict of plain values."""
    last = max((picture.device for picture in pictures), default=-1)
    traces: list[list[dict[str, Any]]] = [[] for _ in range(last + 1)]
    for picture in pictures:
        traces[picture.device] = [_event(entry) for entry in picture.history]
    return {
        "segments": [
            _segment(picture.device, part)
            for picture in pictures
            for segment in picture.segments
            for part in _mapped(segment)
        ],
        "device_traces": traces,
        "allocator_settings": _settings(pictures[0]) if pictures else {},
        "external_annotations": [],
    }


def dumps_torch(*pictures: Picture) -> bytes:
    """Return `to_torch` as a pickle, as PyTorch's tools read from files."""
    return dump_plain(to_torch(*pictures))


def _mapped(segment: SegmentPicture) -> Iterator[SegmentPicture]:
    """Yield one segment for each run of mapped blocks."""
    run: list[BlockPicture] = []
    for block in segment.blocks:
        if block.state != "unmapped":
            run.append(block)
        elif run:
            yield _of(segment, run)
            run = []
    if run:
        yield _of(segment, run)


def _of(segment: SegmentPicture, run: list[BlockPicture]) -> SegmentPicture:
    size = Size(sum(block.size for block in run))
    return replace(segment, address=run[0].address, size=size, blocks=tuple(run))


def _segment(device: int, segment: SegmentPicture) -> dict[str, Any]:
    active = [block for block in segment.blocks if block.state != "free"]
    allocated = (block.size for block in active if block.state == "allocated")
    return {
        "device": device,
        "address": segment.address,
        "total_size": segment.size,
        "allocated_size": sum(allocated),
        "active_size": sum(block.size for block in active),
        "requested_size": sum(block.requested for block in active),
        "stream": segment.stream,
        "segment_type": segment.size_class,
        "segment_pool_id": tuple(segment.pool),
        "is_expandable": segment.expandable,
        "frames": _frames(segment.frames),
        "blocks": [_block(block) for block in segment.blocks],
    }


def _block(block: BlockPicture) -> dict[str, Any]:
    return {
        "address": block.address,
        "size": block.size,
        "requested_size": block.requested,
        "state": _STATES[block.state],
        "frames": _frames(block.frames),
    }


def _frames(frames: Iterable[Frame]) -> list[dict[str, Any]]:
    return [frame._asdict() for frame in frames]


def _event(entry: Entry) -> dict[str, Any]:
    place = "device_free" if entry.action == "oom" else "addr"
    event: dict[str, Any] = {
        "action": entry.action,
        place: entry.address,
        "size": entry.size,
        "stream": entry.stream,
        "time_us": entry.time_us,
        "compile_context": "N/A",
        "user_metadata": entry.annotation,
        "pool_id": tuple(entry.pool),
    }
    return {**event, "frames": _frames(entry.frames)} if entry.frames else event


def _settings(picture: Picture) -> dict[str, Any]:
    plain: dict[str, Any] = dict(picture.settings)
    settings = Settings().replace(**plain)
    divisions = settings.roundup_power2_divisions
    split = settings.max_split_size
    return {
        "PYTORCH_CUDA_ALLOC_CONF": settings.text(),
        "max_split_size": -1 if split is None else split,
        "garbage_collection_threshold": settings.garbage_collection_threshold,
        "expandable_segments": settings.expandable_segments,
        "pinned_num_register_threads": settings.pinned_num_register_threads,
        "release_lock_on_cudamalloc": settings.release_lock_on_cudamalloc,
        "pinned_use_cuda_host_register": settings.pinned_use_cuda_host_register,
        "graph_capture_record_stream_reuse": settings.graph_capture_record_stream_reuse,
        "roundup_power2_divisions": {
            str(1 << power): divisions.get(1 << power, 0) for power in range(16)
        },
    }


def loads_torch(data: bytes, device: int | None = None) -> Picture:
    """Return `from_torch` of a pickle; only plain data is read, nothing is run."""
    return from_torch(load_plain(data), device)


def from_torch(data: object, device: int | None = None) -> Picture:
    """Return the picture of one ``device`` of a PyTorch snapshot.

    Without ``device`` it is of the only one that has memory or events. What such a
    snapshot does not hold is taken to be full: the device is as large as what it
    reserves. Events that are not of an allocator are left out. Raises `MisuseError`
    with the place of a value that is not as PyTorch writes it.
    """
    top = Item(data, "snapshot")
    # Old snapshots are the list of segments alone.
    of = {"segments": top} if isinstance(data, list) else top.members()
    if "segments" not in of:
        raise top.refuse("a mapping with segments")
    traces = of["device_traces"].items() if "device_traces" in of else []
    segments = of["segments"].items()
    chosen = _the_only(segments, traces) if device is None else device
    read = tuple(_read_segment(item) for item in segments if _device(item) == chosen)
    events = traces[chosen].items() if chosen < len(traces) else []
    total = Size(sum(segment.size for segment in read))
    pools = sorted({DEFAULT_POOL, *(segment.pool for segment in read)})
    return Picture(
        device=chosen,
        total=total,
        free=Size(0),
        limit=total,
        segments=read,
        pools=tuple(PoolPicture(pool, 1) for pool in pools),
        history=tuple(_read_event(event) for event in events if _is_ours(event)),
    )


def _device(item: Item) -> int:
    of = item.members()
    return of["device"].integer() if "device" in of else 0


def _the_only(segments: list[Item], traces: list[Item]) -> int:
    used = {_device(segment) for segment in segments}
    used |= {at for at, events in enumerate(traces) if events.items()}
    if len(used) > 1:
        raise MisuseError(
            f"the snapshot holds devices {', '.join(map(str, sorted(used)))}. Say which"
        )
    return used.pop() if used else 0


def _read_segment(item: Item) -> SegmentPicture:
    of = item.members()
    address, size = _need(item, "address"), _need(item, "total_size")
    at, blocks = address.integer(), []
    for block in _need(item, "blocks").items():
        blocks.append(_read_block(block, at))
        at += blocks[-1].size
    if at != address.integer() + size.integer():
        raise item.refuse("a segment as large as its blocks")
    pool = of["segment_pool_id"].items(2) if "segment_pool_id" in of else []
    expandable = "is_expandable" in of and of["is_expandable"].switch()
    return SegmentPicture(
        address=Addr(address.integer()),
        size=Size(size.integer()),
        stream=StreamHandle(_need(item, "stream").integer()),
        size_class=_need(item, "segment_type").choice(("small", "large")),
        pool=PoolId(*(part.integer() for part in pool)) if pool else DEFAULT_POOL,
        expandable=expandable,
        blocks=tuple(blocks),
        extents=((Addr(address.integer()), Size(size.integer())),),
        frames=_read_frames(item),
    )


def _need(item: Item, name: str) -> Item:
    members = item.members()
    if name not in members:
        raise item.refuse(f"a mapping with {name}")
    return members[name]


def _read_block(item: Item, at: int) -> BlockPicture:
    of = item.members()
    size = _need(item, "size").integer(1)
    if "address" in of and of["address"].integer() != at:
        raise item.refuse("a block where the one before it ends")
    state = _STATES_READ[_need(item, "state").choice(tuple(_STATES_READ))]
    known = "requested_size" in of and state != "free"
    requested = of["requested_size"].integer() if known else size
    return BlockPicture(
        address=Addr(at),
        size=Size(size),
        requested=Size(0 if state == "free" else requested),
        state=state,
        frames=_read_frames(item),
    )


def _read_frames(item: Item) -> tuple[Frame, ...]:
    of = item.members()
    return tuple(
        Frame(
            _need(frame, "filename").text(),
            _need(frame, "line").integer(),
            _need(frame, "name").text(),
        )
        for frame in (of["frames"].items() if "frames" in of else [])
    )


def _is_ours(item: Item) -> bool:
    return _need(item, "action").text() in get_args(Action)


def _read_event(item: Item) -> Entry:
    of = item.members()
    action: Action = _need(item, "action").choice(get_args(Action))
    pool = of["pool_id"].items(2) if "pool_id" in of else []
    return Entry(
        action=action,
        address=Addr(
            _need(item, "device_free" if action == "oom" else "addr").integer()
        ),
        size=Size(_need(item, "size").integer()),
        stream=StreamHandle(_need(item, "stream").integer()),
        time_us=of["time_us"].integer() if "time_us" in of else 0,
        pool=PoolId(*(part.integer() for part in pool)) if pool else DEFAULT_POOL,
        frames=_read_frames(item),
        annotation=of["user_metadata"].text() if "user_metadata" in of else "",
    )
