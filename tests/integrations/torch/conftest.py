"""Torch without a GPU: tensors of the CPU, and of the device that has no memory."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace

import pytest


@pytest.fixture
def torch():
    """Return torch, where it is installed."""
    return pytest.importorskip("torch")


@pytest.fixture
def returns():
    """Return the queue that finalisers put into what they give back."""
    return deque()


@pytest.fixture
def adapter_of(torch, returns):
    """Return what makes an adapter of the tensors of one kind of device."""
    from sapwood.integrations.torch.adapter import TorchAdapter

    def make(kind):
        return TorchAdapter(SimpleNamespace(returns=returns), torch.device(kind))

    return make


@pytest.fixture
def adapter(adapter_of):
    """Return an adapter of CPU tensors."""
    return adapter_of("cpu")
