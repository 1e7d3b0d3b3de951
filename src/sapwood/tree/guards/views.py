"""How one looks into an object: each `View` is one way of naming things inside.

A view opens a thing into a mapping or a sequence. What it opens is read on every
call, so views do as little as they can and run no code of the user's.
"""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from itertools import accumulate
from operator import attrgetter
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from sapwood.tree.guards.code import names_of
from sapwood.tree.nests.containers import registered
from sapwood.tree.nests.kinds import by_class, slots_of

Space: TypeAlias = Mapping[Any, Any] | Sequence[Any]
"""What a view opens a thing into."""


Rest: TypeAlias = tuple[object, tuple[Any, ...] | None]
"""A dict or list that something rests on, and the keys of a dict that count."""


class _Empty:
    """Stands for a cell without contents and a name without a value."""

    def __repr__(self) -> str:
        return "nothing"


EMPTY = _Empty()


class Witness(NamedTuple):
    """While ``holds()`` is True, what ``keys`` give is what they gave when it was made.

    It may well be False without that any of them has changed.
    """

    holds: Callable[[], bool]
    keys: AbstractSet[Any]


@dataclass(frozen=True, slots=True)
class Way:
    """What a view opens, where that can be told without calling it.

    That is an ``attribute`` of the thing, or the ``item`` of that; no attribute: it is
    the thing itself, where this is a plain list, tuple or dict. Slots hold what is in
    there, or the attribute ``each`` of it. Or else it is these ``attributes``.

    What has to be called rests on what ``rests(thing)`` gives, each with the keys that
    count there, or None for all: while those dicts and lists stay, so do its slots.
    It is ``into(thing)`` where each of its slots is an attribute. And what is no
    thing's has ``getters`` by key, whose values are shown as ``shown(value)``; a
    ``witness``, made now, may say of many at once that they are as they are now. The
    ``implied`` ones are those that follow, as things are now, from the others.
    """

    attribute: str = ""
    item: str = ""
    each: str = ""
    attributes: tuple[str, ...] = ()
    rests: Callable[[Any], Iterable[Rest]] | None = None
    into: Callable[[Any], Any] | None = None
    getters: Mapping[Any, Callable[[], Any]] | None = None
    shown: Callable[[Any], Any] = lambda value: value
    witness: Callable[[], Witness | None] | None = None
    implied: Callable[[], AbstractSet[Any]] = frozenset

    def open(self, thing: Any) -> Any:
        """Open a thing by its attributes, where these are all there is to it."""
        if self.attributes:
            return [getattr(thing, name) for name in self.attributes]
        found = getattr(thing, self.attribute)
        return found[self.item] if self.item else found


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """One way of naming what is inside a thing.

    ``label(path, thing, key)`` is what a user would write; ``store(thing, key,
    value)`` binds a slot, where that can be done, and unbinds it for `EMPTY`.
    ``extent`` says what besides single slots may change: nothing, the length, the
    keys, or which names are there.
    ``way`` says the same as ``open``, where it can. ``bearers(thing)`` gives, by key,
    what each slot is the ``attribute`` of, where it is one: of arrays ``within``
    another view.
    ``guarded``: a change between calls is a miss; always, a change during one is seen.
    ``portable``: another process may well see the same.
    """

    name: str
    open: Callable[[Any], Space]
    label: Callable[[str, Any, Any], str]
    store: Callable[[Any, Any, Any], None] | None = None
    extent: Literal["fixed", "length", "keys", "names"] = "fixed"
    guarded: bool = True
    portable: bool = True
    way: Way | None = None
    bearers: Callable[[Any], Space] | None = None
    attribute: str = ""
    within: View | None = None


def value_text(value: object) -> str:
    """Return a value as short text, without running any code of the user's."""
    if value is EMPTY:
        return "nothing"
    if type(value) in _PLAIN:
        try:
            text = repr(value)
        except ValueError:  # Python does not write out numbers of thousands of digits
            return f"<a long {type(value).__name__}>"
        return text if len(text) <= 60 else f"{text[:57]}..."
    if issubclass(type(value), type):
        return str(type.__getattribute__(value, "__qualname__"))
    name = type(value).__qualname__
    if issubclass(type(value), Enum):
        return f"{name}.{object.__getattribute__(value, '_name_')}"
    return f"<{name}>"


