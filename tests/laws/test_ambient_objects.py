"""Law 9: however a function comes by a plain value, a change of it is a miss."""

from __future__ import annotations

import collections
import dataclasses
import functools
import sys
import types

import numpy as np
import pytest

import sapwood as sw

FORMAT = "{0.v}"
"""No code names what its field reads."""


class Holder:
    """Holds ``v``, which all functions here read, each in its way."""

    __match_args__ = ("v",)

    def __init__(self, value):
        self.v = value

    def __call__(self):
        return self.v

    def __float__(self):
        return self.v

    def __str__(self):
        return str(self.v)

    def __getitem__(self, index):
        return (self.v,)[index]

    def __iter__(self):
        yield self.v

    def __len__(self):
        return int(self.v)

    def __contains__(self, value):
        return value < self.v

    def __enter__(self):
        return self.v

    def __exit__(self, *_):
        pass

    def __rmatmul__(self, other):
        return other * self.v

    def __lt__(self, other):
        return self.v < other

    __array_ufunc__ = None

    @property
    def seen(self):
        return self.v

    @functools.cached_property
    def inner(self):
        return [self]

    @classmethod
    def made(cls, holder):
        return cls(holder.v)

    @staticmethod
    def of(holder):
        return holder.v


class Heir(Holder):
    def __call__(self):
        return super().__call__()


class Described:
    """Gets its attributes from a holder, in three ways."""

    def __init__(self, holder):
        class Through:
            def __get__(self, *_):
                return holder.v

        type(self).through = Through()
        self._holder = holder

    def __getattr__(self, name):
        if name != "hooked":
            raise AttributeError(name)
        return self._holder.v


def _compile(body):
    """Return a maker of functions with ``body``, which reads a holder ``o``."""
    scope = {"np": np, "functools": functools, "Holder": Holder, "sys": sys}
    scope |= {"FORMAT": FORMAT, "TELL": FORMAT.format}
    exec(f"def make(o, name):\n  def f(x):\n    {body}\n  return f", scope)
    return lambda o: scope["make"](o, "v")


BODIES = {
    "attribute": "return x * o.v",
    "getattr": "return x * getattr(o, 'v')",
    "getattr by name": "return x * getattr(o, name)",
    "getattr mapped": "return x * list(map(getattr, [o], ['v']))[0]",
    "hasattr and getattr": "return x * (getattr(o, 'w', None) or getattr(o, 'v', 0))",
    "__dict__": "return x * o.__dict__['v']",
    "vars": "return x * vars(o)['v']",
    "eval": "o; return x * eval('o.v')",
    "property": "return x * o.seen",
    "cached property": "return x * o.inner[0].v",
    "class method": "return x * o.made(o).v",
    "static method": "return x * o.of(o)",
    "new object": "return x * Holder(o.v).v",
    "call": "return x * o()",
    "float": "return x * float(o)",
    "str": "return x * float(f'{o}')",
    "index": "return x * o[0]",
    "for": "for v in o: x = x * v\n    return x",
    "unpacking": "(v,) = o\n    return x * v",
    "star": "return x * sum([*o])",
    "len": "return x * len(o)",
    "in": "return x * (1 if 2.5 in o else 4)",
    "with": "with o as v: return x * v",
    "matmul": "return x @ o",
    "comparison": "return x * (1 if o < 2.5 else 4)",
    "sorted": "return x * float(sorted([o, Holder(2.5)], key=float)[0])",
    "reduce": "return functools.reduce(lambda a, b: a * o.v + b, [x, x])",
    "comprehension": "return sum([x * o.v for _ in range(2)], x)",
    "generator": "return sum((x * o.v for _ in range(2)), x)",
    "lambda": "return (lambda y: y * o.v)(x)",
    "inner function": "def g(k=o.v): return x * k\n    return g()",
    "inner class": "class C: k = o.v\n    return x * C.k",
    "match": "match o:\n      case Holder(v=v): return x * v",
    "match by position": "match o:\n      case Holder(v): return x * v",
    "missing attribute": "return x * (2.0 if o.v == 2 else getattr(o, 'w', 5.0))",
    "try": "try: return x * {2.0: 4.0}[o.v]\n    except KeyError: return x",
    "walrus": "return x * v if (v := o.v) > 2 else x",
}

