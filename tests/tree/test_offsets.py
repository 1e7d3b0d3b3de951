"""Where slots lie is where what is put into them is found."""

from __future__ import annotations

import ctypes

import pytest

from sapwood.memory.pages import Pages
from sapwood.memory.storage import Changes
from sapwood.tree.call.offsets import offset
from sapwood.tree.choose.recordings import Recordings
from sapwood.tree.guards.glance import Glance
from sapwood.tree.replay.fast_replay import FastReplay


class Plain:
    """Something without slots."""

    shared = 1

    @property
    def made(self):
        return 2


class Mixed(Plain):
    """Slots beside a dict and a shared attribute."""

    __slots__ = ("first", "second")


class Below(Mixed):
    """Slots of its own, and those of its base."""

    __slots__ = ("third",)


SLOTS = (
    *((Below, name) for name in ("first", "second", "third")),
    *((FastReplay, name) for name in ("era", "_changes", "_marks", "_renewals")),
    *((Pages, name) for name in ("live", "revoked", "uses")),
    *((Changes, "latest"), (Glance, "renewals"), (Recordings, "alone")),
)


@pytest.mark.parametrize(("cls", "name"), SLOTS)
def test_what_is_in_a_slot_is_found_there(cls, name):
    """Whatever it is, and nothing where it is empty."""
    place, thing = offset(cls, name), cls.__new__(cls)
    word = ctypes.c_size_t.from_address(id(thing) + place)
    assert word.value == 0
    for value in (object(), "text", None):
        setattr(thing, name, value)
        assert word.value == id(value)
    delattr(thing, name)
    assert word.value == 0


@pytest.mark.parametrize("name", ["shared", "made", "absent", "__dict__"])
def test_what_is_no_slot_lies_nowhere(name):
    """Shared attributes, properties, and what there is not."""
    assert offset(Plain, name) is None
