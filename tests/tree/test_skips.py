"""What a skipped call looks like from afar, of whatever arrays."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from sapwood.tree.call.options import Options
from sapwood.tree.call.signature import Unread
from sapwood.tree.choose.skips import Skips


class Plain:
    """An array of which nothing is known without its integration."""


class Shapeless:
    @property
    def shape(self):
        raise RuntimeError("a nested tensor has none")


@pytest.mark.parametrize("array", [Plain(), Shapeless()])
def test_an_array_without_a_shape_is_known_by_its_class(array):
    """What an array has is its framework's affair: no call fails for want of it."""
    integration = SimpleNamespace(is_array=lambda x: isinstance(x, Plain | Shapeless))
    recordings = SimpleNamespace(integration=integration)
    skips = Skips(Options("f"), recordings, (), target=lambda: print)
    assert skips.learn("it is late", Unread((array, 1), {}))
    assert not skips.learn("it is late", Unread((type(array)(), 1), {}))
    assert skips.learn("it is late", Unread((array, 2), {}))
