"""Tensors over bytes that were revoked: torch refuses them, and says why."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch

from sapwood.errors import StaleOutput
from sapwood.integrations.torch.storages import TRAPS
from sapwood.memory.storage import Storage
from sapwood.units import Addr, Size

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not TRAPS, reason="torch is built without CUDA"),
]


class Kept:
    """Bytes that stay, whoever drops them."""

    def __init__(self, memory):
        self.memory = memory

    def ended(self, streams):
        """Do nothing."""


@pytest.fixture
def made(integration, returns):
    """Return a storage, and a tensor over its bytes."""
    memory = torch.arange(8.0)
    storage = Storage(Addr(memory.data_ptr()), Size(32), Kept(memory), returns)
    return storage, integration.make(
        integration.look(memory).layout, storage, storage.address
    )


USES = {
    "arithmetic": lambda y: y + 1,
    "a view": lambda y: y[2:] * 2,
    "one value": lambda y: float(y[0]),
    "written": lambda y: y.zero_(),
    "an address": lambda y: y.data_ptr(),
    "numpy": lambda y: y.numpy().sum(),
}


@pytest.mark.parametrize("use", USES)
def test_every_use_is_refused(made, use):
    """And says that it is stale, since when, and what to do."""
    storage, tensor = made
    USES[use](tensor)
    storage.revoke("a later step() began")
    with pytest.raises(RuntimeError, match=r"^sapwood\.StaleOutput: .* later step\(\)"):
        USES[use](tensor)


def test_views_from_before_are_refused(made):
    """They are of the same bytes."""
    storage, tensor = made
    views = tensor[1:], tensor.view(2, 4).t(), tensor.detach(), tensor.data
    storage.revoke("it was donated to f")
    for each in views:
        with pytest.raises(RuntimeError, match=r"^sapwood\.StaleOutput: .* donated"):
            each.sum()


def test_whoever_asks_here_is_told_by_the_error_of_ours(made, integration):
    """An argument, an array that a function reads, arrays by their versions."""
    storage, tensor = made
    storage.revoke("a later step() began")
    for ask in (
        lambda: integration.look(tensor).checked(),
        lambda: integration.look(tensor[1:]).checked(),
        lambda: integration.versions([torch.ones(2), tensor]),
    ):
        with pytest.raises(StaleOutput, match=r"a later step\(\) began"):
            ask()


def test_one_that_merely_lies_somewhere_is_known_by_its_bytes(made, integration):
    """Where it lay is told, for those who look at all that a function reaches."""
    storage, tensor = made
    views = [tensor, tensor[2:], tensor.view(2, 4).t()[1:]]
    before = [
        (integration.look(each).address, integration.look(each).span) for each in views
    ]
    storage.revoke("a later step() began")
    assert [
        (integration.look(each).address, integration.look(each).span) for each in views
    ] == before


def test_a_tensor_of_the_users_may_be_revoked(integration):
    """As one that was donated."""
    mine = torch.ones(4)
    integration.look(mine).storage.revoke("it was donated to f")
    with pytest.raises(RuntimeError, match=r"^sapwood\.StaleOutput"):
        mine + 1


def test_errors_that_are_not_of_staleness_pass(integration):
    """They are torch's own."""
    mine = torch.ones(4)
    torch._C._set_storage_data_ptr_access_error_msg(
        mine.untyped_storage()._cdata, "out of order"
    )
    for ask in (
        lambda: integration.look(mine).layout,
        lambda: integration.look(mine).span,
    ):
        with pytest.raises(RuntimeError, match=r"^out of order"):
            ask()
