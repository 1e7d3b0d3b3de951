"""Reading a trace from a file, whatever wrote it.

Known are CSV of lifetimes, RMM's logs, our own snapshots, and PyTorch's snapshots.
Nothing in a file is run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from sapwood.allocator import lifetimes
from sapwood.allocator.caching.export import snapshot
from sapwood.allocator.caching.export.torch_snapshot import loads_torch
from sapwood.allocator.caching.picture import Picture
from sapwood.allocator.simulate.trace import Buffer, Trace
from sapwood.errors import MisuseError, of_file, read_file
from sapwood.units import Size


class Log:
    """Takes events in their order, then gives the trace."""

    def __init__(self) -> None:
        self._now = 0
        self._live: dict[int, tuple[int, Size, int]] = {}
        self._ended: list[tuple[int, int, Size, int]] = []

    def allocate(self, address: int, size: int, stream: int) -> None:
        """Note an allocation; whatever was noted there before has ended."""
        self._now += 1
        self._end(address)
        self._live[address] = self._now, Size(size), stream

    def free(self, address: int, size: int = 0, stream: int = 0) -> None:
        """Note that an allocation has ended; the rest tells of one not known here."""
        self._now += 1
        self._live.setdefault(address, (0, Size(size), stream))
        self._end(address)

    def survive(self, blocks: Iterable[tuple[int, int, int]]) -> None:
        """Note blocks ``(address, size, stream)`` that are there at the end.

        Those that the log does not know were there before it began.
        """
        for address, size, stream in blocks:
            self._live.setdefault(address, (0, Size(size), stream))

    def trace(self, name: str) -> Trace:
        """Return the trace; what is still there ends after everything else."""
        end = self._now + 1
        left = [
            (lower, end, size, stream) for lower, size, stream in self._live.values()
        ]
        rows = enumerate(sorted(self._ended + left))
        return Trace.of(name, (Buffer(str(number), *row) for number, row in rows))

    def _end(self, address: int) -> None:
        if address in self._live:
            lower, size, stream = self._live.pop(address)
            self._ended.append((lower, self._now, size, stream))


COLUMNS = ("Thread", "Time", "Action", "Pointer", "Size", "Stream")
_FAILED = "allocate failure"


def from_rmm(name: str, text: str) -> Trace:
    """Return the trace in a log; raises `MisuseError` that names a wrong line."""
    log = Log()
    for number, line in enumerate(text.splitlines()[1:], 2):
        cells = [cell.strip() for cell in line.split(",")]
        if cells == [""]:
            continue
        if len(cells) != len(COLUMNS):
            raise MisuseError(
                f"line {number} of {name} has {len(cells)} cells. Give the "
                f"{len(COLUMNS)} of RMM's log: {','.join(COLUMNS)}"
            )
        _note(log, cells, f"line {number} of {name}")
    return log.trace(name)


def _note(log: Log, cells: list[str], where: str) -> None:
    action = cells[2]
    if action == _FAILED:
        return
    address, size, stream = (
        _integer(cell, column, where)
        for cell, column in zip(cells[3:], COLUMNS[3:], strict=True)
    )
    if not size:
        return
    if action == "allocate":
        log.allocate(address, size, stream)
    elif action == "free":
        log.free(address, size, stream)
    else:
        raise MisuseError(
            f"{where}: Action is {action!r}. RMM writes allocate, free or {_FAILED}"
        )


def _integer(cell: str, column: str, where: str) -> int:
    if cell in {"(nil)", "nullptr"}:
        return 0
    try:
        value = int(cell, 0)
    except ValueError:
        value = -1
    if value < 0:
        raise MisuseError(
            f"{where}: {column} is {cell!r}. Give a whole number, decimal or 0x…"
        )
    return value


_PICKLE = b"\x80"


def read_trace(path: str | Path, device: int | None = None) -> Trace:
    """Return the trace in a file, named after it.

    ``device`` is which one's of a snapshot of PyTorch; None: the only one that it has.
    Raises `MisuseError` for what cannot be read, or is no trace, and where a device
    is chosen in a file that does not tell them apart.
    """
    source = Path(path)
    data = read_file(path, "Name a file with a trace")
    if data.startswith(_PICKLE):
        with of_file(source):
            return from_picture(source.stem, loads_torch(data, device))
    if device is not None:
        raise MisuseError(
            f"{source} is no snapshot of PyTorch, so there is no device {device} to "
            "choose in it. Leave the device out"
        )
    text = data.decode("utf-8-sig", errors="replace")
    if text.lstrip().startswith(("{", "[")):
        with of_file(source):
            return from_picture(source.stem, snapshot.loads(text))
    header = [cell.strip() for cell in re.split("[,\t]", text.partition("\n")[0])]
    if header == list(COLUMNS):
        return from_rmm(source.stem, text)
    if set(header) & set(lifetimes.COLUMNS):
        return _from_lifetimes(source, data)
    raise MisuseError(
        f"{source} is no trace. Give a CSV with the columns "
        f"{','.join(lifetimes.COLUMNS)}, a log of RMM with {','.join(COLUMNS)}, a "
        "snapshot of ours as JSON, or one of PyTorch as a pickle"
    )


def _from_lifetimes(source: Path, data: bytes) -> Trace:
    table = lifetimes.parse_lifetimes(str(source), data)
    rows = zip(table.ids, table.buffers, table.streams, strict=True)
    buffers = [Buffer(key, *each, stream) for key, each, stream in rows]
    return Trace.of(source.stem, buffers)


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
        for segment, block in picture.blocks("allocated", "pending")
    )
    return log.trace(name)
