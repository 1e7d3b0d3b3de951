"""Torch's tensors on the host, read by functions of other arrays: as NumPy's are."""

from __future__ import annotations

import numpy as np
import pytest

import sapwood as sw
from sapwood.tree.guards.constants import Contents, constant_of


@pytest.fixture
def rt():
    """Yield a runtime whose arrays are not torch's."""
    with sw.Runtime(device="emulated") as runtime:
        yield runtime


def _ways(torch):
    """Return tensors, each with what changes it in place."""
    plain, module = torch.ones(3), torch.nn.Linear(2, 2)
    return {
        "added to": (plain, lambda: plain.add_(1)),
        "through a view": (whole := torch.ones(6), lambda: whole[4:].fill_(9)),
        "strided": (torch.ones(8)[::2], None),
        "a parameter": (module.bias, lambda: module.bias.data.fill_(100)),
        "half as wide": (half := torch.ones(3).bfloat16(), lambda: half.mul_(3)),
        "one number": (one := torch.tensor(2.0), lambda: one.neg_()),
        "of no storage": (torch.empty(0), None),
    }


WAYS = (
    "added to",
    "through a view",
    "strided",
    "a parameter",
    "half as wide",
    "one number",
    "of no storage",
)


@pytest.mark.parametrize("way", WAYS)
def test_a_host_tensor_is_read_anew(torch, rt, way):
    """What a function reads of it is that of now, whatever was recorded."""
    tensor, change = _ways(torch)[way]
    change = change or (lambda: tensor.add_(1))
    x = rt.array(np.zeros(3))

    def plain(x):
        return x + float(tensor.detach().float().sum())

    f = rt.graph(plain)
    for i in range(9):
        if i % 3 == 2:
            change()
        assert np.asarray(f(x)).tolist() == np.asarray(plain(x)).tolist()
    assert f.stats().replays > 1


def test_a_change_by_the_function_is_refused(torch, rt):
    """No replay would repeat it."""
    count = torch.zeros(1)

    def f(x):
        count.add_(1)
        return x + 1

    graphed, x = rt.graph(f, fullgraph=True), rt.array(np.zeros(3))
    with pytest.raises(sw.CaptureError, match="count"):
        for _ in range(3):
            graphed(x)


def test_a_large_one_is_compared_by_identity(torch):
    """As a host array of more than 64 KiB is."""
    small, large = torch.zeros(16), torch.zeros(1 << 15)
    assert isinstance(constant_of(small), Contents)
    assert constant_of(large) == constant_of(large) != constant_of(large.clone())


@pytest.mark.parametrize("make", ["to_sparse", "meta"])
def test_one_without_bytes_is_compared_by_identity(torch, make):
    """Nothing is read where nothing lies."""
    tensor = (
        torch.ones(3, device="meta") if make == "meta" else torch.ones(3).to_sparse()
    )
    assert constant_of(tensor) == constant_of(tensor)
    assert not isinstance(constant_of(tensor), Contents)


def test_no_operation_is_run_to_compare_one(torch):
    """Whoever watches torch's operations is told of none."""
    from torch.utils._python_dispatch import TorchDispatchMode

    seen, tensor = [], torch.ones(3)

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    with Mode():
        constant_of(tensor)
        assert not seen
        tensor + 1
    assert seen


def test_as_an_argument_it_is_refused(torch, rt):
    """With what to pass instead."""
    f = rt.graph(lambda x, w: x + float(w.sum()), fullgraph=True)
    with pytest.raises(TypeError, match=r"tensor of torch.*rt\.array"):
        f(rt.array(np.zeros(3)), torch.ones(3))