_OWN_ITEMS = {list, deque, dict, Counter, OrderedDict, defaultdict}
_PLAIN = {bool, int, float, complex, str, bytes, type(None), type(...), range}


def dotted(path: str, _: Any, key: Any) -> str:
    """Label an attribute."""
    return f"{path}.{key}"


def _subscript(path: str, _: Any, key: Any) -> str:
    return f"{path}[{value_text(key)}]"


def same_path(path: str, _: Any, __: Any) -> str:
    """Label what a user would not write anything more for."""
    return path


def by_names(*names: str) -> Callable[[str, Any, Any], str]:
    """Return how to label attributes that are numbered."""
    return lambda path, _, key: f"{path}.{names[key]}"


def bind(space: Any, key: Any, value: Any) -> None:
    """Bind an item of a dict or list; `EMPTY` unbinds it."""
    if value is EMPTY:
        del space[key]
    elif isinstance(space, list | deque) and key == len(space):
        space.append(value)
    else:
        space[key] = value


def _store_cell(thing: Any, key: Any, value: Any) -> None:
    _store_variable(thing.__closure__[key], "cell_contents", value)


def _store_field(thing: Any, key: Any, value: Any) -> None:
    # Past what a frozen class or one's own __setattr__ would say: this is the slot.
    if value is EMPTY:
        object.__delattr__(thing, key)
    else:
        object.__setattr__(thing, key, value)


def _store_variable(thing: Any, key: Any, value: Any) -> None:
    if value is EMPTY:
        delattr(thing, key)
    else:
        setattr(thing, key, value)


def _is_plain_key(key: Any) -> bool:
    if type(key) is tuple or type(key) is frozenset:
        return all(map(_is_plain_key, key))
    return type(key) in _PLAIN


def keys_inside(keys: Iterable[Any]) -> Sequence[Any]:
    """Return those of these keys that there is something inside of."""
    return [key for key in keys if type(key) is not str and not _is_plain_key(key)]


def _key_label(path: str, _: Any, key: Any) -> str:
    return f"[*{path}][{key}]"


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return EMPTY


def _dict_of(
    name: str,
    label: Callable[[str, Any, Any], str] = dotted,
    store: Callable[[Any, Any, Any], None] | None = None,
    attribute: str = "__dict__",
) -> View:
    """Return the view of the dict in an attribute, where its slots are bound, too."""
    way = Way(attribute)

    def bound(thing: Any, key: Any, value: Any) -> None:
        bind(way.open(thing), key, value)

    return View(name, way.open, label, store or bound, "names", way=way)


def _parts_of(
    name: str, *attributes: str, label: Callable[[str, Any, Any], str] | None = None
) -> View:
    """Return the view of some attributes, of which there are as many as ever."""
    way = Way(attributes=attributes)
    return View(name, way.open, label or by_names(*attributes), way=way)


@by_class
def member_names(cls: type) -> tuple[str, ...]:
    """Return the names that a class and its bases keep in ``__slots__``."""
    return slots_of(cls.__mro__)


def _fields(thing: Any) -> Mapping[str, Any]:
    found = ((name, getattr(thing, name, EMPTY)) for name in member_names(type(thing)))
    return {name: value for name, value in found if value is not EMPTY}


def _items(thing: Any) -> Sequence[Any]:
    if type(thing) in _OWN_ITEMS:
        return thing  # type: ignore[no-any-return]
    # A subclass's own methods are not asked.
    return (
        list.copy(thing) if issubclass(type(thing), list) else [*deque.__iter__(thing)]
    )


def _children(thing: Any) -> Sequence[Any]:
    container = registered(type(thing))
    if container is None:
        return ()
    children, rest = container.flatten(thing)
    return (*children, rest)


def _imports(function: Any) -> Mapping[str, Any]:
    """Return what code imports, and the packages of that, as far as it is loaded."""
    both, named = "{}.{}".format, names_of(function.__code__).modules
    names = sorted({_absolute(name, function.__globals__) for name in named})
    every = (each for name in names for each in accumulate(name.split("."), both))
    return {name: sys.modules[name] for name in every if name in sys.modules}


