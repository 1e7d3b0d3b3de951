"""Law 9: special methods that no code names, and such as a class is given later."""

from __future__ import annotations

import dataclasses
import sys
from types import ModuleType, SimpleNamespace

import pytest

settings = SimpleNamespace(scale=2.0)
table = {"2.0": 2.0, "5.0": 5.0}


class Shown:
    """Is shown by what somebody else says."""

    def __repr__(self):
        return f"{settings.scale}"


class Said(Shown):
    """Has a text that is not what shows it."""

    def __str__(self):
        return str(settings.scale)


class Formatted:
    """Has text of a format."""

    def __format__(self, _):
        return repr(settings.scale)


class Indexed:
    """A class that has items itself."""

    def __class_getitem__(cls, item):
        return settings.scale + item


class Watching:
    """Looks at every class that is made of it."""

    def __init_subclass__(cls):
        cls.a = settings.scale


def _heir():
    class Heir(Watching):
        pass

    return Heir.a


@dataclasses.dataclass
class Pair:
    """Is compared and shown by what it holds."""

    a: object


shown, said, formatted = Shown(), Said(), Formatted()

READERS = {
    "repr": lambda: table[repr(shown)],
    "str": lambda: table[str(shown)],
    "said": lambda: table[str(said)],
    "written out": lambda: table[f"{shown}"],
    "written out as it shows": lambda: table[f"{said!r}"],
    "of a format": lambda: table[f"{formatted:x}"],
    "by format": lambda: table["{}".format(shown)],  # noqa: UP032
    "by percent": lambda: table["%s" % shown],  # noqa: UP031
    "by a function": lambda: table[next(iter(map(str, [shown])))],
    "within": lambda: float(len(repr([shown, Pair(shown)]))) + table[repr(shown)],
    "of a class": lambda: Indexed[1],
    "of an heir": _heir,
}


@pytest.mark.parametrize("calls", [1, 3, 20])
@pytest.mark.parametrize("way", READERS)
def test_what_hooks_read(agree, way, calls):
    """They are called by other means than their names."""
    read = READERS[way]

    def program(world):
        settings.scale = 2.0
        f, x = world.graph(lambda x: x * read()), world.values(2)
        for scale in (2.0, 5.0, 2.0):
            settings.scale = scale
            for _ in range(calls):
                yield f(x)

    agree(program)


@pytest.mark.parametrize("calls", [1, 3, 20])
def test_a_module_that_makes_its_attributes(agree, monkeypatch, calls):
    """Its own function is asked for names that it has not; it may come later."""

    def program(world):
        module = ModuleType("settings_of_its_own")
        monkeypatch.setitem(sys.modules, module.__name__, module)
        module.scale = 3.0
        f, x = world.graph(lambda x: x * getattr(module, "late", 1.0)), world.values(2)
        for late in (None, 2.0, 5.0):
            if late is not None:
                module.__getattr__ = lambda _, late=late: late
            for _ in range(calls):
                yield f(x)

    agree(program)


def truth(it):
    return 2.0 if it else 3.0


def equality(it):
    return 2.0 if it == "x" else 3.0


def attribute(it):
    return getattr(it, "missing", 2.0)


def any_attribute(it):
    return it.a


def item(it):
    try:
        return it[0]
    except TypeError:
        return 2.0


ADDED = {
    "__bool__": (truth, lambda _: False),
    "__len__": (truth, lambda _: 0),
    "__eq__": (equality, lambda _, __: True),
    "__getattr__": (attribute, lambda _, __: 7.0),
    "__getattribute__": (
        any_attribute,
        lambda it, name: 7.0 if name == "a" else object.__getattribute__(it, name),
    ),
    "__getitem__": (item, lambda _, __: 7.0),
    "__str__": (lambda it: float(len(str(it))), lambda _: "x"),
    "__repr__": (lambda it: float(len(f"{it!r:.3}")), lambda _: "x"),
}


@pytest.mark.parametrize("calls", [1, 3, 20])
@pytest.mark.parametrize("name", ADDED)
@pytest.mark.parametrize("base", [False, True])
def test_special_methods_that_are_added(agree, name, base, calls):
    """To a class of an instance, or to one above it; and taken away again."""
    read, method = ADDED[name]

    def program(world):
        class Above:
            def __init__(self):
                self.a = 2.0

        class Plain(Above):
            pass

        it, x = Plain(), world.values(2)
        f = world.graph(lambda x: x * read(it))
        for _ in range(calls):
            yield f(x)
        setattr(Above if base else Plain, name, method)
        for _ in range(calls):
            yield f(x)
        delattr(Above if base else Plain, name)
        for _ in range(calls):
            yield f(x)

    agree(program)
