"""A device, arrays in every layout on host and device at once, and what equal means."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from sapwood.allocator.caching.allocator import Allocator
from sapwood.driver.emulated import Emulated
from sapwood.integrations.numpy import Array, array_from_host
from sapwood.memory.device import Device


@pytest.fixture(params=["earliest", "latest"], scope="module")
def device(request):
    driver = Emulated(schedule=request.param)
    device = Device(driver, Allocator)
    yield device
    device.driver.synchronize()
    gc.collect()  # caught exceptions keep arrays in their frames
    device.close()


def _unaligned(base, shape, dtype):
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return base.view(np.uint8).reshape(-1)[1 : size + 1].view(dtype).reshape(shape)


# Each takes a C-ordered array of shape (*shape, 2) and makes a view of that shape.
LAYOUTS = {
    "c": lambda x: x[..., 0].copy(),
    "f": lambda x: x[..., 0].T.copy().T,
    "strided": lambda x: x[..., 1],
    "reversed": lambda x: x[(*(slice(None, None, -1),) * (x.ndim - 1), 0)],
    "permuted": lambda x: np.moveaxis(x[..., 0], 0, -1).copy() if x.ndim > 1 else x[0],
    "broadcast": lambda x: (
        np.broadcast_to(x[:1, ..., 0], x.shape[:-1]) if x.ndim > 1 else x[1]
    ),
    "unaligned": lambda x: _unaligned(x, x.shape[:-1], x.dtype),
}


def values(dtype, shape, seed=0):
    """Return awkward numbers: small, large, negative, infinite and not a number."""
    rng = np.random.default_rng(seed)
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        low = max(info.min, -40)
        return rng.integers(low, 41, shape).astype(dtype)
    numbers = rng.standard_normal((*shape, 2)) * 3
    special = rng.random(shape)
    real = numbers[..., 0]
    for place, number in enumerate((0.0, -0.0, 1.0, np.inf, -np.inf, np.nan)):
        real = np.where((special * 60).astype(int) == place, number, real)
    if dtype.kind == "c":
        return (real + 1j * numbers[..., 1]).astype(dtype)
    return real.astype(dtype)


class Lab:
    """Pairs of host and device arrays with the same values, strides and dtype."""

    layouts = tuple(LAYOUTS)

    def __init__(self, device):
        self.device = device

    def up(self, host):
        return array_from_host(self.device, host)

    def pair(self, dtype=np.float32, shape=(3, 4), layout="c", seed=0):
        base = values(dtype, (*shape, 2), seed)
        view = LAYOUTS[layout]
        return view(base), view(self.up(base))

    @staticmethod
    def same(found, expected, what=""):
        """Assert that a device result is NumPy's: dtype, shape, strides, bits."""
        if isinstance(expected, (tuple, list)):
            assert type(found) is type(expected), what
            assert len(found) == len(expected), what
            for pair in zip(found, expected, strict=True):
                Lab.same(*pair, what)
            return
        assert isinstance(found, Array), what
        expected = np.asarray(expected)
        host = np.asarray(found)
        assert host.dtype == expected.dtype == found.dtype, what
        assert host.shape == expected.shape == found.shape, what
        assert found.strides == expected.strides, what
        assert host.tobytes() == expected.tobytes(), what

    def agree(self, function, *pairs, what=""):
        """Assert that a function does on the device what it does on the host."""
        hosts = [host for host, _ in pairs]
        arrays = [array for _, array in pairs]
        try:
            expected = function(*hosts)
        except (TypeError, ValueError, IndexError, OverflowError) as error:
            mixed = (TypeError, ValueError)  # NumPy itself is not sure which
            with pytest.raises(mixed if isinstance(error, mixed) else type(error)):
                function(*arrays)
            return
        self.same(function(*arrays), expected, what)


@pytest.fixture
def lab(device):
    with np.errstate(all="ignore"):
        yield Lab(device)
