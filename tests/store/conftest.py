"""Stores of every kind, and keys and parts to put into them."""

from __future__ import annotations

import pytest

from sapwood.persist.disk import DiskStore
from sapwood.persist.entries import Entries
from sapwood.persist.key import Key
from sapwood.persist.memory import MemoryStore
from sapwood.persist.tiered import Tiered

LIMIT = 1 << 20


def _key(**components):
    """Return a key of components given as text."""
    return Key(tuple((label, text.encode()) for label, text in components.items()))


STORES = {
    "memory": lambda _, limit: MemoryStore(limit),
    "disk": lambda path, limit: DiskStore(path / "disk", limit),
    "memory before disk": lambda path, limit: Tiered(
        MemoryStore(limit), DiskStore(path / "far", limit)
    ),
    "disk before disk": lambda path, limit: Tiered(
        DiskStore(path / "near", limit), DiskStore(path / "far", limit)
    ),
}


@pytest.fixture
def make_key():
    """``make_key(shape="8")`` is a key."""
    return _key


@pytest.fixture(params=STORES)
def new_store(request, tmp_path):
    """``new_store(limit)`` opens one of every kind of store."""
    return lambda limit=LIMIT: STORES[request.param](tmp_path, limit)


@pytest.fixture
def store(new_store):
    """A store of every kind, with room."""
    return new_store()


@pytest.fixture
def path(tmp_path):
    """The path of a folder that is not there yet."""
    return tmp_path / "store"


@pytest.fixture
def told():
    """What was emitted."""
    return []


@pytest.fixture
def entries(path, told):
    """The entries of a folder."""
    return Entries(DiskStore(path, LIMIT), told.append)
