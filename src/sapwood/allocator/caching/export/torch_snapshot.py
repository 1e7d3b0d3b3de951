"""Pictures in the structure of PyTorch's memory snapshots, and back.

``torch.cuda._memory_viz`` reads what `to_torch` returns, and pickles of it. As in
PyTorch, each contiguous mapped range of an expandable segment is a segment there.
"""

from __future__ import annotations

import io
import pickle  # noqa: TID251  PyTorch's tools read nothing else; see `_Plain`
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import groupby
from typing import Any, NoReturn, get_args

from sapwood.allocator.caching.export.snapshot import Item
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
from sapwood.errors import MisuseError, shown
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
    return pickle.dumps(to_torch(*pictures), protocol=4)


def _mapped(segment: SegmentPicture) -> Iterator[SegmentPicture]:
    """Yield one segment for each run of mapped blocks."""
    for mapped, run in groupby(segment.blocks, lambda b: b.state != "unmapped"):
        if mapped:
            blocks = tuple(run)
            size = Size(sum(block.size for block in blocks))
            yield replace(segment, address=blocks[0].address, size=size, blocks=blocks)


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


_SAME = (
    "garbage_collection_threshold",
    "expandable_segments",
    "pinned_num_register_threads",
    "release_lock_on_cudamalloc",
    "pinned_use_cuda_host_register",
    "graph_capture_record_stream_reuse",
)
"""The settings that have their values here, too."""


def _settings(picture: Picture) -> dict[str, Any]:
    plain: dict[str, Any] = dict(picture.settings)
    settings = Settings().replace(**plain)
    divisions = settings.roundup_power2_divisions
    split = settings.max_split_size
    steps = {str(1 << power): divisions.get(1 << power, 0) for power in range(16)}
    return {
        "PYTORCH_CUDA_ALLOC_CONF": settings.text(),
        "max_split_size": -1 if split is None else split,
        **{name: getattr(settings, name) for name in _SAME},
        "roundup_power2_divisions": steps,
    }


# What the unpickler raises for bytes that no pickler wrote.
_DAMAGE = (
    *(pickle.UnpicklingError, ArithmeticError, AttributeError, EOFError),
    *(LookupError, MemoryError, RecursionError, TypeError, ValueError),
)


def load_plain(data: bytes) -> Any:
    """Return the plain data of a pickle.

    Raises `MisuseError` for a pickle that names code, and for a damaged one.
    """
    try:
        return _Plain(io.BytesIO(data)).load()
    except _DAMAGE as error:
        raise MisuseError(
            f"the pickle cannot be read: {str(error) or 'it is damaged'}. Use the file "
            "as it was written"
        ) from None


class _Plain(pickle.Unpickler):
    """An unpickler that knows no names, so that nothing in a file can be called."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise MisuseError(
            f"the pickle names {module}.{name}: only plain data is read, as a name may "
            "be of any code. Write it without annotations that are objects"
        )

    def persistent_load(self, pid: object) -> NoReturn:
        raise MisuseError(
            f"the pickle refers to {shown(pid)} outside itself. Write it as plain data"
        )


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
    old = isinstance(data, list)
    segments = (top if old else top.part("segments")).items()
    traces = [] if old else top.part("device_traces", []).items()
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
    return item.part("device", 0).integer()


def _the_only(segments: list[Item], traces: list[Item]) -> int:
    used = {_device(segment) for segment in segments}
    used |= {at for at, events in enumerate(traces) if events.items()}
    if len(used) > 1:
        raise MisuseError(
            f"the snapshot holds devices {', '.join(map(str, sorted(used)))}. Say which"
        )
    return used.pop() if used else 0


def _read_segment(item: Item) -> SegmentPicture:
    address = Addr(item.part("address").integer())
    size = Size(item.part("total_size").integer())
    at, blocks = int(address), []
    for block in item.part("blocks").items():
        blocks.append(_read_block(block, at))
        at += blocks[-1].size
    if at != address + size:
        raise item.refuse("a segment as large as its blocks")
    return SegmentPicture(
        address=address,
        size=size,
        stream=StreamHandle(item.part("stream").integer()),
        size_class=item.part("segment_type").choice(("small", "large")),
        pool=_read_pool(item, "segment_pool_id"),
        expandable=item.part("is_expandable", False).switch(),
        blocks=tuple(blocks),
        extents=((address, size),),
        frames=_read_frames(item),
    )


def _read_pool(item: Item, name: str) -> PoolId:
    capture, user = item.part(name, tuple(DEFAULT_POOL)).items(2)
    return PoolId(capture.integer(), user.integer())


def _read_block(item: Item, at: int) -> BlockPicture:
    size = item.part("size").integer(1)
    if item.part("address", at).integer() != at:
        raise item.refuse("a block where the one before it ends")
    state = _STATES_READ[item.part("state").choice(tuple(_STATES_READ))]
    free = state == "free"
    return BlockPicture(
        address=Addr(at),
        size=Size(size),
        requested=Size(0 if free else item.part("requested_size", size).integer()),
        state=state,
        frames=_read_frames(item),
    )


def _read_frames(item: Item) -> tuple[Frame, ...]:
    return tuple(
        Frame(
            frame.part("filename").text(),
            frame.part("line").integer(),
            frame.part("name").text(),
        )
        for frame in item.part("frames", []).items()
    )


def _is_ours(item: Item) -> bool:
    return item.part("action").text() in get_args(Action)


def _read_event(item: Item) -> Entry:
    action: Action = item.part("action").choice(get_args(Action))
    place = "device_free" if action == "oom" else "addr"
    return Entry(
        action=action,
        address=Addr(item.part(place).integer()),
        size=Size(item.part("size").integer()),
        stream=StreamHandle(item.part("stream").integer()),
        time_us=item.part("time_us", 0).integer(),
        pool=_read_pool(item, "pool_id"),
        frames=_read_frames(item),
        annotation=item.part("user_metadata", "").text(),
    )
