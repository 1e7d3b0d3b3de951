"""Law 9 and 10: values kept in objects of the standard library, read and written."""

from __future__ import annotations

import argparse
import array
import builtins
import collections
import configparser
import contextvars
import ctypes
import decimal
import enum
import functools
import io
import itertools
import logging
import operator
import os
import queue
import sys
import threading
import types
import weakref

import numpy as np
import pytest

import sapwood as sw


class Thing:
    """Holds ``v``."""

    def __init__(self, v=2.0):
        self.v = v


READS = {}
WRITES = {}


def _read(make):
    READS[make.__name__.removeprefix("_")] = make
    return make


def _write(make):
    WRITES[make.__name__.removeprefix("_")] = make
    return make


@_read
def _namespace():
    held = argparse.Namespace(v=2.0)
    return lambda x: x * held.v, lambda: setattr(held, "v", 3.0)


@_read
def _namespace_by_vars():
    held = argparse.Namespace(v=2.0)
    return lambda x: x * vars(held)["v"], lambda: setattr(held, "v", 3.0)


@_read
def _environ():
    os.environ["SAPWOOD_TEST"] = "2"

    def f(x):
        return x * float(os.environ["SAPWOOD_TEST"])

    return f, lambda: os.environ.__setitem__("SAPWOOD_TEST", "3")


@_read
def _getenv():
    os.environ["SAPWOOD_TEST"] = "2"

    def f(x):
        return x * float(os.getenv("SAPWOOD_TEST", "1"))

    return f, lambda: os.environ.__delitem__("SAPWOOD_TEST")


@_read
def _getenv_imported():
    from os import getenv

    os.environ["SAPWOOD_TEST"] = "2"
    change = functools.partial(os.environ.__setitem__, "SAPWOOD_TEST", "3")
    return lambda x: x * float(getenv("SAPWOOD_TEST")), change


@_read
def _context_variable():
    held = contextvars.ContextVar("held", default=2.0)
    return lambda x: x * held.get(), lambda: held.set(3.0)


@_read
def _context_variable_unset():
    held = contextvars.ContextVar("held")
    return lambda x: x * held.get(2.0), lambda: held.set(3.0)


@_read
def _object_in_a_context_variable():
    thing = Thing()
    held = contextvars.ContextVar("held", default=thing)
    return lambda x: x * held.get().v, lambda: setattr(thing, "v", 3.0)


@_read
def _thread_local():
    held = threading.local()
    held.v = 2.0
    return lambda x: x * held.v, lambda: setattr(held, "v", 3.0)


@_read
def _thread_local_of_ones_own():
    class Local(threading.local):
        v = 2.0

    held = Local()
    return lambda x: x * held.v, lambda: setattr(held, "v", 3.0)


@_read
def _array():
    held = array.array("d", [2.0])
    return lambda x: x * held[0], lambda: held.__setitem__(0, 3.0)


@_read
def _memory():
    held = memoryview(array.array("d", [2.0]))
    return lambda x: x * held[0], lambda: held.__setitem__(0, 3.0)


@_read
def _ctypes():
    held = ctypes.c_double(2.0)
    return lambda x: x * held.value, lambda: setattr(held, "value", 3.0)


@_read
def _structure():
    class Pair(ctypes.Structure):
        _fields_ = (("v", ctypes.c_double), ("w", ctypes.c_double))

    held = Pair(2.0, 0.0)
    return lambda x: x * held.v, lambda: setattr(held, "v", 3.0)


@_read
def _array_of_ones_own():
    class Mine(np.ndarray):
        pass

    held = np.full(3, 2.0).view(Mine)
    return lambda x: x * float(held[0]), lambda: held.__setitem__(0, 3.0)


@_read
def _masked_array():
    held = np.ma.masked_array([2.0, 1.0], [False, True])
    return lambda x: x * float(held.data[0]), lambda: held.__setitem__(0, 3.0)


@_read
def _user_dict():
    held = collections.UserDict(v=2.0)
    return lambda x: x * held["v"], lambda: held.__setitem__("v", 3.0)


@_read
def _user_dict_of_ones_own():
    class Settings(collections.UserDict):
        pass

    held = Settings(v=2.0)
    return lambda x: x * held["v"], lambda: held.__setitem__("v", 3.0)


@_read
def _user_list():
    held = collections.UserList([2.0])
    return lambda x: x * held[0], lambda: held.__setitem__(0, 3.0)


@_read
def _user_string():
    held = [collections.UserString("2")]
    change = lambda: held.__setitem__(0, collections.UserString("3"))  # noqa: E731
    return lambda x: x * float(held[0]), change


