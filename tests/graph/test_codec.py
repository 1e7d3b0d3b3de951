"""Recordings come back as they were, or not at all."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.errors import StoreError
from sapwood.graphs.recording import Kind, RecordedOp, Recording, Relocation
from sapwood.persist.archive import decode_recording, encode_recording
from sapwood.persist.format import expect
from tests.support.spoil import places, replaced

SYMBOLS = 4

_NUMBERS = st.integers(1, (1 << 31) - 1)
_GRIDS = st.tuples(_NUMBERS, _NUMBERS, _NUMBERS)
_KERNELS = st.builds(
    RecordedOp,
    st.just(Kind.KERNEL),
    st.binary(max_size=40),
    st.binary(min_size=1, max_size=3),
    st.text(min_size=1, max_size=5),
    _GRIDS,
    _GRIDS,
    st.integers(0, (1 << 31) - 1),
)
_PLAIN_OPS = st.one_of(
    st.builds(RecordedOp, st.just(Kind.COPY), st.binary(min_size=24, max_size=24)),
    st.builds(RecordedOp, st.just(Kind.SET), st.binary(min_size=24, max_size=24)),
    st.builds(RecordedOp, st.just(Kind.EMPTY), st.just(b"")),
)


@st.composite
def _recordings(draw):
    ops = draw(st.lists(st.one_of(_KERNELS, _PLAIN_OPS), max_size=5))
    edges = [(i, j) for j in range(len(ops)) for i in range(j) if draw(st.booleans())]
    relocations = [
        Relocation(
            i,
            offset,
            draw(st.integers(0, SYMBOLS - 1)),
            draw(st.integers(-(1 << 48), (1 << 48) - 1)),
        )
        for i, op in enumerate(ops)
        for offset in range(0, len(op.params) - 7, 8)
        if draw(st.booleans())
    ]
    return Recording(tuple(ops), tuple(edges), tuple(relocations), ())


@given(_recordings())
def test_recordings_come_back(recording):
    """Ops, images, edges and relocations; what they touch is found anew."""
    assert decode_recording(encode_recording(recording), SYMBOLS) == recording


def test_images_are_written_once():
    """However many kernels come from one module."""
    op = RecordedOp(Kind.KERNEL, b"", b"image" * 99, "k")
    sections = encode_recording(Recording((op,) * 5, (), (), ()))
    assert sorted(sections) == ["image.0", "ops", "params"]


SAMPLE = Recording(
    (
        RecordedOp(Kind.KERNEL, bytes(24), b"one", "a"),
        RecordedOp(Kind.KERNEL, bytes(16), b"two", "b"),
        RecordedOp(Kind.COPY, bytes(24)),
    ),
    ((0, 1), (1, 2)),
    (Relocation(0, 0, 1, 0), Relocation(0, 8, 2, -8), Relocation(2, 0, 0, 8)),
    (),
)

JUNK = [
    None,
    True,
    -1,
    0,
    1,
    7,
    1 << 31,
    1 << 48,
    1 << 64,
    "",
    "x",
    [],
    [[]],
    {},
    "kernel",
]


def _written(table):
    return json.dumps(table, separators=(",", ":"), sort_keys=True).encode()


def test_a_changed_table_is_another_recording_or_refused():
    """Whatever stands at any place of it: what is accepted would be written so."""
    sections = encode_recording(SAMPLE)
    table = json.loads(sections["ops"])
    refused = accepted = 0
    for path in places(table):
        for junk in JUNK:
            wrong = sections | {"ops": _written(replaced(table, path, junk))}
            try:
                found = decode_recording(wrong, SYMBOLS)
            except StoreError:
                refused += 1
            else:
                accepted += 1
                assert encode_recording(found) == wrong
    assert refused > 500
    assert accepted > 50


@pytest.mark.parametrize("key", ["ops", "edges", "relocations"])
def test_a_table_that_lacks_or_has_more_is_refused(key):
    """Every table is there, and no other."""
    sections = encode_recording(SAMPLE)
    table = json.loads(sections["ops"])
    for wrong in (
        {k: v for k, v in table.items() if k != key},
        table | {"more": []},
    ):
        with pytest.raises(StoreError, match="damaged: its tables"):
            decode_recording(sections | {"ops": _written(wrong)}, SYMBOLS)


@pytest.mark.parametrize("name", ["ops", "params", "image.0", "image.1"])
def test_a_missing_section_is_refused(name):
    """None of them can be done without."""
    sections = encode_recording(SAMPLE)
    del sections[name]
    with pytest.raises(StoreError):
        decode_recording(sections, SYMBOLS)


@pytest.mark.parametrize(
    "more",
    [{"image.2": b"three"}, {"image.3": b"x"}, {"image.0": b"two"}, {"image.1": b""}],
    ids=str,
)
def test_images_are_those_of_the_kernels(more):
    """In their order, none twice, none that no kernel needs."""
    with pytest.raises(StoreError, match="image"):
        decode_recording(encode_recording(SAMPLE) | more, SYMBOLS)


@pytest.mark.parametrize("params", [b"", bytes(63), bytes(65)], ids=len)
def test_parameters_are_as_long_as_their_ops_say(params):
    """Not a byte less or more."""
    sections = encode_recording(SAMPLE) | {"params": params}
    with pytest.raises(StoreError):
        decode_recording(sections, SYMBOLS)


@pytest.mark.parametrize(
    "relocation",
    [
        Relocation(3, 0, 0, 0),
        Relocation(0, 17, 0, 0),
        Relocation(0, 16, SYMBOLS, 0),
        Relocation(0, 16, 0, 1 << 48),
        Relocation(0, 8, 1, 0),
    ],
    ids=str,
)
def test_relocations_lie_in_their_ops(relocation):
    """Each changes one word of one op, by a symbol that there is, and not too far."""
    wrong = replace(SAMPLE, relocations=(*SAMPLE.relocations, relocation))
    with pytest.raises(StoreError):
        decode_recording(encode_recording(wrong), SYMBOLS)


@pytest.mark.parametrize("edge", [(0, 0), (2, 1), (0, 3), (-1, 1)], ids=str)
def test_edges_lead_on(edge):
    """An op comes after others before it: so no order is a circle."""
    wrong = replace(SAMPLE, edges=(edge,))
    with pytest.raises(StoreError):
        decode_recording(encode_recording(wrong), SYMBOLS)


def test_expectations_say_what_is_wrong():
    """The message names it, and what to do."""
    expect(True, "nothing")
    with pytest.raises(StoreError, match=r"damaged: the moon\. Record it anew"):
        expect(False, "the moon")
