"""The way back through a run, on the host, where no call is captured, but taped.

What is recorded on a GPU is what these take apart: see test_gradients_out.py.
"""

from __future__ import annotations

import contextlib
import gc
from unittest.mock import MagicMock
from weakref import ref

import pytest

torch = pytest.importorskip("torch")

from sapwood.integrations.torch import gradients  # noqa: E402 - behind its torch
from sapwood.tree.watch.session import Session, Use, entered  # noqa: E402

nn = torch.nn


@pytest.fixture(params=["captured", "warmed up"])
def taped(request, monkeypatch):
    """Return what makes a function whose calls are taped, and the reasons of skips."""
    gradients.notice_pushes()
    captured = request.param == "captured"
    monkeypatch.setattr(gradients, "capturing", lambda: captured)
    monkeypatch.setattr(gradients, "_drawn", torch.initial_seed)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "set_stream", bool)
    monkeypatch.setattr(torch.cuda, "current_stream", MagicMock)

    def taped(fn):
        reasons = []

        def graph(target, *, back):
            def run(*args, **kwargs):
                session = Session(tolerant=True)
                with entered(session):
                    result = target()(*args, **kwargs)
                if session.unrecordable is not None and not back:
                    reasons.append(session.unrecordable.what)
                return result

            return run

        made = gradients.Gradients(lambda: fn, graph, MagicMock)
        return lambda *args, **kwargs: made.call(args, kwargs), reasons

    return taped


def _layers():
    return nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.LayerNorm(4), nn.Linear(4, 4))


_RECURRENT = nn.GRU(4, 4)
FUNCTIONS = {
    "attention": nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True),
    "functional": lambda x: (x.sin() @ x.T).softmax(-1),
    "in turn": lambda x: x.view(-1).exp().view(x.shape).transpose(0, 1),
    "layers": _layers(),
    "parts": lambda x: (x * 2, [x.exp(), 3], {"a": x.detach() + 1}),
    "passed on": lambda x: (x, x.cos()),
    "recurrent": lambda x: _RECURRENT(x)[0],
    "chunks": lambda x: (x * 2).chunk(2, -1),
    "rows": lambda x: [*x.exp(), (x + 1)[:0]],
    "parts of one": lambda x: (x[1:] * x[:-1]).sin() * (x.exp()[1:] * 2),
    "same twice": lambda x: [y := x.tanh(), y],
}


def _tensors(result):
    if isinstance(result, dict):
        result = list(result.values())
    if isinstance(result, (list, tuple)):
        return [each for part in result for each in _tensors(part)]
    return [result] if torch.is_tensor(result) else []


def _gone_back(fn, x, parameters):
    """Return results, and the gradients of what was passed and of parameters."""
    for each in parameters:
        each.grad = None
    shown = _tensors(fn(x * 1.5))
    sum(each.sin().sum() for each in shown if each.requires_grad).backward()
    given = [*shown, x.grad, *(each.grad for each in parameters)]
    x.grad = None
    return [None if each is None else each.detach().clone() for each in given]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_are_those_of_the_call(taped, name):
    """Of arguments and parameters alike, three times."""
    fn = FUNCTIONS[name]
    parameters = [*fn.parameters()] if isinstance(fn, nn.Module) else []
    f, reasons = taped(fn)
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(4, 4, requires_grad=True)
        found, expected = (_gone_back(each, x, parameters) for each in (f, fn))
        for one, other in zip(found, expected, strict=True):
            assert (one is None) == (other is None)
            assert one is None or torch.equal(one, other)
    assert reasons == []


def _hooked(x):
    y = x * 3
    y.register_hook(lambda g: g * 2)
    return y.sin()