@_read
def _config_parser():
    held = configparser.ConfigParser()
    held["a"] = {"v": "2"}
    return lambda x: x * float(held["a"]["v"]), lambda: held.set("a", "v", "3")


@_read
def _config_parser_typed():
    held = configparser.ConfigParser()
    held["a"] = {"v": "2"}
    section = held["a"]
    return lambda x: x * section.getfloat("v"), lambda: held.set("a", "v", "3")


@_read
def _queue():
    held = queue.Queue()
    held.put(2.0)
    change = lambda: (held.get(), held.put(3.0))  # noqa: E731
    return lambda x: x * held.queue[0], change


@_read
def _weak_reference():
    thing = Thing()
    held = weakref.ref(thing)
    return lambda x: x * held().v, lambda: setattr(thing, "v", 3.0)


@_read
def _weak_reference_that_dies():
    things = [Thing()]
    held = weakref.ref(things[0])
    return lambda x: x * (2.0 if held() is not None else 3.0), things.clear


@_read
def _weak_method():
    thing = Thing()
    thing.double = types.MethodType(lambda self: 2 * self.v, thing)
    held = weakref.WeakMethod(thing.double)
    return lambda x: x * held()(), lambda: setattr(thing, "v", 3.0)


@_read
def _weak_proxy():
    thing = Thing()
    held = weakref.proxy(thing)
    return lambda x: x * held.v, lambda: setattr(thing, "v", 3.0)


@_read
def _weak_keys():
    thing = Thing()
    held = weakref.WeakKeyDictionary({thing: 2.0})
    return lambda x: x * held[thing], lambda: held.__setitem__(thing, 3.0)


@_read
def _weak_values():
    thing = Thing()
    held = weakref.WeakValueDictionary({"k": thing})
    return lambda x: x * held["k"].v, lambda: setattr(thing, "v", 3.0)


@_read
def _weak_set():
    thing, other = Thing(), Thing(1.5)
    held = weakref.WeakSet([thing])

    def f(x):
        for each in held:
            x = x * each.v
        return x

    return f, lambda: held.add(other)


@_read
def _mapping_proxy():
    inside = {"v": 2.0}
    held = types.MappingProxyType(inside)
    return lambda x: x * held["v"], lambda: inside.__setitem__("v", 3.0)


@_read
def _dict_view():
    inside = {"v": 2.0}
    held = inside.values()
    return lambda x: x * sum(held), lambda: inside.__setitem__("w", 3.0)


@_read
def _ordered_view():
    inside = collections.OrderedDict(v=2.0)
    held = inside.items()
    return lambda x: x * sum(v for _, v in held), lambda: inside.update(w=3.0)


@_read
def _decimal_context():
    held = decimal.Context(prec=2)

    def f(x):
        return x * float(held.divide(decimal.Decimal(2), decimal.Decimal(3)))

    return f, lambda: setattr(held, "prec", 5)


def test_functions_that_tell_are_known_by_what_they_are(rt, monkeypatch):
    """Not by the module that they say they are from: Python 3.13 says another."""
    monkeypatch.setattr(decimal.getcontext, "__module__", "_decimal")
    f = rt.graph(lambda x: x * decimal.getcontext().prec)
    x = rt.array(np.ones(2))
    with decimal.localcontext(prec=5) as context:
        for prec in (5, 7, 5):
            context.prec = prec
            for _ in range(4):
                assert np.asarray(f(x)).tolist() == [prec] * 2


@_read
def _current_decimal_context():
    decimal.setcontext(decimal.Context(prec=2))

    def f(x):
        context = decimal.getcontext()
        return x * float(context.divide(decimal.Decimal(2), decimal.Decimal(3)))

    return f, lambda: setattr(decimal.getcontext(), "prec", 5)


@_read
def _single_dispatch():
    @functools.singledispatch
    def chosen(_):
        return 2.0

    return lambda x: x * chosen(1), lambda: chosen.register(int)(lambda _: 3.0)


@_read
def _single_dispatch_method():
    class Chooser:
        @functools.singledispatchmethod
        def chosen(self, _):
            return 2.0

    held = Chooser()
    change = lambda: Chooser.chosen.register(int, lambda *_: 3.0)  # noqa: E731
    return lambda x: x * held.chosen(1), change


@_read
def _attribute_getter():
    thing, getter = Thing(), operator.attrgetter("v")
    return lambda x: x * getter(thing), lambda: setattr(thing, "v", 3.0)


@_read
def _method_caller():
    class Caller(Thing):
        def told(self, times):
            return self.v * times

    thing, caller = Caller(), operator.methodcaller("told", times=2)
    return lambda x: x * caller(thing), lambda: setattr(thing, "v", 3.0)


