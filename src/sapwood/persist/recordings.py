"""Recordings as sections of bytes, and back.

    ops           JSON: op by op kind, size of its parameters, image, name, grid, ...
    params        the parameters of all ops, one behind the other
    image.0 ...   the images of the modules that hold the kernels

What a recording touches is not written: `inspect` finds it again, from the
parameters themselves, before anything is linked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from sapwood.errors import StoreError
from sapwood.graphs.recording import WORD, Kind, RecordedOp, Recording, Relocation
from sapwood.tree.nests.plain import Json, from_text, to_text

__all__ = ["decode_recording", "encode_recording", "expect"]

_FAR: Final = 1 << 48
"""No address, size or offset is larger: what a device can address."""

_WORDS: Final = {Kind.COPY: 3, Kind.SET: 3, Kind.EMPTY: 0}


def encode_recording(recording: Recording) -> dict[str, bytes]:
    """Return a recording as sections."""
    images = _images_of(recording.ops)
    ops = [
        [
            op.kind,
            len(op.params),
            images.index(op.image) if op.image else None,
            op.name,
            [*op.grid, *op.block, op.shared, *_cluster_of(op)],
        ]
        for op in recording.ops
    ]
    table = {
        "ops": ops,
        "edges": [list(edge) for edge in recording.edges],
        "relocations": [
            [r.op, r.offset, r.symbol, r.addend] for r in recording.relocations
        ],
    }
    return {
        "ops": to_text(table),
        "params": b"".join(op.params for op in recording.ops),
        **{f"image.{i}": image for i, image in enumerate(images)},
    }


def decode_recording(sections: Mapping[str, bytes], symbols: int) -> Recording:
    """Return a recording, its touches left out; it uses less than ``symbols`` symbols.

    Raises `StoreError` for anything that `encode_recording` would not have written.
    """
    try:
        table = from_text(sections["ops"])
        params = sections["params"]
    except KeyError as error:
        raise StoreError(f"a recording has no section {error}: record anew") from None
    expect(isinstance(table, dict) and table.keys() == _TABLES, "its tables")
    images = _images(sections)
    ops, at = [], 0
    for row in _rows(table["ops"], 5):
        op = _op(row, params[at:], images)
        at += len(op.params)
        ops.append(op)
    expect(at == len(params), "the length of its parameters")
    expect(images == _images_of(ops), "its images")
    edges = [_edge(row, len(ops)) for row in _rows(table["edges"], 2)]
    relocations = [
        _relocation(row, ops, symbols) for row in _rows(table["relocations"], 4)
    ]
    places = {(r.op, r.offset) for r in relocations}
    expect(len(places) == len(relocations), "an address that is relocated twice")
    return Recording(tuple(ops), tuple(edges), tuple(relocations), ())


_TABLES: Final = {"ops", "edges", "relocations"}


def expect(condition: bool, what: str) -> None:
    """Raise `StoreError` where data are not as they were written."""
    if not condition:
        raise StoreError(f"a recording is damaged: {what}. Record it anew")


def _images(sections: Mapping[str, bytes]) -> list[bytes]:
    count = sum(name.startswith("image.") for name in sections)
    names = [f"image.{i}" for i in range(count)]
    expect(all(name in sections for name in names), "the names of its images")
    return [sections[name] for name in names]


def _images_of(ops: Iterable[RecordedOp]) -> list[bytes]:
    return list(dict.fromkeys(op.image for op in ops if op.image))


def _cluster_of(op: RecordedOp) -> tuple[int, ...]:
    """Return what a file says of clusters: nothing, mostly."""
    return op.cluster if max(op.cluster) > 1 else ()


def _rows(table: Json, width: int) -> list[list[Any]]:
    expect(type(table) is list, "a table")
    for row in table:
        expect(type(row) is list and len(row) == width, "a row of a table")
    rows: list[list[Any]] = table
    return rows


def _number(value: Any, least: int, end: int) -> int:
    expect(type(value) is int and least <= value < end, "a number")
    number: int = value
    return number


def _op(row: list[Any], params: bytes, images: list[bytes]) -> RecordedOp:
    kind, size, image, name, geometry = row
    size = _number(size, 0, len(params) + 1)
    expect(type(geometry) is list and len(geometry) in (7, 10), "the grid of an op")
    cluster = geometry[7:] or [1, 1, 1]
    numbers = [_number(each, 1, 1 << 31) for each in (*geometry[:6], *cluster)]
    shared = _number(geometry[6], 0, 1 << 31)
    if kind == Kind.KERNEL:
        expect(type(name) is str and name != "", "the name of a kernel")
        found = images[_number(image, 0, len(images))]
    else:
        known = type(kind) is str and kind in _WORDS
        expect(known and size == 8 * _WORDS[kind], "the kind of an op")
        expect(image is None and name == "", "the name of an op")
        found = b""
    grid, block, cluster = (tuple(numbers[i : i + 3]) for i in (0, 3, 6))
    shape: Any = grid, block, shared, cluster
    return RecordedOp(kind, params[:size], found, name, *shape)


def _edge(row: list[Any], count: int) -> tuple[int, int]:
    second = _number(row[1], 0, count)
    return _number(row[0], 0, second), second


def _relocation(row: list[Any], ops: list[RecordedOp], symbols: int) -> Relocation:
    op = _number(row[0], 0, len(ops))
    offset = _number(row[1], 0, len(ops[op].params) - WORD.size + 1)
    return Relocation(
        op, offset, _number(row[2], 0, symbols), _number(row[3], -_FAR, _FAR)
    )
