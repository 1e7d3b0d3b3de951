"""What regions change on the host, in calls that stray: all is as in an eager call.

Each region that strays ends the recording. Then the call is begun again, and the
function finds what there was: the objects themselves, with what was in them.
"""

from __future__ import annotations

import io
from collections import OrderedDict, defaultdict
from contextvars import ContextVar
from itertools import islice
from types import FunctionType, SimpleNamespace
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

import numpy as np
import pytest

import sapwood as sw

pytestmark = pytest.mark.filterwarnings("ignore::sapwood.GraphSkipWarning")

CALLS, STRAY = 12, (8, 10)
"""In these calls regions do something else."""


class Rated:
    """An object with a value."""

    def __init__(self, rate):
        self.rate = rate


def _in_one(s, changes, reads):
    """A region changes something; what was there before is in the function's hands."""

    @sw.eager
    def live(_):
        if s.strays:
            changes()

    def fn(x):
        before = s.it
        h = x * reads(before)
        live(h)
        return h + reads(before), x * reads(s.it)

    return fn


def _set_grows(s, _):
    s.it = {1.0, 2.0}
    return _in_one(s, lambda: s.it.add(5.0), max)


def _set_shrinks(s, _):
    s.it = {1.0, 2.0, 3.0}
    return _in_one(s, lambda: s.it.discard(3.0 - (s.it == {1.0, 2.0})), sum)


def _set_of_objects(s, _):
    def changes():
        s.it.remove(max(s.it, key=lambda each: each.rate))

    s.it = {Rated(2.0), Rated(3.0), Rated(4.0)}
    return _in_one(s, changes, len)


def _sets_in_a_list(s, _):
    s.it = [{1.0, 2.0}, {3.0}]

    def changes():
        s.it[0].add(4.0)
        s.it[1].clear()

    return _in_one(s, changes, lambda it: max(it[0]) + len(it[1]))


def _frozen_set(s, _):
    def changes():
        s.it |= {5.0}

    s.it = frozenset({1.0, 2.0})
    return _in_one(s, changes, sum)


def _another_dict(s, _):
    def changes():
        s.it = {"rate": s.it["rate"] + 1}

    s.it = {"rate": 2.0}
    return _in_one(s, changes, lambda it: it["rate"])


def _another_order(s, _):
    s.it = OrderedDict(a=1.0, b=2.0)
    return _in_one(s, lambda: s.it.move_to_end("a"), lambda it: next(iter(it.values())))


def _another_list(s, _):
    def changes():
        s.it = [s.it[0] + 1, 5.0]

    s.it = [2.0]
    return _in_one(s, changes, sum)


def _another_list_of_arrays(s, w):
    def changes():
        s.it = [s.it[0] + 1, w.values(4)]

    s.it = [w.values(4)]
    return _in_one(s, changes, lambda it: it[-1] + len(it))


def _longer_tuple_of_arrays(s, w):
    def changes():
        s.it = (*s.it, w.values(4))

    s.it = w.values(4), w.values(4)
    return _in_one(s, changes, lambda it: it[-1] * len(it))


def _tuple_of_all_sorts(s, w):
    def changes():
        s.it = w.values(4), s.it[1] + 1, Rated(s.it[2].rate * 2)

    s.it = w.values(4), 2.0, Rated(3.0)
    return _in_one(s, changes, lambda it: it[0] * it[1] + it[2].rate)


def _another_host_array(s, _):
    def changes():
        s.it = s.it + 1

    s.it = np.array([1.0, 2.0])
    return _in_one(s, changes, lambda it: float(it[1]))


def _large_host_array(s, _):
    def changes():
        s.it = s.it + 1

    s.it = np.ones(20_000)
    return _in_one(s, changes, lambda it: float(it[1]))


def _written_host_array(s, _):
    def changes():
        s.it[::2] += 1

    s.it = np.arange(6.0).reshape(2, 3).T[1:]
    return _in_one(s, changes, lambda it: float(it.sum()))


def _bytes(s, _):
    def changes():
        s.it[0] += 1
        s.it.append(3)

    s.it = bytearray(b"abc")
    return _in_one(s, changes, sum)


def _context_variable(s, _):
    s.it = ContextVar("rate", default=2.0)
    s.it.set(3.0)
    return _in_one(s, lambda: s.it.set(s.it.get() + 1), lambda it: it.get())


def _text_stream(s, _):
    s.it = io.StringIO("one\r\n", newline="\r\n")
    return _in_one(s, lambda: s.it.write("\n"), lambda it: len(it.getvalue()))


