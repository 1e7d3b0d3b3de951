"""What changes within objects that stay the same is seen by the next survey."""

from __future__ import annotations

import threading
import weakref
from contextlib import suppress

import pytest

from sapwood import _fast
from sapwood.tree.guards import Surveyor, survey

torch = pytest.importorskip("torch")

TURNS, CHANGED = 9, 5


class Weights:
    """What a function reads: tensors by themselves and in a list, values, a module."""

    def __init__(self):
        self.weight = torch.ones(3, 4)
        self.bias = torch.nn.Parameter(torch.ones(4))
        self.made = torch.ones(4).requires_grad_() * 1
        self.spun = torch.ones(4, dtype=torch.complex64)
        self.more = [torch.ones(2), torch.ones(5)]
        self.tied = self.more[0]
        self.bytes = bytearray(b"some")
        self.rates, self.act = [0.5], torch.nn.functional.relu
        self.layer = torch.nn.Linear(2, 2)

    @property
    def scale(self):
        """Answer what may be another thing with every call."""
        return self.rates[0]


def _function(w):
    def fn(x):
        tensors = w.weight, w.bias, w.made, w.spun, w.more, w.tied
        return tensors, w.bytes, w.scale, w.act(x), w.layer(x)

    return fn


def _on_a_thread(change):
    def made(w):
        thread = threading.Thread(target=change, args=(w,))
        thread.start()
        thread.join()

    return made


def _data(name, make):
    return lambda w: setattr(getattr(w, name), "data", make(getattr(w, name).detach()))


def _swap(name, make):
    return lambda w: torch.utils.swap_tensors(getattr(w, name), make(getattr(w, name)))


def _inferred(tensor):
    with torch.inference_mode():
        return torch.ones_like(tensor)


def _answer(_):
    Weights.scale = property(lambda _: 3)


CHANGES = {
    "nothing": lambda _: None,
    "written": lambda w: w.weight.add_(1),
    "t_": lambda w: w.weight.t_(),
    "t_ on a thread": _on_a_thread(lambda w: w.weight.t_()),
    "resize_": lambda w: w.weight.resize_(2, 4),
    "unsqueeze_": lambda w: w.more[1].unsqueeze_(0),
    "strides": lambda w: w.weight.as_strided_((3, 4), (0, 1)),
    "strides of one": lambda w: w.more[1].as_strided_((1, 4), (1, 1)),
    "set_": lambda w: w.weight.set_(torch.ones(4, 3)),
    "set_ of what looks alike": lambda w: w.weight.set_(torch.zeros(3, 4)),
    "set_ of less aligned": lambda w: w.weight.set_(torch.zeros(13)[1:].view(3, 4)),
    "requires_grad_": lambda w: w.weight.requires_grad_(),
    "requires_grad_ no more": lambda w: w.bias.requires_grad_(requires_grad=False),
    "data": _data("bias", lambda _: torch.ones(5)),
    "data of what looks alike": _data("bias", torch.clone),
    "data of another dtype": _data("weight", torch.Tensor.int),
    "data that is conjugate": _data("spun", torch.conj),
    "data that is negative": _data("weight", torch._neg_view),
    "another shape within": _swap("weight", lambda _: torch.ones(2, 2)),
    "another device within": _swap("weight", lambda w: w.to("meta")),
    "inference's within": _swap("weight", _inferred),
    "a leaf of what was computed": lambda w: w.made.detach_().requires_grad_(),
    "tensors swapped": lambda w: torch.utils.swap_tensors(w.weight, w.spun),
    "a tensor's class": lambda w: setattr(w.weight, "__class__", torch.nn.Parameter),
    "a gradient": lambda w: setattr(w.bias, "grad", torch.ones(4)),
    "a list appended to": lambda w: w.more.append(torch.ones(1)),
    "appended to on a thread": _on_a_thread(lambda w: w.more.append(2)),
    "another in a list": lambda w: w.more.__setitem__(0, torch.ones(2)),
    "another look in a list": lambda w: w.more.__setitem__(0, torch.ones(7)),
    "another look of its twin": lambda w: setattr(w, "tied", torch.ones(7)),
    "bytes": lambda w: w.bytes.__setitem__(0, 7),
    "more bytes": lambda w: w.bytes.extend(b"more"),
    "a value": lambda w: w.rates.__setitem__(0, 0.25),
    "the same value anew": lambda w: w.rates.__setitem__(0, float("0.5")),
    "a property that answers otherwise": _answer,
    "a function": lambda w: setattr(w, "act", torch.nn.functional.gelu),
    "a class": lambda w: setattr(w.layer, "__class__", torch.nn.BatchNorm1d),
    "a hook": lambda w: w.layer.register_forward_hook(lambda *_: None),
    "a method": lambda w: setattr(w.layer, "forward", lambda x: x),
}


@pytest.fixture(autouse=True)
def scale():
    """Restore the property that a change replaces."""
    before = Weights.scale
    yield
    Weights.scale = before


