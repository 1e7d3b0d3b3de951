"""Keys are told apart by every component, and become bytes and come back."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.errors import MisuseError, StoreError
from sapwood.persist.key import Difference, Key, decode_key, diff, encode_key

labels = st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=4)
keys = st.dictionaries(labels, st.binary(max_size=4), max_size=4).map(
    lambda parts: Key(tuple(parts.items()))
)


@given(keys, keys)
def test_only_equal_keys_share_a_digest(ours, theirs):
    """No two keys that differ in anything have one digest or one encoding."""
    assert (ours == theirs) == (ours.digest == theirs.digest)
    assert (ours == theirs) == (encode_key(ours) == encode_key(theirs))
    assert (ours == theirs) == (diff(ours, theirs) == [])


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ([("a", b"bc")], [("ab", b"c")]),
        ([("a", b"1"), ("b", b"2")], [("a", b"1"), ("c", b"2")]),
        ([("a", b"")], []),
        ([("a", b"1"), ("b", b"")], [("a", b""), ("b", b"1")]),
    ],
)
def test_components_do_not_run_into_each_other(ours, theirs):
    """Where one ends and the other begins is a part of the key."""
    assert Key(tuple(ours)).digest != Key(tuple(theirs)).digest


@given(keys)
def test_a_key_comes_back(key):
    """Decoding undoes encoding."""
    assert decode_key(encode_key(key)) == key


@given(keys, st.randoms())
def test_the_order_of_components_does_not_count(key, random):
    """Keys of the same components are the same key."""
    shuffled = list(key.components)
    random.shuffle(shuffled)
    assert Key(tuple(shuffled)) == key
    assert Key(tuple(shuffled)).digest == key.digest


@given(st.binary(max_size=80))
def test_what_is_no_key_is_refused(data):
    """Any bytes are refused, or are the encoding of the key that is read."""
    try:
        key = decode_key(data)
    except StoreError:
        return
    assert encode_key(key) == data


@given(keys, st.data())
def test_a_changed_encoding_is_refused_or_another_key(key, data):
    """No two encodings read as one key."""
    encoded = encode_key(key)
    at = data.draw(st.integers(0, len(encoded) - 1))
    changed = encoded[:at] + bytes([encoded[at] ^ data.draw(st.integers(1, 255))])
    changed += encoded[at + 1 :]
    with suppress(StoreError):
        assert decode_key(changed) != key


def test_a_difference_names_its_component():
    """What only one of them has is None in the other."""
    ours = Key((("shape", b"8"), ("mode", b"grad"), ("device", b"a")))
    theirs = Key((("shape", b"16"), ("device", b"a"), ("limit", b"1")))
    assert diff(ours, theirs) == [
        Difference("limit", None, b"1"),
        Difference("mode", b"grad", None),
        Difference("shape", b"8", b"16"),
    ]


@pytest.mark.parametrize("label", ["", "a\n", "\x1b[31m", "\ud800"])
def test_a_label_must_print(label):
    """What would not be seen in a message labels nothing."""
    with pytest.raises(MisuseError, match="Use text that prints"):
        Key(((label, b""),))


def test_a_label_is_unique():
    """Two components of one label are refused by it."""
    with pytest.raises(MisuseError, match="2 components are labelled 'x'"):
        Key((("x", b"1"), ("y", b""), ("x", b"2")))
