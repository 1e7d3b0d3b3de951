"""What tests of several frameworks share: torch, a rig on a GPU, bits of tensors."""

from __future__ import annotations

import dataclasses
import gc
import struct
from collections import deque
from types import SimpleNamespace

import pytest

from sapwood.testing import Rig


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


# On a GPU.


@pytest.fixture
def rig():
    """Return a runtime behind all layers, leak-checked when the test is over."""
    made = Rig("cuda", arrays="torch")
    yield made
    # What is caught in a test holds tensors of a capture that failed.
    gc.collect()
    made.finish()


@pytest.fixture
def rt(rig, torch):
    """Return a runtime of torch's tensors."""
    torch.manual_seed(7)
    return rig.runtime


@pytest.fixture
def bits(torch):
    """Return what makes nests of tensors and plain values comparable bit for bit.

    Which tensors share a storage is compared, too.
    """

    def told(value, owners):
        if isinstance(value, torch.Tensor):
            owners.append(value.untyped_storage().data_ptr())
            plain = value.detach().resolve_conj().resolve_neg().reshape(-1)
            plain = plain.clone(memory_format=torch.contiguous_format)
            data = plain.view(torch.uint8).cpu().numpy().tobytes()
            return value.dtype, value.shape, value.stride(), data
        if isinstance(value, dict):
            pairs = [(key, told(each, owners)) for key, each in value.items()]
            return type(value), pairs
        if isinstance(value, (list, tuple)):
            return type(value), [told(each, owners) for each in value]
        if dataclasses.is_dataclass(value):
            return type(value), told(vars(value), owners)
        if isinstance(value, float):
            return float, struct.pack("<d", value)
        return type(value), value

    def bits(*nest):
        owners = []
        shown = told(nest, owners)
        return shown, [owner and owners.index(owner) for owner in owners]

    return bits
