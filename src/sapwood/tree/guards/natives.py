"""How to look into objects of the standard library.

Those written in Python are opened by the names that reached code, or the code of
their own class, uses; those of C by one view each. Machinery is left alone: what
locks, loggers and executors do inside is no value that a function reads.
"""

from __future__ import annotations

import builtins
import io
import operator
import sys
from collections import OrderedDict
from collections.abc import Callable
from contextvars import ContextVar
from threading import local
from types import (
    BuiltinMethodType,
    FunctionType,
    MappingProxyType,
    MethodWrapperType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any, Final
from weakref import (
    CallableProxyType,
    ProxyType,
    ReferenceType,
    WeakKeyDictionary,
    WeakSet,
    WeakValueDictionary,
)

from sapwood.tree.guards import standard, views
from sapwood.tree.guards.code import functions_of, names_of
from sapwood.tree.guards.comparing import is_comparing
from sapwood.tree.guards.owners import Owner, owner_of_class, owner_of_module
from sapwood.tree.guards.scope import ATOMS, Accessor, Openings, Reach
from sapwood.tree.guards.sources import is_random_source, load_sources
from sapwood.tree.guards.views import View

__all__ = [
    "LATE",
    "NATIVES",
    "class_names",
    "is_logger",
    "is_machinery",
    "logger",
    "module",
    "note_calls",
    "with_keys",
]

_MACHINERY: Final = frozenset(
    {"_frozen_importlib", "_frozen_importlib_external", "_thread", "abc", "asyncio"}
    | {"concurrent", "importlib", "inspect", "logging", "multiprocessing", "socket"}
    | {"subprocess", "tempfile", "threading", "traceback", "typing", "unittest"}
)
"""Standard modules whose objects keep books of their own that no program reads."""

_BY_TEXT: Final = (getattr, setattr, hasattr, delattr, vars, dir, eval, exec)
_STREAMS: Final = frozenset({"stdin", "stdout", "stderr"})
_LOGGING: Final = frozenset(
    {"critical", "debug", "error", "exception", "info", "log", "warn", "warning"}
)
_ASKING: Final = frozenset({"isEnabledFor", "getEffectiveLevel", "level", "disabled"})


_COPYING: Final = frozenset(
    {"__copy__", "__deepcopy__", "__getnewargs__", "__getnewargs_ex__", "__getstate__"}
    | {"__new__", "__reduce__", "__reduce_ex__", "__replace__", "__setstate__"}
)
_CALLING: Final = {
    "_pickle": _COPYING,
    "copy": _COPYING,
    "dataclasses": frozenset({"__replace__"}),
    "pickle": _COPYING,
}


def note_calls(function: Any, reach: Reach) -> None:
    """Note the names by which a standard function calls what classes define."""
    module, name = function.__module__, function.__name__
    if module in _CALLING and (module != "dataclasses" or name == "replace"):
        reach.note(_CALLING[module])


def is_machinery(cls: type) -> bool:
    """Return whether a standard class only makes things run."""
    return str(cls.__module__).partition(".")[0] in _MACHINERY


_named: WeakKeyDictionary[type, frozenset[str]] = WeakKeyDictionary()


def class_names(cls: type) -> frozenset[str]:
    """Return the attributes named by code of a class's bases that is not the user's."""
    if cls not in _named:
        _named[cls] = frozenset().union(
            *(
                names_of(function.__code__).attributes
                for base in cls.__mro__
                if _is_of_a_package(base)
                for member in vars(base).values()
                for function in functions_of(member)
            )
        )
    return _named[cls]


def _is_of_a_package(cls: type) -> bool:
    owner = owner_of_class(cls)
    return owner == "installed" or (owner == "standard" and not is_machinery(cls))


def module(value: ModuleType, reach: Reach, owner: Owner) -> Openings:
    """Look into a module that is not the user's, for the states that code names."""
    load_sources(value, reach.names)
    space = vars(value)
    for each in space.values() if value.__name__ in _CALLING else ():
        if isinstance(each, FunctionType | BuiltinMethodType) and (
            reach.dynamic or each.__name__ in reach.names
        ):
            note_calls(each, reach)
    if value is builtins:
        wanted = {
            name
            for name in reach.builtins & space.keys()
            if not any(space[name] is each for each in _BY_TEXT)
        }
    else:
        standard_ = owner == "standard" and value.__name__ not in _MACHINERY
        wanted = {
            name
            for name in reach.names & space.keys()
            if _is_state(space[name], name, any_data=standard_)
        }
    if wanted:
        yield Accessor(views.MODULE, frozenset(wanted))


def _is_state(value: object, name: str, *, any_data: bool) -> bool:
    cls = type(value)
    if cls in ATOMS:
        return True
    if cls in {FunctionType, BuiltinMethodType}:
        return standard.said_by(value) is not None
    if is_random_source(value):
        return True
    code = issubclass(cls, type | ModuleType) or callable(value)
    return any_data and not code and name not in _STREAMS


def _built_in(value: Any, reach: Reach) -> Openings:
    note_calls(value, reach)
    said = standard.said_by(value)
    # Names that are asked for among built-in ones were seen in code.
    reach.note(compares=is_comparing(value))
    if said is not None:
        yield Accessor(said)
    elif any(value is each for each in _BY_TEXT):
        # Under another name, nobody sees what it is asked for.
        reach.note(dynamic=True)
    elif value.__self__ is not None and not isinstance(value.__self__, ModuleType):
        yield Accessor(views.BOUND)


def is_logger(cls: type) -> bool:
    """Return whether instances of a class write logs."""
    names = ((base.__module__, base.__qualname__) for base in cls.__mro__)
    return ("logging", "Logger") in names


def logger(value: Any, reach: Reach) -> Openings:
    """Look at a logger's level where code asks for it, and at the user's handlers."""
    if reach.dynamic or not reach.names.isdisjoint(_ASKING):
        yield Accessor(standard.LEVEL)
    if not reach.dynamic and reach.names.isdisjoint(_LOGGING):
        return
    yield Accessor(standard.HANDLERS)
    if standard.HANDLERS.open(value):
        reach.note(("emit", "handle"))


def _getter(value: Any, reach: Reach) -> Openings:
    """Note the names that an `attrgetter` or `methodcaller` asks for."""
    make, given = value.__reduce__()
    names = given if make is type(value) else make.args
    if type(value) is operator.methodcaller:
        names = names[:1]
    reach.note([part for name in names for part in name.split(".")])
    return iter(())


def _dict(value: dict[Any, Any], _: Reach) -> Openings:
    if value is sys.modules:
        users = (
            name
            for name, each in list(value.items())
            if type(each) is ModuleType and owner_of_module(name, each) == "user"
        )
        yield Accessor(views.LOADED, frozenset(users))
    elif value is not vars(builtins):
        yield from with_keys(value)


def with_keys(value: Any, _: Reach | None = None) -> Openings:
    """Look into a dict, and into those of its keys that are no plain values."""
    yield Accessor(views.DICT)
    if views.KEYS.open(value):
        yield Accessor(views.KEYS)


def _weak(value: Any, _: Reach) -> Openings:
    yield Accessor(standard.WEAK)
    if standard.WEAK_KEYS.open(value):
        yield Accessor(standard.WEAK_KEYS)


def _by_name(_: Any, reach: Reach) -> Openings:
    yield Accessor(views.ATTRIBUTES, reach.attributes())


def _always(*views_: View) -> Callable[[Any, Reach], Openings]:
    return lambda _, __: iter([Accessor(view) for view in views_])


_ordered: OrderedDict[Any, Any] = OrderedDict()
_plain: dict[Any, Any] = {}
_parts: tuple[object, ...] = (
    *(_plain.keys(), _plain.values(), _plain.items()),
    *(_ordered.keys(), _ordered.values(), _ordered.items()),
)

NATIVES: Final[dict[type, Callable[[Any, Reach], Openings]]] = {
    BuiltinMethodType: _built_in,
    CallableProxyType: _always(standard.PROXIED),
    ContextVar: _always(standard.CONTEXT),
    MappingProxyType: _always(standard.WHOLE),
    MethodWrapperType: _always(views.BOUND),
    ProxyType: _always(standard.PROXIED),
    ReferenceType: _always(standard.REFERENT),
    SimpleNamespace: _by_name,
    WeakKeyDictionary: _weak,
    WeakSet: _always(standard.MEMBERS),
    WeakValueDictionary: _weak,
    dict: _dict,
    io.BytesIO: _always(standard.TEXT),
    io.StringIO: _always(standard.TEXT),
    local: _by_name,
    operator.attrgetter: _getter,
    operator.methodcaller: _getter,
    standard.ENVIRONMENT: _always(standard.ENVIRON),
    **dict.fromkeys(map(type, _parts), _always(standard.WHOLE)),
}
"""What is special about objects of exactly these classes."""

LATE: Final[dict[tuple[str, str], Callable[[Any, Reach], Openings]]] = {
    ("_queue", "SimpleQueue"): _always(standard.SIZE),
    ("argparse", "Namespace"): _by_name,
    ("decimal", "Context"): _always(standard.DECIMAL),
}
"""The same by module and name, of modules that this one would be slower to import."""
