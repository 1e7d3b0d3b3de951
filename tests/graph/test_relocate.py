"""Addresses are given their values, and nothing else is changed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.driver.api import CopyOp, EmptyOp, FunctionHandle, KernelOp, SetOp
from sapwood.errors import InternalError
from sapwood.graphs.recording import WORD, Kind, RecordedOp, Relocation
from sapwood.graphs.relocate import by_op, resolve


def _no_function(image, name):
    raise AssertionError(f"no kernel is asked for: {image} {name}")


@given(
    params=st.binary(min_size=24, max_size=40),
    words=st.dictionaries(
        st.sampled_from([0, 8, 16]),
        st.tuples(st.integers(0, 2), st.integers(0, 1 << 20)),
    ),
    addresses=st.lists(st.integers(0, 1 << 47), min_size=3, max_size=3),
)
def test_a_kernel_gets_its_addresses(params, words, addresses):
    """Relocated words are symbol plus addend; all other bytes are as recorded."""
    op = RecordedOp(Kind.KERNEL, params, b"image", "name", (4, 2, 1), (32, 1, 1), 64)
    relocations = [Relocation(0, at, *word) for at, word in words.items()]
    asked = []

    def function(image, name):
        asked.append((image, name))
        return FunctionHandle(7)

    resolved = resolve(op, relocations, addresses, function)

    assert resolved == KernelOp(7, resolved.params, (4, 2, 1), (32, 1, 1), 64)
    assert asked == [(b"image", "name")]
    expected = bytearray(params)
    for at, (symbol, addend) in words.items():
        expected[at : at + 8] = WORD.pack(addresses[symbol] + addend)
    assert resolved.params == bytes(expected)


def test_copies_and_sets_are_relocated_alike():
    """Their words are addresses, sizes and values."""
    params = b"".join(map(WORD.pack, (1, 2, 96)))
    relocations = [Relocation(0, 0, 1, 16), Relocation(0, 8, 0, 32)]
    op = RecordedOp(Kind.COPY, params)
    resolved = resolve(op, relocations, [0x1000, 0x2000], _no_function)
    assert resolved == CopyOp(0x2010, 0x1020, 96)
    op = RecordedOp(Kind.SET, params)
    resolved = resolve(op, relocations[:1], [0x1000, 0x2000], _no_function)
    assert resolved == SetOp(0x2010, 2, 96)


def test_joins_hold_no_address():
    """They only order others."""
    assert resolve(RecordedOp(Kind.EMPTY, b""), (), [], _no_function) == EmptyOp()


def test_an_unknown_kind_is_a_broken_law():
    """No recording holds one."""
    with pytest.raises(InternalError, match="known kind, not host"):
        resolve(RecordedOp("host", b""), (), [], _no_function)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 40))))
def test_grouping_loses_nothing(words):
    """Every relocation is under its op, in order."""
    relocations = [Relocation(op, offset, 0, 0) for op, offset in words]
    grouped = by_op(relocations)
    assert set(grouped) == {r.op for r in relocations}
    for op, changed in grouped.items():
        assert changed == [r for r in relocations if r.op == op]
