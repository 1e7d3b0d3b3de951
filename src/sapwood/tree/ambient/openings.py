"""What to look at inside a value, given the names that the reached code uses.

Code of installed packages is not read: their objects are looked into only for the
names that their own classes use.
"""

from __future__ import annotations

import dataclasses
from collections import ChainMap, Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from enum import Enum
from functools import cached_property, partial, partialmethod
from types import (
    BuiltinMethodType,
    CodeType,
    FunctionType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

from sapwood.tree.ambient import views
from sapwood.tree.ambient.code import names_of
from sapwood.tree.ambient.owners import (
    owner_of_class,
    owner_of_code,
    owner_of_module,
)
from sapwood.tree.ambient.sources import STATE, is_random_source
from sapwood.tree.ambient.views import View
from sapwood.tree.containers import registered

__all__ = ["Opening", "Reach", "is_structural", "openings"]


class Opening(NamedTuple):
    """A view and the names wanted from it; None: all there are."""

    view: View
    wanted: frozenset[str] | None = None


@dataclasses.dataclass(slots=True)
class Reach:
    """What the code reached so far may name; it only grows.

    ``built`` are the classes that reached code can call. ``own`` is the code of the
    function itself, which is read wherever it is from.
    """

    names: set[str] = dataclasses.field(default_factory=set)
    dynamic: bool = False
    built: set[type] = dataclasses.field(default_factory=set)
    own: set[CodeType] = dataclasses.field(default_factory=set)

    def size(self) -> tuple[int, bool, int]:
        """Return a measure that differs after every growth."""
        return len(self.names), self.dynamic, len(self.built)

    def reads(self, function: FunctionType) -> bool:
        """Return whether the code of ``function`` is read, not only its identity."""
        code = function.__code__
        return code in self.own or owner_of_code(code) == "user"

    def attributes(self, more: frozenset[str] = frozenset()) -> frozenset[str] | None:
        """Return the names by which attributes may be read; None: by any."""
        return None if self.dynamic else more.union(self.names)


_Openings: TypeAlias = Iterator[Opening]


def openings(value: Any, reach: Reach) -> _Openings:
    """Return the ways to look into a value; none for a plain or opaque one."""
    cls = type(value)
    if cls in _ATOMS:
        return iter(())
    opened = _by_type.get(cls)
    if opened is not None:
        return opened(value, reach)
    if registered(cls) is not None:
        return iter((Opening(views.REGISTERED),))
    if is_random_source(value):
        return iter((Opening(STATE),))
    if isinstance(value, type):
        return _class(value, reach)
    return _instance(value, reach)


_ATOMS = {bool, int, float, complex, str, bytes, bytearray, type(None), type(...)} | {
    CodeType,
    range,
    slice,
}

_NEVER_NAMED = frozenset(
    {"__init__", "__new__", "__post_init__", "__repr__", "__del__", "__dir__"}
    | {"__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__sizeof__"}
    | {"__init_subclass__", "__class_getitem__", "__copy__", "__deepcopy__"}
)
_BUILDING = frozenset({"__init__", "__new__", "__post_init__"})


def _function(value: FunctionType, reach: Reach) -> _Openings:
    if not reach.reads(value):
        if hasattr(value, "__wrapped__"):
            yield Opening(views.WRAPPED)
        return
    names = names_of(value.__code__)
    reach.names |= names.attributes
    reach.dynamic |= names.dynamic
    yield Opening(views.FUNCTION)
    if value.__closure__:
        yield Opening(views.CELLS)
    if names.every_global:
        yield Opening(views.GLOBALS)
    elif names.globals:
        yield Opening(views.GLOBALS, names.globals)
    if names.modules:
        yield Opening(views.IMPORTS)
    if value.__dict__:
        wrapped = frozenset({"__wrapped__"})
        yield Opening(views.ATTRIBUTES, reach.attributes(wrapped))


def _method(_: MethodType, __: Reach) -> _Openings:
    yield Opening(views.SELF)
    yield Opening(views.INNER)


def _builtin_method(value: Any, _: Reach) -> _Openings:
    if value.__self__ is not None and not isinstance(value.__self__, ModuleType):
        yield Opening(views.SELF)


def _module(value: ModuleType, reach: Reach) -> _Openings:
    if is_random_source(value):
        yield Opening(STATE)
    elif owner_of_module(value.__name__, value) == "user":
        yield Opening(views.MODULE, reach.attributes())
    elif "random" in reach.names and is_random_source(vars(value).get("random")):
        yield Opening(views.MODULE, frozenset({"random"}))


def _class(value: type, reach: Reach) -> _Openings:
    if owner_of_class(value) != "user":
        return
    if value in reach.built:
        reach.built.update(value.__bases__)
    special = {
        name
        for name, member in vars(value).items()
        if name.startswith("__")
        and (name not in _NEVER_NAMED or (name in _BUILDING and value in reach.built))
        and isinstance(member, FunctionType | staticmethod | classmethod | property)
    }
    if reach.dynamic:
        special |= {name for name in vars(value) if not name.startswith("__")}
    yield Opening(views.VARIABLES, frozenset(special | reach.names))
    yield Opening(views.BASES)


def _instance(value: Any, reach: Reach) -> _Openings:
    cls = type(value)
    owner = owner_of_class(cls)
    if isinstance(value, Enum):
        return
    if owner in {"standard", "sapwood"}:
        ours = cls.__module__ == "functools" or owner == "sapwood"
        if ours and hasattr(value, "__wrapped__"):
            yield Opening(views.WRAPPED)
        return
    if owner == "user":
        yield Opening(views.TYPE)
    wanted = reach.attributes()
    if owner == "installed" or wanted is not None:
        # What a package computes names from is too much; what it names is not.
        wanted = _package_names(cls).union(reach.names)
    if isinstance(getattr(value, "__dict__", None), dict):
        yield Opening(views.ATTRIBUTES, wanted)
    if views.member_names(cls):
        yield Opening(views.FIELDS, wanted)
    for base, view in _ITEMS.items():
        if issubclass(cls, base):
            yield Opening(view)


_ITEMS: dict[type, View] = {
    tuple: views.TUPLE,
    list: views.LIST,
    deque: views.LIST,
    dict: views.DICT,
    set: views.SET,
    frozenset: views.SET,
}


_packaged: WeakKeyDictionary[type, frozenset[str]] = WeakKeyDictionary()


def _package_names(cls: type) -> frozenset[str]:
    """Return the attributes that the classes of packages among ``cls``'s bases name."""
    if cls not in _packaged:
        members = [
            member
            for base in cls.__mro__
            if owner_of_class(base) == "installed"
            for member in vars(base).values()
        ]
        _packaged[cls] = frozenset().union(
            *(
                names_of(function.__code__).attributes
                for member in members
                for function in (getattr(member, "__func__", member),)
                if isinstance(function, FunctionType)
            )
        )
    return _packaged[cls]


def _tuple(value: Any, _: Reach) -> _Openings:
    if any(type(item) not in _ATOMS for item in value):
        yield Opening(views.TUPLE if isinstance(value, tuple) else views.SET)


def _always(*views_: View) -> Callable[[Any, Reach], _Openings]:
    return lambda _, __: iter([Opening(view) for view in views_])


def _namespace(_: SimpleNamespace, reach: Reach) -> _Openings:
    yield Opening(views.ATTRIBUTES, reach.attributes())


_by_type: dict[type, Callable[[Any, Reach], _Openings]] = {
    FunctionType: _function,
    MethodType: _method,
    BuiltinMethodType: _builtin_method,
    ModuleType: _module,
    partial: _always(views.PARTIAL),
    partialmethod: _always(views.PARTIAL),
    property: _always(views.PROPERTY),
    staticmethod: _always(views.INNER),
    classmethod: _always(views.INNER),
    cached_property: _always(views.CACHED),
    SimpleNamespace: _namespace,
    tuple: _tuple,
    frozenset: _tuple,
    list: _always(views.LIST),
    deque: _always(views.LIST),
    set: _always(views.SET),
    dict: _always(views.DICT),
    OrderedDict: _always(views.DICT),
    defaultdict: _always(views.DICT),
    Counter: _always(views.DICT),
    ChainMap: lambda _, __: iter([Opening(views.ATTRIBUTES, frozenset({"maps"}))]),
}


def is_structural(cls: type) -> bool:
    """Return whether another instance with the same inside is as good as this one."""
    return (cls in _by_type and cls is not ModuleType) or dataclasses.is_dataclass(cls)