MAKERS = {
    **{name: _compile(body) for name, body in BODIES.items()},
    "bound method": lambda o: _calling(o.__call__),
    "through a descriptor": lambda o: _through(Described(o), "through"),
    "through a hook": lambda o: _through(Described(o), "hooked"),
    "partial": lambda o: functools.partial(lambda k, x: x * k.v, o),
    "partial keyword": lambda o: functools.partial(lambda x, k: x * k.v, k=o),
    "default": lambda o: lambda x, k=o: x * k.v,
    "in a list": lambda o: _first([lambda x: x * o.v], 0),
    "in a dict": lambda o: _first({"f": lambda x: x * o.v}, "f"),
    "in a deque": lambda o: _first(collections.deque([lambda x: x * o.v]), 0),
    "in a chain map": lambda o: _first(
        collections.ChainMap({}, {"f": lambda x: x * o.v}), "f"
    ),
    "in a frozen dataclass": lambda o: _part(_Frozen(o)),
    "in an array": lambda o: _items(np.array([o, None], object)),
    "in a namespace": lambda o: _part(types.SimpleNamespace(part=[o])),
    "wrapped": lambda o: functools.wraps(_part)(lambda x: x * o.v),
    "its own attribute": lambda o: _with_attribute(o),
    "generator function": lambda o: _from_generator(o),
}


@dataclasses.dataclass(frozen=True)
class _Frozen:
    holder: Holder
    part: list = dataclasses.field(init=False, default_factory=list)

    def __post_init__(self):
        self.part.append(self.holder)


def _calling(call):
    return lambda x: x * call()


def _through(described, name):
    return lambda x: x * (described.hooked if name == "hooked" else described.through)


def _first(functions, key):
    return lambda x: functions[key](x)


def _items(array):
    return lambda x: x * array[0].v


def _part(whole):
    return lambda x: x * whole.part[0].v


def _with_attribute(o):
    def f(x):
        return x * f.holder.v

    f.holder = o
    return f


def _from_generator(o):
    def values():
        while True:
            yield o.v

    return lambda x: x * next(values())


FIELDS = {
    "constant": "return x * float('{0.v}'.format(o))",
    "by a variable": "t = '{0.v}'\n    return x * float(t.format(o))",
    "by a default": "def g(t='{0.v}'): return t.format(o)\n    return x * float(g())",
    "in a list": "return x * float(['', '{0.v}', ''][1].format(o))",
    "of a module": "return x * float(FORMAT.format(o))",
    "bound": "return x * float(TELL(o))",
    "in a map": "return x * float('{k.v}'.format_map({'k': o}))",
    "in a width": "return x * len('{0:{1.v:.0f}}'.format(1, o))",
}


class Bare:
    """Has attributes, and no method that names one."""


@pytest.mark.parametrize("how", FIELDS)
def test_what_a_field_of_a_format_reads_is_guarded(agree, how):
    """By the name that the text has, wherever the text is."""

    def program(w):
        o = Bare()
        o.v = 2.0
        f = w.graph(_compile(FIELDS[how])(o))
        for i in range(9):
            if i in {4, 7}:
                o.v += 3.0
            yield f(w.values(3))

    agree(program)


class Pair:
    """Is matched by position, by names that its class says."""

    __match_args__ = ("first", "second")

    def __init__(self):
        self.first, self.second = 2.0, 5.0


def _raised(error, x):
    return x * error.args[0] + (error.__cause__ is not None)


def _matched(pair, x):
    match pair:
        case Pair(first):
            return x * first


def _change_error(error):
    error.args = (5.0,)
    error.__cause__ = KeyError()


KEPT_IN_C = {
    "of an exception": (lambda: ValueError(2.0), _raised, _change_error),
    "of a class": (
        Pair,
        _matched,
        lambda _: setattr(Pair, "__match_args__", ("second", "first")),
    ),
}


@pytest.mark.parametrize("what", KEPT_IN_C)
def test_a_state_that_no_attribute_of_an_instance_is(agree, monkeypatch, what):
    """What exceptions hold in C, and by what names a class is matched."""
    monkeypatch.setattr(Pair, "__match_args__", Pair.__match_args__)
    make, fn, change = KEPT_IN_C[what]

    def program(w):
        Pair.__match_args__ = ("first", "second")
        it = make()
        f = w.graph(functools.partial(fn, it))
        for i in range(8):
            if i == 5:
                change(it)
            yield f(w.values(3))

    agree(program)


@pytest.mark.parametrize("name", MAKERS)
def test_a_value_read_in_any_way_is_guarded(agree, name):
    """Read by name, through protocols, helpers or containers: never stale."""

    def program(w):
        o = Heir(2.0)
        assert o.inner == [o]
        f, x = w.graph(MAKERS[name](o)), w.array(np.arange(1.0, 4.0))
        for o.v in (2.0, 3.0, 2.0):
            for _ in range(3):
                yield (f(x),)

    world = agree(program)
    assert world.count("replays") >= 4
    assert world.count("recordings") <= 3


