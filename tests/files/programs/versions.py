# ruff: noqa: PTH118, T201, TRY301, UP030, UP031, UP032 - what people write
"""Programs that come to a number by ways that few guards see: another in each version.

Each is a generator of one function, for a version; what it changes of the process it
puts back. Run with a folder for the store and a number, all are called and told of.
"""

from __future__ import annotations

import abc
import ast
import builtins
import collections
import collections.abc
import contextlib
import csv
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import hashlib
import importlib
import inspect
import io
import itertools
import json
import math
import operator
import os
import pathlib
import pkgutil
import re
import sqlite3
import string
import sys
import tempfile
import threading
import types
import typing
import warnings
import xml.etree.ElementTree as ET

import numpy as np

import sapwood as sw

VERSION = float(sys.argv[2]) if len(sys.argv) > 2 else 2.0


class Held:
    """Holds a number."""

    def __init__(self, v):
        self.v = v

    def close(self):
        pass


@contextlib.contextmanager
def set_to(owner, name, value):
    """Have an attribute be another value for a while."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _settings():
    made = sys.modules["settings"] = types.ModuleType("settings")
    made.K = VERSION
    return made


def format_attribute():
    c = Held(VERSION)
    yield lambda x: x * float("{0.v}".format(c))


def format_item_of():
    c = {"a": Held(VERSION)}
    yield lambda x: x * float("{c[a].v}".format(c=c))


def format_nested():
    c = Held(int(VERSION))
    yield lambda x: x * len("{0:{1.v}}".format("a", c))


def format_map():
    c = {"c": Held(VERSION)}
    yield lambda x: x * float("{c.v}".format_map(c))


def format_bound():
    c, tell = Held(VERSION), "{0.v}".format
    yield lambda x: x * float(tell(c))


def format_by_a_class():
    c = Held(VERSION)
    yield lambda x: x * float(str.format("{0.v}", c))


def format_of_a_global():
    c, text = Held(VERSION), "{0.v}"
    yield lambda x: x * float(text.format(c))


def formatter():
    c, made = Held(VERSION), string.Formatter()
    yield lambda x: x * float(made.format("{0.v}", c))


def import_module():
    _settings()
    yield lambda x: x * importlib.import_module("settings").K


def import_module_by_name():
    _settings()
    get = importlib.import_module
    yield lambda x: x * get("settings").K


def import_by_a_function():
    _settings()
    yield lambda x: x * __import__("settings").K


def resolve_name():
    _settings()
    yield lambda x: x * pkgutil.resolve_name("settings:K")


def getattr_static():
    c = Held(VERSION)
    yield lambda x: x * inspect.getattr_static(c, "v")


def frame():
    yield lambda x: x * sys._getframe().f_globals["VERSION"]


def current_frame():
    yield lambda x: x * inspect.currentframe().f_globals["VERSION"]


def generators_frame():
    yield lambda x: x * (k for k in ()).gi_frame.f_globals["VERSION"]


def trace_frame():
    def f(x):
        try:
            raise ValueError
        except ValueError as error:
            return x * error.__traceback__.tb_frame.f_globals["VERSION"]

    yield f


def variable_expanded():
    os.environ["SAPWOOD_Q"] = str(VERSION)
    yield lambda x: x * float(os.path.expandvars("$SAPWOOD_Q"))
    del os.environ["SAPWOOD_Q"]


def variable_as_bytes():
    os.environ["SAPWOOD_Q"] = str(VERSION)
    yield lambda x: x * float(os.getenvb(b"SAPWOOD_Q"))
    del os.environ["SAPWOOD_Q"]


def function_replaced():
    with set_to(math, "sqrt", lambda v: v * VERSION):
        yield lambda x: x * math.sqrt(1.0)


def function_replaced_by_a_standard_one():
    other = math.ceil if VERSION == 2 else math.floor
    with set_to(math, "trunc", other):
        yield lambda x: x * math.trunc(1.5)


def builtin_replaced():
    with set_to(builtins, "abs", lambda v: v * VERSION):
        yield lambda x: x * abs(1.0)


def numpys_function_replaced():
    with set_to(np, "maximum", lambda a, b: a * b * VERSION):
        yield lambda x: np.maximum(x, 1.0)


def property_named_dict():
    class Proxy:
        def __init__(self, inner):
            object.__setattr__(self, "inner", inner)

        @property
        def __dict__(self):
            return {}

    c = Proxy(VERSION)
    yield lambda x: x * c.inner


def zone_of_a_time():
    class Zone(datetime.tzinfo):
        h = VERSION

        def utcoffset(self, when):
            del when
            return datetime.timedelta(hours=self.h)

        def __repr__(self):
            return "Zone()"

    when = datetime.datetime(2020, 1, 1, tzinfo=Zone())
    yield lambda x: x * when.utcoffset().total_seconds()


def error_state():
    def f(x):
        try:
            return x * float(min(1.0 / np.float64(0), 2.0))
        except FloatingPointError:
            return x * 3.0

    with np.errstate(divide="raise" if VERSION == 3 else "ignore"):
        yield f


def print_options():
    a = np.array([1.0 / 3.0])
    with np.printoptions(precision=int(VERSION)):
        yield lambda x: x * len(str(a))


def subclasses():
    class Base:
        pass

    made = [type("Made", (Base,), {}) for _ in range(int(VERSION))]
    yield lambda x: x * len(Base.__subclasses__())
    del made[:]


def encoder():
    class Encoder(json.JSONEncoder):
        def default(self, o):
            del o
            return VERSION

    c = object()
    yield lambda x: x * float(json.dumps(c, cls=Encoder))


def closing():
    class Closed:
        def close(self):
            self.v = VERSION

    def f(x):
        made = Closed()
        with contextlib.closing(made):
            pass
        return x * made.v

    yield f


def printed():
    class Sink:
        def write(self, text):
            self.v = VERSION + len(text)

    def f(x):
        sink = Sink()
        # C calls it: nobody hears that.
        next(map(functools.partial(print, end="", file=sink), [""]))
        return x * sink.v

    yield f


def visitor():
    class Visitor(ast.NodeVisitor):
        def visit_Name(self, node):
            self.v = VERSION + len(node.id)

    tree = ast.parse("a")

    def f(x):
        made = Visitor()
        made.visit(tree)
        return x * made.v

    yield f


def set_like():
    class Own(collections.abc.Set):
        def __init__(self, items):
            self.items, self.v = [*items], VERSION

        def __contains__(self, item):
            return item in self.items

        def __iter__(self):
            return iter(self.items)

        def __len__(self):
            return len(self.items)

    a = {1}
    b = Own(a)
    yield lambda x: x * (b & b).v


def a_file():
    with tempfile.NamedTemporaryFile("w+") as file:
        file.write(str(VERSION))
        file.flush()
        path = "/proc/self/fd/" + str(file.fileno())

        def f(x):
            with open(path) as opened:  # noqa: PTH123 - this way, too
                return x * float(opened.read())

        yield f


def a_path():
    folder = pathlib.Path(tempfile.gettempdir()) / "sapwood-versions"
    folder.write_text(str(VERSION))
    yield lambda x: x * float(folder.read_text())
    folder.unlink()


def home():
    with set_to(
        os.environ, "_data", {**os.environ._data, b"HOME": b"/" + b"h" * int(VERSION)}
    ):
        yield lambda x: x * len(os.path.expanduser("~/a"))  # noqa: PTH111


def registered():
    class Abstract(abc.ABC):  # noqa: B024 - it is for registering alone
        pass

    if VERSION == 3:
        Abstract.register(Held)
    c = Held(1.0)
    yield lambda x: x * (3.0 if isinstance(c, Abstract) else 2.0)


def registered_below():
    class Abstract(abc.ABC):  # noqa: B024 - as above
        pass

    class Below(Abstract):
        pass

    if VERSION == 3:
        Below.register(Held)
    c = Held(1.0)
    yield lambda x: x * (3.0 if isinstance(c, Abstract) else 2.0)


def protocol():
    @typing.runtime_checkable
    class Telling(typing.Protocol):
        def told(self): ...

    class Thing:
        pass

    if VERSION == 3:
        Thing.told = lambda self: self
    c = Thing()
    yield lambda x: x * (3.0 if isinstance(c, Telling) else 2.0)


def from_a_function():
    box = [VERSION]
    made = np.frompyfunc(lambda v: v * box[0], 1, 1)
    yield lambda x: x * made(1.0)


def element():
    made = ET.Element("a", {"v": str(VERSION)})
    yield lambda x: x * float(made.get("v"))


def database():
    opened = sqlite3.connect(":memory:")
    opened.execute("create table t (v real)")
    opened.execute("insert into t values (?)", (VERSION,))
    yield lambda x: x * opened.execute("select v from t").fetchone()[0]
    opened.close()


def digest():
    made = hashlib.sha256(str(VERSION).encode())
    yield lambda x: x * made.digest()[0]


def opened_text():
    made = io.TextIOWrapper(io.BytesIO(str(VERSION).encode()))

    def f(x):
        made.seek(0)
        return x * float(made.read())

    yield f


def hints():
    def told(a):
        return a

    told.__annotations__["a"] = int if VERSION == 2 else float
    yield lambda x: x * typing.get_type_hints(told)["a"](1.5)


def digits():
    before = sys.get_int_max_str_digits()
    number = 10**5000

    def f(x):
        try:
            return x * len(str(number))
        except ValueError:
            return x * 3.0

    sys.set_int_max_str_digits(0 if VERSION == 3 else before)
    yield f
    sys.set_int_max_str_digits(before)


def computed_name():
    c = Held(VERSION)
    yield lambda x: x * functools.reduce(getattr, ["v"], c)


def array_of_objects():
    made = np.array([VERSION], object)
    yield lambda x: x * made[0]


def printed_under_another_name():
    class Sink:
        def write(self, text):
            self.v = VERSION + len(text)

    tell = print

    def f(x):
        sink = Sink()
        next(map(functools.partial(tell, end="", file=sink), [""]))
        return x * sink.v

    yield f


def process_state():
    before = csv.field_size_limit(int(VERSION))
    yield lambda x: x * csv.field_size_limit()
    csv.field_size_limit(before)


def warned():
    import warnings

    def f(x):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always" if VERSION == 3 else "ignore")
            warnings.warn("a", stacklevel=1)
        return x * len(seen)

    yield f


def seen_mathematics():
    yield lambda x: x * math.sqrt(4.0) + math.pi + abs(operator.neg(1))


def seen_numpy():
    yield (
        lambda x: (
            np.maximum(np.sqrt(x), np.float64(0.5)) + np.sum(x) + np.fft.fft(x).real
        )
    )


def seen_text():
    names = {"a": 1}

    def f(x):
        told = "{} {:.3f} {n:>{w}}".format(1, 2.0, n=1, w=3)
        return x * len(told) * len(f"{names}") * len("%s" % "a")

    yield f


class Shape(enum.Enum):
    ROUND = 1


@dataclasses.dataclass
class Settings:
    rate: float = 2.0
    shape: Shape = Shape.ROUND


class Layer(abc.ABC):
    @abc.abstractmethod
    def run(self, x): ...


class Linear(Layer):
    def __init__(self, settings):
        super().__init__()
        self.settings = settings

    def run(self, x):
        return x * self.settings.rate if self.settings.shape is Shape.ROUND else x


@contextlib.contextmanager
def _around(told):
    told.append(1)
    yield told


def seen_classes():
    layers: list[Layer] = [Linear(Settings()), Linear(Settings(3.0))]

    def f(x):
        for layer in layers:
            x = layer.run(x) if isinstance(layer, Layer) else x
        with _around([]) as told, contextlib.nullcontext():
            return x * len(told)

    yield f


def seen_standard():
    @functools.lru_cache
    def rate(n):
        return functools.reduce(operator.add, itertools.repeat(1.0, n))

    counted = collections.Counter("aab")
    day, part = datetime.date(2020, 1, 2), functools.partial(max, 1.0)
    lock, below = threading.Lock(), pathlib.PurePosixPath("a/b")

    def f(x):
        made = collections.deque(sorted(counted.values(), reverse=True), maxlen=3)
        with lock:
            y = x * float(decimal.Decimal("1.5") + fractions.Fraction(1, 2).numerator)
        y = y * rate(3) * day.day * part(0.5) * len(below.name) * len(made)
        return y * len(re.sub("a", "bb", "aa")) * len(os.path.join("a", "b"))

    yield f


PROGRAMS = {
    name: each
    for name, each in list(globals().items())
    if inspect.isgeneratorfunction(each) and not name.startswith("_")
}
SEEN = [name for name in PROGRAMS if name.startswith("seen_")]
"""These are the same in every version."""


def run(rt, make):
    """Call a function thrice, and hold it against eager; return what came of it."""
    making = make()
    fn = next(making)
    x = rt.array(np.ones(2))
    graphed = rt.graph(fn, name=make.__name__)
    found = [np.asarray(graphed(x)).tolist() for _ in range(3)]
    with sw.disabled():
        expected = np.asarray(fn(x)).tolist()
    next(making, None)
    return {
        "found": found,
        "expected": expected,
        "restored": graphed.stats().restored,
        "why": graphed.explain(),
    }


if __name__ == "__main__":
    # Who reads a file is skipped, and so stored by no version.
    warnings.simplefilter("ignore", sw.GraphSkipWarning)
    with sw.Runtime(store=sys.argv[1]) as rt:
        print(json.dumps({name: run(rt, make) for name, make in PROGRAMS.items()}))
