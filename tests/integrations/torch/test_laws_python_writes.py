"""What a function writes in Python, and no replay would, is refused by name."""

from __future__ import annotations

import collections

import pytest

import sapwood as sw

torch = pytest.importorskip("torch")
nn = torch.nn

pytestmark = pytest.mark.gpu


def test_a_module_that_keeps_a_log_is_refused_by_name(rt):
    """What is added to a deque is nothing that a replay repeats."""

    class Logging(nn.Module):
        def __init__(self):
            super().__init__()
            self.log = collections.deque()

        def forward(self, x):
            self.log.append(x.shape)
            return x + 1

    f, x = rt.graph(Logging(), fullgraph=True), torch.zeros(2, device="cuda")
    with pytest.raises(sw.CaptureError, match=r"self\.log"):
        for _ in range(2):
            f(x)


def test_memory_given_to_a_tensor_is_taken_back(rt):
    """A tensor that the function gave other memory has its own when it is refused."""
    weight, x = torch.ones(64, device="cuda"), torch.ones(64, device="cuda")

    def fn(x):
        weight.data = x * 2
        return x + 1

    f, refused = rt.graph(fn, fullgraph=True), ""
    f(x)
    before = weight.data
    try:
        f(x)
    except sw.CaptureError as error:
        refused = str(error)
    there = weight.data_ptr() == before.data_ptr()
    # Nothing may read what is there now.
    weight.data = before
    assert there or not refused, refused
