"""A fingerprint means the same in another process, and differs with the program."""

from __future__ import annotations

import base64
import copy
import copyreg
import importlib
import json
import os
import subprocess
import sys
import textwrap

import pytest

from sapwood.tree.guards import proof, survey

PROGRAM = """
import dataclasses, enum, functools
import fake_package
from fake_package import scaled
from part import helper, unrelated_helper

RATE = 0.1
NAMES = {"b", "a", "c", ("d", 1)}
KINDS = frozenset({"x", "y", "z"})
LOOPED = {0, 8, 16}
TABLE = {"twice": lambda x: x * 2, "config": None}
UNREAD = 1


def logged(kind):
    def decorate(fn):
        @functools.wraps(fn)
        def inner(self, x):
            return fn(self, x) + 1
        return inner
    return decorate


def unrelated():
    return 1


def scaled_by(factor):
    def scale(x):
        return x * factor
    return scale


class Mode(enum.Enum):
    FAST = 1
    SLOW = 2


class Base:
    shared = [1]

    def based(self, x):
        return x + 1

    def unrelated_method(self):
        return 1


@dataclasses.dataclass
class Config:
    depth: int = 2
    sizes: tuple = (1, 2)


class Model(Base):
    def __init__(self):
        self.rate, self.unread, self.mode = 0.5, 1, Mode.FAST
        self.config = Config()
        self.scale = scaled_by(3)

    @property
    def half(self):
        return self.rate / 2

    @logged("info")
    def step(self, x):
        return x - 1

    def __call__(self, x, bias=4):
        def nested(y):
            return y + 5
        x = self.step(nested(self.based(x))) * self.half + bias
        x = TABLE["twice"](helper(x)) + RATE + self.scale(x) + self.config.depth
        if self.mode is Mode.FAST and "a" in NAMES and "x" in KINDS:
            x = scaled(x) + fake_package.SHIFT
        for item in LOOPED:
            x = x * 2 + item
        for item in {1, 9, 17}:
            x = x * 2 + item * (item in {2, 10, 18})
        return x + self.shared[0] + Default().n


@dataclasses.dataclass
class Default:
    n: int = 6


fn = Model()
"""
VARIED = """
import argparse, array, collections, contextvars, dataclasses, datetime, decimal
import enum, fractions, functools, itertools, math, operator, os, pathlib, re
import threading, types, typing, uuid, weakref
import numpy as np
from numpy import float32, maximum, pi


class Slots:
    __slots__ = ("depth", "late")

    def __init__(self):
        self.depth = 1


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    depth: int = 1


class Mode(enum.Enum):
    FAST = "fast"
    SLOW = "slow"


class Meta(type):
    level = 2


class Made(metaclass=Meta):
    pass


class Pair(typing.NamedTuple):
    a: int
    b: float


def halved(x):
    return x / 2


class Held:
    pass


held, kept = Held(), Held()
held.slots, held.frozen, held.pair = Slots(), Frozen(), Pair(1, 2.0)
held.modes, held.mode = {Mode.SLOW, Mode.FAST}, Mode.FAST
held.variable = contextvars.ContextVar("variable", default=1)
held.space, held.args = types.SimpleNamespace(a=1), argparse.Namespace(a=1)
held.user, held.proxy = collections.UserDict(a=1), types.MappingProxyType({"a": 1})
held.ref, held.weak = weakref.ref(kept), weakref.proxy(kept)
held.context, held.one = decimal.Context(prec=3), decimal.Decimal("1.1")
held.half, held.path = fractions.Fraction(1, 2), pathlib.Path("a/b")
held.day, held.id = datetime.date(2020, 1, 1), uuid.UUID(int=5)
held.pattern = re.compile("a")
held.lock, held.again = threading.Lock(), threading.RLock()
held.partial, held.get = functools.partial(halved, 1), {"a": 1}.get
held.bytes, held.numbers = bytearray(b"ab"), array.array("d", [1.0])
held.host, held.kind, held.single = np.arange(3), np.dtype("f4"), np.float64(2)
held.local = threading.local()
held.local.a = 1
held.cached = functools.lru_cache(halved)
held.deque, held.counter = collections.deque([1]), collections.Counter("ab")
held.ordered = collections.OrderedDict(a=1)
held.default = collections.defaultdict(list, a=[1])
held.getter = operator.attrgetter("a")


def fn(x):
    h = held
    y = h.slots, h.frozen, h.pair, h.mode, h.variable, h.space, h.args, h.user
    y = h.mode in h.modes
    y = h.proxy, h.ref, h.weak, h.context, h.one, h.half, h.path, h.day, h.id, h.pattern
    y = h.lock, h.again, h.partial, h.get, h.bytes, h.numbers, h.host, h.kind, h.single
    y = h.local, h.cached, h.deque, h.counter, h.ordered, h.default, h.slots.depth
    y = Made.level, h.a, h.depth, h.late, math.pi, np.pi, pi, float32, maximum, np.add
    y = h.getter
    return [y for y in (len, ValueError, print, int, isinstance, itertools.chain)]
"""
PART = """
def helper(x):
    return deeper(x)


def deeper(x):
    return x * 7


def unrelated_helper(x):
    return x
"""
PACKAGE = """
__version__ = "1.0"
SHIFT = 8


def scaled(x):
    return x * 9
"""
SAME = {
    "nothing": {},
    "an unrelated function": {
        "def unrelated():\n    return 1": "def unrelated(): pass"
    },
    "an unrelated method": {"def unrelated_method(self):\n        return 1": "x = 3"},
    "an unrelated helper": {
        "def unrelated_helper(x):\n    return x": "unrelated_helper = 1"
    },
    "an unread global": {"UNREAD = 1": "UNREAD = 2"},
    "an unread attribute": {
        "self.unread, self.mode = 0.5, 1": "self.unread, self.mode = 0.5, 2"
    },
    "a comment": {"    def based": "    # Told.\n    def based"},
    "line numbers": {"class Base:": "\n\n\nclass Base:"},
    "the order of a set that code looks into": {
        '{"b", "a", "c", ("d", 1)}': '{("d", 1), "c", "a", "b"}'
    },
    "the order of one that it names itself": {"{2, 10, 18}": "{18, 10, 2}"},
}
OTHER = {
    "the function": {"self.shared[0] + Default": "self.shared[0] - Default"},
    "a constant in it": {"self.config.depth": "self.config.depth + 1"},
    "the type of a constant": {"return y + 5": "return y + 5.0"},
    "a helper": {"return deeper(x)": "return deeper(x) + 1"},
    "what a helper calls": {"return x * 7": "return x * 8"},
    "a global constant": {"RATE = 0.1": "RATE = 0.2"},
    "the sign of zero": {"RATE = 0.1": "RATE = -0.0"},
    "a method of a base class": {"def based(self, x):\n": "def based(self, x, y=1):\n"},
    "a default argument": {"bias=4": "bias=4.5"},
    "a closure": {"scaled_by(3)": "scaled_by(4)"},
    "a property": {"self.rate / 2": "self.rate / 3"},
    "the inside of a decorator": {"fn(self, x) + 1": "fn(self, x) + 2"},
    "what is decorated": {"return x - 1": "return x - 2"},
    "a nested function": {"return y + 5": "return y + 6"},
    "a lambda in a dict": {"lambda x: x * 2": "lambda x: x * 3"},
    "a key in a dict": {'"config": None': '"other": None'},
    "a default of a dataclass": {"depth: int = 2": "depth: int = 3"},
    "a default of a dataclass that is made": {"n: int = 6": "n: int = 7"},
    "an attribute": {"self.mode = 0.5": "self.mode = 0.6"},
    "a mutable class attribute": {"shared = [1]": "shared = [2]"},
    "an enum member": {"0.5, 1, Mode.FAST": "0.5, 1, Mode.SLOW"},
    "the value of an enum member": {"FAST = 1": "FAST = 3"},
    "an item of a set": {'{"b", "a"': '{"bb", "a"'},
    "an item of a frozen set": {'{"x", "y"': '{"x", "yy"'},
    "the order of a set that is looped over": {"{0, 8, 16}": "{16, 8, 0}"},
    "the order of one that code names itself": {"{1, 9, 17}": "{17, 9, 1}"},
    "the version of a package": {'"1.0"': '"1.1"'},
    "a flag of a package": {"SHIFT = 8": "SHIFT = 9"},
}

