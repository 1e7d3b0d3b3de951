"""Stores, and keys and parts to put into them."""

from __future__ import annotations

import pytest

from sapwood.persist.disk import DiskStore
from sapwood.persist.entries import Entries
from sapwood.persist.key import Key

LIMIT = 1 << 20


def _key(**components):
    """Return a key of components given as text."""
    return Key(tuple((label, text.encode()) for label, text in components.items()))


@pytest.fixture
def make_key():
    """``make_key(shape="8")`` is a key."""
    return _key


@pytest.fixture
def new_store(tmp_path):
    """``new_store(limit)`` opens a store in a folder."""
    return lambda limit=LIMIT: DiskStore(tmp_path / "disk", limit)


@pytest.fixture
def store(new_store):
    """A store with room."""
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
