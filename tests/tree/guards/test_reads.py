"""Every way of reading a value in Python is guarded."""

# ruff: noqa: PLC3002 - how a function is written is what is tested

from __future__ import annotations

import enum
import functools
import sys
import types
from collections import deque
from dataclasses import dataclass
from operator import attrgetter

import numpy as np
import pytest

RATE = 0.1
UNREAD = 0
FLAGS = {"deep": {"debug": False}}
LOG = [1]
MODES = {"fast", "slow"}
QUEUE = deque([1, 2])


class Window(deque):
    """Fails where anything but an item is asked of it."""

    def __iter__(self):
        raise NotImplementedError

    copy = __copy__ = __len__ = append = __iter__


OWN = Window([1, 2])
TABLE = np.arange(4)
BYTES = bytearray(b"ab")
SPACE = types.SimpleNamespace(depth=2, other=1)


class Mode(enum.Enum):
    TRAIN = 1
    TEST = 2


MODE = Mode.TRAIN


@dataclass
class Config:
    rate: float = 0.1


CONFIG = Config()


class Layer:
    gain = 2
    unread = 1

    def __init__(self):
        self.bias = 1.0
        self.step = 0
        self.training = True

    def __call__(self, x):
        return self.bias if self.training else x


class Deep(Layer):
    @property
    def scale(self):
        return self.factor

    @staticmethod
    def half():
        return RATE

    factor = 3

    def __init__(self):
        super().__init__()
        self.layers = [Layer(), Layer()]
        self.buf = None

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

    def shifted(self, x):
        return self.scale, self.gain, x

    def lazily(self, x):
        return getattr(self, "buf", None), x

    def anyhow(self, name):
        return getattr(self, name)

    def __getitem__(self, key):
        return self.weights, key


class Slotted:
    __slots__ = ("__weakref__", "depth", "late", "other")

    def __init__(self):
        self.depth, self.other = 1, 1

    def __call__(self):
        return self.depth, getattr(self, "late", None)


def helper(x):
    return x * RATE


def with_default(x, scale=2.0, *, shift=1.0):
    return x * scale + shift


def _closure():
    rate = 0.1

    def fn():
        return rate

    def change():
        nonlocal rate
        rate = 0.2

    return fn, change, "rate was 0.1, is 0.2"


def _global(fn, name, value, text):
    return lambda: (fn, lambda: globals().__setitem__(name, value), text)


def _item(fn, change, text):
    return lambda: (fn, change, text)


def _object(fn_of, change, text, cls=Deep):
    def case():
        made = cls()
        return fn_of(made), lambda: change(made), text

    return case


def _put(name, value):
    return lambda thing: setattr(thing, name, value)


def _module():
    module = types.ModuleType("settings_of_a_user")
    module.depth, module.unread = 3, 1
    sys.modules[module.__name__] = module
    fn = eval("lambda: settings.depth", {"settings": module})
    return fn, lambda: setattr(module, "depth", 4), "settings.depth was 3, is 4"


def _imported():
    module = types.ModuleType("settings_imported_late")
    module.depth = 3
    sys.modules[module.__name__] = module

    def fn():
        import settings_imported_late as late

        return late.depth

    text = "settings_imported_late.depth was 3, is 4"
    return fn, lambda: setattr(module, "depth", 4), text


def _redefined():
    def inner():
        return 1

    def other():
        return 2

    holder = [inner]

    def fn():
        return holder[0]()

    return fn, lambda: holder.__setitem__(0, other), "holder[0].__code__ was <code>"


def _default():
    def fn(x=0.5):
        return x

    return fn, lambda: setattr(fn, "__defaults__", (0.25,)), "fn.__defaults__ was <tup"


def _keyword_default():
    def fn(*, x=0.5):
        return x

    change = lambda: fn.__kwdefaults__.update(x=1.0)  # noqa: E731
    return fn, change, "fn.__kwdefaults__['x'] was 0.5, is 1.0"


def _helper_default():
    def fn(x):
        return with_default(x)

    return fn, lambda: setattr(with_default, "__defaults__", (3.0,)), "with_default._"


def _partial():
    bound = [1]
    fn = functools.partial(lambda n, x: (n, x), bound)
    return fn, lambda: bound.append(2), "len(partial.args[0]) was 1, is 2"


