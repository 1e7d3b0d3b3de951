"""Reading the logs of RMM's logging adaptor.

Lines are ``Thread,Time,Action,Pointer,Size,Stream``; their order is the order of
events. Failed allocations and those of no bytes leave nothing, and are passed over.
"""

from __future__ import annotations

from sapwood.allocator.simulate.log import Log
from sapwood.allocator.simulate.trace import Trace
from sapwood.errors import MisuseError

__all__ = ["COLUMNS", "from_rmm"]

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
