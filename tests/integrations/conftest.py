"""What tests of several frameworks share: torch, a rig on a GPU, bits, and worlds."""

from __future__ import annotations

import dataclasses
import gc
import re
import struct
import warnings
from collections import deque
from contextlib import suppress
from importlib import import_module
from itertools import product, repeat
from types import SimpleNamespace

import pytest

import sapwood as sw
from sapwood.tree.watch.session import served
from tests.support.rig import Rig


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
    from sapwood.integrations.torch.integration import TorchIntegration

    def make(kind):
        return TorchIntegration(SimpleNamespace(returns=returns), torch.device(kind))

    return make


@pytest.fixture
def integration(adapter_of):
    """Return an adapter of CPU tensors."""
    return adapter_of("cpu")


# On a GPU.


@pytest.fixture
def rig():
    """Return a runtime behind all layers, leak-checked when the test is over."""
    made = Rig("cuda", arrays="torch")
    yield made
    # What is caught in a test holds tensors of a capture that failed.
    gc.collect()
    made.finish()


@pytest.fixture
def rt(rig, torch):
    """Return a runtime of torch's tensors."""
    torch.manual_seed(7)
    return rig.runtime


@pytest.fixture
def bits(torch):
    """Return what makes nests of tensors and plain values comparable bit for bit.

    Which tensors share a storage is compared, too.
    """

    def told(value, owners):
        if isinstance(value, torch.Tensor):
            owners.append(value.untyped_storage().data_ptr())
            plain = value.detach().resolve_conj().resolve_neg().reshape(-1)
            plain = plain.clone(memory_format=torch.contiguous_format)
            data = plain.view(torch.uint8).cpu().numpy().tobytes()
            return value.dtype, value.shape, value.stride(), data
        if isinstance(value, dict):
            pairs = [(key, told(each, owners)) for key, each in value.items()]
            return type(value), pairs
        if isinstance(value, (list, tuple)):
            return type(value), [told(each, owners) for each in value]
        if dataclasses.is_dataclass(value):
            return type(value), told(vars(value), owners)
        if isinstance(value, float):
            return float, struct.pack("<d", value)
        return type(value), value

    def bits(*nest):
        owners = []
        shown = told(nest, owners)
        return shown, [owner and owners.index(owner) for owner in owners]

    return bits


# Programs in four worlds: replayed, eager, on the host, and on no device at all.


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
    Where what is read decides which were told so, each is to be like ``either``.
    """
    from tests.integrations.models.worlds import Answered, Replayed

    def run(program, world, keeps, *, apart):
        if keeps and not apart:
            return show(list(program(world)))
        yields = program(world)
        return [show(each) for each in (list(yields) if keeps else yields)]

    def agrees(rt, program, place, *, keeps=True, either=False):
        world = Replayed(place, rt)
        found = run(program, world, keeps, apart=either)
        gc.collect()
        ways = (repeat(True), repeat(False)) if either else (world.answers,)
        eager = [
            run(program, Answered(place, answers, monkeypatch), keeps, apart=either)
            for answers in ways
        ]
        if not either:
            assert [found] == eager
            return world
        for each, *expected in zip(found, *eager, strict=True):
            assert each in expected
        return world

    return agrees


@pytest.fixture
def replays(rt, agrees, quietly, torch, monkeypatch):
    """Return what runs a trial replayed, and checks that it is recorded as it says."""
    # By default cuDNN adds the gradients of a convolution in any order: of 360 eager
    # trainings of a small Unet on an H200, one gave other last bits than the rest.
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)

    def replays(trial, *, least, keeps):
        quietly(trial, skips=bool(trial.skips or trial.moves))
        reads = "on the host" in (trial.skips or "")
        world = agrees(rt, trial.program, "cuda", keeps=keeps, either=reads)
        if reads:
            return  # what is read decides, and how many calls alike there are
        if trial.skips:
            assert world.count("replays") == 0
            assert re.search(trial.skips, "\n".join(world.reasons()))
        elif not trial.moves:
            assert world.count("replays") >= least
            assert world.count("passed_through") == 0

    return replays


@pytest.fixture
def passes_on_the_host(agrees, quietly, capturable):
    """Return what runs a trial where nothing can be recorded."""

    def passes(trial, *, keeps):
        quietly(trial, skips=True)
        capturable()
        with sw.Runtime("emulated") as rt:
            world = agrees(rt, trial.program, "cpu", keeps=keeps)
        assert world.functions
        assert world.count("replays") == 0

    return passes


@pytest.fixture
def capturable(torch, monkeypatch):
    """Return what has torch's optimizers take parameters anywhere for capturable."""
    made = torch.optim.Adam, torch.optim.RMSprop, torch.optim.Optimizer
    modules = [import_module(each.__module__) for each in made]
    names = [
        f"_get_{what}_supported_devices" for what in ("capturable", "fused_kernels")
    ]

    def anywhere():
        for module, name in product(modules, names):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, lambda *_, **__: ["cpu", "meta"])

    return anywhere


@pytest.fixture
def watched(adapter_of, torch, monkeypatch):
    """Return what runs a program on the device without memory, and gives its world.

    Who asks whether a capture is on is told what a capture would tell.
    """
    from sapwood.integrations.torch import accessors, modes  # noqa: F401 - as runtimes
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


@pytest.fixture
def surveyed(watched, quietly, capturable):
    """Return what watches a trial, and gives the functions whose calls are to be alike.

    None is given of a trial that is refused, or of which no two calls are alike.
    """

    def surveyed(trial):
        quietly(trial)
        if trial.live:
            return ()
        capturable()
        found = watched(trial.program)
        if trial.skips:
            assert re.search(trial.skips, str(found.refused))
            return ()
        assert found.refused is None
        return () if trial.moves else found.seen

    return surveyed
