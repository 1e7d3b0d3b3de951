"""Laws of taking nests of containers apart and putting them together."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque, namedtuple
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.errors import MisuseError
from sapwood.tree.nests.containers import (
    constant_key,
    flatten,
    paths,
    register_container,
    unflatten,
)

Point = namedtuple("Point", ["x", "y"])  # noqa: PYI024 - as users write them


@dataclass
class Pair:
    left: Any
    right: Any


@dataclass(frozen=True, slots=True)
class Frozen:
    left: Any
    right: Any = field(default=None, kw_only=True)


class Tree:
    def __init__(self, kind, *children):
        self.kind, self.children = kind, children

    def __eq__(self, other):
        return type(other) is Tree and vars(self) == vars(other)

    __hash__ = None


register_container(
    Tree, lambda t: (t.children, t.kind), lambda kind, children: Tree(kind, *children)
)

LEAVES = st.none() | st.integers() | st.text(max_size=3)
KEYS = st.text(max_size=3) | st.integers() | st.booleans()


def _containers(inner):
    items = st.lists(inner, max_size=3)
    mappings = st.dictionaries(KEYS, inner, max_size=3)
    return st.one_of(
        items,
        items.map(tuple),
        items.map(deque),
        mappings,
        mappings.map(OrderedDict),
        mappings.map(lambda value: defaultdict(list, value)),
        st.builds(Point, inner, inner),
        st.builds(Pair, inner, inner),
        st.builds(Frozen, inner, right=inner),
        st.builds(Tree, st.text(max_size=1), inner, inner),
    )


NESTS = st.recursive(LEAVES, _containers, max_leaves=12)


def nothing(_):
    return False


@given(NESTS)
def test_together_is_the_inverse_of_apart(nest):
    """Nothing of a nest is lost, and its structure is that of what is put together."""
    leaves, structure = flatten(nest, nothing)
    again = unflatten(structure, leaves)
    assert again == nest
    assert type(again) is type(nest)
    assert flatten(again, nothing) == (leaves, structure)
    assert hash(flatten(again, nothing)[1]) == hash(structure)


@given(NESTS)
def test_containers_are_fresh(nest):
    """What is put together shares no mutable container with what was taken apart."""

    def mutables(value):
        if isinstance(value, list | deque):
            yield id(value)
            inner = value
        elif isinstance(value, dict):
            yield id(value)
            inner = value.values()
        elif isinstance(value, Pair | Frozen):
            yield id(value)
            inner = (value.left, value.right)
        elif isinstance(value, Tree):
            yield id(value)
            inner = value.children
        else:
            inner = value if isinstance(value, tuple) else ()
        for child in inner:
            yield from mutables(child)

    leaves, structure = flatten(nest, nothing)
    first, second = unflatten(structure, leaves), unflatten(structure, leaves)
    assert not set(mutables(nest)) & set(mutables(first))
    assert not set(mutables(second)) & set(mutables(first))


@given(NESTS)
def test_paths_lead_to_the_leaves(nest):
    """What names a leaf is the Python that reads it."""
    # Registered containers have no subscript of their own.
    Tree.__getitem__ = lambda tree, index: tree.children[index]
    leaves, structure = flatten(nest, nothing)
    names = paths(structure)
    assert len(set(names)) == len(names) == len(leaves)
    for name, leaf in zip(names, leaves, strict=True):
        assert eval(name, {"args": nest}) is leaf
    del Tree.__getitem__


@given(NESTS, NESTS)
def test_structures_tell_nests_apart(a, b):
    """Equal structure and equal leaves, by type and bits, mean the same nest."""

    def key(nest):
        leaves, structure = flatten(nest, nothing)
        return structure, tuple(map(constant_key, leaves))

    assert key(a) == key(a)
    if key(a) == key(b):
        assert a == b
    if a != b:
        assert key(a) != key(b)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ([1], (1,)),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({1: 0}, {True: 0}),
        ({1: 0}, {1.0: 0}),
        ({}, OrderedDict()),
        (defaultdict(list), defaultdict(int)),
        (deque([1], 2), deque([1], 3)),
        (Point(1, 2), (1, 2)),
        (Pair(1, 2), Frozen(1, right=2)),
        (Tree("a", 1), Tree("b", 1)),
    ],
)
def test_structures_differ(a, b):
    """Class, order and type of keys, and what is registered are part of a structure."""
    assert flatten(a, nothing)[1] != flatten(b, nothing)[1]


def test_arrays_are_leaves_even_where_they_are_containers():
    """What the adapter claims is not looked into."""
    array = Point(1, 2)
    leaves, structure = flatten(([array], 3), lambda value: value is array)
    assert leaves == [array, 3]
    assert unflatten(structure, leaves)[0][0] is array


def test_paths_are_what_users_write():
    """Indices, keys, fields and attributes each look as in Python."""
    nest = [{"w": [0, 1, Pair(2, 3)], 5: (4,)}, Point(5, 6), {object(): 1}]
    assert paths(flatten(nest, nothing)[1], "state") == (
        "state[0]['w'][0]",
        "state[0]['w'][1]",
        "state[0]['w'][2].left",
        "state[0]['w'][2].right",
        "state[0][5][0]",
        "state[1].x",
        "state[1].y",
        "state[2][object]",
    )


def test_dataclasses_keep_what_is_no_field():
    """Attributes set later travel along, and nothing of the class's own runs."""

    @dataclass
    class Careful:
        a: int
        b: int = field(init=False)

        def __post_init__(self):
            self.b = 2
            self.more = 3
            if self.a < 0:
                raise ValueError("a is negative")

    made = Careful(1)
    leaves, structure = flatten(made, nothing)
    again = unflatten(structure, [-1, *leaves[1:]])
    assert vars(again) == {"a": -1, "b": 2, "more": 3}
    assert paths(structure, "x") == ("x.a", "x.b", "x.more")