def _shown(found):
    """Return all that a survey holds; values that are looked into by their numbers."""
    walk = found._walk
    rows = [(i.node, i.view.name, r) for i in walk.insides for r in i.rows]
    return (
        [(node.path, node.accessors, node.frozen) for node in walk.nodes],
        [(node, view, r.key, r.role, r.frozen, r.node) for node, view, r in rows],
        [id(r.value) for _, _, r in rows if r.role == "array"],
        found.key,
        [*map(id, found.arrays())],
        [(path, id(array)) for path, array in found.array_slots().items()],
    )


def first_difference(integration, change):
    """Return when a survey was not what a walk would have found; None: never."""
    weights, kept = Weights(), None
    fn, arguments = _function(weights), {"x": torch.ones(2)}
    surveyor = Surveyor(lambda: fn, integration)
    for turn in range(TURNS):
        if turn == CHANGED:
            change(weights)
        found, fresh = surveyor.survey(arguments), survey(fn, arguments, integration)
        if _shown(found) != _shown(fresh):
            return turn
        if kept is not None:
            now, then = found.changes_since(kept[0]), fresh.changes_since(kept[1])
            if [each.text for each in now] != [each.text for each in then]:
                return turn
        kept = found, fresh
    return None


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_changes_within_is_seen(integration, change, mode):
    """A survey is what walking anew finds, in the same objects and in others."""
    with mode():
        assert first_difference(integration, change) is None


@pytest.fixture(params=["in C", "in Python"])
def told(request, monkeypatch):
    """Have tensors looked at so."""
    if request.param == "in Python":
        monkeypatch.setattr(_fast, "native", lambda: None)
    elif _fast.native() is None:
        pytest.skip("nothing in C here")


@pytest.mark.usefixtures("told")
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_probe_sees_what_changes_within(integration, change):
    """What it says of tensors is what their layouts say, whatever was done to one."""
    weights = Weights()
    fn = _function(weights)

    def looks():
        found = survey(fn, {"x": torch.ones(2)}, integration).arrays()
        return found, [integration.look(x).layout for x in found]

    found, before = looks()
    probe = integration.probe(found)
    assert probe(found) is probe.lows
    with suppress(RuntimeError):  # torch swaps nothing that is known weakly
        change(weights)
    found, after = looks()
    assert (probe(found) is not None) == (before == after)


def _samples():
    """Return pairs of tensors that differ in one thing only."""
    with torch.inference_mode(mode=True):
        inferred = torch.zeros(2, 2)
    with torch.inference_mode(mode=False), torch.no_grad():
        plain, spun = torch.zeros(2, 2), torch.zeros(2, dtype=torch.complex64)
        others = [
            inferred,
            torch.zeros(2, 3)[:, :2],
            torch.zeros(3, 2)[:2, :1],
            torch.zeros(2, 2, 1),
            torch.zeros(2),
            torch.zeros(2, 2, dtype=torch.int32),
            torch.zeros(5)[1:].view(2, 2),
            torch.zeros(2, 2).requires_grad_(),
            torch._neg_view(plain),
            torch.nn.Parameter(plain, requires_grad=False),
        ]
        return [
            *((plain, other) for other in others),
            (plain[:1], torch.zeros(1, 3)[:, :2]),
            (plain[:0], torch.zeros(0, 3)[:, :2]),
            (spun, spun.conj()),
        ]


@pytest.mark.usefixtures("told")
@pytest.mark.parametrize(
    "mode", [torch.enable_grad, torch.no_grad, torch.inference_mode]
)
def test_a_probe_tells_apart_what_differs_in_one_thing(integration, mode):
    """In every mode."""
    with mode():
        for one, other in _samples():
            for a, b in ((one, other), (other, one)):
                assert integration.probe([a])([a]) is not None
                assert integration.probe([a])([b]) is None


@pytest.mark.usefixtures("told")
def test_a_probe_is_of_places(integration):
    """Tensors in each other's places are others; so is what is no tensor."""
    one, two = torch.ones(2), torch.ones(3)
    probe = integration.probe([one, two])
    assert probe([torch.zeros(2), torch.zeros(3)]) is not None
    for values in ([two, one], [one, one], [one], [one, 3.0], [None, None], []):
        assert probe(values) is None


@pytest.mark.usefixtures("told")
def test_neither_surveys_nor_probes_keep_tensors_alive(integration):
    """They know only what these look like."""
    weights = Weights()
    fn = _function(weights)
    surveyor = Surveyor(lambda: fn, integration)
    for _ in range(4):
        probe = integration.probe(surveyor.survey({"x": 1}).arrays())
    gone = weakref.ref(weights.weight), weakref.ref(weights.more[1])
    weights.weight, weights.more[1] = torch.ones(3, 4), torch.ones(5)
    assert [each() for each in gone] == [None, None]
    del probe
