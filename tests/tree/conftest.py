"""Arrays without a framework, and nodes without a device: what pure decisions see."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

import pytest

from sapwood.graphs.recording import Recording
from sapwood.memory.storage import Storage
from sapwood.tree.call.integration import Look
from sapwood.tree.call.roles import Role
from sapwood.tree.node.node import Node, PlaceUse
from sapwood.tree.node.outputs import Outputs


class Token:
    """Takes bytes back that nobody counts."""

    def ended(self, streams):
        pass


class PlainLayout(NamedTuple):
    """A size and a name."""

    size: int
    name: str

    @property
    def extent(self):
        """All bytes."""
        return 0, self.size


@dataclass(eq=False)
class Plain:
    """An array of bytes: ``layout`` is its size and a name."""

    storage: Storage
    address: int
    layout: PlainLayout
    dtype = "plain"

    @property
    def shape(self):
        """The number of bytes."""
        return self.layout[:1]


class PlainAdapter:
    """The adapter of `Plain` arrays; it refuses bytearrays."""

    def surroundings(self):
        return ()

    def is_array(self, value):
        return type(value) is Plain

    def refuse(self, value):
        if isinstance(value, bytearray):
            raise TypeError("bytes of the host")

    def look(self, array):
        return Look(array.layout, array.storage, array.address)

    def make(self, layout, storage, address):
        return Plain(storage, address, layout)


@pytest.fixture(scope="session")
def integration():
    """Return an adapter of plain arrays."""
    return PlainAdapter()


@pytest.fixture(scope="session")
def make_storage():
    """Return a maker of storages that belong to nobody."""
    return lambda address, size=64: Storage(address, size, Token(), deque(maxlen=0))


@pytest.fixture(scope="session")
def make_array(make_storage):
    """Return a maker of arrays: in a storage of their own, or in a given one."""

    def make(address, size=16, name="u1", storage=None):
        return Plain(storage or make_storage(address), address, PlainLayout(size, name))

    return make


@pytest.fixture(scope="session")
def make_use():
    """Return a maker of what a recording does with one place."""

    def make(role=Role.PINNED, address=0x1000, name="x", **fields):
        known = {"size": 16, "used": True, "written": False, "donated": False}
        return PlaceUse(name=name, role=role, address=address, **{**known, **fields})

    return make


@pytest.fixture(scope="session")
def make_node():
    """Return a maker of nodes that no driver knows."""

    def make(*places, arguments=None, lows=(), **fields):
        known = {
            "label": "f#1",
            "number": 1,
            "parent": None,
            "recording": Recording((), (), (), ()),
            "exec": None,
            "range": None,
            "ambient": None,
            "outputs": Outputs(None, (), (), ()),
            "escapes": False,
            "clobbers": 0,
            "output_masks": (),
            "ambient_sharing": None,
        }
        last_used = fields.pop("last_used", 0)
        count = len(places) if arguments is None else arguments
        node = Node(
            places=places,
            argument_places=count,
            ambient_lows=list(lows),
            **{**known, **fields},
        )
        node.last_used = last_used
        return node

    return make
