"""Copies of large inputs: their pages are others' once torch has used them last."""

from __future__ import annotations

from contextlib import suppress

import pytest

import sapwood as sw

torch = pytest.importorskip("torch")

from sapwood.integrations.torch.moments import Moments  # noqa: E402 - it needs torch

pytestmark = [
    pytest.mark.gpu,
    # Torch's own, where its compiler imports parts of itself, and gives advice.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:TensorFloat32"),
]

ROWS, WIDTH = 4096, 1024


@pytest.fixture
def weights():
    return [torch.randn(WIDTH, WIDTH, device="cuda") / 32 for _ in range(3)]


def chain(x, weights):
    """Use an input first of all, and then what was made of it."""
    for weight in weights:
        x = (x @ weight).relu()
    return x


def residual(x, weights):
    """Use an input once more at the end."""
    return chain(x, weights) + x


def in_place(x, weights):
    """Write an input first of all."""
    x.mul_(0.5)
    return chain(x, weights)


def aside(x, weights):
    """Use an input on another stream, which the end waits for."""
    other, now = torch.cuda.Stream(), torch.cuda.current_stream()
    total = torch.zeros((), device="cuda")
    other.wait_stream(now)
    y = chain(x, weights)
    with torch.cuda.stream(other):
        torch.sum(x, (0, 1), out=total)
    now.wait_stream(other)
    return y + total


FUNCTIONS = (chain, residual, in_place, aside)
SHARED = {(chain, "eager"), (chain, "compiled")}


def recorded(run, weights):
    """Call a function as it is and graphed; return the pages that this has taken."""
    given = []
    with sw.Runtime(device="cuda:0", arrays="torch") as rt, torch.no_grad():
        graphed = rt.graph(lambda x: run(x, weights))
        for _ in range(6):
            given.append(torch.randn(ROWS, WIDTH, device="cuda"))
            eager = given[-1].clone()
            expected = run(eager, weights)
            assert torch.equal(graphed(given[-1]), expected)
            assert torch.equal(given[-1], eager)
        assert graphed.stats().replays > 2
        return rt.memory_stats()["pages.mapped"]


@pytest.mark.parametrize("how", ["eager", "compiled"])
@pytest.mark.parametrize("fn", FUNCTIONS)
def test_the_pages_of_an_input_are_shared(weights, monkeypatch, fn, how):
    """Results are as without, for another input in every call, on fewer pages."""
    if how == "compiled" and fn is aside:
        pytest.skip("torch compiles no function that changes streams")
    run = torch.compile(fn) if how == "compiled" else fn
    fewer = recorded(run, weights)
    monkeypatch.setattr(Moments, "begin", lambda each: each._last.clear())
    more = recorded(run, weights)
    assert fewer < more or (fn, how) not in SHARED
    assert fewer <= more


def test_inputs_that_backward_reads_are_there():
    """Autograd's thread has heard of captures before; gradients are eager's."""
    with sw.Runtime(device="cuda:0", arrays="torch") as rt:
        for depth in (2, 3):
            layers = [torch.nn.Linear(WIDTH, WIDTH).cuda() for _ in range(depth)]
            module, given = torch.nn.Sequential(*layers), []

            def step(x, module=module):
                module.zero_grad()
                (module(x).relu().square().mean() + x.mean()).backward()

            graphed = rt.graph(step)
            for _ in range(6):
                given.append(torch.randn(ROWS, WIDTH, device="cuda"))
                step(given[-1])
                expected = [each.grad.clone() for each in module.parameters()]
                graphed(given[-1])
                for each, gradient in zip(module.parameters(), expected, strict=True):
                    assert torch.equal(each.grad, gradient)
            assert graphed.stats().replays > 1
            del graphed


def test_what_an_exception_holds_breaks_nothing():
    """Its frames hold what stood in for arguments, and what was made of them."""

    def fails(x):
        y = x * 2
        raise KeyError(y, x)

    with sw.Runtime(device="cuda:0", arrays="torch") as rt:
        f, kept = rt.graph(fails), []
        for _ in range(4):
            x = torch.ones(ROWS, WIDTH, device="cuda")
            with pytest.raises(KeyError) as caught:
                f(x)
            kept.append(caught.value.args)
            for each in caught.value.args:
                with suppress(RuntimeError):
                    str(each)
        assert torch.equal(x * 2, x + x)
        torch.cuda.synchronize()
        del kept, caught, each
