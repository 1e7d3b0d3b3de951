"""However guarded objects change, C and Python agree."""

from __future__ import annotations

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from sapwood.tree.guards import survey


class Array:
    """An array that is only a shape."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape


class Arrays:
    """The adapter of these."""

    def surroundings(self):
        return ()

    def is_array(self, value):
        return type(value) is Array

    def layout(self, array):
        return array.shape

    def address(self, array):
        return id(array)


class Inner:
    """Something in an attribute."""

    def __init__(self) -> None:
        self.n, self.name = 2, "inner"


class Parts:
    """What the function reads."""

    rate = 0.5

    def __init__(self) -> None:
        self.n, self.name, self.inner = 1, "a", Inner()
        self.array, self.idle = Array(3), Array(4)
        self.items = [1, (2, "x"), {"k": 3.5, "name": self.array}]


def reader(parts):
    """Return a function that reads all of it, and a name that is not there."""

    def fn(x):
        inner, (one, pair, rest) = parts.inner, parts.items
        read = parts.n * parts.rate, parts.name, inner.n, inner.name, one, pair[1]
        return x, read, parts.array, parts.idle, rest["k"], getattr(parts, "new", x)

    return fn


WHERE = st.sampled_from(["parts", "inner", "list", "dict", "class"])
NAMES = st.sampled_from(["array", "idle", "inner", "items", "k", "n", "name", "new"])
VALUES = {
    "class": lambda _: Inner,
    "equal": lambda old: type(old)(old) if type(old) in {dict, float, list} else old,
    "inner": lambda _: Inner(),
    "like": lambda old: Array(*old.shape) if type(old) is Array else old,
    "none": lambda _: None,
    "number": lambda _: 1,
    "other": lambda _: Array(5),
    "same": lambda old: old,
    "true": lambda _: True,
}
KINDS = st.sampled_from(["gone", *VALUES])


def write(parts, where, name, kind):
    """Write something somewhere, as a user's code may."""
    inside = vars(parts)
    items = inside.get("items")
    if where == "class":
        parts.__class__ = Parts if kind == "same" else type("Parts", (Parts,), {})
    elif where == "list" and type(items) is list and items:
        number = len(name) % len(items)
        items[number] = VALUES.get(kind, VALUES["none"])(items[number])
    else:
        owner = inside
        if where == "inner" and type(inside.get("inner")) is Inner:
            owner = vars(inside["inner"])
        elif where == "dict" and type(items) is list and type(items[-1]) is dict:
            owner = items[-1]
        old = owner.pop(name, None) if kind in {"gone", "equal"} else owner.get(name)
        if kind != "gone":
            owner[name] = VALUES[kind](old)


def both(parts, used):
    """Return guards of a reader of it, and the same ones that C does not read."""
    fn = reader(parts)
    one, other = (survey(fn, {}, Arrays()).guards(used) for _ in range(2))
    other.native = None
    return fn, one, other


def same(found, others):
    """Return whether both are nothing, or the same arrays."""
    if found is None or others is None:
        return found is others
    return list(map(id, found)) == list(map(id, others))


@given(st.lists(st.tuples(WHERE, NAMES, KINDS), min_size=1, max_size=6))
def test_c_tells_what_python_tells(changes):
    """After each of some random changes: the same arrays, or nothing at all."""
    parts = Parts()
    _fn, one, other = both(parts, lambda array: array is parts.array)
    assert same(one.match(), other.match())
    for where, name, kind in changes:
        write(parts, where, name, kind)
        found = one.match()
        assert same(found, other.match())
        assert (one.miss() is None) == (found is not None)
        assert one.miss() == other.miss()
        event("told" if found is not None else "not told")


@pytest.mark.parametrize("kind", ["none", "number", "other"])
@pytest.mark.parametrize("name", ["array", "idle", "inner", "items", "n", "name"])
def test_no_random_change_is_overlooked(name, kind):
    """In every attribute that is read."""
    parts = Parts()
    _fn, *guards = both(parts, lambda _: True)
    before = vars(parts)[name]
    write(parts, "parts", name, kind)
    same_one = vars(parts)[name] is before
    assert [each.match() is not None for each in guards] == [same_one] * 2
