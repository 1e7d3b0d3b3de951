"""A graphed callable is traced, pickled and copied like the plain one."""

from __future__ import annotations

import copy
import importlib
import io
import pickle
import warnings

import pytest

import sapwood as sw
from sapwood import _fast
from sapwood.runtime import graphed

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True, scope="module")
def _imported():
    """Import what warns whoever looks for it once a compiler was used."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        importlib.import_module("torch._inductor.cudagraph_trees")


@pytest.fixture
def rt():
    with sw.Runtime("emulated") as made:
        yield made


@pytest.fixture(params=["Python", "C"])
def way(request, monkeypatch):
    """Have graphed functions called in one of the two ways."""
    if request.param == "C":
        if _fast.native() is None:
            pytest.skip("nothing in C here")
        graphed._take_calls()
    else:
        monkeypatch.setattr(graphed.Graphed, "__call__", graphed.Graphed.__call__)
    torch._dynamo.reset()


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(3, 3)

    def forward(self, x):
        return self.inner(x) + 1


@pytest.mark.usefixtures("way")
def test_a_compiler_traces_into_a_graphed_function(rt):
    """Under ``fullgraph=True``, which takes no break: the plain function is a part."""
    scaled = rt.graph(lambda x, by=2: x * by)
    whole = torch.compile(lambda x: scaled(x) + 3, backend="eager", fullgraph=True)
    x = torch.arange(4.0)
    assert torch.equal(whole(x), x * 2 + 3)
    assert scaled.stats().warmups == 0


@pytest.mark.usefixtures("way")
def test_a_compiler_traces_into_a_graphed_method(rt):
    """Of a class, and of an instance alone."""
    model, x = Model(), torch.ones(2, 3)
    expected = model(x)
    model.forward = rt.graph(model.forward)
    whole = torch.compile(lambda x: model(x) * 2, backend="eager", fullgraph=True)
    assert torch.equal(whole(x), expected * 2)

    class Scaled:
        @rt.graph
        def run(self, x):
            return x * 2

    one = Scaled()
    whole = torch.compile(lambda x: one.run(x) * 2, backend="eager", fullgraph=True)
    assert torch.equal(whole(x), x * 4)


def _saved(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES = {
    "pickled": lambda model: pickle.loads(pickle.dumps(model)),
    "saved": _saved,
    "copied": copy.deepcopy,
}


@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
@pytest.mark.parametrize("how", COPIES)
def test_a_module_with_a_graphed_forward_is_copied(rt, how):
    """The copy has a graphed forward of its own parameters."""
    model, x = Model(), torch.ones(2, 3)
    model.forward = rt.graph(model.forward, name="step", max_variants=2)
    expected = model(x)
    again = COPIES[how](model)
    assert isinstance(again.forward, graphed.Graphed)
    assert again.forward._options == model.forward._options
    assert again.forward.__wrapped__.__self__ is again
    with torch.no_grad():
        for each in model.parameters():
            each.zero_()
    assert torch.equal(again(x), expected)
    assert torch.equal(model(x), torch.ones(2, 3))
