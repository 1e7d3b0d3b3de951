"""A recording is plain data that answers for the bytes it uses."""

from __future__ import annotations

import pickle

import pytest

from sapwood.graphs.recording import Kind, RecordedOp, Recording, Relocation, Touch


@pytest.fixture
def recording():
    """Return a recording of two ops on three symbols."""
    ops = (
        RecordedOp(Kind.KERNEL, bytes(24), b"image", "k"),
        RecordedOp(Kind.SET, bytes(24)),
    )
    touches = (
        Touch(0, 0, 8, writes=True),
        Touch(2, 0, 16, writes=False),
        Touch(0, 64, 72, writes=True),
        Touch(0, 8, 16, writes=False),
    )
    return Recording(ops, ((0, 1),), (Relocation(0, 0, 2, 0),), touches)


def test_written_bytes_are_told_by_symbol(recording):
    """Every interval that an op writes, and none that is only read."""
    assert recording.changed() == {0}


def test_symbols_are_those_used(recording):
    """A symbol that no op touches is not among them."""
    assert recording.symbols() == {0, 2}


def test_recordings_are_values(recording):
    """Equal ones are one, also when they come from elsewhere."""
    again = pickle.loads(pickle.dumps(recording))
    assert again == recording
    assert hash(again) == hash(recording)
