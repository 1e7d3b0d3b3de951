"""What is taken apart is put together again: class, attributes, order and all."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections import Counter, OrderedDict, defaultdict, deque
from types import SimpleNamespace

import pytest

from sapwood.tree.nests.containers import flatten, unflatten


def _none(_):
    return False


class Named(dict):
    """A dict with attributes, and methods of its own."""

    def __iter__(self):
        raise TypeError("not like this")

    def keys(self):
        raise TypeError("nor like this")


class Ordered(OrderedDict):
    pass


class Made(defaultdict):
    pass


class Listed(list):
    __slots__ = ("mark",)


class Paired(tuple):
    pass


class Ended(deque):
    pass


def _with(value, **attributes):
    for name, each in attributes.items():
        setattr(value, name, each)
    return value


VALUES = {
    "dict": lambda: _with(Named(b=1, a=2), note="x"),
    "ordered": lambda: _with(Ordered([("b", 1), ("a", [2, 3])]), held=[4]),
    "default": lambda: Made(list, b=[1], a=[2]),
    "counter": lambda: Counter("abca"),
    "slots": lambda: _with(Listed([1, 2]), mark=3),
    "tuple": lambda: _with(Paired((1, 2)), mark=[3]),
    "deque": lambda: _with(Ended([1, 2, 3], 3), mark=0),
    "namespace": lambda: SimpleNamespace(y=1, x=[2]),
    "struct": lambda: time.gmtime(0),
}


def _items(value):
    if isinstance(value, SimpleNamespace):
        return list(vars(value).items())
    return list(dict.items(value)) if isinstance(value, dict) else list(value)


@pytest.mark.parametrize("kind", VALUES)
def test_what_derives_from_a_container_is_rebuilt(kind):
    """Items in their order, attributes, factories and lengths are as they were."""
    value = VALUES[kind]()
    leaves, structure = flatten(value, _none)
    again = unflatten(structure, leaves)
    assert type(again) is type(value)
    assert again is not value
    assert _items(again) == _items(value)
    assert getattr(again, "__dict__", None) == getattr(value, "__dict__", None)
    for name in ("mark", "default_factory", "maxlen"):
        assert getattr(again, name, None) == getattr(value, name, None)
    assert flatten(again, _none) == (leaves, structure)


def test_attributes_tell_nests_apart():
    """The same items with another attribute, or in another order, are another nest."""
    one, two = Named(a=1), _with(Named(a=1), note=1)
    assert flatten(one, _none)[1] != flatten(two, _none)[1]
    assert flatten(Ordered(a=1, b=2), _none)[1] != flatten(Ordered(b=2, a=1), _none)[1]


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch")


@pytest.fixture(scope="module")
def output(torch):  # noqa: C901 - it is theirs
    """A model's output, as transformers makes and registers them."""
    pytree = torch.utils._pytree

    class ModelOutput(OrderedDict):
        def __init_subclass__(cls):
            pytree.register_pytree_node(
                cls,
                lambda value: (list(value.values()), list(value.keys())),
                lambda values, keys: cls(**dict(zip(keys, values, strict=True))),
                serialized_type_name=f"{cls.__module__}.{cls.__name__}",
            )

        def __post_init__(self):
            for each in dataclasses.fields(self):
                value = getattr(self, each.name)
                if value is not None:
                    self[each.name] = value

        def __getitem__(self, key):
            if isinstance(key, str):
                return dict(self.items())[key]
            return self.to_tuple()[key]

        def __setattr__(self, name, value):
            if name in self.keys() and value is not None:
                super().__setitem__(name, value)
            super().__setattr__(name, value)

        def __setitem__(self, key, value):
            super().__setitem__(key, value)
            super().__setattr__(key, value)

        def to_tuple(self):
            return tuple(self[name] for name in self.keys())

    @dataclasses.dataclass
    class CausalOutput(ModelOutput):
        loss: object = None
        logits: object = None
        past: object = None

    return CausalOutput


def test_outputs_of_models_are_rebuilt(torch, output):
    """By names, by numbers and by slices, and what is None stays None."""
    x, y = torch.ones(2), torch.zeros(3)
    value = output(logits=x, past=(y, [y]))
    leaves, structure = flatten(value, lambda each: isinstance(each, torch.Tensor))
    assert [*map(id, leaves)] == [id(x), id(y), id(y)]
    again = unflatten(structure, leaves)
    assert type(again) is output
    assert again.loss is None
    assert list(again) == ["logits", "past"]
    assert again.logits is again["logits"] is again[0] is x
    assert again[1:][0][1][0] is y
    assert hash(structure) == hash(flatten(value, torch.is_tensor)[1])
    assert structure != flatten(output(loss=x, past=(y, [y])), torch.is_tensor)[1]


def test_what_torch_returns_is_rebuilt(torch):
    """Its named tuples and sizes, by torch's own registry."""
    for value in (torch.topk(torch.arange(5.0), 2), torch.Size([2, 3])):
        leaves, structure = flatten(value, torch.is_tensor)
        again = unflatten(structure, leaves)
        assert type(again) is type(value)
        assert all(a is b for a, b in zip(again, value, strict=True))
    assert again == torch.Size([2, 3])


def test_torch_is_not_loaded_for_it(monkeypatch):
    """Its registry counts where the program has it."""
    monkeypatch.delitem(sys.modules, "torch.utils._pytree", raising=False)

    class Own(dict):
        pass

    leaves, structure = flatten(Own(a=1), _none)
    assert unflatten(structure, leaves) == Own(a=1)
    assert "torch.utils._pytree" not in sys.modules
