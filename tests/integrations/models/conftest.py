"""Real models in four worlds: replayed, eager, on the host, and on no device at all."""

from __future__ import annotations

import gc
import warnings
from collections import deque
from contextlib import suppress
from importlib import import_module
from itertools import product

import pytest

import sapwood as sw
from sapwood.tree.session import served


@pytest.fixture
def quietly(monkeypatch):
    """Return what lets models warn of all but skips, which are errors unless allowed.

    Nothing is looked for on a network.
    """
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def quietly(trial, *, skips=False):
        for name in trial.needs:
            pytest.importorskip(name)
        warnings.simplefilter("ignore")
        if not skips:
            warnings.simplefilter("error", sw.GraphSkipWarning)

    with warnings.catch_warnings():
        yield quietly


@pytest.fixture
def show(bits):
    """Return what makes anything comparable that a model returns."""
    from tests.integrations.models.worlds import opened

    return lambda nest: bits(opened(nest))


@pytest.fixture
def agrees(show, monkeypatch):
    """Return what runs a program replayed, then eagerly, and gives the first world.

    What it yields is looked at as it comes, or kept to the end and looked at then.
    Eager calls are told of captures what the replayed ones were: see docs/torch.md.
    """
    from tests.integrations.models.worlds import Answered, Replayed

    def run(program, world, keeps):
        if keeps:
            return show(list(program(world)))
        return [show(each) for each in program(world)]

    def agrees(rt, program, place, *, keeps=True):
        world = Replayed(place, rt)
        found = run(program, world, keeps)
        gc.collect()
        eager = Answered(place, world.answers, monkeypatch)
        expected = run(program, eager, keeps)
        assert len(found) == len(expected)
        assert found == expected
        return world

    return agrees


@pytest.fixture
def capturable(torch, monkeypatch):
    """Have torch's optimizers take parameters anywhere for capturable ones."""
    modules = map(import_module, (torch.optim.Adam.__module__, "torch.optim.optimizer"))
    names = [
        f"_get_{what}_supported_devices" for what in ("capturable", "fused_kernels")
    ]
    for module, name in product(modules, names):
        if hasattr(module, name):
            monkeypatch.setattr(module, name, lambda *_, **__: ["cpu", "meta"])


@pytest.fixture
def watched(adapter_of, torch, monkeypatch):
    """Return what runs a program on the device without memory, and gives its world.

    Who asks whether a capture is on is told what a capture would tell.
    """
    from sapwood.integrations.torch import modes, openings  # noqa: F401 - as runtimes
    from tests.integrations.models.worlds import Stopped, Watched

    def capturing(*_):
        session = served()
        if session is None:
            return False
        session.asked()
        return session.as_captured

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", capturing)

    def run(program):
        world = Watched(adapter_of("meta"))
        with suppress(Stopped):
            deque(program(world), maxlen=0)
        return world

    return run
