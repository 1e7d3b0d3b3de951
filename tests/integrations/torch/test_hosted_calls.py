"""Calls with tensors of the CPU, on the host: what a function gets, and may do."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from sapwood.errors import CaptureError  # noqa: E402 - behind its torch
from sapwood.integrations.torch import hosted  # noqa: E402
from sapwood.tree.watch.session import Session, entered  # noqa: E402


@pytest.fixture
def run(monkeypatch):
    """Return what runs a call: watched, captured, or plainly; and gives the session.

    Where tensors are brought to has no memory, so that what reads it there fails.
    """

    def run(fn, *args, how="watched", **kwargs):
        monkeypatch.setattr(hosted, "capturing", lambda: how == "captured")
        session = Session(tolerant=how == "watched")

        def graph(target, *, back):
            assert not back

            def played(*args, **kwargs):
                with entered(None if how == "plainly" else session):
                    return target()(*args, **kwargs)

            return played

        calls = hosted.HostedCalls(lambda: fn, graph, torch.device("meta"))
        return calls.call(args, kwargs), session

    return run


@pytest.mark.parametrize("how", ["watched", "plainly"])
def test_the_function_gets_what_was_passed(run, how):
    """The very tensors and containers, in calls that run it."""
    batch = {"x": torch.ones(3), "n": 2}
    seen = []

    def fn(batch, *, y):
        seen.append((batch, y))
        return batch["x"].sum().item() * batch["n"]

    y = torch.zeros(2)
    (found,), session = run(fn, batch, y=y, how=how)
    assert found == 6.0
    assert seen[0][0] is batch
    assert seen[0][1] is y
    assert session.unrecordable is None


@pytest.mark.parametrize("how", ["watched", "plainly"])
def test_a_container_that_is_changed_is_the_callers(run, how):
    """And no recording is made of such a call."""
    batch = {"x": torch.ones(3)}

    def fn(batch):
        batch["x"] = batch["x"] * 2
        return 1

    (_,), session = run(fn, batch, how=how)
    assert batch["x"].tolist() == [2.0, 2.0, 2.0]
    refused = session.unrecordable
    assert refused is None if how == "plainly" else "is changed" in str(refused)


def test_a_capture_brings_it_there(run):
    """As it is, however often; its shape and type may be asked."""

    def fn(x, y):
        assert x.device.type == "cpu"
        there = x.to(y.device) if len(x) == 3 else None
        return there, x.to("meta", x.dtype), y.copy_(x)

    y = torch.zeros(3, device="meta")
    (found,), session = run(fn, torch.ones(3), y, how="captured")
    assert all(each.device.type == "meta" for each in found[:2])
    assert type(found[0]) is torch.Tensor
    assert session.stands_in


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.sum(),
        lambda x: x.tolist(),
        lambda x: x.numpy(),
        lambda x: x.item(),
        lambda x: x[0],
        lambda x: [*x],
        lambda x: bool(x[0] > 0),
        lambda x: x.to("meta", torch.float16),
        lambda x: x.add_(1),
        lambda x: torch.zeros(3).copy_(x),
        lambda x: x,
        lambda x: {"x": [x]},
        lambda x: x.clone().to("meta"),
    ],
    ids=lambda fn: str(fn.__code__.co_firstlineno),
)
def test_a_capture_does_nothing_else(run, fn):
    """Or what is read would be the same in every replay."""
    with pytest.raises((CaptureError, RuntimeError, TypeError)):
        run(fn, torch.ones(3), how="captured")


def test_no_more_is_brought_than_may_be_used(run, monkeypatch):
    """Of a whole data set, a call may take some rows."""
    monkeypatch.setattr(hosted, "_MOST", 16)
    assert run(lambda x: x.shape[0], torch.ones(4))[0] == (4,)
    assert run(lambda x: x.shape[0], torch.ones(5))[0] is None


def test_what_cannot_be_brought(run):
    """Nothing is done then: the call is run as it is."""
    x, endless = torch.ones(3), []
    endless.append(endless)
    for args in (
        (endless, x),
        (x, x),
        (torch.ones(2, 3).T,),
        (x.clone().requires_grad_(),),
        (torch.ones(3, dtype=torch.complex64).conj(),),
        (torch.ones(3, device="meta"),),
        (),
    ):
        assert run(lambda *_: 1, *args)[0] is None
