"""A framework of arrays that are only shapes and addresses."""

from __future__ import annotations

from types import FunctionType, SimpleNamespace

import pytest

from sapwood.tree.call.integration import Look


class FakeArray:
    """An array that has a layout and an address, and no elements."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape
        self.address = id(self)

    def __eq__(self, other):
        raise AssertionError("comparing arrays would run device work")

    __hash__ = object.__hash__


class FakeArrays:
    """The adapter of fake arrays."""

    def surroundings(self):
        return ()

    def is_array(self, value):
        return type(value) is FakeArray

    def look(self, array):
        storage = SimpleNamespace(stale=None)
        return Look(array.shape, storage, array.address)


@pytest.fixture
def array():
    """Makes an array of a shape."""
    return FakeArray


@pytest.fixture
def arrays():
    """The adapter."""
    return FakeArrays()


@pytest.fixture
def watch(arrays):
    """Calls a function between two surveys, and gives what it wrote."""
    from sapwood.tree.guards import survey

    def watch(fn, **arguments):
        before = survey(fn, arguments, arrays)
        fn(**arguments)
        return survey(fn, arguments, arrays).changes_since(before)

    return watch


@pytest.fixture
def guard(arrays):
    """The guards of a function's surroundings, all reached arrays used."""
    from sapwood.tree.guards import survey

    kept = []

    def guard(fn, *, used=lambda _: True, **arguments):
        # As whoever calls it has it; methods are their objects'.
        kept.extend([fn] if isinstance(fn, FunctionType) else [])
        return survey(fn, arguments, arrays).guards(used)

    return guard