CHANGES = {
    "defaults": lambda helper: setattr(helper, "__defaults__", (3.0,)),
    "keyword defaults": lambda helper: helper.__kwdefaults__.update(m=3.0),
    "attribute": lambda helper: setattr(helper, "k", 3.0),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("own", [True, False])
def test_functions_may_be_changed_in_place(agree, change, own):
    """Defaults and attributes of a function or its helper may be replaced."""

    def program(w):
        def helper(x, k=2.0, *, m=5.0):
            return x * k * m * helper.k

        helper.k = 1.0
        f = w.graph(helper if own else lambda x: helper(x))
        x = w.values(3)
        for done in (False, True):
            for _ in range(3):
                yield (f(x),)
            if not done:
                CHANGES[change](helper)

    agree(program)


@pytest.mark.parametrize("own", [True, False])
def test_code_may_be_replaced(agree, own):
    """So may the code itself, as reloaders do."""

    def program(w):
        def helper(x):
            return x * 2.0

        f, x = w.graph(helper if own else lambda x: helper(x)), w.values(3)
        for code in (helper.__code__, (lambda x: x * 3.0).__code__):
            helper.__code__ = code
            for _ in range(3):
                yield (f(x),)

    agree(program)


def test_classes_may_be_changed_under_their_instances(agree):
    """Shadowing, replaced methods and other bases of a class are noticed."""

    def program(w):
        class Base:
            k = 2.0

            def scaled(self, x):
                return x * self.k

        class Other:
            k = 7.0

            def scaled(self, x):
                return x + self.k

        class Empty:
            pass

        class Sub(Base, Empty):
            def scaled(self, x):
                return super().scaled(x)

        item, x = Sub(), w.values(3)
        f = w.graph(lambda x: item.scaled(x))
        changes = (
            lambda: setattr(Base, "k", 3.0),
            lambda: setattr(Sub, "k", 4.0),
            lambda: setattr(item, "k", 5.0),
            lambda: delattr(item, "k"),
            lambda: delattr(Sub, "k"),
            lambda: setattr(Base, "scaled", lambda _, x: x - 1),
            lambda: setattr(Sub, "__bases__", (Other, Empty)),
        )
        for change in changes:
            for _ in range(3):
                yield (f(x),)
            change()
        yield (f(x),)

    agree(program)


def test_modules_imported_inside_are_guarded(agree, monkeypatch):
    """``import m`` and ``from m import v`` in the body read the module as it is."""
    module = types.ModuleType("sapwood_law_module")
    monkeypatch.setitem(sys.modules, module.__name__, module)

    def program(w):
        def whole(x):
            import sapwood_law_module

            return x * sapwood_law_module.v

        def part(x):
            from sapwood_law_module import v

            return x * v

        module.v = 2.0
        f, g, x = w.graph(whole), w.graph(part), w.values(3)
        for value in (2.0, 3.0):
            module.v = value
            for _ in range(3):
                yield f(x), g(x)

    agree(program)


def test_host_values_of_numpy_are_guarded(agree):
    """Elements of host arrays, dtypes, ufuncs and slices are plain values."""

    def program(w):
        host, o = np.array([2.0, 5.0]), types.SimpleNamespace()
        o.dtype, o.ufunc, o.part = np.float64, np.add, slice(0, 2)

        def fn(x):
            y = o.ufunc(x, float(host[0]))
            return y.astype(o.dtype)[o.part] / 3

        f, x = w.graph(fn), w.values(4)
        changes = (
            lambda: host.__setitem__(0, 3.0),
            lambda: setattr(o, "dtype", np.float32),
            lambda: setattr(o, "ufunc", np.multiply),
            lambda: setattr(o, "part", slice(1, 3)),
        )
        for change in changes:
            for _ in range(3):
                yield (f(x),)
            change()
        yield (f(x),)

    agree(program)


def test_a_cache_that_was_filled_is_not_called_again(rt):
    """`functools.cache` around a helper holds what it held: so does the recording."""
    o = Holder(2.0)
    cached = functools.cache(lambda: o.v)
    f, x = rt.graph(lambda x: x * cached()), rt.array(np.ones(2))
    cached()
    for o.v in (2.0, 3.0):
        with sw.disabled():
            expected = np.asarray(f(x)).tolist()
        for _ in range(3):
            assert np.asarray(f(x)).tolist() == expected
