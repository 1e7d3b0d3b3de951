"""Reading lifetimes from CSV: ``id,lower,upper,size``, and ``stream`` if there is one.

Columns may come in any order, with others among them. Numbers are whole, and exact.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from typing import NoReturn

from sapwood.allocator.simulate.trace import Buffer, Trace
from sapwood.errors import MisuseError
from sapwood.units import Size

__all__ = ["COLUMNS", "from_csv"]

COLUMNS = ("id", "lower", "upper", "size")
_STREAM = "stream"
_DIGITS = 40


def from_csv(name: str, text: str) -> Trace:
    """Return the trace in a table; raises `MisuseError` that names line and column."""
    rows = csv.reader(text.splitlines(), strict=True)
    try:
        header = [cell.strip() for cell in next(rows, [])]
        columns = {column: header.index(column) for column in COLUMNS}
    except ValueError:
        raise MisuseError(
            f"{name} has no column {_first_missing(header)!r}. Its first line must "
            f"name the columns {','.join(COLUMNS)}"
        ) from None
    if _STREAM in header:
        columns[_STREAM] = header.index(_STREAM)
    try:
        return Trace.of(name, list(_buffers(name, rows, columns, len(header))))
    except csv.Error as error:
        raise MisuseError(
            f"line {rows.line_num} of {name} is no CSV: {error}. Mend its quotes"
        ) from error


def _first_missing(header: list[str]) -> str:
    return next(column for column in COLUMNS if column not in header)


def _buffers(
    name: str, rows: Iterator[list[str]], columns: Mapping[str, int], width: int
) -> Iterator[Buffer]:
    seen: dict[str, int] = {}
    for line, row in enumerate(rows, 2):
        if not any(row):
            continue
        where = f"line {line} of {name}"
        if len(row) != width:
            _refuse(where, f"has {len(row)} cells", f"give {width}, as the first line")
        cells = {column: row[index].strip() for column, index in columns.items()}
        buffer = _buffer(where, cells)
        first = seen.setdefault(buffer.name, line)
        if first != line:
            _refuse(
                where, f"has the id {buffer.name} of line {first}", "name each once"
            )
        yield buffer


def _buffer(where: str, cells: Mapping[str, str]) -> Buffer:
    numbers = {
        column: _whole(where, column, cell)
        for column, cell in cells.items()
        if column != "id"
    }
    lower, upper, size = numbers["lower"], numbers["upper"], numbers["size"]
    if lower >= upper:
        _refuse(
            where, f"ends at {upper}, begins at {lower}", "give an upper above lower"
        )
    if size < 0:
        _refuse(where, f"has a size of {size}", "give one from 0")
    return Buffer(cells["id"], lower, upper, Size(size), numbers.get(_STREAM, 0))


def _whole(where: str, column: str, cell: str) -> int:
    digits = cell.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= _DIGITS):
        remedy = f"give a whole number of at most {_DIGITS} digits"
        _refuse(where, f"has {cell!r} as its {column}", remedy)
    return int(cell)


def _refuse(where: str, what: str, remedy: str) -> NoReturn:
    raise MisuseError(f"{where} {what}: {remedy}")
