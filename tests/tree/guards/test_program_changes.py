"""However guarded objects change, a program in C, one in Python and the tests agree."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from sapwood import _fast
from sapwood.tree.guards import survey
from sapwood.tree.guards.steps import assembled, compiled
from tests.support.steps_in_python import in_python


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

    def look(self, array):
        return SimpleNamespace(
            layout=array.shape, storage=SimpleNamespace(stale=None), address=id(array)
        )


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


def _tested(ambient):
    """Return what the tests find of the used arrays."""
    found = ambient._tested()
    return found and found.used


def same(found, others):
    """Return whether both are nothing, or the same arrays."""
    if found is None or others is None:
        return found is others
    return list(map(id, found)) == list(map(id, others))


@given(st.lists(st.tuples(WHERE, NAMES, KINDS), min_size=1, max_size=6))
def test_a_glance_tells_what_the_tests_tell(changes):
    """After each of some random changes: the same arrays, or nothing at all."""
    parts = Parts()
    fn = reader(parts)
    ambient = survey(fn, {}, Arrays()).guards(lambda array: array is parts.array)
    program = assembled(ambient.roots, ambient.checks)
    looks = [in_python(program)]
    if _fast.native() is not None:
        looks.append(compiled(program))
    assert same(looks[0](), _tested(ambient))
    for where, name, kind in changes:
        write(parts, where, name, kind)
        first, *others = [look() for look in looks]
        assert all(same(first, other) for other in others)
        event("told" if first is not None else "not told")
        if first is not None:
            assert same(first, _tested(ambient))


@pytest.mark.parametrize("kind", ["none", "number", "other"])
@pytest.mark.parametrize("name", ["array", "idle", "inner", "items", "n", "name"])
def test_no_random_change_is_overlooked(name, kind):
    """What the tests see, a program sees, in every attribute that is read."""
    parts = Parts()
    fn = reader(parts)
    ambient = survey(fn, {}, Arrays()).guards(lambda _: True)
    program = assembled(ambient.roots, ambient.checks)
    looks = [in_python(program), *([compiled(program)] if _fast.native() else [])]
    before = vars(parts)[name]
    write(parts, "parts", name, kind)
    same_one = vars(parts)[name] is before
    assert [look() is not None for look in looks] == [same_one] * len(looks)
