"""Tensors that a captured function gives other memory have their own again after it."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from sapwood.integrations.torch.capture import TorchOwner  # noqa: E402


@pytest.fixture
def owner():
    """Return a capture that has not begun, of no GPU."""
    made = object.__new__(TorchOwner)
    made._held = ()
    made._segments = None
    return made


def _data(x):
    x.data = torch.zeros(3, 4)


MOVES = {
    "data": _data,
    "data of another dtype": lambda x: setattr(x, "data", torch.zeros(3, 4).int()),
    "data that is a part": lambda x: setattr(x, "data", x.data[1:]),
    "data a step on": lambda x: x.set_(x.untyped_storage(), 1, (2, 4), (4, 1)),
    "set_": lambda x: x.set_(torch.zeros(3, 4)),
    "t_": lambda x: x.t_(),
    "another shape": lambda x: x.unsqueeze_(0),
    "strides": lambda x: x.as_strided_((3, 4), (1, 3)),
}
STAYS = {
    "nothing": lambda _: None,
    "written": lambda x: x.add_(1),
    "requires_grad_": lambda x: x.requires_grad_(),
    "a gradient": lambda x: setattr(x, "grad", torch.ones(3, 4)),
    "data of itself": lambda x: setattr(x, "data", x.data),
}


def _where(x):
    return x.data_ptr(), x.shape, x.stride(), x.dtype


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES)
def test_what_is_moved_is_named_and_put_back(owner, move, number):
    """One of several; the others are left alone."""
    tensors = [torch.ones(3, 4) for _ in range(3)]
    before = [*map(_where, tensors)]
    with owner.holding(tensors):
        assert owner._moved() == []
        move(tensors[number])
        assert [each.tensor for each in owner._moved()] == [tensors[number]]
        refusal = owner.refusal(None, ())
    assert "other memory or another shape" in str(refusal)
    assert [*map(_where, tensors)] == before
    assert owner._moved() == []


@pytest.mark.parametrize("change", STAYS.values(), ids=STAYS)
def test_what_stays_where_it_is_is_left(owner, change):
    """Values, gradients and flags are others' affair."""
    tensors = [torch.ones(3, 4), torch.ones(2)]
    with owner.holding(tensors):
        change(tensors[0])
        assert owner._moved() == []


def test_none_held_is_none_moved(owner):
    """A function that reads no tensors moves none."""
    with owner.holding([]):
        assert owner._moved() == []


def test_no_gradient_stays_on_any_argument(owner, monkeypatch):
    """Whichever is told: all lie where nothing is any more."""
    monkeypatch.setattr(TorchOwner, "_is_new", lambda *_: True)
    arguments = [torch.ones(2, requires_grad=True) for _ in range(3)]
    for each in arguments[1:]:
        each.grad = torch.ones(2)
    refusal = owner.refusal(None, arguments)
    assert "leaves a gradient on an argument" in str(refusal)
    assert all(each.grad is None for each in arguments)
