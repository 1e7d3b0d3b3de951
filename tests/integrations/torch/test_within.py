"""What changes within objects that stay the same is seen by the next survey."""

from __future__ import annotations

import threading
import weakref

import pytest

from sapwood.tree.guards import Surveyor, survey
from tests.support.tree_mutants import miswritten

torch = pytest.importorskip("torch")

from sapwood.integrations.torch.witness import (  # noqa: E402
    Witness,
    _samples,
    witness_of,
)

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


def is_fooled(integration, change):
    """Return whether a witness denies what a change made of tensors."""
    weights = Weights()
    fn = _function(weights)

    def looks():
        found = survey(fn, {"x": torch.ones(2)}, integration).arrays()
        return found, [integration.look(x).layout for x in found]

    found, before = looks()
    holds = witness_of(found)
    change(weights)
    found, after = looks()
    asked = holds is not None and len(after) == len(before)
    return asked and holds(found) and before != after


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_witness_sees_what_changes_within(integration, change):
    """What it says of tensors is true, whatever was done to one of them."""
    assert not is_fooled(integration, change)


MUTANTS = {
    "looks taken on trust": (Witness.__call__, "not self._check(*each)", "False"),
    "leaves taken on trust": (
        Witness.__call__,
        "[*map(_is_leaf, values)] != self._leaves",
        "False",
    ),
    "alignment taken on trust": (
        Witness.__call__,
        "return lows == self._lows or",
        "return True or",
    ),
    "twins taken on trust": (
        Witness.__call__,
        "values[k] is not values[at] for",
        "False for",
    ),
}


@pytest.mark.deep
@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
@pytest.mark.deep
def test_every_mutant_is_caught(integration, mutant):
    """Some change shows it."""
    # Whether torch's guards are truthful is asked once: not while something is wrong.
    witness_of([torch.ones(2)])
    before = Weights.scale
    with miswritten(*mutant):
        for change in CHANGES.values():
            Weights.scale = before
            if is_fooled(integration, change):
                return
    pytest.fail("no change shows it")


# Witnesses.


def test_a_witness_tells_apart_what_differs_in_one_thing():
    """In every mode, this torch's guards do; without them, nothing is a witness."""
    for mode in (torch.enable_grad, torch.no_grad, torch.inference_mode):
        with mode():
            for one, other in _samples():
                made = witness_of([one])
                if made is None:
                    pytest.skip("this torch has no such guards")
                assert made([one])
                assert not made([other])


def test_a_witness_is_of_places():
    """Tensors in each other's places, or one in the places of two, are others."""
    one, two = torch.ones(2), torch.ones(3)
    made = witness_of([one, two, one])
    if made is None:
        pytest.skip("this torch has no such guards")
    alike = torch.zeros(2)
    assert made([one, two, one])
    assert made([alike, torch.zeros(3), alike])
    assert not made([two, one, two])
    assert not made([one, two, two])
    assert not made([one, two, alike])


def test_neither_surveys_nor_witnesses_keep_tensors_alive(integration):
    """They know only what these look like."""
    weights = Weights()
    fn = _function(weights)
    surveyor = Surveyor(lambda: fn, integration)
    for _ in range(4):
        holds = witness_of(surveyor.survey({"x": 1}).arrays())
    gone = weakref.ref(weights.weight), weakref.ref(weights.more[1])
    weights.weight, weights.more[1] = torch.ones(3, 4), torch.ones(5)
    assert [each() for each in gone] == [None, None]
    del holds
