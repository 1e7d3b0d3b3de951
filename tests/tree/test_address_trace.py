"""Two captures held against each other: only what moved along with a place is one."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.graphs.recording import RANGE, RecordedOp, Recording, Relocation
from sapwood.tree.call.roles import Role
from sapwood.tree.choose.address_trace import AddressTrace, confirmed, known


def _words(*values):
    return struct.pack(f"<{len(values)}Q", *values)


def _trace(addresses, words, found, **changes):
    """One op whose words are ``words``; ``found`` maps a word's place to a symbol."""
    recording = Recording(
        ops=(RecordedOp("kernel", _words(*words), name="k", **changes),),
        edges=(),
        relocations=tuple(
            Relocation(0, 8 * at, symbol, words[at] - addresses[symbol])
            for at, symbol in found.items()
        ),
        touches=(),
    )
    names = tuple(f"x{i}" for i in range(len(addresses) - 1))
    return AddressTrace(recording, names, addresses)


def test_an_address_that_moves_with_its_place_is_known():
    """Both captures hold the place's address at the same word, and it has moved."""
    one = _trace((1 << 30, 5000), (5008, 7), {0: 1})
    two = _trace((1 << 31, 9000), (9008, 7), {0: 1})
    assert known(two, one) == {RANGE, 1}


def test_a_place_that_has_not_moved_is_not_known():
    """Then a number could be an address, or the other way round."""
    one = _trace((1 << 30, 5000), (5008, 7), {0: 1})
    assert known(one, one) == frozenset()


def test_a_number_that_looks_like_an_address_is_found_out():
    """It stays where it is while the place moves: the place is not known."""
    one = _trace((1 << 30, 5000), (5008, 5016), {0: 1, 1: 1})
    two = _trace((1 << 31, 9000), (9008, 5016), {0: 1})
    assert known(two, one) == {RANGE}
    roles = (Role.PATCHED,)
    two = replace(two, recording=replace(two.recording, touches=()))
    assert known(one, two) == {RANGE}
    assert confirmed(roles, two, one) == roles, "no op uses it"


@pytest.mark.parametrize(
    "change",
    [
        {"name": "other"},
        {"grid": (2, 1, 1)},
        {"params": _words(9008)},
        {"params": _words(9008, 8)},
        {"params": _words(9016, 7)},
    ],
    ids=str,
)
def test_captures_that_differ_by_more_tell_nothing(change):
    """Another kernel, grid, number or offset: it is another program."""
    one = _trace((1 << 30, 5000), (5008, 7), {0: 1})
    two = _trace((1 << 31, 9000), (9008, 7), {0: 1})
    op = replace(two.recording.ops[0], **change)
    found = tuple(
        replace(r, addend=struct.unpack_from("<Q", op.params, r.offset)[0] - 9000)
        for r in two.recording.relocations
    )
    recording = replace(two.recording, ops=(op,), relocations=found)
    assert known(replace(two, recording=recording), one) is None


def test_temporaries_may_lie_elsewhere():
    """Every capture has a range of its own, and lays it out by itself."""
    one = _trace((1 << 30, 5000), (5000, (1 << 30) + 512), {0: 1, 1: RANGE})
    two = _trace((1 << 31, 9000), (9000, (1 << 31) + 1024), {0: 1, 1: RANGE})
    assert known(two, one) == {RANGE, 1}


@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=8),
    st.sets(st.integers(1, 3)),
    st.integers(0, 2**40),
)
def test_exactly_the_places_that_moved_are_known(uses, moved, number):
    """Whatever the ops use: of places that moved every address is known."""
    then = [1 << 44, *(i << 41 for i in (1, 2, 3))]
    now = [1 << 45, *(a + 4096 * (i in moved) for i, a in enumerate(then[1:], 1))]
    sketches = []
    for addresses in (then, now):
        words = [addresses[symbol] + 8 * at for at, symbol in enumerate(uses)]
        found = dict(enumerate(uses))
        sketches.append(_trace(tuple(addresses), (*words, number), found))
    assert known(sketches[1], sketches[0]) == moved | {RANGE}