REFUSED = {
    "a hook": (_hooked, "hooks"),
    "a view": (lambda x: x.view(-1), "a view of an argument"),
    "checkpoints": (
        lambda x: torch.utils.checkpoint.checkpoint(torch.sin, x, use_reentrant=False),
        "as checkpoints",
    ),
    "parts of one": (
        lambda x: [(y := x * 2)[:3], y[1:]],
        "shares a part of another result",
    ),
    "writes to what is saved": (lambda x: [y := x.exp(), y.add_(1).detach()][0], "was"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_sent_back_is_told(taped, name):
    """By name, of a warm-up and of a capture."""
    fn, reason = REFUSED[name]
    f, reasons = taped(fn)
    f(torch.randn(4, 4, requires_grad=True) * 1)
    assert len(reasons) == 1
    assert reason in reasons[0]


@pytest.mark.parametrize("which", ["result", "argument"])
def test_what_is_written_between_is_told_as_by_autograd(taped, which):
    """Where backward needs it: else it is nobody's affair."""
    functions = {
        torch.exp: "result",
        torch.square: "argument",
        lambda x: x.exp()[1:]: "result",
        lambda x: x[1:].square(): "argument",
    }
    for fn, needs in functions.items():
        for f in (fn, taped(fn)[0]):
            x = torch.randn(3, requires_grad=True)
            h = x * 1
            y = f(h)
            (y if which == "result" else h).mul_(2)
            told = pytest.raises(RuntimeError, match=r"in.?place")
            with told if needs == which else contextlib.nullcontext():
                y.sum().backward()


def test_gradients_can_be_differentiated(taped):
    """They are those of another, eager run."""
    layers = _layers()
    found = []
    for fn in (layers, taped(layers)[0]):
        layers.zero_grad()
        x = torch.linspace(0, 1, 8).view(2, 4).requires_grad_()
        (slope,) = torch.autograd.grad(fn(x).sum(), x, create_graph=True)
        slope.norm().backward()
        found.append([x.grad, *(each.grad for each in layers.parameters())])
    for one, other in zip(*found, strict=True):
        assert one is other is None or torch.equal(one, other)


def test_one_argument_in_two_places_is_one(taped):
    """The function finds it so, and its gradient is the sum of both."""

    def fn(x, y):
        return x.exp() * y if x is y else x - y

    x = torch.linspace(0, 1, 4, requires_grad=True)
    found = []
    for f in (fn, taped(fn)[0]):
        h = x * 2
        found.append(torch.autograd.grad(f(h, h).sum(), x))
    assert torch.equal(*(each for (each,) in found))


@pytest.mark.parametrize("which", ["x", "named", "in a list"])
def test_another_run_is_of_what_was_passed(taped, which):
    """Where that was written to since, it would be another one."""
    f, _ = taped(lambda x, *, named, others: (x + named + others[0]).exp())
    h, named, other = (torch.ones(3, requires_grad=True) for _ in range(3))
    given = {"x": h * 1, "named": named * 1, "in a list": other.detach().clone()}
    y = f(given["x"], named=given["named"], others=[given["in a list"]])
    with torch.no_grad():
        given[which].mul_(2)
    told = pytest.raises(RuntimeError, match="written to since")
    # A warm-up is autograd's own, which asks of nothing that it has not saved.
    with told if y.grad_fn.name() == "_NodeBackward" else contextlib.nullcontext():
        torch.autograd.grad(y.sum(), h, create_graph=True)


def test_what_a_function_writes_is_asked_of_warm_ups(taped, monkeypatch):
    """A capture knows no storage for the function's own."""
    noted = Session.__init__

    def writing(session, **options):
        noted(session, **options)
        session.used[MagicMock()] = Use(writes=True, where=None)

    monkeypatch.setattr(Session, "__init__", writing)
    f, _ = taped(torch.exp)
    x = torch.ones(3, requires_grad=True)
    (slope,) = torch.autograd.grad(f(x * 1).sum(), x, create_graph=True)
    assert torch.equal(slope, x.exp())
    monkeypatch.setattr(gradients, "capturing", bool)
    f(x * 1)  # a warm-up
    monkeypatch.setattr(gradients, "capturing", lambda: True)
    with pytest.raises(RuntimeError, match="writes to what others have"):
        torch.autograd.grad(f(x * 1).sum(), x, create_graph=True)


def test_what_was_passed_is_let_go_of_with_the_graph(taped):
    """A result that outlives its backward, a loss in a list say, holds no batch."""
    f, _ = taped(_layers())
    x = torch.randn(2, 4)
    gone, y = ref(x), f(x)
    y.sum().backward(retain_graph=True)
    assert gone() is not None
    del x
    y.sum().backward()
    assert gone() is None


def test_nothing_is_kept_by_reference(taped):
    """No cycle holds what a call has saved, once the caller has let go of it."""
    layers = _layers()
    f, _ = taped(layers)

    def tensors():
        return sum(type(each) is torch.Tensor for each in gc.get_objects())

    def train(*, goes_back):
        y = f(torch.randn(2, 4))
        if goes_back:
            y.sum().backward()
            layers.zero_grad()

    train(goes_back=True)
    gc.collect()
    gc.disable()
    try:
        before = tensors()
        for goes_back in (True, False, True):
            train(goes_back=goes_back)
            assert tensors() == before
    finally:
        gc.enable()


@pytest.mark.parametrize("name", ["chunks", "rows"])
def test_of_several_views_none_is_written(taped, name):
    """As by autograd: one of them would change the others' way back."""
    fn = FUNCTIONS[name]
    for f in (fn, taped(fn)[0]):
        found = f(torch.randn(4, 4, requires_grad=True) * 1)
        with pytest.raises(RuntimeError, match="view and is being modified in"):
            found[1].mul_(2)


def test_parts_of_a_result_are_views_of_it(taped):
    """What is written to one is seen in the other, and so is its gradient."""

    def fn(x):
        y = x.tanh() * 2
        return y, y[:, 0], y.view(2, 8)

    found = []
    for f in (fn, taped(fn)[0]):
        x = torch.linspace(0, 1, 16).view(4, 4).requires_grad_()
        whole, first, half = f(x * 1)
        first.mul_(3)
        (whole.exp().sum() + (first * half[0, ::2]).sum()).backward()
        found.append([x.grad, whole.detach(), first.detach(), half.detach()])
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)