def _wrapped():
    @functools.lru_cache
    def cached(x):
        return RATE, x

    def fn(x):
        return cached(x)

    return fn, lambda: globals().__setitem__("RATE", 0.2), "RATE was 0.1, is 0.2"


def _getter():
    thing = Layer()
    read = attrgetter("bias")

    def fn():
        return attrgetter("bias")(thing), read

    return fn, lambda: setattr(thing, "bias", 2.0), "thing.bias was 1.0, is 2.0"


def _appender():
    log = []
    append = log.append

    def fn():
        append(1)

    return fn, lambda: log.append(2), "len(append.__self__) was 0, is 1"


def _alias():
    a, b = [1], [1]
    holder = {"a": a, "b": a}

    def fn():
        return holder["a"] is holder["b"]

    return fn, lambda: holder.__setitem__("b", b), "holder['b'] was <list>"


def _matched():
    thing = Layer()

    def fn():
        match thing:
            case Layer(bias=1.0):
                return 1
        return 0

    return fn, lambda: setattr(thing, "bias", 2.0), "thing.bias was 1.0, is 2.0"


def _empty_cell():
    def fn():
        return late

    def change():
        nonlocal late
        late = 1

    if fn is None:
        late = 0
    return fn, change, "late was nothing, is 1"


READS = {
    "closure": _closure,
    "global": _global(lambda: RATE, "RATE", 0.2, "RATE was 0.1, is 0.2"),
    "global type": _global(lambda: UNREAD, "UNREAD", False, "UNREAD was 0, is False"),
    "global zero": _global(lambda: UNREAD, "UNREAD", 0.0, "UNREAD was 0, is 0.0"),
    "nested code": _global(lambda: [RATE for _ in "ab"], "RATE", 0, "RATE was 0.1, is"),
    "lambda in it": _global(lambda: (lambda: RATE)(), "RATE", 2, "RATE was 0.1, is 2"),
    "helper": _global(lambda x: helper(x), "RATE", 2, "RATE was 0.1, is 2"),
    "helper itself": _global(lambda x: helper(x), "helper", len, "helper was <functi"),
    "shadowed": _global(lambda: max(1, 2), "max", min, "max was not there, is <"),
    "enum": _global(lambda: MODE is Mode.TRAIN, "MODE", Mode.TEST, "MODE was Mode.TR"),
    "dict": _item(
        lambda: FLAGS["deep"]["debug"],
        lambda: FLAGS["deep"].update(debug=True),
        "FLAGS['deep']['debug'] was False, is True",
    ),
    "dict keys": _item(
        lambda: list(FLAGS), lambda: FLAGS.update(x=1), "the keys of FLAGS were ['deep"
    ),
    "key type": _item(
        lambda: list(FLAGS["deep"]),
        lambda: FLAGS.update(deep={"debug": False, 1: 1}),
        "the keys of FLAGS['deep'] were",
    ),
    "length": _item(lambda: len(LOG), lambda: LOG.append(1), "len(LOG) was 1, is 2"),
    "list item": _item(
        lambda: LOG, lambda: LOG.__setitem__(0, True), "LOG[0] was 1, is True"
    ),
    "set": _item(lambda: MODES, lambda: MODES.add("x"), "len(MODES) was 2, is 3"),
    "deque": _item(lambda: QUEUE[0], lambda: QUEUE.rotate(), "QUEUE[0] was 1, is 2"),
    "deque of one's own": _item(
        lambda: OWN[0], lambda: deque.rotate(OWN), "OWN[0] was 1, is 2"
    ),
    "length of a deque of one's own": _item(
        lambda: OWN[0], lambda: deque.append(OWN, 3), "len(OWN) was 2, is 3"
    ),
    "host array": _item(
        lambda: TABLE[0], lambda: TABLE.__setitem__(0, 9), "TABLE was <ndarray>"
    ),
    "bytes": _item(lambda: BYTES, lambda: BYTES.__setitem__(0, 9), "BYTES was <bytea"),
    "namespace": _item(
        lambda: SPACE.depth, lambda: _put("depth", 3)(SPACE), "SPACE.depth was 2, is 3"
    ),
    "dataclass": _item(
        lambda: CONFIG.rate,
        lambda: _put("rate", 1.0)(CONFIG),
        "CONFIG.rate was 0.1, is 1.0",
    ),
    "dataclass replaced": _global(
        lambda: CONFIG.rate, "CONFIG", Config(0.3), "CONFIG.rate was 0.1, is 0.3"
    ),
    "default": _default,
    "keyword default": _keyword_default,
    "default of a helper": _helper_default,
    "redefinition": _redefined,
    "partial": _partial,
    "cached function": _wrapped,
    "attrgetter": _getter,
    "bound append": _appender,
    "alias": _alias,
    "match": _matched,
    "empty cell": _empty_cell,
    "module": _module,
    "import inside": _imported,
    "layer flag": _object(
        lambda model: model.forward,
        lambda model: _put("training", False)(model.layers[1]),
        "self.layers[1].training was True, is False",
    ),
    "layer added": _object(
        lambda model: model.forward,
        lambda model: model.layers.append(Layer()),
        "len(self.layers) was 2, is 3",
    ),
    "layer replaced": _object(
        lambda model: model.forward,
        lambda model: model.layers.__setitem__(0, Layer()),
        "self.layers[0] was <Layer>, is another <Layer>",
    ),
    "callable object": _object(
        lambda layer: layer, _put("bias", 2.0), "self.bias was 1.0, is 2.0", Layer
    ),
    "property": _object(
        lambda model: model.shifted, _put("factor", 4), "self.factor was not there"
    ),
    "class attribute": _object(
        lambda model: model.shifted,
        lambda _: _put("gain", 5)(Layer),
        "Layer.gain was 2, is 5",
    ),
    "class shadowed": _object(
        lambda model: model.shifted,
        lambda _: _put("gain", 5)(Deep),
        "Deep.gain was not there, is 5",
    ),
    "method shadowed": _object(
        lambda model: lambda x: model.forward(x),
        _put("forward", len),
        "model.forward was not there",
    ),
    "static method": _object(
        lambda model: lambda: model.half(),
        lambda _: globals().__setitem__("RATE", 5),
        "RATE was 0.1, is 5",
    ),
    "getattr of a constant": _object(
        lambda model: model.lazily, _put("buf", 1), "self.buf was None, is 1"
    ),
    "getattr of anything": _object(
        lambda model: model.anyhow, _put("step", 1), "self.step was 0, is 1"
    ),
    "attribute added": _object(
        lambda model: lambda: model[0], _put("weights", 1), "model.weights was not ther"
    ),
    "slots": _object(
        lambda thing: thing, _put("depth", 2), "self.depth was 1, is 2", Slotted
    ),
    "slot filled": _object(
        lambda thing: thing, _put("late", 2), "self.late was not there, is 2", Slotted
    ),
}


