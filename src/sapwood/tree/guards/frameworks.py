"""What is asked of a framework: about its arrays, and how to look into its objects.

What an integration says of objects, it says by class.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from operator import call
from types import FunctionType
from typing import Any, NamedTuple, Protocol, TypeAlias
from weakref import WeakKeyDictionary

from sapwood.tree.guards.scope import Accessor, Openings, Reach
from sapwood.tree.guards.views import ATTRIBUTES, EMPTY, View, Way


class Arrays(Protocol):
    """What the walk asks of a framework."""

    def surroundings(self) -> Iterable[tuple[str, object]]:
        """Return what every function reads of the framework, by its path."""

    def is_array(self, value: object) -> bool:
        """Return whether a value is a device array, which is not looked into."""

    def look(self, array: Any) -> Any:
        """Return an array's layout, and where it is: see `call.integration.Look`."""


def layout_of(arrays: Arrays, array: Any) -> Hashable:
    """Return an array's layout; one that was revoked has none, and may lie around."""
    look = arrays.look(array)
    found: Hashable = "stale" if look.storage.stale is not None else look.layout
    return found


Opened: TypeAlias = Callable[[Any, Reach], Openings]
"""Says how a value is looked into by the code that was reached."""

Table: TypeAlias = dict[type | tuple[str, str], Opened]
"""Says it by class, or by the module and name of one that need not be imported."""

_declared: Table = {}
_found: WeakKeyDictionary[type, Opened | None] = WeakKeyDictionary()


def declare_opening(cls: type | tuple[str, str], opened: Opened) -> None:
    """Say how to look into the instances of a class, and of those derived from it.

    By its module and name, if it is not imported before somebody uses it.
    """
    _declared[cls] = opened
    _found.clear()


def attributes(*names: str) -> Opened:
    """Return how to look at these attributes alone, whatever code names."""
    view = Accessor(ATTRIBUTES, frozenset(names))
    return lambda _, __: iter([view])


class Borne(NamedTuple):
    """An attribute of arrays that is a slot; ``read`` gives it, or `EMPTY`."""

    attribute: str
    read: Callable[[Any], Any]


_borne: dict[type, tuple[Callable[[Any, Reach], bool], tuple[Borne, ...]]] = {}


def declare_borne(
    cls: type, bears: Callable[[Any, Reach], bool], *borne: Borne
) -> None:
    """Say what is a slot of the arrays of a class, wherever they are found.

    ``bears`` says of which of them, by what the code that was reached may do.
    """
    _borne[cls] = bears, borne


def borne_by(array: Any, reach: Reach) -> tuple[Borne, ...]:
    """Return what is a slot of an array."""
    for base in type(array).__mro__:
        if base in _borne:
            bears, borne = _borne[base]
            return borne if bears(array, reach) else ()
    return ()


class _Attributes(Mapping[Any, Any]):
    """What is borne by each that a view of a thing holds."""

    def __init__(self, space: Any, read: Callable[[Any], Any]) -> None:
        self._space, self._read = space, read

    def __getitem__(self, key: Any) -> Any:
        return self._read(self._space[key])

    def __iter__(self) -> Iterator[Any]:
        space = self._space
        return iter(space if isinstance(space, Mapping) else range(len(space)))

    def __len__(self) -> int:
        return len(self._space)


@lru_cache
def view_of_borne(view: View, borne: Borne) -> View:
    """Return the view of what is borne by the arrays in another view."""

    def store(thing: Any, key: Any, value: Any) -> None:
        held = None if value is EMPTY else value
        setattr(view.open(thing)[key], borne.attribute, held)

    way = view.way
    # C reads one attribute of each item, and of cells that is what they hold.
    way = None if way is None or way.each else replace(way, each=borne.attribute)
    return View(
        f"{borne.attribute} in {view.name}",
        lambda thing: _Attributes(view.open(thing), borne.read),
        lambda path, thing, key: f"{view.label(path, thing, key)}.{borne.attribute}",
        store,
        way=way,
        bearers=view.open,
        attribute=borne.attribute,
        within=view,
    )


_called: dict[type, frozenset[str]] = {}


def declare_calls(base: type, names: frozenset[str]) -> None:
    """Say which members of classes derived from one the framework calls by itself.

    No code of the user's names them; what they read is read by whoever has the class.
    """
    _called[base] = names


def calls_of(cls: type) -> frozenset[str]:
    """Return the members of a class that a framework calls."""
    return frozenset().union(*(_called.get(base, ()) for base in cls.__mro__))


_fronts: set[str] = set()


def declare_front(mark: str) -> None:
    """Say by which attribute a function names another that it only stands before."""
    _fronts.add(mark)


def is_front(fn: FunctionType) -> bool:
    """Return whether a function only stands before another one."""
    return not _fronts.isdisjoint(vars(fn))


def behind(fn: Any) -> Any:
    """Return the function that a framework's function stands before, or itself."""
    while isinstance(fn, FunctionType):
        marks = _fronts.intersection(vars(fn))
        if not marks:
            break
        fn = vars(fn)[marks.pop()]
    return fn


def opening_of(cls: type) -> Opened | None:
    """Return how to look into instances of a class, where an integration has said."""
    if cls not in _found:
        told = (said_in(_declared, base) for base in cls.__mro__)
        _found[cls] = next(filter(None, told), None)
    return _found[cls]


def said_in(table: Table, cls: type) -> Opened | None:
    """Return what a table says of a class itself."""
    return table.get(cls) or table.get((cls.__module__, cls.__qualname__))


class Modes:
    """The values of all modes; for the same values it gives the same mapping.

    The ``way`` has a getter for each, by what one would write. A value that could not
    be got, with `RuntimeError`, is ``asked`` for in another way.
    """

    def __init__(
        self, framework: str, way: Way, asked: Callable[[Callable[[], Any]], Any] = call
    ) -> None:
        self._getters = way.getters or {}
        self._shown, self._asked = way.shown, asked
        self._mapping = lru_cache(maxsize=1024)(self._mapped)
        self.view = View(
            f"{framework} modes",
            Modes.now,
            lambda path, _, key: f"{path}.{key}",
            portable=False,
            way=way,
        )

    def now(self) -> dict[str, Any]:
        """Return the modes that this thread is in, by what one would write."""
        try:
            values = tuple(map(call, self._getters.values()))
        except RuntimeError:
            values = tuple(map(self._asked, self._getters.values()))
        return self._mapping(values)

    def _mapped(self, values: tuple[Any, ...]) -> dict[str, Any]:
        return dict(zip(self._getters, map(self._shown, values), strict=True))

    def open(self, _: Reach) -> Openings:
        """Yield the one view of them."""
        yield Accessor(self.view, frozenset(self._getters))


declare_opening(Modes, Modes.open)