@_read
def _getattr_by_another_name():
    thing, read = Thing(), getattr
    return lambda x: x * read(thing, "v"), lambda: setattr(thing, "v", 3.0)


@_read
def _method_of_a_list():
    inside = [2.0]
    held = inside.__getitem__
    return lambda x: x * held(0), lambda: inside.__setitem__(0, 3.0)


@_read
def _method_of_a_dict_replaced():
    inside = {"v": 2.0}
    held = [inside.get]
    change = lambda: held.__setitem__(0, inside.__contains__)  # noqa: E731
    return lambda x: x * held[0]("v"), change


@_read
def _metaclass_attribute():
    class Meta(type):
        v = 2.0

    class Made(metaclass=Meta):
        pass

    return lambda x: x * Made.v, lambda: setattr(Meta, "v", 3.0)


@_read
def _metaclass_property():
    class Meta(type):
        @property
        def v(cls):
            return cls.held

    class Made(metaclass=Meta):
        held = 2.0

    return lambda x: x * Made.v, lambda: setattr(Made, "held", 3.0)


@_read
def _enum_value():
    class Mode(enum.Enum):
        FAST = [2.0]  # noqa: RUF012 - that it can change is the point

    return lambda x: x * Mode.FAST.value[0], lambda: Mode.FAST.value.insert(0, 3.0)


@_read
def _enum_method():
    rates = {"fast": 2.0}

    class Mode(enum.Enum):
        FAST = "fast"

        def rate(self):
            return rates[self.value]

    held = Thing(Mode.FAST)
    return lambda x: x * held.v.rate(), lambda: rates.update(fast=3.0)


@_read
def _print_options():
    np.set_printoptions(precision=8)
    f = lambda x: x * float(np.get_printoptions()["precision"])  # noqa: E731
    return f, lambda: np.set_printoptions(precision=5)


@_read
def _recursion_limit():
    sys.setrecursionlimit(1500)
    f = lambda x: x * (2.0 if sys.getrecursionlimit() < 1600 else 3.0)  # noqa: E731
    return f, lambda: sys.setrecursionlimit(1700)


@_read
def _recursion_limit_by_another_name():
    sys.setrecursionlimit(1500)
    limit = sys.getrecursionlimit
    f = lambda x: x * (2.0 if limit() < 1600 else 3.0)  # noqa: E731
    return f, lambda: sys.setrecursionlimit(1700)


@_read
def _loaded_module():
    made = types.ModuleType("sapwood_made_for_a_test")
    made.v = 2.0
    sys.modules[made.__name__] = made
    f = lambda x: x * sys.modules["sapwood_made_for_a_test"].v  # noqa: E731
    return f, lambda: setattr(made, "v", 3.0)


@_read
def _added_builtin():
    builtins.SAPWOOD_TEST = 2.0
    f = eval("lambda x: x * SAPWOOD_TEST", {"__builtins__": vars(builtins)})
    return f, lambda: setattr(builtins, "SAPWOOD_TEST", 3.0)


@_read
def _arguments_of_the_process():
    sys.argv[:] = ["2"]
    return lambda x: x * float(sys.argv[0]), lambda: sys.argv.__setitem__(0, "3")


@_read
def _text():
    held = io.StringIO("2")
    change = lambda: (held.seek(0), held.write("3"))  # noqa: E731
    return lambda x: x * float(held.getvalue()), change


@_read
def _level():
    held = logging.getLogger("sapwood.test.level")
    held.setLevel(logging.INFO)
    f = lambda x: x * (3.0 if held.isEnabledFor(logging.DEBUG) else 2.0)  # noqa: E731
    return f, lambda: held.setLevel(logging.DEBUG)


@pytest.fixture(autouse=True)
def _as_before(monkeypatch):
    """The process is set up as before after each test."""
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setenv("SAPWOOD_TEST", "1")
    limit, context = sys.getrecursionlimit(), decimal.getcontext()
    options = np.get_printoptions()
    yield
    sys.setrecursionlimit(limit)
    decimal.setcontext(context)
    np.set_printoptions(**options)
    sys.modules.pop("sapwood_made_for_a_test", None)
    vars(builtins).pop("SAPWOOD_TEST", None)


@pytest.mark.parametrize("name", READS)
def test_what_is_kept_in_the_standard_library_is_guarded(agree, name):
    """A value read from there changes, and the next call has the new one."""

    def program(w):
        fn, change = READS[name]()
        f, x = w.graph(fn), w.values(3)
        for _ in range(4):
            yield (f(x),)
        change()
        for _ in range(4):
            yield (f(x),)

    world = agree(program)
    assert world.count("replays") >= 4
    assert world.count("recordings") == 2


