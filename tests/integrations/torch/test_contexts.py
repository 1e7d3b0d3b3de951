"""Torch's contexts around work of other arrays: what they write to is no state."""

from __future__ import annotations

import numpy as np
import pytest

import sapwood as sw

torch = pytest.importorskip("torch")


@pytest.fixture
def rt():
    """Yield a runtime whose arrays are not torch's."""
    import sapwood.integrations.torch  # noqa: F401 - says how contexts are looked into

    with sw.Runtime(device="emulated") as runtime:
        yield runtime


class Named(torch.no_grad):
    """A context of a user's own, with an attribute that decides."""

    scale = 2.0


CONTEXTS = {
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "no_grad": torch.no_grad,
    "enable_grad": torch.enable_grad,
    "inference_mode": torch.inference_mode,
    "record_function": lambda: torch.profiler.record_function("here"),
    "device": lambda: torch.device("cpu"),
    "a user's": Named,
}


@pytest.mark.parametrize("how", CONTEXTS)
@pytest.mark.parametrize("where", ["outside", "inside"])
def test_a_context_is_entered_by_what_is_recorded(rt, how, where):
    """It notes what was before it, which is nobody's state."""
    held = {"context": CONTEXTS[how]()}

    def f(x):
        with held["context"] if where == "outside" else CONTEXTS[how]():
            return x * 2

    g, x = rt.graph(f), rt.array(np.ones(3))
    for _ in range(5):
        assert np.asarray(g(x)).tolist() == [2.0] * 3
    assert g.stats().replays == 3


def test_a_function_may_be_decorated_with_one(rt):
    """The context is in what the decorator has made."""
    f = rt.graph(torch.autocast("cpu")(lambda x: x * 2))
    x = rt.array(np.ones(3))
    for _ in range(5):
        f(x)
    assert f.stats().replays == 3


def test_what_decides_in_a_context_is_guarded(rt):
    """Another dtype, or one that is off, is another recording."""
    context = torch.autocast("cpu", dtype=torch.bfloat16)
    held = {"context": context}

    def plain(x):
        with held["context"]:
            return x * (2 if torch.is_autocast_enabled("cpu") else 3)

    f, x = rt.graph(plain), rt.array(np.ones(3))
    for i in range(9):
        context._enabled = i < 4
        assert np.asarray(f(x)).tolist() == np.asarray(plain(x)).tolist()
    assert f.stats().replays >= 4


def test_what_a_users_context_has_is_guarded(rt):
    """What its class derives from hides nothing of it."""
    held = {"context": Named()}

    def plain(x):
        with held["context"] as _:
            return x * held["context"].scale

    f, x = rt.graph(plain), rt.array(np.ones(3))
    for i in range(9):
        if i == 4:
            held["context"].scale = 5.0
        assert np.asarray(f(x)).tolist() == np.asarray(plain(x)).tolist()
    assert f.stats().replays >= 4
