"""Sections come back as they were; one wrong bit anywhere, and nothing does."""

from __future__ import annotations

import struct
from hashlib import sha256
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.errors import StoreError
from sapwood.persist.format import MAGIC, VERSION, join, split

NAMES = st.text(st.characters(codec="utf-8"), max_size=6)
SECTIONS = st.dictionaries(NAMES, st.binary(max_size=40), max_size=5)
SAMPLE = {"": b"empty", "a": b"", "b.1": bytes(range(50)), "é": b"x"}


@given(SECTIONS)
def test_sections_come_back(sections):
    """Names and bodies, whatever is in them; in whatever order they came."""
    data = join(sections)
    assert split(data) == sections
    assert join(dict(reversed(sections.items()))) == data


def test_every_wrong_bit_is_seen():
    """No bit of a file can be flipped unseen."""
    data = join(SAMPLE)
    for bit in range(8 * len(data)):
        wrong = bytearray(data)
        wrong[bit // 8] ^= 1 << bit % 8
        with pytest.raises(StoreError):
            split(bytes(wrong))


def test_every_end_is_seen():
    """A file that ends early, or goes on, is refused."""
    data = join(SAMPLE)
    for size in range(len(data)):
        with pytest.raises(StoreError):
            split(data[:size])
    with pytest.raises(StoreError, match="1 bytes follow its end"):
        split(data + b"\0")


@given(st.binary(max_size=200))
def test_other_bytes_are_refused(data):
    """Whatever they are, and also behind a right beginning."""
    for wrong in (data, join({})[:-4] + data):
        try:
            found = split(wrong)
        except StoreError:
            continue
        assert join(found) == wrong


def test_another_version_is_named():
    """The message says which version the file has, and what to do."""
    data = bytearray(join(SAMPLE))
    struct.pack_into("<I", data, len(MAGIC), VERSION + 1)
    told = rf"of version {VERSION + 1}, and {VERSION} is read here. Save it again"
    with pytest.raises(StoreError, match=told):
        split(bytes(data))


def _section(name, body, size=None):
    digest = sha256(struct.pack("<I", len(name)) + name + body).digest()
    length = len(body) if size is None else size
    return struct.pack("<IQ32s", len(name), length, digest) + name + body


def _file(*sections, said=None):
    head = struct.pack("<8sII", MAGIC, VERSION, len(sections) if said is None else said)
    return head + b"".join(sections)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "ends early"),
        (b"\x7fELF" + bytes(40), "not written by sapwood"),
        (_file(said=1), "ends early"),
        (_file(said=(1 << 32) - 1), "ends early"),
        (_file(_section(b"a", b"", size=(1 << 64) - 1)), "ends early"),
        (_file(_section(b"a", b"xyz", size=2)), "a digest is wrong"),
        (
            _file(_section(b"b", b""), _section(b"a", b"")),
            "section 'a' is out of order",
        ),
        (
            _file(_section(b"a", b""), _section(b"a", b"")),
            "section 'a' is out of order",
        ),
        (_file(_section(b"\xff", b"")), "the name of a section is no text"),
        (_file(_section(b"a", b""), said=0), "bytes follow its end"),
    ],
    ids=map(str, count()),
)
def test_what_was_not_written_so_is_refused(data, told):
    """Also with right digests: huge counts, wrong orders, names that are no text."""
    with pytest.raises(StoreError, match=told):
        split(data)