PRINT = """
import base64, importlib, json, sys
from sapwood.tree.guards import survey

class Arrays:
    def surroundings(self):
        return ()

    def is_array(self, value):
        return False

told = {}
for name, folder in json.loads(sys.argv[1]).items():
    sys.path[:0] = [folder, folder + "/site-packages"]
    for module in ("program", "part", "fake_package"):
        sys.modules.pop(module, None)
    importlib.invalidate_caches()
    fn = importlib.import_module("program").fn
    parts, unproved = survey(fn, {}, Arrays()).fingerprint
    parts = [[label, base64.b64encode(value).decode()] for label, value in parts]
    told[name] = [parts, list(unproved)]
    del sys.path[:2]
print(json.dumps(told))
"""


def _tell(folders, seed):
    """Return the fingerprints of the programs in folders, from a process of its own."""
    done = subprocess.run(
        [sys.executable, "-B", "-c", PRINT, json.dumps(folders)],
        env=os.environ | {"PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return {
        name: (
            {label: base64.b64decode(value) for label, value in parts},
            [label for label, _ in parts],
            unproved,
        )
        for name, (parts, unproved) in json.loads(done.stdout).items()
    }


def _write(folder, edit, program=PROGRAM):
    sources = {
        "program.py": program,
        "part.py": PART,
        "site-packages/fake_package/__init__.py": PACKAGE,
    }
    done = not edit
    for name, source in sources.items():
        edited = source
        for old, new in edit.items():
            done |= old in source
            edited = edited.replace(old, new)
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(edited)
    assert done, "the edit changes nothing"
    return str(folder)


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """The fingerprints of all edits, as one process says."""
    root = tmp_path_factory.mktemp("programs")
    folders = {
        name: _write(root / str(i), edit)
        for i, (name, edit) in enumerate((SAME | OTHER).items())
    }
    told = _tell(folders, "1")
    # A package has one version for as long as a process lives.
    name = "the version of a package"
    return told | _tell({name: folders[name]}, "1")


def test_another_process_says_the_same(told, tmp_path):
    """Hash seed, folder and line numbers are no part of what a program is."""
    folder = _write(tmp_path / "elsewhere", {"class Base:": "\n\nclass Base:"})
    (other,) = _tell({"elsewhere": folder}, "2").values()
    assert other == told["nothing"]


@pytest.mark.parametrize("program", [PROGRAM, VARIED], ids=["program", "varied"])
def test_this_process_says_what_another_says(tmp_path, monkeypatch, arrays, program):
    """A process that does other things besides finds the same parts, in any order."""
    folder = _write(tmp_path / "here", {}, program)
    for path in (folder, f"{folder}/site-packages"):
        monkeypatch.syspath_prepend(path)
    for name in ("program", "part", "fake_package"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    proof._version.cache_clear()
    fn = importlib.import_module("program").fn
    mine = survey(fn, {}, arrays).fingerprint
    for name in ("program", "part", "fake_package"):
        sys.modules.pop(name, None)
    proof._version.cache_clear()
    (other,) = _tell({"there": folder}, "3").values()
    assert dict(mine.parts) == other[0]
    assert list(mine.unproved) == other[2]


def test_a_program_of_known_parts_is_proved(told):
    """Nothing in it needs a run to be proved, and no label comes twice."""
    parts, labels, unproved = told["nothing"]
    assert unproved == []
    assert len(parts) == len(labels)
    assert {"RATE", "self.rate", "self.config.depth", "factor"} <= parts.keys()


def test_ordinary_objects_are_proved(tmp_path):
    """What programs are made of says the same in two processes, and is all known."""
    folders = [_write(tmp_path / each, {}, VARIED) for each in "ab"]
    (one,) = _tell({"one": folders[0]}, "1").values()
    (two,) = _tell({"two": folders[1]}, "2").values()
    assert one == two
    assert one[2] == []


@pytest.mark.parametrize("edit", SAME)
def test_what_is_not_read_is_no_part(told, edit):
    """Editing what the function does not reach leaves its fingerprint."""
    assert told[edit][0] == told["nothing"][0]


@pytest.mark.parametrize("edit", OTHER)
def test_what_is_read_is_a_part(told, edit):
    """Editing anything that the function reaches changes its fingerprint."""
    assert told[edit][0] != told["nothing"][0]


OPAQUE = {
    "a semaphore": ("import threading\nV = threading.Semaphore()", "V"),
    "a generator": ("V = (n for n in [1])", "V"),
    "an object of a package": ("import fake_package\nV = fake_package.Thing()", "V"),
    "a function that holds what is not known": (
        "from fake_package import made\nV = made()",
        "V",
    ),
    "computed names": ("V = type('O', (), {})(); V.a = 1", "names that"),
    "the environment": ("from os import environ as V", "V"),
}


def _opaque(source):
    read = "getattr(V, x)" if "'O'" in source else "V.a, V"
    return f"{source}\n\n\ndef fn(x):\n    return {read}\n"


def test_what_cannot_be_proved_is_told(tmp_path):
    """Opaque things are named by their paths, so that a run has to prove them."""
    package = textwrap.dedent(
        """
        class Thing:
            def __init__(self):
                self.a = 1


        def made():
            held = object()
            return lambda x: held
        """
    )
    folders = {}
    for i, (name, (source, _)) in enumerate(OPAQUE.items()):
        edit = {"SHIFT = 8": package}
        folders[name] = _write(tmp_path / str(i), edit, _opaque(source))
    told = _tell(folders, "1")
    for name, (_, path) in OPAQUE.items():
        assert any(each.startswith(path) for each in told[name][2]), (name, told[name])


def test_what_copyreg_is_told_is_not_proved(arrays, monkeypatch):
    """Then a copy is made by code of the user's that nobody names."""

    class Made:
        pass

    def fn(x):
        return copy.copy(x)

    assert survey(fn, {}, arrays).fingerprint.unproved == ()
    monkeypatch.setitem(copyreg.dispatch_table, Made, lambda _: (Made, ()))
    assert survey(fn, {}, arrays).fingerprint.unproved == ("what copyreg is told",)