@_write
def _put_environ():
    return lambda: os.environ.__setitem__("SAPWOOD_TEST", "2")


@_write
def _set_variable():
    held = contextvars.ContextVar("held", default=0)
    return lambda: held.set(held.get() + 1)


@_write
def _set_local():
    held = threading.local()
    held.n = 0

    def write():
        held.n += 1

    return write


@_write
def _set_namespace():
    held = argparse.Namespace(n=0)

    def write():
        held.n = 2 * held.n + 1

    return write


@_write
def _set_in_array():
    held = array.array("l", [0])

    def write():
        held[0] += 1

    return write


@_write
def _put_queue():
    held = queue.Queue()
    return lambda: held.put(1)


@_write
def _put_simple_queue():
    held = queue.SimpleQueue()
    return lambda: held.put(1)


@_write
def _write_text():
    held = io.StringIO()
    return lambda: held.write("a")


@_write
def _write_bytes():
    held = io.BytesIO()
    return lambda: held.write(b"a")


@_write
def _append_user_list():
    held = collections.UserList()
    return lambda: held.append(1)


@_write
def _set_user_dict():
    held = collections.UserDict()
    return lambda: held.update(a=1)


@_write
def _set_weak_keys():
    thing, held = Thing(), weakref.WeakKeyDictionary()
    return lambda: held.update({thing: 1})


@_write
def _add_weak_set():
    thing, held = Thing(), weakref.WeakSet()
    return lambda: held.add(thing)


@_write
def _through_weak_reference():
    thing = Thing()
    held = weakref.ref(thing)
    return lambda: (setattr(held(), "v", 2 * thing.v + 1), thing)


@_write
def _through_weak_proxy():
    thing = Thing()
    held = weakref.proxy(thing)
    return lambda: (setattr(held, "v", 2 * thing.v + 1), thing)


@_write
def _next_of_a_list():
    held = iter([1, 2, 3, 4, 5])
    return lambda: next(held)


@_write
def _next_of_a_count():
    held = itertools.count()
    return lambda: next(held)


@_write
def _next_of_a_zip():
    held = zip(range(9), "abcdefghi", strict=True)
    return lambda: next(held)


@_write
def _next_of_a_sequence():
    class Sequence:
        def __getitem__(self, index):
            return index

    held = iter(Sequence())
    return lambda: next(held)


@_write
def _loop_over_a_generator():
    held = (n for n in range(99))

    def write():
        for _ in held:
            break

    return write


@_write
def _next_of_a_cycle():
    held = itertools.cycle([1])
    return lambda: next(held)


@_write
def _send():
    seen = []

    def take():
        while True:
            seen.append((yield))

    held = take()
    next(held)
    return lambda: held.send(1)


@_write
def _list_in_a_metaclass():
    class Meta(type):
        seen = []  # noqa: RUF012 - that it can change is the point

    class Made(metaclass=Meta):
        pass

    return lambda: Made.seen.append(1)


@_write
def _handler_of_a_logger():
    seen = []

    class Handler(logging.Handler):
        def emit(self, record):
            seen.append(record)

    held = logging.getLogger("sapwood.test.handler")
    held.setLevel(logging.INFO)
    held.handlers[:] = [Handler()]
    child = held.getChild("child")
    return lambda: child.info("said")


@_write
def _enum_attribute():
    class Mode(enum.Enum):
        FAST = 1

    def write():
        Mode.FAST.seen = True

    return write


@_write
def _through_a_view():
    inside = {"v": []}
    held = inside.values()
    return lambda: [each.append(1) for each in held]


@pytest.mark.parametrize("name", WRITES)
def test_writes_into_the_standard_library_are_refused(rt, name):
    """No replay would repeat them, so that is said, and how to go on.

    Of a plain value in the place of another, after some calls: it might come again.
    """
    write = WRITES[name]()

    def fn(x):
        write()
        return x * 2

    f, x = rt.graph(fn, fullgraph=True), rt.array(np.ones(3))
    with pytest.raises(sw.CaptureError) as caught:
        for _ in range(10):
            f(x)
    assert caught.value.remedy
    assert f.stats().recordings == 0
    logging.getLogger("sapwood.test.handler").handlers.clear()


@pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")
@pytest.mark.parametrize("name", WRITES)
def test_writes_into_the_standard_library_pass_through(rt, name):
    """Unless ``fullgraph=True`` every call does what the function does."""
    write = WRITES[name]()

    def fn(x):
        write()
        return x * 2

    f, x = rt.graph(fn), rt.array(np.ones(3))
    for _ in range(3):
        assert np.asarray(f(x)).tolist() == [2.0] * 3
    assert f.stats().replays == 0
    logging.getLogger("sapwood.test.handler").handlers.clear()
