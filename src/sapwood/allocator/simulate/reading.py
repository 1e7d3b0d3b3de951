"""Reading a trace from a file, whatever wrote it.

Known are CSV of lifetimes, RMM's logs, our own snapshots, and PyTorch's snapshots.
Nothing in a file is run.
"""

from __future__ import annotations

from pathlib import Path

from sapwood.allocator import lifetimes
from sapwood.allocator.caching.export import snapshot
from sapwood.allocator.caching.export.torch_snapshot import loads_torch
from sapwood.allocator.caching.picture import Picture
from sapwood.allocator.simulate import rmm
from sapwood.allocator.simulate.log import Log
from sapwood.allocator.simulate.rmm import from_rmm
from sapwood.allocator.simulate.trace import Buffer, Trace
from sapwood.errors import MisuseError

__all__ = ["from_picture", "read_trace"]

_PICKLE = b"\x80"


def read_trace(path: str | Path, device: int | None = None) -> Trace:
    """Return the trace in a file, named after it.

    ``device`` is which one's of a snapshot of PyTorch; None: the only one that it has.
    Raises `MisuseError` for what cannot be read, or is no trace, and where a device
    is chosen in a file that does not tell them apart.
    """
    source = Path(path)
    try:
        data = source.read_bytes()
    except OSError as error:
        raise MisuseError(
            f"{source} cannot be read: {error.strerror}. Name a file with a trace"
        ) from error
    if data.startswith(_PICKLE):
        return from_picture(source.stem, loads_torch(data, device))
    if device is not None:
        raise MisuseError(
            f"{source} is no snapshot of PyTorch, so there is no device {device} to "
            "choose in it. Leave the device out"
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _unknown(source) from error
    if text.lstrip().startswith(("{", "[")):
        return from_picture(source.stem, snapshot.loads(text))
    header = [cell.strip() for cell in text.partition("\n")[0].split(",")]
    if header == list(rmm.COLUMNS):
        return from_rmm(source.stem, text)
    if set(header) & set(lifetimes.COLUMNS):
        return _from_lifetimes(source.stem, data)
    raise _unknown(source)


def _from_lifetimes(name: str, data: bytes) -> Trace:
    table = lifetimes.parse_lifetimes(name, data)
    rows = zip(table.ids, table.buffers, table.streams, strict=True)
    return Trace.of(name, [Buffer(key, *each, stream) for key, each, stream in rows])


def _unknown(source: Path) -> MisuseError:
    return MisuseError(
        f"{source} is no trace. Give a CSV with the columns "
        f"{','.join(lifetimes.COLUMNS)}, a log of RMM with {','.join(rmm.COLUMNS)}, a "
        "snapshot of ours as JSON, or one of PyTorch as a pickle"
    )


def from_picture(name: str, picture: Picture) -> Trace:
    """Return the trace of a picture's history, and of the blocks it does not know.

    A buffer ends when its block could be used again: where ``free_completed`` was
    noted, there, so that what other streams still used counts as alive. Private pools
    are replayed as part of the default one.
    """
    actions = {entry.action for entry in picture.history}
    ends = "free_completed" if "free_completed" in actions else "free_requested"
    log = Log()
    for entry in picture.history:
        if entry.action == "alloc":
            log.allocate(entry.address, entry.size, entry.stream)
        elif entry.action == ends:
            log.free(entry.address, entry.size, entry.stream)
    log.survive(
        (block.address, block.requested, segment.stream)
        for segment in picture.segments
        for block in segment.blocks
        if block.state in {"allocated", "pending"}
    )
    return log.trace(name)
