"""What ordinary programs use besides values is neither a write nor a miss."""

from __future__ import annotations

import abc
import argparse
import collections
import concurrent.futures
import contextlib
import contextvars
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import io
import ipaddress
import itertools
import json
import logging
import pathlib
import re
import string
import sys
import threading
import typing
import warnings
import weakref

import numpy as np
import pytest

LOGGER = logging.getLogger("quiet.programs")
PROGRAMS = {}


class Box:
    """Holds anything."""


def _program(make):
    PROGRAMS[make.__name__.removeprefix("_")] = make
    return make


@_program
def _logger():
    return lambda: (LOGGER.info("a %s", 1), LOGGER.isEnabledFor(logging.DEBUG))


@_program
def _logger_by_name():
    name = "warning"
    return lambda: getattr(LOGGER, name)("said")


@_program
def _standard_streams():
    return lambda: (sys.stdout.write(""), sys.stderr.flush())


@_program
def _warnings():
    def fn():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.warn("told", stacklevel=1)
        return eval("1")

    return fn


@_program
def _locks():
    lock, again, condition = threading.Lock(), threading.RLock(), threading.Condition()
    semaphore, event = threading.Semaphore(2), threading.Event()
    event.set()

    def fn():
        with lock, again, condition, semaphore:
            event.set()
            condition.notify_all()
        return event.is_set()

    return fn


@_program
def _locks_by_name():
    box, name = Box(), "lock"
    box.lock, box.event = threading.Semaphore(2), threading.Event()
    box.event.set()

    def fn():
        with getattr(box, name):
            box.event.set()

    return fn


@_program
def _executor():
    pool = concurrent.futures.ThreadPoolExecutor(1)

    def fn():
        return pool.submit(int).result()

    return fn


@_program
def _cached_function():
    @functools.lru_cache
    def cached(n):
        return n * 2

    return lambda: (cached(1), cached(2), cached.cache_info().hits)


@_program
def _cached_property():
    class Cached:
        @functools.cached_property
        def value(self):
            return [2.0]

    cached, name = Cached(), "value"
    return lambda: (cached.value[0], getattr(cached, name))


@_program
def _immutable_values():
    box = Box()
    box.path, box.day = pathlib.Path("a/b.c"), datetime.date(2020, 1, 1)
    box.one, box.half = decimal.Decimal(1), fractions.Fraction(1, 2)
    box.pattern, box.kind = re.compile("a+"), list[int]
    box.net = ipaddress.ip_network("10.0.0.0/8")

    def fn():
        parts = box.path.parts, str(box.path / "c"), hash(box.path), box.path.name
        sums = box.one / 3, box.half + 1, box.day.year, box.net.broadcast_address
        return parts, sums, box.pattern.findall("aab"), box.kind

    return fn


@_program
def _context_variable_that_is_reset():
    held = contextvars.ContextVar("held", default=1)

    def fn():
        token = held.set(2)
        held.get()
        held.reset(token)

    return fn


@_program
def _iterator_that_only_lies_there():
    box = Box()
    box.batches, box.chunks = iter([1, 2]), (n for n in [1])
    return lambda: box.batches is not None and box.chunks is not None


@_program
def _iterators_of_its_own():
    def fn():
        mine, count = iter([1, 2]), itertools.count()
        return next(mine), next(count), [*zip(mine, count, strict=False)]

    return fn


@_program
def _objects_that_die_in_weak_containers():
    values, keys = weakref.WeakValueDictionary(), weakref.WeakKeyDictionary()
    members = weakref.WeakSet()
    values["old"] = old = Box()
    holder = [old]
    del old

    def fn():
        new = Box()
        values["new"] = keys[new] = new
        members.add(new)
        keys[new] = 1
        return len(values), len(keys), len(members), holder

    return fn


@_program
def _flags():
    class Flag(enum.Flag):
        A = 1
        B = 2
        C = 4

    name = "A"
    return lambda: (Flag.A | Flag.B, getattr(Flag, name) | Flag.C, Flag(6))


@_program
def _numpy():
    name = "float32"

    def fn():
        with np.errstate(all="ignore"):
            return getattr(np, name)(2) * np.pi, np.geterr(), np.arange(3).sum()

    return fn


@_program
def _dataclass():
    @dataclasses.dataclass
    class Config:
        rate: float = 0.1

    config = Config()
    return lambda: (dataclasses.asdict(config), dataclasses.replace(config, rate=1.0))


@_program
def _named_tuple():
    pair = collections.namedtuple("pair", "a b")(1, 2)  # noqa: PYI024 - the old way
    return lambda: (pair.a, pair._replace(a=2), pair._asdict())


@_program
def _counter():
    counts = collections.Counter(a=1)
    return lambda: (counts["a"], counts["missing"], counts.most_common(1))


@_program
def _context_managers():
    @contextlib.contextmanager
    def managed():
        yield 1

    stack, null = contextlib.ExitStack(), contextlib.nullcontext(2)

    def fn():
        with managed() as one, null as two, stack:
            return one, two

    return fn


@_program
def _abstract_classes():
    class Base(abc.ABC):
        @abc.abstractmethod
        def value(self): ...

    class Real(Base):
        def value(self):
            return 1

    real = Real()
    return lambda: real.value() if isinstance(real, Base | collections.abc.Sized) else 0


@_program
def _generic_classes():
    kind = typing.TypeVar("kind")

    class Typed(typing.Generic[kind]):
        value = 2

    typed = Typed[int]()
    return lambda: (typed.value, Typed[float]().value, typing.get_type_hints(Typed))


@_program
def _texts():
    template, encoder = string.Template("$a"), json.JSONEncoder()
    return lambda: (template.substitute(a=1), encoder.encode({"a": [1]}), f"{1:.2f}")


@_program
def _decimal_flags():
    context = decimal.getcontext()
    return lambda: context.divide(decimal.Decimal(1), decimal.Decimal(3))


@_program
def _argument_parser():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", type=float, default=0.1)
    return lambda: parser.parse_args([]).rate


@_program
def _text_that_is_only_read():
    held = io.StringIO("text")
    return lambda: held.getvalue()


@_program
def _dead_proxy():
    box, proxies = Box(), []
    proxies += [weakref.proxy(box), weakref.ref(box)]
    del box
    return lambda: len(proxies)


@pytest.fixture(autouse=True)
def _no_handler():
    """The logger logs nothing, and its settings are as before."""
    LOGGER.addHandler(logging.NullHandler())
    LOGGER.setLevel(logging.INFO)
    LOGGER.propagate = False
    yield
    LOGGER.handlers.clear()


@pytest.mark.parametrize("name", PROGRAMS)
def test_ordinary_programs_write_nothing(watch, name):
    """Neither the first call nor a later one is told to have written."""
    fn = PROGRAMS[name]()
    assert watch(fn) == ()
    assert watch(fn) == ()


@pytest.mark.parametrize("name", PROGRAMS)
def test_ordinary_programs_miss_nothing(guard, name):
    """Once it has run, running it again is no reason to record anew."""
    fn = PROGRAMS[name]()
    fn()
    ambient = guard(fn)
    fn()
    assert ambient.holds(), ambient.miss()
    assert ambient == guard(fn)


def test_other_threads_use_what_the_function_uses(guard):
    """What threads do with locks and semaphores at the time is no miss."""
    fn = PROGRAMS["locks"]()
    ambient = guard(fn)
    semaphore = fn.__closure__[fn.__code__.co_freevars.index("semaphore")].cell_contents
    with semaphore:
        assert ambient.holds(), ambient.miss()