@pytest.mark.parametrize("wide", [1, 3])
def test_cycles_are_refused(wide):
    """A container that contains itself is an error, and soon."""
    ring: list[Any] = []
    ring.extend([ring] * wide)
    table: dict[str, Any] = {}
    table["self"] = [table]
    for value in (ring, table, Pair(1, ring)):
        with pytest.raises(MisuseError, match="contains itself"):
            flatten(value, nothing)


def test_a_class_can_be_registered_later():
    """From then on it is taken apart as was said."""

    class Bag(dict):
        pass

    assert flatten(Bag(a=1), nothing)[0] == [1]
    register_container(
        Bag,
        lambda b: ([*b.values(), 7], tuple(b)),
        lambda k, c: Bag(zip(k, c[:-1], strict=True)),
    )
    leaves, structure = flatten(Bag(a=1), nothing)
    assert (leaves, type(unflatten(structure, [2, 7]))) == ([1, 7], Bag)


@pytest.mark.parametrize(("cls", "text"), [(list, "apart already"), (3, "not a class")])
def test_registering_what_is_no_class_of_ones_own_is_refused(cls, text):
    """Built-in containers stay as they are."""
    with pytest.raises(MisuseError, match=text):
        register_container(cls, lambda _: ((), None), lambda _, __: None)


def test_registering_something_unhashable_is_refused():
    """What is no child has to be comparable."""

    class Bad:
        pass

    register_container(Bad, lambda _: ((), []), lambda _, __: Bad())
    with pytest.raises(MisuseError, match="Bad is not hashable"):
        flatten(Bad(), nothing)


@pytest.mark.parametrize("leaves", [[1], [1, 2, 3]])
def test_the_number_of_leaves_must_fit(leaves):
    """Neither is a leaf lost nor a place left open."""
    _, structure = flatten((0, [0]), nothing)
    with pytest.raises(MisuseError, match="leaves than the structure"):
        unflatten(structure, leaves)


@pytest.mark.parametrize("wrong", ["flatten", "unflatten"])
def test_both_directions_of_a_container_are_functions(wrong):
    """What is none is refused by its name, and nothing is registered."""

    class Mine:
        pass

    given = {"flatten": lambda _: ((), None), "unflatten": lambda *_: Mine()}
    with pytest.raises(MisuseError, match=rf"\b{wrong}=None of .* is no function"):
        register_container(Mine, **(given | {wrong: None}))
    one = Mine()
    assert flatten(one, lambda _: False) == ([one], None)
