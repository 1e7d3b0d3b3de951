"""Kernels launched past torch's dispatcher: what they use need not be told."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")

pytestmark = pytest.mark.gpu

LENGTH = 1000
BLOCK = 256


@triton.jit
def _scale(x, y, factor, length, block: tl.constexpr):
    """Write ``y = x * factor``; both may be the same."""
    at = tl.program_id(0) * block + tl.arange(0, block)
    inside = at < length
    tl.store(y + at, tl.load(x + at, mask=inside) * factor, mask=inside)


def scale(x, y, factor):
    """Launch it; torch hears nothing of that."""
    _scale[(triton.cdiv(LENGTH, BLOCK),)](x, y, factor, LENGTH, block=BLOCK)


def empty():
    return torch.empty(LENGTH, device="cuda")


def test_an_argument_that_only_such_a_kernel_reads(alike):
    """Another tensor is read in another call."""

    def program(w):
        @w.graph
        def f(x):
            y = empty()
            scale(x, y, 3.0)
            return y

        kept = []
        for _ in range(6):
            kept.append(f(w.values(LENGTH)))
            yield kept
        x = w.values(LENGTH)
        for _ in range(4):
            yield f(x), f(f(x)), x

    assert alike(program).count("replays") > 6


def test_an_argument_that_only_such_a_kernel_writes(alike):
    """It is written in place, whichever it is, and so is what shares its memory."""

    def program(w):
        @w.graph
        def f(x, y):
            scale(x, y, 2.0)

        x, y = w.values(LENGTH), w.values(2 * LENGTH)
        for k in range(6):
            f(x, y[:LENGTH])
            yield x, y
            f(x, x)
            yield x, y
            f(w.values(LENGTH), w.values(LENGTH))
            x = x if k % 2 else w.values(LENGTH)

    assert alike(program).count("replays") > 6


def test_what_such_a_kernel_reaches_by_itself(alike):
    """A tensor that the function names is read and written where it lies by then."""

    def program(w):
        held = {"cache": w.values(LENGTH), "weight": w.values(LENGTH)}

        @w.graph
        def f(x):
            scale(held["weight"], held["cache"], 0.5)
            y = empty()
            scale(x, y, 2.0)
            return y + 1

        for k in range(8):
            yield f(w.values(LENGTH)), held
            if k % 3 == 2:
                held["weight"] = w.values(LENGTH)
            if k == 5:
                held["cache"] = f(w.values(LENGTH))

    assert alike(program).count("replays") > 2


def test_outputs_of_calls_go_through_such_kernels(alike):
    """``x = f(x)``, with old results kept and dropped."""

    def program(w):
        @w.graph
        def f(x):
            y = empty()
            scale(x, y, 0.5)
            scale(y, x, 0.25)
            return y

        x, kept = w.values(LENGTH), []
        for k in range(9):
            x = f(x)
            kept.append(x)
            del kept[: k % 3]
            yield kept

    assert alike(program).count("replays") > 4


class Doubled(torch.autograd.Function):
    """As many kernels of others come: a forward and a backward that torch calls."""

    @staticmethod
    def forward(ctx, x):
        del ctx
        y = empty()
        scale(x, y, 2.0)
        return y

    @staticmethod
    def backward(ctx, grad):
        del ctx
        scale(grad, grad, 2.0)
        return grad


def test_training_through_such_kernels(alike):
    """Losses, gradients and parameters are eager's after each of twelve steps."""

    def program(w):
        weight = torch.nn.Parameter(w.values(LENGTH))
        optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)

        @w.graph
        def step(x):
            optimizer.zero_grad()
            loss = (Doubled.apply(weight * x) - x).square().mean()
            loss.backward()
            optimizer.step()
            return loss

        kept = []
        for _ in range(12):
            kept.append((step(w.values(LENGTH)), weight.grad))
            yield kept, weight
            del kept[:-2]

    assert alike(program).count("replays") > 2


def test_an_operation_of_ones_own_is_told(rt):
    """What it launches is its, and nothing but what it says is taken as written."""
    name = "sapwood_tests::scaled"

    @torch.library.custom_op(name, mutates_args=())
    def scaled(x: torch.Tensor) -> torch.Tensor:
        y = empty()
        scale(x, y, 3.0)
        return y

    told, untold = rt.graph(lambda x: scaled(x)), rt.graph(lambda x: Doubled.apply(x))
    with torch.no_grad():
        for _ in range(4):
            x = torch.randn(LENGTH, device="cuda")
            assert torch.equal(told(x), x * 3)
            assert torch.equal(untold(x), x * 2)
    assert ", written" not in told.explain()
    assert ", written" in untold.explain()


def test_what_was_launched_before_an_exception_is_there(alike):
    """The function raises, and memory is as eager calls leave it."""

    def program(w):
        @w.graph
        def f(x, way):
            scale(x, x, 2.0)
            if way:
                raise KeyError(way)
            return x + 1

        for k in range(9):
            x = w.values(LENGTH)
            try:
                shown = f(x, k % 3)
            except KeyError as error:
                shown = error.args
            yield shown, x

    alike(program)
