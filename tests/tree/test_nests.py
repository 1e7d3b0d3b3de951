"""Structures of nests come back in another process, classes and keys included."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.errors import StoreError
from sapwood.tree.nests.containers import flatten, register_container, unflatten
from sapwood.tree.nests.structures import (
    dump_structure,
    flat_structure,
    load_structure,
)


@dataclass
class Pair:
    left: Any
    right: Any


@dataclass(frozen=True, slots=True)
class Frozen:
    value: Any


class Outer:
    @dataclass
    class Inner:
        """The class."""

        value: Any


class Point(NamedTuple):
    x: Any
    y: Any


class Registered:
    def __init__(self, children, rest):
        self.children, self.rest = children, rest


class Odd(dict):
    """A dict of its own kind, which nobody has registered."""


register_container(
    Registered, lambda r: (r.children, r.rest), lambda rest, c: Registered(c, rest)
)

KEYS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.text(max_size=3), st.floats()
)


def _of(cls, count):
    return lambda inner: st.tuples(*[inner] * count).map(lambda parts: cls(*parts))


NESTS = st.recursive(
    st.integers(),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.lists(inner, max_size=3).map(lambda items: deque(items, 7)),
        st.lists(inner, max_size=3).map(deque),
        st.dictionaries(KEYS, inner, max_size=3),
        st.dictionaries(KEYS, inner, max_size=3).map(OrderedDict),
        st.dictionaries(KEYS, inner, max_size=3).map(lambda d: defaultdict(list, d)),
        st.dictionaries(KEYS, inner, max_size=3).map(lambda d: defaultdict(None, d)),
        _of(Pair, 2)(inner),
        _of(Frozen, 1)(inner),
        _of(Outer.Inner, 1)(inner),
        _of(Point, 2)(inner),
        st.builds(Registered, st.lists(inner, max_size=2), st.tuples(st.text())),
    ),
    max_leaves=8,
)


def _flat(nest):
    return flatten(nest, lambda _: False)


def _through(structure):
    return load_structure(json.loads(json.dumps(dump_structure(structure))))


@given(NESTS)
def test_structures_come_back(nest):
    """Equal, hashed alike, with so many leaves; and nests are made of them alike."""
    leaves, structure = _flat(nest)
    found, count = _through(structure)
    assert found == structure
    assert hash(found) == hash(structure)
    assert count == len(leaves)
    again = unflatten(found, leaves)
    assert type(again) is type(nest)
    assert _flat(again) == (leaves, structure)


def test_flat_structures_are_lists():
    """Whatever the nest was: its leaves in order."""
    assert unflatten(flat_structure(3), "abc") == list("abc")


def test_factories_and_lengths_come_back():
    """What a dict makes of a missing key, and how long a deque may get."""
    made = unflatten(_through(_flat(defaultdict(list, a=1))[1])[0], [1])
    assert made["missing"] == []
    assert unflatten(_through(_flat(deque([1], 3))[1])[0], [1]).maxlen == 3


def _local():
    @dataclass
    class Local:
        value: Any

    return Local(1)


@pytest.mark.parametrize(
    "nest",
    [
        _local(),
        defaultdict(lambda: 0, a=1),
        {object(): 1},
        Registered([1], frozenset()),
    ],
    ids=["local class", "factory", "key", "rest"],
)
def test_what_another_process_cannot_make_is_not_written(nest):
    """A class without a name, a factory or key that is any object: `ValueError`."""
    with pytest.raises(ValueError, match=r"not found|no factory|no plain value"):
        dump_structure(_flat(nest)[1])


@pytest.mark.parametrize(
    "name",
    [
        "nothing:Here",
        "builtins:nothing",
        "builtins:int",
        "builtins:print",
        "builtins",
        "",
        "subprocess:Popen",
        "os:system",
        f"{__name__}:Odd",
        f"{__name__}:Outer",
        "collections:Counter",
        None,
        7,
        ["builtins:list"],
    ],
    ids=str,
)
def test_only_known_containers_are_named(name):
    """No other class is looked up, and nothing is imported or called."""
    assert issubclass(Odd, dict)
    assert Counter
    with pytest.raises(StoreError):
        load_structure([name, None, []])


L, D = "builtins:list", "builtins:dict"
DEFAULT = "collections:defaultdict"
PAIR, POINT = f"{__name__}:Pair", f"{__name__}:Point"


@pytest.mark.parametrize(
    "found",
    [
        7,
        "x",
        [],
        [L, None],
        [L, None, None],
        [L, 3, []],
        ["builtins:tuple", 0, []],
        [D, ["list", "a"], []],
        [D, ["list", "a", "a"], [None, None]],
        [D, ["list", 1, True], [None, None]],
        [D, ["list", ["list"]], [None]],
        [D, ["tuple", "a"], [None]],
        [D, None, []],
        [DEFAULT, None, []],
        [DEFAULT, ["system", ["list"]], []],
        [DEFAULT, [["list"], ["list"]], []],
        [DEFAULT, ["", ["list"]], []],
        [PAIR, ["tuple", "left"], [None, None]],
        [PAIR, ["tuple", "left", "__class__"], [None, None]],
        [PAIR, ["tuple", "left", "a b"], [None, None]],
        [PAIR, ["tuple", 1, 2], [None, None]],
        [PAIR, None, [None, None]],
        [POINT, None, [None]],
        [POINT, 1, [None, None]],
        ["collections:deque", -1, []],
        ["collections:deque", 1, [None, None]],
        ["collections:deque", ["int", "ffffffffffffffffff"], []],
        ["collections:deque", True, [None]],
    ],
    ids=lambda found: json.dumps(found)[:60],
)
def test_what_was_not_written_so_is_refused(found):
    """Keys that are none or twice there, fields and lengths that cannot be."""
    with pytest.raises(StoreError):
        load_structure(found)


def test_nests_end():
    """As deep as values may be nested is read, and no deeper."""
    nest = 1
    for _ in range(200):
        nest = [nest]
    structure = _flat(nest)[1]
    assert _through(structure) == (structure, 1)
    deeper = dump_structure((list, None, (structure,)))
    for found in (deeper, [L, None, [deeper]]):
        with pytest.raises(StoreError, match="it is no nest"):
            load_structure(found)


def test_dataclasses_are_what_they_were():
    """A field that was never set is still not there, one that was added is."""
    pair = Pair(1, 2)
    del pair.left
    pair.more = 3
    leaves, structure = _flat(pair)
    again = unflatten(_through(structure)[0], leaves)
    assert vars(again) == {"right": 2, "more": 3}
    assert dataclasses.is_dataclass(again)
