"""Tables of lifetimes: read from CSV, and written with a column of offsets.

The first line names the columns: ``id``, ``lower``, ``upper`` and ``size``, in any
order, perhaps ``stream``, and any others, which are kept. Cells are parted by commas,
or by tabs if the first line has tabs and no commas. Blank lines are skipped. Numbers
are whole and exact.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn

from sapwood.allocator.planner import Buffer
from sapwood.errors import MisuseError
from sapwood.units import Size

OFFSET = "offset"

COLUMNS = ("id", "lower", "upper", "size")
_STREAM = "stream"
_WHOLE = re.compile(r"[+-]?[0-9]{1,40}")


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """A table: its first line, its rows with all of their cells, and their buffers.

    ``ids`` and ``streams`` are those of the buffers; stream 0 where there is no column.
    """

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    ids: tuple[str, ...]
    buffers: tuple[Buffer, ...]
    streams: tuple[int, ...]
    delimiter: str
    line_end: str

    def with_offsets(self, offsets: Sequence[int]) -> str:
        """Return the table as text, with one more column."""
        text = io.StringIO(newline="")
        writer = csv.writer(
            text, delimiter=self.delimiter, lineterminator=self.line_end
        )
        writer.writerow((*self.header, OFFSET))
        for row, offset in zip(self.rows, offsets, strict=True):
            writer.writerow((*row, offset))
        return text.getvalue()


def parse_lifetimes(name: str, data: bytes) -> Lifetimes:
    """Return the table in a file's bytes, UTF-8, with or without a byte order mark.

    Raises `MisuseError` that says what is wrong in which line and column.
    """
    text = _decode(name, data)
    first = text.partition("\n")[0]
    delimiter = "\t" if "\t" in first and "," not in first else ","
    rows = _rows(name, text, delimiter)
    header = next(rows, (0, ()))[1]
    key, *columns = _columns(name, header)
    lines: dict[str, int] = {}
    kept: list[tuple[str, ...]] = []
    buffers: list[Buffer] = []
    streams: list[int] = []
    for line, row in rows:
        if len(row) != len(header):
            _refuse(name, line, f"has {len(row)} cells", f"Give {len(header)}")
        known = lines.setdefault(row[key].strip(), line)
        if known != line:
            what = f"has the id {row[key].strip()!r} of line {known}"
            _refuse(name, line, what, "Name each buffer once")
        kept.append(row)
        numbers = [
            _whole(name, line, header[at].strip(), row[at].strip()) for at in columns
        ]
        buffers.append(_buffer(name, line, *numbers[:3]))
        streams += numbers[3:] or [0]
    return Lifetimes(
        header=header,
        rows=tuple(kept),
        ids=tuple(lines),
        buffers=tuple(buffers),
        streams=tuple(streams),
        delimiter=delimiter,
        line_end="\r\n" if first.endswith("\r") else "\n",
    )


def _decode(name: str, data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        _refuse(name, line, "is no text in UTF-8", "Give a CSV file in UTF-8")


def _rows(
    name: str, text: str, delimiter: str
) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield the rows that are not blank, with the numbers of their first lines."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    line = 1
    try:
        for row in reader:
            if any(cell.strip() for cell in row):
                yield line, tuple(row)
            line = reader.line_num + 1
    except csv.Error as error:
        _refuse(name, line, f"is no CSV: {error}", "Mend its quotes")


def _columns(name: str, header: tuple[str, ...]) -> list[int]:
    """Return where the columns are that matter, in their own order."""
    named = ", ".join(COLUMNS)
    if not header:
        raise MisuseError(f"{name} is empty. Its first line must name {named}")
    names = [cell.strip() for cell in header]
    for column in COLUMNS:
        if (count := names.count(column)) != 1:
            often = f"{count} columns" if count else "no column"
            raise MisuseError(
                f"{name} has {often} {column!r}. Its first line must name each of "
                f"{named} once"
            )
    wanted = (*COLUMNS, _STREAM) if _STREAM in names else COLUMNS
    return [names.index(column) for column in wanted]


def _buffer(name: str, line: int, lower: int, upper: int, size: int) -> Buffer:
    if lower >= upper:
        what = f"has a lower of {lower} and an upper of {upper}"
        _refuse(name, line, what, "Give an upper above lower: upper itself is free")
    if size < 0:
        _refuse(name, line, f"has a size of {size}", "Give one from 0")
    return Buffer(lower, upper, Size(size))


def _whole(name: str, line: int, column: str, text: str) -> int:
    if not _WHOLE.fullmatch(text):
        shown = repr(text if len(text) <= 50 else f"{text[:50]}...")
        remedy = "Give a whole number of at most 40 digits"
        _refuse(name, line, f"has {shown} in its column {column}", remedy)
    return int(text)


def _refuse(name: str, line: int, what: str, remedy: str) -> NoReturn:
    raise MisuseError(f"line {line} of {name} {what}. {remedy}")
