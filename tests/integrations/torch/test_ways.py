"""What views of modules open is what their ways say."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from sapwood.integrations.torch import accessors  # noqa: E402


@pytest.fixture
def module():
    """A module with everything inside, and a parameter that is none."""
    made = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 3))
    made.register_parameter("none", None)
    made.register_parameter("weight", torch.nn.Parameter(torch.ones(3)))
    made.register_parameter("bias", torch.nn.Parameter(torch.ones(3)))
    made.register_buffer("table", torch.zeros(2))
    made.weight.grad = torch.ones(3)
    return made


@pytest.mark.parametrize("name", ["PARAMETERS", "BUFFERS", "MODULES", "GRADIENTS"])
def test_ways_say_what_is_opened(module, name):
    """An attribute and an item of it, and an attribute of each of its values."""
    view = getattr(accessors, name)
    way, opened = view.way, view.open(module)
    space = getattr(module, way.attribute)[way.item]
    assert opened
    for key, value in opened.items():
        held = space[key]
        assert (getattr(held, way.each) if way.each else held) is value
    assert {key for key in space if key not in opened} <= {"none"}
