"""Arguments written in place are as eager leaves them, however a replay finds them."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.gpu


def test_every_kind_of_write(agrees):
    """Items, slices, ``out=``, ``copy_``, scatters and in-place operations."""

    def f(x, y, at):
        x += 1
        x[0] = y[1]
        x[1:, 2] -= 5
        x[at] = y[at] * 2
        x.masked_fill_(x > 1.5, 0)
        torch.add(x, y, out=y)
        torch.mul(x[0], 2, out=x[2])
        y.t()[1] = 3
        x.copy_(x.flip(0))
        y[2].fill_(8)
        y.scatter_add_(0, at[:, None].expand(2, 3), x[:2])
        torch._foreach_mul_([x[1:], y], 1.5)
        x[3].zero_()
        x[1].copy_(y[0])
        y.index_add_(0, at, x[1:3])
        return x.sum(), y.relu_()

    def make(w):
        at = torch.arange(2, device=w.values().device) * 2 + 1
        return w.values(4, 3), w.values(4, 3), at

    agrees(f, make)


def test_writes_of_another_dtype(agrees):
    """A tensor seen as one of another dtype, or as complex, is written as such."""

    def f(x, y):
        x.view(torch.int32).bitwise_not_()
        torch.view_as_complex(y).mul_(1j)
        return x + 1, y.sum()

    agrees(f, lambda w: (w.values(7), w.values(3, 2)))


@torch.no_grad()
def test_parameters_as_arguments_are_written(alike):
    """Parameters that are passed in are updated where they are, or copied back."""

    def step(parameter, grad):
        parameter.sub_(grad * 0.1)
        return parameter.norm()

    def program(w):
        f = w.graph(step)
        for fresh in (False, True):
            parameter = torch.nn.Parameter(w.values(8))
            for _ in range(6):
                if fresh:
                    parameter = torch.nn.Parameter(w.values(8))
                yield f(parameter, w.values(8)), parameter

    assert alike(program).count("replays") >= 6
