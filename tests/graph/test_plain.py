"""Plain values come back with their type and bits; everything else is refused."""

from __future__ import annotations

import json
import struct
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.errors import StoreError
from sapwood.tree.nests.plain import from_json, from_text, is_plain, to_json, to_text

WORDS = st.integers(-(1 << 70), 1 << 70)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    WORDS,
    st.floats(),
    st.complex_numbers(),
    st.text(),
    st.binary(),
    st.just(...),
    st.builds(range, WORDS, WORDS, WORDS.filter(bool)),
)
PLAIN = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner),
        st.lists(inner).map(tuple),
        st.builds(slice, inner, inner, inner),
    ),
    max_leaves=12,
)

JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.text(),
        st.sampled_from(["int", "float", "complex", "bytes", "range", "slice", "..."]),
        st.sampled_from(["tuple", "list", "ff", "FF", "3ff0000000000000", "f f"]),
    ),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner)),
    max_leaves=12,
)


def _bits(value):
    """Return what tells plain values apart: types, bits, order."""
    if type(value) is float:
        return "float", struct.pack(">d", value)
    if type(value) is complex:
        return "complex", struct.pack(">2d", value.real, value.imag)
    if type(value) is slice:
        return "slice", *map(_bits, (value.start, value.stop, value.step))
    if type(value) in {tuple, list}:
        return type(value), *map(_bits, value)
    return type(value), repr(value)


@given(PLAIN)
def test_values_come_back_with_every_bit(value):
    """1, True, 1.0, the zeros and every NaN stay what they are."""
    assert is_plain(value)
    found = from_json(from_text(to_text(to_json(value))))
    assert _bits(found) == _bits(value)


@given(PLAIN, PLAIN)
def test_text_is_the_same_for_the_same_value_only(one, other):
    """Text may stand for the value in a key."""
    texts = to_text(to_json(one)), to_text(to_json(other))
    assert (texts[0] == texts[1]) == (_bits(one) == _bits(other))


@given(JSON)
def test_json_is_a_value_as_written_or_refused(found):
    """What is accepted is exactly what would be written for it."""
    try:
        value = from_json(found)
    except StoreError:
        return
    assert to_text(to_json(value)) == to_text(found)


@given(st.one_of(st.binary(), JSON.map(lambda j: json.dumps(j, indent=1).encode())))
def test_text_is_json_as_written_or_refused(text):
    """Spaces, other orders of keys and other spellings are not repaired."""
    try:
        found = from_text(text)
    except StoreError:
        return
    assert to_text(found) == text


class Whole(int):
    """An integer that may be more."""


@pytest.mark.parametrize(
    "value",
    [object(), {}, set(), Whole(1), bytearray(), b"".join, (1, {}), [object()]],
    ids=lambda value: type(value).__name__,
)
def test_other_values_are_not_plain(value):
    """Subclasses and mappings may be more than their items."""
    assert not is_plain(value)
    with pytest.raises(ValueError, match="no plain value"):
        to_json(value)


@pytest.mark.parametrize(
    "found",
    [
        {},
        1.5,
        [],
        [1],
        [["tuple"]],
        ["set", 1],
        ["float"],
        ["float", "00"],
        ["float", "3FF0000000000000"],
        ["float", "3ff00000 00000000"],
        ["float", "zz"],
        ["float", 1],
        ["complex", "3ff0000000000000"],
        ["bytes", "a"],
        ["bytes", "a b"],
        ["int", "1"],
        ["int", "0x8000000000000000"],
        ["int", "8000_0000_0000_0000"],
        ["range", 0, 1],
        ["range", 0, 1, 0],
        ["range", 0, True, 1],
        ["range", 0, None, 1],
        ["slice", 0],
        ["...", 1],
        ["tuple", ["tuple", ["list", {}]]],
        ["bytes", "\ud800"],
    ],
    ids=ascii,
)
def test_what_is_written_in_another_way_is_refused(found):
    """Each is nearly what would be written."""
    with pytest.raises(StoreError):
        from_json(found)


def _nested(depth, tag="tuple"):
    found = None
    for _ in range(depth):
        found = [tag, found]
    return found


def test_nests_end():
    """As deep as is written is read; deeper is refused, not recursed into."""
    value = from_json(_nested(100))
    assert to_json(value) == _nested(100)
    assert not is_plain((value,))
    for depth in (101, 500, 900):
        with pytest.raises(StoreError):
            from_json(_nested(depth))


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff",
        b"nul",
        b"NaN",
        b"1.0",
        b"1e3",
        b"Infinity",
        b" 1",
        b'{"a":1,"a":1}',
        b"[" * 200_000,
        b"[" * 900 + b"]" * 900 + b" ",
        b"9" * 5000,
        b'"' + b"a" * 10,
    ],
    ids=map(str, count()),
)
def test_text_that_nobody_wrote_is_refused(text):
    """Also where it is too deep or too long to be read at all."""
    with pytest.raises(StoreError, match=f"text of {len(text)} bytes is unreadable"):
        from_text(text)


def test_integers_of_any_size_are_plain():
    """Thousands of digits are written and read, in time that grows with them."""
    for value in (10**5000, -(10**5000), 1 << 63, (1 << 63) - 1, -(1 << 63)):
        text = to_text(to_json(value))
        assert len(text) < value.bit_length() / 3 + 40
        assert from_json(from_text(text)) == value