def _place_in_a_stream(s, _):
    s.it = io.BytesIO(b"123456")
    return _in_one(s, lambda: s.it.read(1), lambda it: it.tell() + 1)


def _defaults(s, _):
    def rate(given=2.0, *, by=1.0):
        return given * by

    def changes():
        s.it.__defaults__ = (s.it() + 1,)
        s.it.__kwdefaults__ = {"by": 0.5}

    s.it = rate
    return _in_one(s, changes, lambda it: it())


def _default_factory(s, _):
    def changes():
        s.it.default_factory = int if s.it.default_factory is float else float

    s.it = defaultdict(float, a=1.0)
    return _in_one(s, changes, lambda it: 2.0 if it.default_factory is float else 3.0)


def _weak_values(s, _):
    s.kept = [Rated(1.0), Rated(2.0), Rated(3.0)]
    s.it = WeakValueDictionary(enumerate(s.kept[:2]))

    def changes():
        s.it[len(s.it)] = s.kept[2]

    return _in_one(s, changes, lambda it: sum(x.rate for x in it.values()))


def _weak_keys(s, _):
    s.kept = [Rated(1.0), Rated(2.0)]
    s.it = WeakKeyDictionary({s.kept[0]: 2.0})

    def changes():
        s.it[s.kept[len(s.it) - 1]] = 3.0 + len(s.it)

    return _in_one(s, changes, lambda it: sum(it.values()))


def _weak_members(s, _):
    s.kept = [Rated(1.0), Rated(2.0)]
    s.it = WeakSet(s.kept[:1])

    def changes():
        (s.it.discard if s.kept[1] in s.it else s.it.add)(s.kept[1])

    return _in_one(s, changes, lambda it: len(it) + 1.0)


def _one_of_many_objects(s, _):
    def changes():
        s.it[70] = Rated(s.it[70].rate + 1)

    s.it = [Rated(float(i % 3)) for i in range(100)]
    return _in_one(s, changes, lambda it: sum(each.rate for each in it))


def _of_many_arrays(s, w, reach, *, always=False):
    """A region writes two of many arrays, which parts only read."""
    s.it, s.rate = [w.values(4) for _ in range(12)], 1.0
    writes = reach(s, w)

    @sw.eager
    def live(h):
        s.rate += s.strays
        if s.strays or always:
            writes(h)

    def fn(x):
        h = x * s.rate
        for each in s.it:
            h = h + each
        live(h)
        for each in s.it:
            h = h * 0.5 + each
        return h * s.rate

    return fn


def _by_items(s, _):
    def writes(h):
        s.it[3] += 1
        s.it[7][1:] = h[1:]

    return writes


def _by_a_method(s, _):
    class Owner:
        def __init__(self):
            self.arrays = s.it

        def write(self, h):
            for each in self.arrays:
                each[...] = each * 0.5
            self.arrays[0][...] = h

    return Owner().write


def _by_a_graphed_function(s, w):
    """Which the walk does not go into; the region has written before, too."""

    def writes(h):
        s.it[3][...] = s.it[3] + h

    f = w.graph(writes)

    class Often:
        def __call__(self, h):
            f(h)

    return Often()


def _another_too(s, w):
    def writes(h):
        s.it[2] += h
        s.it[3] = w.values(4)
        s.it[4] = s.it[2]

    return writes


def _writes_items(s, w):
    return _of_many_arrays(s, w, _by_items)


def _writes_by_a_method(s, w):
    return _of_many_arrays(s, w, _by_a_method)


def _writes_by_a_graphed_function(s, w):
    return _of_many_arrays(s, w, _by_a_graphed_function, always=True)


def _writes_and_binds(s, w):
    return _of_many_arrays(s, w, _another_too)


def _before_a_region_that_raises(s, w):
    """A tuple grows, and the function goes on with the array that it has let go."""
    s.it = w.values(4), w.values(4)

    @sw.eager
    def first(_):
        if s.strays:
            s.it = (*s.it[1:], w.values(4), w.values(4))

    @sw.eager
    def second(_):
        if s.strays:
            raise ArithmeticError

    def fn(x):
        before = s.it[0]
        h = x * before
        first(h)
        h = h + s.it[-1] * len(s.it)
        try:
            second(h)
        except ArithmeticError:
            h = h * 2
        return h + before

    return fn


def _in_two(s, makes, takes, reads):
    """A region makes something in each call, and another one strays behind it."""

    @sw.eager
    def one(_):
        makes()

    @sw.eager
    def three(_):
        takes()

    @sw.eager
    def two(h):
        return h if s.strays else None

    def fn(x):
        h = x * reads()
        one(h)
        h = h + reads()
        found = two(h)
        h = h if found is None else h + found
        three(h)
        return h * reads()

    return fn


