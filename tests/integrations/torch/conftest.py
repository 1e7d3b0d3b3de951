"""Torch with and without a GPU, and all ways in which a program holds a tensor."""

from __future__ import annotations

import gc
import threading
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
    made.finish()


@pytest.fixture
def rt(rig, torch):
    """Return a runtime of torch's tensors."""
    torch.manual_seed(7)
    return rig.runtime


@pytest.fixture
def same(torch):
    """Return what asserts that two nests of tensors are bit for bit the same."""

    def same(found, expected):
        if isinstance(expected, torch.Tensor):
            assert found.shape == expected.shape
            assert found.dtype == expected.dtype
            assert found.stride() == expected.stride()
            assert torch.equal(found, expected)
        elif isinstance(expected, dict):
            assert found.keys() == expected.keys()
            for key in expected:
                same(found[key], expected[key])
        elif isinstance(expected, (list, tuple)):
            assert len(found) == len(expected)
            for pair in zip(found, expected, strict=True):
                same(*pair)
        else:
            assert found == expected

    return same


# Ways to hold a tensor: each returns what reads the old values again, once.


def _itself(_, y):
    return lambda: y


def _view(_, y):
    part = y[1:]
    return lambda: part


def _view_of_a_view(_, y):
    part = y.detach()[1:].t()
    return lambda: part


def _data(_, y):
    data = y.data
    return lambda: data


def _storage(torch, y):
    memory = y.untyped_storage()
    look = y.storage_offset(), y.shape, y.stride()
    dtype, device = y.dtype, y.device
    return lambda: torch.empty(0, dtype=dtype, device=device).set_(memory, *look)


def _set(torch, y):
    other = torch.empty(0, dtype=y.dtype, device=y.device).set_(y)
    return lambda: other


def _parameter(torch, y):
    parameter = torch.nn.Parameter(torch.empty_like(y))
    parameter.data = y
    return parameter.detach


def _saved(torch, y):
    with torch.enable_grad():
        weight = torch.ones_like(y).requires_grad_()
        total = (y * weight).sum()
    return lambda: torch.autograd.grad(total, weight)[0].contiguous()


def _gradient(torch, y):
    leaf = torch.zeros_like(y).requires_grad_()
    leaf.grad = y
    return lambda: leaf.grad


def _capsule(torch, y):
    capsule = torch.utils.dlpack.to_dlpack(y)
    return lambda: torch.utils.dlpack.from_dlpack(capsule)


def _exchanged(torch, y):
    other = torch.from_dlpack(y)
    return lambda: other


def _foreign(torch, y):
    """Held by an array of another library, which knows its address alone."""
    if y.is_cuda:
        array = pytest.importorskip("cupy").asarray(y)
        return lambda: torch.as_tensor(array, device="cuda")
    array = y.numpy()
    return lambda: torch.from_numpy(array)


def _thread(_, y):
    held, wanted, found = [y], threading.Event(), []

    def hold():
        mine = held.pop()
        wanted.wait(100)
        found.append(mine)

    def read():
        wanted.set()
        thread.join()
        return found[0]

    thread = threading.Thread(target=hold, daemon=True)
    thread.start()
    return read


def _generator(_, y):
    def later(y):
        yield None
        yield y

    paused = later(y)
    next(paused)
    return lambda: next(paused)


def _traceback(_, y):
    def fail(mine):
        raise ValueError(len(mine))

    try:
        fail(y)
    except ValueError as error:
        caught = error
    return lambda: caught.__traceback__.tb_next.tb_frame.f_locals["mine"]


class _Undying:
    """Garbage in a cycle, whose finaliser brings back what it has."""

    def __init__(self, y, saved):
        self.y, self.saved, self.me = y, saved, self

    def __del__(self):
        self.saved.append(self.y)


def _garbage(_, y):
    saved = []
    _Undying(y, saved)

    def read():
        gc.collect()
        return saved[0]

    return read


HOLDS = {
    "as a gradient": _gradient,
    "by a capsule": _capsule,
    "by a generator": _generator,
    "by a parameter": _parameter,
    "by a storage": _storage,
    "by a thread": _thread,
    "by a traceback": _traceback,
    "by a view": _view,
    "by a view of a view": _view_of_a_view,
    "by another array": _foreign,
    "by autograd": _saved,
    "by data": _data,
    "by dlpack": _exchanged,
    "by garbage": _garbage,
    "by set_": _set,
    "itself": _itself,
}


@pytest.fixture(params=HOLDS)
def hold(request, torch):
    """Return one way of holding a tensor: it returns what reads the old values."""
    return lambda y: HOLDS[request.param](torch, y)


@pytest.fixture
def holds(torch):
    """Return all ways of holding a tensor."""

    def bound(way):
        return lambda y: way(torch, y)

    return [bound(way) for way in HOLDS.values()]