def _absolute(name: str, space: Mapping[str, Any]) -> str:
    """Return the whole name of a module that is imported where these globals are."""
    bare = name.lstrip(".")
    above = len(name) - len(bare) - 1
    if above < 0:
        return name
    package = space.get("__package__")
    if package is None:
        package = getattr(space.get("__spec__"), "parent", None)
    if package is None:
        package = str(space.get("__name__", ""))
        package = package if "__path__" in space else package.rpartition(".")[0]
    base = package.rsplit(".", above)[0]
    return f"{base}.{bare}" if bare else base


def alone(
    get: Callable[[Any], Any], *lacking: type[Exception]
) -> Callable[[Any], Sequence[Any]]:
    """Return what opens a thing into one value; `EMPTY` where ``lacking`` is raised."""

    def opened(thing: Any) -> Sequence[Any]:
        try:
            return (get(thing),)
        except lacking:
            return (EMPTY,)

    return opened


# Since Python 3.14 annotations are code, which may raise anything.
_annotations = alone(attrgetter("__annotations__"), Exception)

FUNCTION_PARTS: Final = "__code__", "__defaults__", "__kwdefaults__"
FUNCTION = _parts_of("function", *FUNCTION_PARTS)
TOLD: Final[Mapping[str, View]] = {
    name: _parts_of(name, name)
    for name in ("__name__", "__qualname__", "__module__", "__doc__")
}
"""What functions and classes tell of themselves, and keep in no dict."""
ANNOTATIONS = View("annotations", _annotations, by_names("__annotations__"))
GLOBALS = _dict_of("globals", lambda _, __, key: str(key), attribute="__globals__")
CELLS = View(
    "cells",
    lambda function: [_contents(cell) for cell in function.__closure__ or ()],
    lambda _, function, key: str(function.__code__.co_freevars[key]),
    _store_cell,
    way=Way("__closure__", each="cell_contents"),
)
IMPORTS = View("imports", _imports, lambda _, __, key: str(key))
ATTRIBUTES = _dict_of("attributes")
FIELDS = View("fields", _fields, dotted, _store_field, "names")
VARIABLES = _dict_of("variables", store=_store_variable)
MODULE = _dict_of("module")
BASES = View(
    "bases",
    Way("__bases__").open,
    lambda _, thing, key: str(thing.__bases__[key].__name__),
    None,
    "length",
    way=Way("__bases__"),
)
TYPE = View(
    "type", lambda thing: (type(thing),), lambda _, thing, __: type(thing).__name__
)
SELF = _parts_of("self", "__self__")
BOUND = _parts_of("bound", "__self__", "__name__")
CACHED = _parts_of("cached", "func", label=same_path)
INNER = _parts_of("inner", "__func__", label=same_path)
WRAPPED = _parts_of("wrapped", "__wrapped__", label=same_path)
PARTIAL = _parts_of("partial", "func", "args", "keywords")
PROPERTY = _parts_of("property", "fget", "fset", "fdel", label=same_path)
TUPLE = View(
    "tuple",
    lambda thing: tuple.__getitem__(thing, slice(None)),
    _subscript,
    None,
    "length",
    way=Way(),
)
LIST = View("list", _items, _subscript, bind, "length", way=Way())
SET = View("set", tuple, _subscript, None, "length")
DICT = View(
    "dict",
    lambda thing: thing if type(thing) in _OWN_ITEMS else dict.copy(thing),
    _subscript,
    bind,
    "keys",
    way=Way(),
)
KEYS = View("inside keys", lambda thing: keys_inside(DICT.open(thing)), _key_label)
LOADED = View("loaded", lambda thing: thing, _subscript, None, "names", way=Way())
REGISTERED = View("registered", _children, _subscript, None, "length")
PLAIN: Final = frozenset(
    {ATTRIBUTES, CELLS, DICT, FIELDS, GLOBALS, LIST, TUPLE, VARIABLES}
)
"""Those of which to bind a slot is all that there is to do, whatever is there."""


@lru_cache
def attribute_alone(name: str) -> View:
    """Return the view of one attribute of a thing; what is unbound there is None."""

    def store(thing: Any, key: Any, value: Any) -> None:
        setattr(thing, key, None if value is EMPTY else value)

    return View(name, lambda thing: {name: getattr(thing, name)}, dotted, store)