@pytest.fixture(autouse=True)
def _as_before(monkeypatch):
    """Globals, their insides and classes are as before after each test."""
    for name, value in {
        "RATE": 0.1,
        "UNREAD": 0,
        "FLAGS": {"deep": {"debug": False}},
        "LOG": [1],
        "MODES": {"fast", "slow"},
        "QUEUE": deque([1, 2]),
        "OWN": Window([1, 2]),
        "TABLE": np.arange(4),
        "BYTES": bytearray(b"ab"),
        "SPACE": types.SimpleNamespace(depth=2, other=1),
        "MODE": Mode.TRAIN,
        "CONFIG": Config(),
        "helper": helper,
    }.items():
        monkeypatch.setitem(globals(), name, value)
    monkeypatch.setattr(Layer, "gain", 2)
    monkeypatch.setattr(with_default, "__defaults__", (2.0,))
    yield
    globals().pop("max", None)
    if "gain" in vars(Deep):
        del Deep.gain


@pytest.mark.parametrize("case", READS.values(), ids=READS.keys())
def test_what_is_read_is_guarded(case, guard):
    """A change of anything the function reads is a miss that names it."""
    fn, change, text = case()
    ambient = guard(fn)
    assert ambient.holds()
    assert ambient.miss() is None
    change()
    assert not ambient.holds()
    assert ambient.miss().startswith(text)
