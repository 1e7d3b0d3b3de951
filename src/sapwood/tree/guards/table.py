"""Guards as one table: a row for each slot that was read, and for what holds slots.

Rows are taken in turn. Each reads a value into a register and tests it: by identity,
which is nearly always the answer, here and in C alike. Of a value that is another
object, `Ambient.same` says whether it is as good.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from enum import IntEnum
from operator import is_
from typing import Any, Final, NamedTuple

from sapwood.tree.guards.views import EMPTY, value_text
from sapwood.tree.nests.contents import Items


class Get(IntEnum):
    """How a row comes by a value, from its ``key`` and the register ``of``."""

    KEPT = 0
    """It is in the register ``at``."""
    CALL = 1
    """It is ``key()``."""
    OPEN = 2
    """It is ``key(of)``."""
    WHOLE = 3
    """It is ``of``, if that is a plain list, tuple or dict; else ``key(of)``."""
    ATTRIBUTE = 4
    """It is the attribute ``key`` of ``of``."""
    ITEM = 5
    """It is ``of[key]``, or where ``each`` is named, that attribute of it."""
    TYPE = 6
    """It is the class of ``of``."""


class Test(IntEnum):
    """What must be so of the value that a row has read."""

    FOUND = 0
    """It is there, and not None."""
    CLASS = 1
    """Its class is ``value``."""
    LENGTH = 2
    """Its length is ``value``."""
    KEYS = 3
    """Its keys are those of the tuple ``value``, in their order."""
    LACKS = 4
    """None of the tuple ``value``, whose set is ``frozen``, is a key of it."""
    IS = 5
    """It is ``value``."""
    SAME = 6
    """It is what is in the register ``value``."""
    REFERS = 7
    """It is ``value()``, and not None."""
    LATEST = 8
    """It is what number ``value`` of the latest references refers to, and not None."""
    APART = 9
    """The registers in the tuple ``value`` hold as many objects."""


class Row(NamedTuple):
    """One row; ``of`` and ``at`` are numbers of registers.

    ``path`` is what a user would write for it, and of `Test.APART` a tuple of paths.
    ``frozen`` is what a slot's value is compared by, ``was`` what it held, as text.
    """

    get: Get
    of: int
    key: Any
    each: str
    at: int
    test: Test = Test.FOUND
    value: Any = None
    path: Any = ""
    frozen: Hashable = None
    was: str = ""


Registers = list[Any]
References = Sequence[Callable[[], object]]

GONE: Final = (AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What reading raises that is not there any more, or is being written."""

_PLAIN: Final = frozenset({dict, list, tuple})


def _item(row: Row, registers: Registers) -> Any:
    found = registers[row.of][row.key]
    return getattr(found, row.each) if row.each else found


def _whole(row: Row, registers: Registers) -> Any:
    thing = registers[row.of]
    return thing if type(thing) in _PLAIN else row.key(thing)


_GETS: Final[Mapping[Get, Callable[[Row, Registers], Any]]] = {
    Get.KEPT: lambda row, registers: registers[row.at],
    Get.CALL: lambda row, _: row.key(),
    Get.OPEN: lambda row, registers: row.key(registers[row.of]),
    Get.WHOLE: _whole,
    Get.ATTRIBUTE: lambda row, registers: getattr(registers[row.of], row.key),
    Get.ITEM: _item,
    Get.TYPE: lambda row, registers: type(registers[row.of]),
}


def read(row: Row, registers: Registers) -> Any:
    """Return the value that a row reads, `EMPTY` where it is gone; it is noted."""
    try:
        found = registers[row.at] = _GETS[row.get](row, registers)
    except GONE:
        found = registers[row.at] = EMPTY
    return found


def _refers(reference: Callable[[], object], value: Any) -> bool:
    # A reference to what is gone gives None, which may be just what is there now.
    return value is not None and reference() is value


_TESTS: Final[Mapping[Test, Callable[[Row, Any, Registers, References], bool]]] = {
    Test.FOUND: lambda _, value, *__: value is not None and value is not EMPTY,
    Test.CLASS: lambda row, value, *_: type(value) is row.value,
    Test.LENGTH: lambda row, value, *_: len(value) == row.value,
    Test.KEYS: lambda row, value, *_: (
        len(value) == len(row.value) and all(map(is_, value, row.value))
    ),
    Test.LACKS: lambda row, value, *_: value.keys().isdisjoint(row.frozen),
    Test.IS: lambda row, value, *_: value is row.value,
    Test.SAME: lambda row, value, registers, _: value is registers[row.value],
    Test.REFERS: lambda row, value, *_: _refers(row.value, value),
    Test.LATEST: lambda row, value, _, latest: _refers(latest[row.value], value),
    Test.APART: lambda row, _, registers, __: (
        len({id(registers[each]) for each in row.value}) == len(row.value)
    ),
}


def holds(row: Row, value: Any, registers: Registers, latest: References) -> bool:
    """Return whether the value that a row has read is the very one that it expects.

    Raises one of `GONE` where it is nothing that can be tested so.
    """
    return _TESTS[row.test](row, value, registers, latest)


def contents(row: Row, space: Any) -> Items | None:
    """Return what there was in a list or dict that holds more by now.

    Or the same in another order. None where it is not that.
    """
    was = row.value
    if row.test is Test.LENGTH and isinstance(space, list | deque):
        return ((), [*space][:was]) if len(space) > was else None
    if row.test in {Test.KEYS, Test.LACKS} and isinstance(space, dict):
        keys = was if row.test is Test.KEYS else [k for k in space if k not in was]
        if [*space] != [*keys] and all(key in space for key in keys):
            return [*keys], [space[key] for key in keys]
    return None


def difference(row: Row, value: Any, registers: Registers) -> str:
    """Say what was and is, of a row that does not hold any more."""
    path, was = row.path, row.value
    try:
        match row.test:
            case Test.FOUND if row.get is Get.CALL:
                return "an object that the function reached is gone"
            case Test.LENGTH:
                return f"len({path}) was {was}, is {len(value)}"
            case Test.KEYS:
                old, new = (", ".join(map(value_text, keys)) for keys in (was, value))
                return f"the keys of {path} were [{old}], are [{new}]"
            case Test.LACKS:
                name = min(value.keys() & {*was})
                return f"{path}{name} was not there, is {value_text(value[name])}"
            case Test.APART:
                return _became_one(row, registers)
    except GONE:
        pass
    if row.test <= Test.LACKS and row.test is not Test.CLASS:
        thing = type(registers[row.of]).__qualname__
        return f"a {thing} cannot be looked into as before"
    now = value_text(value)
    if row.get is Get.TYPE and row.test is Test.SAME:
        return f"a {row.was} is a {now} now"
    return f"{path} was {row.was}, is {'another ' if now == row.was else ''}{now}"


def _became_one(row: Row, registers: Registers) -> str:
    first: dict[int, str] = {}
    for register, path in zip(row.value, row.path, strict=True):
        if id(registers[register]) in first:
            known = first[id(registers[register])]
            return f"{known} and {path} were two objects, are one object"
        first[id(registers[register])] = path
    return ""
