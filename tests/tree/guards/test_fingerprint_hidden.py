"""What objects keep in C is a part of a fingerprint, or makes it unproved."""

from __future__ import annotations

import collections
import contextvars
import dataclasses
import decimal
import enum
import functools
import operator
import random
import re
import typing
import zoneinfo

import numpy as np
import pytest

from sapwood.tree.guards import survey
from sapwood.tree.guards.fingerprint import is_hiding


class Failure(Exception):
    pass


class Text(str):
    __slots__ = ()


@dataclasses.dataclass
class Kept(Exception):
    a: float = 2.0


class Held:
    def __init__(self, value):
        self.value = value


class Mode(enum.IntEnum):
    FAST = 1

    def doubled(self):
        return self * 2


class Pair(typing.NamedTuple):
    a: object
    b: object


T = typing.TypeVar("T")


class Typed(typing.Generic[T]):
    pass


def _pair(names, *items):
    return collections.namedtuple("Made", names)(*items)  # noqa: PYI024


def _kept(*args):
    kept = Kept()
    kept.args = args
    return kept


PATTERN = re.compile("a")
PAIRS = {
    "pattern": (PATTERN, re.compile("b")),
    "flags of a pattern": (PATTERN, re.compile("a", re.IGNORECASE)),
    "itemgetter": (operator.itemgetter(0), operator.itemgetter(1)),
    "key of a comparison": tuple(
        map(functools.cmp_to_key, (lambda a, b: a - b, lambda a, b: b - a))
    ),
    "union": (int | str, int | float),
    "alias": (list[int], list[float]),
    "exception": (ValueError(2.0), ValueError(3.0)),
    "exception of the user's": (Failure(2.0), Failure(3.0)),
    "exception that is a dataclass": (_kept(2.0), _kept(3.0)),
    "text of the user's": (Text("a"), Text("b")),
    "zone": (zoneinfo.ZoneInfo("UTC"), zoneinfo.ZoneInfo("Etc/GMT-9")),
    "random source": (random.Random(1), random.Random(2)),
    "fields of a named tuple": (_pair("a b", 1, 2), _pair("b a", 1, 2)),
    "named tuple of lists": (_pair("a b", [1], [2]), _pair("b a", [1], [2])),
}


def _reads(value):
    space = {"V": value}
    exec("def fn(x):\n    return x, V, V.a, V.args, V.value", space)
    return space["fn"]


def _default(value):
    def fn(x, v=value):
        return x, v.a

    return fn


def _class_attribute(value):
    class Own:
        kept = value

    def fn(x):
        return x, Own.kept.a

    Own.__qualname__ = "Own"
    return fn


