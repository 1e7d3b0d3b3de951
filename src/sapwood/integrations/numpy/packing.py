"""The parameters of a kernel as bytes: little-endian words of 8 bytes.

A header with the numbers of outputs and values, then records one after another. The
first word of a record holds its tag, a small number and its length, so that every
address is found without decoding anything. Containers are followed by their items.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np

from sapwood.driver.api import Pointer
from sapwood.integrations.numpy.layout import Array, check_dtype
from sapwood.integrations.strided import Layout
from sapwood.units import Addr

ARRAY, _CONST, _INT, _FLOAT, COMPLEX, _SYMBOL, TEXT, _DTYPE, TUPLE, _SLICE = range(10)
SYMBOLS: Final = (None, False, True, Ellipsis)

_head = struct.Struct("<HHI")
_header = struct.Struct("<II")
_word = struct.Struct("<Q")
_float = struct.Struct("<d")
_complex = struct.Struct("<dd")
_dtype = struct.Struct("<8s")


def pack(values: Sequence[Any], outs: int = 0, *, bare: bool = False) -> bytes:
    """Return values as parameter bytes; the first ``outs`` values are written.

    A value is a device array, a host array (a constant), a dtype, slice, tuple,
    str, int, float, complex, bool, None or Ellipsis; others are a `TypeError`.
    ``bare`` leaves addresses out.
    """
    chunks = [_header.pack(outs, len(values))]
    for value in values:
        _pack_value(value, bare, chunks.append)
    return b"".join(chunks)


def _pack_value(value: Any, bare: bool, put: Callable[[bytes], Any]) -> None:
    if hasattr(value, "layout"):
        before, after = _frame(value.layout)
        put(before)
        put(_word.pack(0 if bare else value.address))
        put(after)
    elif type(value) is tuple:
        put(_head.pack(TUPLE, len(value), 1))
        for item in value:
            _pack_value(item, bare, put)
    elif isinstance(value, slice):
        put(_head.pack(_SLICE, 0, 1))
        for item in (value.start, value.stop, value.step):
            _pack_value(item, bare, put)
    else:
        put(_pack_constant(value))


@lru_cache(4096)
def _frame(layout: Layout) -> tuple[bytes, bytes]:
    shape, strides, dtype, *_ = layout
    rank = len(shape)
    before = _head.pack(ARRAY, rank, 3 + 2 * rank) + _dtype.pack(dtype.encode())
    return before, struct.pack(f"<{rank}Q{rank}q", *shape, *strides)


def _pack_constant(value: Any) -> bytes:
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(value)
        shape = struct.pack(f"<{array.ndim}Q", *array.shape)
        body = _dtype.pack(array.dtype.str.encode()) + shape + array.tobytes()
        return _record(_CONST, array.ndim, body)
    for number, symbol in enumerate(SYMBOLS):
        if value is symbol:
            return _record(_SYMBOL, number, b"")
    if isinstance(value, int):
        words = value.bit_length() // 64 + 1
        return _record(_INT, 0, int(value).to_bytes(8 * words, "little", signed=True))
    if isinstance(value, float):
        return _record(_FLOAT, 0, _float.pack(value))
    if isinstance(value, complex):
        return _record(COMPLEX, 0, _complex.pack(value.real, value.imag))
    if isinstance(value, str):
        text = value.encode()
        return _record(TEXT, len(text), text)
    if isinstance(value, (np.dtype, type)):
        return _record(_DTYPE, 0, _dtype.pack(np.dtype(value).str.encode()))
    raise TypeError(
        f"a kernel cannot take {type(value).__name__}; pass a device array or a "
        "plain number"
    )


def _record(tag: int, info: int, body: bytes) -> bytes:
    words = -(-len(body) // 8)
    return _head.pack(tag, info, 1 + words) + body.ljust(8 * words, b"\0")


def unpack(
    params: bytes, array_at: Callable[[int, Layout], Array]
) -> tuple[tuple[Array, ...], tuple[Any, ...]]:
    """Return outputs and the other values; ``array_at`` makes the arrays."""
    outs, count = _header.unpack_from(params)
    values, _ = _unpack_values(params, count, _header.size, array_at)
    return values[:outs], values[outs:]


def _unpack_values(
    params: bytes, count: int, place: int, array_at: Callable[[int, Layout], Array]
) -> tuple[tuple[Any, ...], int]:
    values = []
    for _ in range(count):
        value, place = _unpack_value(params, place, array_at)
        values.append(value)
    return tuple(values), place


def _unpack_value(
    params: bytes, place: int, array_at: Callable[[int, Layout], Array]
) -> tuple[Any, int]:
    # In a frame of its own: a kernel is bound deeper in the stack than it runs, so
    # where that is full, the caller is told before a stream loses the work.
    tag, info, words = _head.unpack_from(params, place)
    end = place + 8 * words
    if tag == ARRAY:
        (address,) = _word.unpack_from(params, place + 16)
        frame = params[place + 8 : place + 16], params[place + 24 : end]
        return array_at(address, _layout(*frame)), end
    if tag not in (TUPLE, _SLICE):
        return _READERS[tag](info, params[place + 8 : end]), end
    count = info if tag == TUPLE else 3
    items, end = _unpack_values(params, count, end, array_at)
    return (items if tag == TUPLE else slice(*items)), end


@lru_cache(4096)
def _layout(dtype: bytes, rest: bytes) -> Layout:
    rank = len(rest) // 16
    numbers = struct.unpack(f"<{rank}Q{rank}q", rest)
    kind = _unpack_dtype(0, dtype).str
    return Layout(numbers[:rank], numbers[rank:], kind, aligned=True, kind=True)


def _unpack_array(info: int, body: bytes) -> Array:
    shape = struct.unpack_from(f"<{info}Q", body, 8)
    return np.ndarray(shape, _unpack_dtype(info, body), body, 8 + 8 * info)


def _unpack_dtype(_: int, body: bytes) -> np.dtype[Any]:
    # Others could be made of addresses to follow, and parameters may be anybody's.
    dtype = np.dtype(body[:8].rstrip(b"\0").decode())
    check_dtype(dtype)
    return dtype


_READERS: Final[dict[int, Callable[[int, bytes], Any]]] = {
    _CONST: _unpack_array,
    _INT: lambda _, body: int.from_bytes(body, "little", signed=True),
    _FLOAT: lambda _, body: _float.unpack(body)[0],
    COMPLEX: lambda _, body: complex(*_complex.unpack(body)),
    _SYMBOL: lambda info, _: SYMBOLS[info],
    TEXT: lambda info, body: body[:info].decode(),
    _DTYPE: _unpack_dtype,
}


def _arrays(params: bytes) -> Iterator[int]:
    place = _header.size
    while place < len(params):
        tag, _, words = _head.unpack_from(params, place)
        if tag == ARRAY:
            yield place
        if words == 0:
            raise ValueError(f"the record at byte {place} has no length")
        place += 8 * words


def pointers(params: bytes) -> tuple[Pointer, ...]:
    """Return every address in ``params`` with the bytes that it stands for."""
    outs, _ = _header.unpack_from(params)
    found = []
    for number, place in enumerate(_arrays(params)):
        (address,) = _word.unpack_from(params, place + 16)
        _, _, words = _head.unpack_from(params, place)
        rest = params[place + 24 : place + 8 * words]
        low, high = _layout(params[place + 8 : place + 16], rest).extent
        low, high = address + low, address + high
        found.append(Pointer(place + 16, Addr(low), Addr(high), number < outs))
    return tuple(found)


def constants(params: bytes) -> bytes:
    """Return ``params`` with every address zeroed."""
    bare = bytearray(params)
    for place in _arrays(params):
        _word.pack_into(bare, place + 16, 0)
    return bytes(bare)
