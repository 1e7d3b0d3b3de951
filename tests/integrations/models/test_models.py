"""Models as they are: the bits of eager calls, and replays where these can be."""

from __future__ import annotations

import re
from collections import deque
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

import sapwood as sw  # noqa: E402
from sapwood.testing import Rig  # noqa: E402
from tests.integrations.models.trials import TRIALS  # noqa: E402 - it needs torch

CALLS = 7
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def _tensors(value):
    """Return the tensors in a result, those in the objects in it too, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [each for inner in value.values() for each in _tensors(inner)]
    if isinstance(value, (list, tuple)):
        return [each for inner in value for each in _tensors(inner)]
    return _tensors(vars(value)) if hasattr(value, "__dict__") else []


def _written(fn):
    """Return what a step of training has left: parameters, gradients, state."""
    model, optimizer = fn.model, getattr(fn, "optimizer", None)
    state = [] if optimizer is None else list(optimizer.state.values())
    grads = [each.grad for each in model.parameters() if each.grad is not None]
    return _tensors([*model.parameters(), *model.buffers(), *grads, state])


def _program(trial, device, graph):
    """Return what all calls gave, kept to the end, and what they have written."""
    for name in trial.needs:
        pytest.importorskip(name)
    torch.manual_seed(5)
    model = trial.build().to(device).train(trial.trains)
    for each in model.modules():
        if isinstance(each, torch.nn.Dropout):
            each.p = 0.0
    fn = trial.prepared(model, device)
    call = graph(fn)
    torch.manual_seed(7)
    with torch.set_grad_enabled(trial.trains):
        kept = [call(**trial.inputs(device)) for _ in range(CALLS)]
    found = [[each.detach().clone() for each in _tensors(kept)]]
    if trial.trains:
        found.append([each.detach().clone() for each in _written(fn)])
    return found, call


def _differing(found, expected):
    assert [*map(len, found)] == [*map(len, expected)]
    return [
        (part, number)
        for part, pair in enumerate(zip(found, expected, strict=True))
        for number, (one, other) in enumerate(zip(*pair, strict=True))
        if one.shape != other.shape or not torch.equal(one, other)
    ]


@pytest.fixture
def rt():
    """Return a runtime of torch's tensors on the GPU, leak-checked in the end."""
    rig = Rig("cuda", arrays="torch")
    yield rig.runtime
    rig.finish()


@pytest.mark.gpu
@pytest.mark.parametrize("name", TRIALS)
@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
def test_a_model_is_as_eager(rt, name, monkeypatch):
    """All its results are kept; the work that it does in captures counts, if other."""
    trial = TRIALS[name]
    plain, _ = _program(trial, "cuda", lambda fn: fn)
    with monkeypatch.context() as patched:
        patched.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        captured, _ = _program(trial, "cuda", lambda fn: fn)
    found, f = _program(trial, "cuda", rt.graph)
    stats = f.stats()
    if trial.skips:
        assert stats.replays == 0
        assert re.search(trial.skips, str(stats.skipped))
        assert not _differing(found, plain)
        return
    differs = _differing(found, plain)
    apart = {*_differing(captured, plain)}
    assert not {*differs} - apart
    assert not {*_differing(found, captured)} - apart
    assert stats.replays >= 2, f.explain()
    assert not stats.skipped, f.explain()


# Where there is no GPU, the device without memory stands in for one.


def _looked_at(fn, inputs):
    """Watch calls as captures are watched; return the sessions, keys and results."""
    from sapwood.integrations.torch.adapter import TorchAdapter
    from sapwood.integrations.torch.watching import Watcher
    from sapwood.tree.ambient import Surveyor
    from sapwood.tree.parameters import Parameters
    from sapwood.tree.session import Session, entered

    adapter = TorchAdapter(SimpleNamespace(returns=deque()), torch.device("meta"))
    parameters, surveyor = Parameters(fn, "f"), Surveyor(lambda: fn, adapter)
    found = []
    for _ in range(3):
        kwargs = inputs()
        call = parameters.describe((), kwargs, adapter)
        before = surveyor.survey(parameters.bind((), kwargs))
        key = before.key_with(call.given.arrays, call.nests)
        session = Session(tolerant=True, as_captured=True, holds=before.holds)
        with entered(session), Watcher(session, adapter.storages_of):
            result = fn(**kwargs)
        found.append((session, key, result))
    return found


def _is_capturing():
    from sapwood.tree.session import served

    session = served()
    if session is not None:
        session.asked()
    return session is not None and session.as_captured


@pytest.mark.deep
@pytest.mark.parametrize("name", TRIALS)
def test_nothing_of_a_model_is_refused(name, monkeypatch):
    """No call reads on the host or writes Python, and all of them are alike."""
    from sapwood.tree.containers import flatten, unflatten

    trial = TRIALS[name]
    for each in trial.needs:
        pytest.importorskip(each)
    if trial.trains:
        pytest.skip("optimizers take no tensors without memory")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", _is_capturing)
    with torch.device("meta"):
        fn = trial.prepared(trial.build().eval(), "meta")
        with torch.no_grad():
            found = _looked_at(fn, lambda: trial.inputs("meta"))
    told = [session.unrecordable for session, _, _ in found]
    if trial.skips:
        assert re.search(trial.skips, str(told[0]))
        return
    assert told == [None] * 3
    ops, keys = zip(
        *((session.digests(), key) for session, key, _ in found), strict=True
    )
    assert ops[0]
    assert ops.count(ops[0]) == keys.count(keys[0]) == 3
    for _, _, result in found:
        leaves, structure = flatten(result, torch.is_tensor)
        again = unflatten(structure, leaves)
        assert type(again) is type(result)
        assert [*map(id, _tensors(again))] == [*map(id, _tensors(result))]


@pytest.mark.deep
@pytest.mark.parametrize("name", TRIALS)
@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
@pytest.mark.filterwarnings("ignore:.*capturable:UserWarning")
def test_a_model_runs_where_it_cannot_be_recorded(name):
    """Tensors of another device than the runtime's: all calls are eager, and right."""
    trial = TRIALS[name]
    if trial.trains:
        pytest.skip("capturable optimizers need a GPU")
    expected, _ = _program(trial, "cpu", lambda fn: fn)
    with sw.Runtime("emulated") as rt:
        found, f = _program(trial, "cpu", rt.graph)
        assert not _differing(found, expected)
        assert f.stats().replays == 0