WAYS = {
    "global": _reads,
    "default": _default,
    "class attribute": _class_attribute,
    "list": lambda value: _reads([value]),
    "attribute": lambda value: _reads(Held(value)),
    "partial": lambda value: _reads(functools.partial(print, value)),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("pair", PAIRS)
def test_what_is_kept_in_c_is_told(arrays, pair, way):
    """Wherever it is found: both say another thing, or that it has no proof."""
    one, other = (survey(WAYS[way](v), {}, arrays).fingerprint for v in PAIRS[pair])
    assert one.parts != other.parts or (one.unproved and other.unproved)


PROVED = {
    "pattern": PATTERN,
    "itemgetter": operator.itemgetter(0),
    "union": int | str,
    "alias": dict[str, int],
    "named tuple": Pair(1, [2]),
    "member of an Enum": Mode.FAST,
    "generic": Typed(),
    "object": Held(1.0),
    "dtype": np.dtype("f4"),
}


@pytest.mark.parametrize("name", PROVED)
def test_what_can_be_told_of_c_is_proved(arrays, name):
    """No more is recorded anew than has to be."""
    assert survey(_reads([PROVED[name]]), {}, arrays).fingerprint.unproved == ()


def test_an_object_with_a_name_is_not_proved_by_it(arrays, monkeypatch):
    """Another one may have that name in the user's module tomorrow."""
    failure = Failure(2.0)
    failure.__name__ = failure.__qualname__ = "FAILURE"
    monkeypatch.setitem(globals(), "FAILURE", failure)
    assert survey(_reads(failure), {}, arrays).fingerprint.unproved


def test_reading_the_state_of_a_random_module_is_not_proved(arrays):
    """A draw is refused, but a look at the state is none."""

    def looks(x):
        return x, random.getstate()

    def draws(x):
        return x, random.random()

    assert survey(looks, {}, arrays).fingerprint.unproved
    assert not survey(draws, {}, arrays).fingerprint.unproved


def test_classes_that_hide_are_those_of_c():
    """Not those that are opened whole, nor what is written in Python."""
    for cls in (re.Pattern, ValueError, Failure, random.Random, float, Text, Kept):
        assert is_hiding(cls), cls
    for cls in (object, dict, list, Held, Pair, Typed, functools.partial, enum.Enum):
        assert not is_hiding(cls), cls


def _strided(*steps):
    return np.ones(8)[slice(*steps)]


def _read_only():
    array = np.ones(2)
    array.flags.writeable = False
    return array


HOSTS = {
    "strides": (_strided(None, None, 2), _strided(4)),
    "order": (np.ones((2, 2)), np.asfortranarray(np.ones((2, 2)))),
    "writeable": (np.ones(2), _read_only()),
    "base": (np.arange(4.0)[1:3], np.arange(1.0, 4.0)[:2]),
    "names of fields": (np.zeros(2, [("a", "f8")]), np.zeros(2, [("b", "f8")])),
    "types of fields": (np.zeros(2, [("a", "f4")]), np.zeros(2, [("a", "i4")])),
    "metadata": (np.zeros(2, np.dtype("f8", metadata={"a": 1})), np.zeros(2)),
    "metadata of a field": (
        np.zeros(2, [("a", np.dtype("f8", metadata={"a": 1}))]),
        np.zeros(2, [("a", np.dtype("f8", metadata={"a": 2}))]),
    ),
    "class": (np.float64(2.0), np.array(2.0)),
}


@pytest.mark.parametrize("name", HOSTS)
def test_how_a_host_array_lies_is_a_part(arrays, name):
    """And not only which elements it has."""
    one, other = (survey(_reads(v), {}, arrays).fingerprint for v in HOSTS[name])
    assert one.parts != other.parts
    assert not one.unproved
    assert not other.unproved


def test_host_arrays_that_lie_alike_are_one(arrays):
    """A copy that is made in the same way is as good."""
    made = (np.array([1.0, 2.0])[1:] for _ in range(2))
    one, other = (survey(_reads(v), {}, arrays).fingerprint for v in made)
    assert one == other


ENUMS = {
    "order": ("A B", "B A"),
    "number": ("A B", "A B C"),
    "values": ({"A": 1, "B": 2}, {"A": 1, "B": 3}),
    "aliases": ({"A": 1, "B": 2}, {"A": 1, "B": 2, "C": 1}),
}


def _enum(members, kind=enum.Enum):
    return kind("Kind", members, module=__name__)


@pytest.mark.parametrize("kind", [enum.Enum, enum.IntEnum, enum.IntFlag])
@pytest.mark.parametrize("name", ENUMS)
def test_all_members_of_an_enum_are_parts(arrays, monkeypatch, name, kind):
    """It is iterated, counted, and asked for members by name and value."""
    found = []
    for members in ENUMS[name]:
        made = _enum(members, kind)
        monkeypatch.setitem(globals(), "Kind", made)
        surveys = (survey(_reads(v), {}, arrays) for v in (made, next(iter(made))))
        found += [each.fingerprint.parts for each in surveys]
    assert found[0] != found[2]
    assert found[1] != found[3]


def test_what_an_enum_does_with_other_values_is_a_part(arrays):
    """Its metaclass calls that by a name that no code of the user's has."""

    def made(value):
        class Kind(enum.Enum):
            A = 1

            @classmethod
            def _missing_(cls, _):
                return value

        return survey(_reads(Kind), {}, arrays).fingerprint.parts

    assert made(1) != made(2)


def test_a_member_that_is_added_is_a_miss(arrays):
    """In one process, too."""
    kind = _enum("A B")
    fn = _reads(kind)
    before = survey(fn, {}, arrays).key
    kind._member_map_["C"] = kind.A
    assert survey(fn, {}, arrays).key != before


def test_the_context_of_decimal_is_a_part_where_it_is_not_as_usual(arrays):
    """Numbers are reckoned with it though nobody names it."""
    fn = _reads(decimal.Decimal(1))
    usual = survey(fn, {}, arrays).fingerprint
    with decimal.localcontext(prec=3):
        other = survey(fn, {}, arrays).fingerprint
    assert dict(usual.parts).items() < dict(other.parts).items()
    assert "the context of decimal" in dict(other.parts)


class Hashed:
    def __hash__(self):
        return hash("a")


def test_numbers_of_a_process_are_not_proved(arrays):
    """Where code asks for them; not where a dict does."""

    def hashes(x):
        return x * hash("a")

    def identifies(x):
        return x * id(WAYS)

    def calls(x):
        return x * Hashed().__hash__()

    def looks_up(x):
        return x * {Hashed(): 1}[Hashed()]

    for fn in (hashes, identifies, calls):
        assert survey(fn, {}, arrays).fingerprint.unproved, fn
    assert not survey(looks_up, {}, arrays).fingerprint.unproved


def test_the_name_of_a_context_variable_is_a_part(arrays):
    """It is kept in C, and may be asked for."""
    both = map(_reads, map(contextvars.ContextVar, "ab"))
    one, other = (survey(fn, {}, arrays).fingerprint.parts for fn in both)
    assert one != other