def _attribute_made(s, _):
    s.it = Rated(1.0)
    return _in_two(
        s,
        lambda: setattr(s.it, "more", 3.0),
        lambda: delattr(s.it, "more"),
        lambda: getattr(s.it, "more", 1.0),
    )


def _item_made(s, _):
    s.it = {"a": 1.0}
    return _in_two(
        s,
        lambda: s.it.update(b=3.0),
        lambda: s.it.pop("b"),
        lambda: sum(s.it.values()),
    )


def _list_grown(s, _):
    s.it = [1.0]
    return _in_two(s, lambda: s.it.append(3.0), s.it.pop, lambda: sum(s.it))


def _set_filled(s, _):
    s.it = {1.0}
    return _in_two(
        s, lambda: s.it.add(3.0), lambda: s.it.discard(3.0), lambda: sum(s.it)
    )


def _array_made(s, w):
    s.it = {}
    return _in_two(
        s,
        lambda: s.it.update(a=w.values(4)),
        s.it.clear,
        lambda: s.it.get("a", 1.0),
    )


def _object_in_the_place_of_another(s, _):
    first, second = Rated(2.0), Rated(3.0)
    s.it, s.kept = first, [first, second]
    return _in_two(
        s,
        lambda: setattr(s, "it", second),
        lambda: setattr(s, "it", first),
        lambda: s.it.rate,
    )


IN_ONE = (
    *(_set_grows, _set_shrinks, _set_of_objects, _sets_in_a_list, _frozen_set),
    *(
        _another_dict,
        _another_order,
        _another_list,
        _another_list_of_arrays,
        _longer_tuple_of_arrays,
    ),
    *(_tuple_of_all_sorts, _another_host_array, _large_host_array),
    *(_written_host_array, _bytes, _one_of_many_objects, _writes_items),
    *(_writes_by_a_method, _writes_and_binds, _writes_by_a_graphed_function),
    *(_context_variable, _text_stream, _place_in_a_stream),
    *(_defaults, _default_factory, _weak_values, _weak_keys, _weak_members),
)
IN_TWO = (
    *(_attribute_made, _item_made, _list_grown, _set_filled, _array_made),
    *(_object_in_the_place_of_another, _before_a_region_that_raises),
)


def _shown(value):
    """Return what a picture is made of, for what no picture shows."""
    if isinstance(value, Rated):
        return vars(value)
    if isinstance(value, (set, frozenset, WeakSet)):
        return type(value).__name__, sorted(map(repr, map(_shown, value)))
    if isinstance(value, (list, tuple)):
        return [*map(_shown, value)]
    if isinstance(value, (WeakKeyDictionary, WeakValueDictionary)):
        return [*map(_shown, value.keys())], [*map(_shown, value.values())]
    if isinstance(value, FunctionType):
        return value.__defaults__, value.__kwdefaults__
    return value


def _on_the_host(value):
    if isinstance(value, ContextVar):
        return value.get()
    if isinstance(value, (io.StringIO, io.BytesIO)):
        return value.getvalue(), value.tell()
    kept = isinstance(value, (np.ndarray, bytearray))
    return [*map(float, np.asarray(value).reshape(-1)[:9])] if kept else _shown(value)


def straying(make, stray=STRAY):
    """Return a program of a function that ``make`` gives, for state and a world."""

    def program(w):
        s = SimpleNamespace(strays=False, it=None, kept=None)
        f, x = w.graph(make(s, w)), w.values(4)
        for i in range(CALLS):
            s.strays = i in stray
            yield f(x), _on_the_host(s.it), _shown(s.kept), x

    return program


@pytest.mark.every_framework
@pytest.mark.parametrize("make", [*IN_ONE, *IN_TWO])
def test_a_call_that_strays_is_begun_again(agree, make):
    """And gives what an eager call gives; so do those that follow."""
    agree(straying(make))


@pytest.mark.every_framework
@pytest.mark.parametrize("make", [*IN_ONE, *IN_TWO])
@pytest.mark.parametrize("stray", [(1, 5), (2, 3)])
def test_a_call_that_strays_where_it_is_recorded(agree, make, stray):
    """Its parts are as it did them itself, whatever its warm-up has done."""
    agree(straying(make, stray))


@pytest.mark.parametrize("make", [*IN_ONE, *IN_TWO])
def test_calls_that_do_not_stray_are_replayed(agree, make):
    """None of these is a reason to skip a function."""
    world = agree(lambda w: islice(straying(make)(w), STRAY[0]))
    f = world.functions[-1]
    assert f.stats().replays >= 3, f.explain()
