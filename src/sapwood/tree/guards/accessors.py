"""What to look at inside a value, given the names that the reached code uses.

Code of installed packages is not read: their objects are looked into only for the
names that their own classes use. So are those of the standard library that are written
in Python; those of C are opened by one view each. Machinery is left alone: what locks,
loggers and executors do inside is no value that a function reads.
"""

from __future__ import annotations

import builtins
import dataclasses
import io
import operator
import sys
import types
import weakref
from collections import ChainMap, Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable
from contextlib import ContextDecorator
from contextvars import ContextVar
from enum import Enum
from functools import cached_property, partial, partialmethod
from threading import Event, local
from typing import Any, Final

from sapwood.tree.guards import standard, views
from sapwood.tree.guards.adding import EQUATING
from sapwood.tree.guards.code import (
    FORMATTING,
    fields_of,
    functions_of,
    is_comparing,
    names_of,
)
from sapwood.tree.guards.frameworks import (
    Opened,
    Table,
    attributes,
    calls_of,
    is_front,
    opening_of,
    said_in,
)
from sapwood.tree.guards.moving import (
    PROGRESS,
    STATE,
    is_iterator,
    is_random_source,
    load_sources,
)
from sapwood.tree.guards.owners import (
    Owner,
    owner_of_class,
    owner_of_code,
    owner_of_module,
)
from sapwood.tree.guards.scope import ATOMS, UNNAMED, Accessor, Openings, Reach
from sapwood.tree.guards.views import View
from sapwood.tree.nests.containers import Identity, constant_key, registered
from sapwood.tree.nests.kinds import by_class


def accessors(value: Any, reach: Reach) -> Openings:
    """Return the ways to look into a value; none for a plain or opaque one."""
    cls = type(value)
    if cls in ATOMS:
        return iter(())
    opened = said_in(_BY_TYPE, cls) or opening_of(cls)
    if opened is not None:
        return opened(value, reach)
    if registered(cls) is not None:
        return iter((Accessor(views.REGISTERED),))
    if is_random_source(value):
        return iter((Accessor(STATE),))
    if standard.holds_objects(value):
        return iter((Accessor(standard.OBJECTS),))
    if issubclass(cls, type):
        return _class(value, reach)
    if is_iterator(value):
        return iter((Accessor(PROGRESS),))
    return instance(value, reach)


def dunders(names: str) -> frozenset[str]:
    """Return special names by what they have between the underscores."""
    return frozenset(f"__{name}__" for name in names.split())


_BUILDING = dunders("class_getitem del init init_subclass new post_init")
"""What runs of a class whose objects a function makes, and, of these, ends."""
_COPIED = dunders("copy deepcopy getstate reduce reduce_ex setstate")
NEVER_NAMED = _BUILDING | _COPIED | dunders("dir repr sizeof")
_NUMBERS = "add and divmod floordiv lshift matmul mod mul or pow rshift sub truediv xor"
OPERATORS = frozenset(
    f"__{prefix}{name}__" for prefix in ("", "r", "i") for name in _NUMBERS.split()
) | dunders(
    "abs array array_ufunc bool bytes call ceil complex contains delattr delete "
    "delitem enter eq exit float floor format ge get getattr getattribute getitem gt "
    "hash index instancecheck int invert iter le len length_hint lt match_args missing "
    "ne neg next pos reversed round set setattr setitem str trunc"
)
"""What is found in a class though no code names it, and so may not be added either."""
_OF_ENUMS = frozenset({"_member_map_", "_missing_", "_boundary_"})
"""What their metaclass asks an Enum for: it is iterated, counted and called."""
_LEADING_TO_CLASSES = frozenset({"__class__", "__replace__"})
_TOLD_BY_CLASSES = ("__name__", "__qualname__")


def _function(value: types.FunctionType, reach: Reach) -> Openings:
    if not reach.reads(value):
        _note_calls(value, reach)
        if is_front(value):
            reach.note(used=(UNNAMED,))
        yield from _foreign(value)
        return
    names = names_of(value.__code__)
    reach.note(
        names.attributes,
        names.globals - value.__globals__.keys(),
        dynamic=names.dynamic,
        advances=names.advances,
        compares=names.compares,
        added=names.added,
        used=names.used,
    )
    yield Accessor(views.FUNCTION)
    if value.__closure__:
        yield Accessor(views.CELLS)
    if names.every_global:
        yield Accessor(views.GLOBALS)
    elif names.globals:
        yield Accessor(views.GLOBALS, names.globals)
    if names.modules:
        yield Accessor(views.IMPORTS)
    yield Accessor(views.ATTRIBUTES, reach.attributes(frozenset({"__wrapped__"})))
    yield from _told(views.TOLD, reach)
    if "__annotations__" in reach.names:
        yield Accessor(views.ANNOTATIONS)


def _told(names: Iterable[str], reach: Reach) -> Openings:
    for name in names:
        if reach.dynamic or name in reach.names:
            yield Accessor(views.TOLD[name])


_WITHIN: Final = ContextDecorator()(lambda: None).__code__
"""The code of functions that a context manager decorates."""


def _foreign(value: types.FunctionType) -> Openings:
    """Look into a package's function: for what it wraps, chooses from, or tells."""
    said = standard.said_by(value)
    if said is not None:
        yield Accessor(said)
    if "__wrapped__" in value.__dict__:
        yield Accessor(views.WRAPPED)
    if "registry" in value.__dict__:
        yield Accessor(views.ATTRIBUTES, frozenset({"registry"}))
    if value.__code__ is _WITHIN:  # what it enters is the user's, too
        yield Accessor(views.CELLS)


def _module(value: types.ModuleType, reach: Reach) -> Openings:
    if is_random_source(value):
        yield Accessor(STATE)
        return
    owner = owner_of_module(value.__name__, value)
    if owner == "user":
        yield Accessor(views.MODULE, reach.attributes(frozenset({"__getattr__"})))
    elif owner != "sapwood":
        yield from _others_module(value, reach, owner)


def _class(value: type, reach: Reach) -> Openings:
    if owner_of_class(value) != "user":
        return
    if value in reach.built:
        reach.note(built=value.__bases__)
    elif _may_be_built(value, reach):
        reach.note(built=(value, *value.__bases__))
    special = {
        name
        for name, member in vars(value).items()
        if name.startswith("__")
        and (name not in NEVER_NAMED or (name in _BUILDING and value in reach.built))
        and isinstance(
            member, types.FunctionType | staticmethod | classmethod | property
        )
    }
    if reach.dynamic:
        # Books that the class keeps for itself are no members of an Enum.
        hidden = "_" if issubclass(value, Enum) else "__"
        special |= {name for name in vars(value) if not name.startswith(hidden)}
        special |= {"__module__", "__doc__"}
    if issubclass(value, Enum):
        special |= _OF_ENUMS
    special |= calls_of(value)
    names = OPERATORS.union(special, reach.names)
    if _has_written_eq(value) and EQUATING not in reach.used:
        names -= {"__eq__"}
    yield Accessor(views.VARIABLES, names)
    yield Accessor(views.BASES)
    if owner_of_class(type(value)) == "user":
        yield Accessor(views.TYPE)
    else:
        yield from _told(_TOLD_BY_CLASSES, reach)


def _has_written_eq(cls: type) -> bool:
    """Return whether a class has the ``__eq__`` that `dataclasses` write, and no hash.

    It names every field, though only a comparison runs it. Dicts and sets compare what
    has a hash, and no code shows that.
    """
    members = vars(cls)
    written = getattr(members.get("__eq__"), "__code__", None)
    return (
        "__dataclass_fields__" in members
        and members.get("__hash__", ...) is None
        and getattr(written, "co_filename", "") == "<string>"
    )


def _may_be_built(cls: type, reach: Reach) -> bool:
    """Return whether reached code may call a class that it finds by an instance."""
    if not reach.names.isdisjoint(_LEADING_TO_CLASSES):
        return True
    owners = {base: owner_of_class(base) for base in cls.__mro__}
    return any(
        isinstance(member, classmethod) and (reach.dynamic or name in reach.names)
        for base, owner in owners.items()
        if owner == "user"
        for name, member in vars(base).items()
    ) or any(
        owner == "standard" and "__class__" in _class_names(base)
        for base, owner in owners.items()
    )


_MEMBER = frozenset({"_value_", "_name_", "__objclass__", "_sort_order_"})


def _is_plain_member(value: Any) -> bool:
    """Return whether all there is to a member of an Enum is which one it is."""
    inside = vars(value)
    held = inside.get("_value_")
    parts = held if type(held) is tuple else (held,)
    if inside.keys() - _MEMBER or any(type(part) not in ATOMS for part in parts):
        return False
    bases = [base for base in type(value).__mro__ if owner_of_class(base) == "user"]
    return not any(_is_users(each) for base in bases for each in vars(base).values())


def _is_users(member: object) -> bool:
    if isinstance(member, staticmethod | classmethod):
        # Enum itself leaves some in the classes that it makes.
        member = member.__func__
    if isinstance(member, types.FunctionType):
        return owner_of_code(member.__code__) == "user"
    return isinstance(member, property)


def instance(value: Any, reach: Reach) -> Openings:
    """Return the ways to look into an object, if no integration says another."""
    cls, owner = type(value), owner_of_class(type(value))
    ours = owner == "sapwood" or cls.__module__ == "functools"
    if ours and hasattr(value, "__wrapped__"):
        yield Accessor(views.WRAPPED)
        if owner == "sapwood":
            # What the user has set on a graphed function, as on any function.
            set_by_user = (each for each in reach.names if not each.startswith("_"))
            yield Accessor(views.ATTRIBUTES, frozenset(set_by_user))
        return
    if issubclass(cls, Enum) and _is_plain_member(value):
        return
    names = ((base.__module__, base.__qualname__) for base in cls.__mro__)
    if ("logging", "Logger") in names:
        yield from _logger(value, reach)
    if owner == "sapwood" or (owner != "user" and _is_closed(value)):
        return
    if owner == "user":
        yield Accessor(views.TYPE)
    opened = list(_contents(value, owner, reach))
    yield from opened
    if (opened or owner == "user") and standard.bytes_of(value) is not None:
        yield Accessor(standard.BUFFER)


def _is_closed(value: object) -> bool:
    """Return whether an object that is not of the user's has nothing to be read."""
    if isinstance(value, Enum) or _is_machinery(type(value)):
        return True
    return not isinstance(constant_key(value), Identity)


def _attributes(cls: type, owner: Owner, reach: Reach) -> frozenset[str] | None:
    names = _class_names(cls)
    if owner == "installed":
        # What a package computes names from is too much; what it names is not.
        return names.union(reach.names)
    return reach.attributes(names | {"_value_"} if issubclass(cls, Enum) else names)


def _contents(value: Any, owner: Owner, reach: Reach) -> Openings:
    wanted = _attributes(type(value), owner, reach)
    if standard.is_veiled(type(value)):
        yield Accessor(standard.OWN, wanted)
    elif isinstance(getattr(value, "__dict__", None), dict):
        yield Accessor(views.ATTRIBUTES, wanted)
    if views.member_names(type(value)):
        yield Accessor(views.FIELDS, wanted)
    for base, opened in _ITEMS.items():
        if issubclass(type(value), base):
            yield from opened(value, reach)


def _partial(_: Any, reach: Reach) -> Openings:
    yield Accessor(views.PARTIAL)
    yield Accessor(views.ATTRIBUTES, reach.attributes())


def _with_default(value: Any, reach: Reach) -> Openings:
    yield Accessor(standard.FACTORY)
    yield from _with_keys(value, reach)


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


_COPYING: Final = _COPIED | dunders("getnewargs getnewargs_ex new replace")
_CALLING: Final = {
    "_pickle": _COPYING,
    "copy": _COPYING,
    "dataclasses": frozenset({"__replace__"}),
    "pickle": _COPYING,
}


def _note_calls(function: Any, reach: Reach) -> None:
    """Note the names by which a standard function calls what classes define."""
    module, name = function.__module__, function.__name__
    if module in _CALLING and (module != "dataclasses" or name == "replace"):
        reach.note(_CALLING[module], used=(UNNAMED,))


def _is_machinery(cls: type) -> bool:
    """Return whether a standard class only makes things run."""
    return str(cls.__module__).partition(".")[0] in _MACHINERY


@by_class
def _class_names(cls: type) -> frozenset[str]:
    """Return the attributes named by code of a class's bases that is not the user's."""
    functions = (
        function
        for base in cls.__mro__
        if _is_of_a_package(base)
        for member in vars(base).values()
        for function in functions_of(member)
    )
    return frozenset().union(*(names_of(f.__code__).attributes for f in functions))


def _is_of_a_package(cls: type) -> bool:
    owner = owner_of_class(cls)
    return owner == "installed" or (owner == "standard" and not _is_machinery(cls))


_NAMED: Final = frozenset({views.ATTRIBUTES, views.FIELDS, views.GLOBALS, views.MODULE})
"""Views whose slots code finds by their names alone."""


def is_only_named(thing: Any, view: View, key: Any) -> bool:
    """Return whether code that comes to a slot does so by its name.

    Code of packages is not read, and may use what it names in a class of its own.
    """
    if view not in _NAMED:
        return view is views.CELLS
    if view is views.GLOBALS:
        return owner_of_code(thing.__code__) == "user"
    return view is views.MODULE or _has_own_attribute(type(thing), key)


def named(thing: Any, view: View, key: Any) -> str:
    """Return the name by which code reads a slot, if it is read by name."""
    if view is views.CELLS:
        return str(thing.__code__.co_freevars[key])
    return key if type(key) is str else ""


def _has_own_attribute(cls: type, name: str) -> bool:
    """Return whether an attribute of a class's instances is the user's alone."""
    if owner_of_class(cls) != "user":
        known = cls is types.FunctionType or said_in(_BY_TYPE, cls) is _namespace
        return known or owner_of_class(cls) == "sapwood"
    found = cls.__getattribute__, cls.__setattr__
    return name not in _class_names(cls) and not any(map(_is_users, found))


def _others_module(value: types.ModuleType, reach: Reach, owner: Owner) -> Openings:
    """Look into a module that is not the user's, for the states that code names."""
    load_sources(value, reach.names)
    space = vars(value)
    for each in space.values() if value.__name__ in _CALLING else ():
        if isinstance(each, types.FunctionType | types.BuiltinMethodType) and (
            reach.dynamic or each.__name__ in reach.names
        ):
            _note_calls(each, reach)
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
        if value.__name__ == "logging" and not reach.names.isdisjoint(_LOGGING):
            wanted.add("root")  # its functions of these names ask that one
    if wanted:
        yield Accessor(views.MODULE, frozenset(wanted))


def _is_state(value: object, name: str, *, any_data: bool) -> bool:
    cls = type(value)
    if cls in ATOMS:
        return True
    if cls in {types.FunctionType, types.BuiltinMethodType}:
        return standard.said_by(value) is not None
    if is_random_source(value):
        return True
    code = issubclass(cls, type | types.ModuleType) or callable(value)
    return any_data and not code and name not in _STREAMS


def _built_in(value: Any, reach: Reach) -> Openings:
    _note_calls(value, reach)
    said = standard.said_by(value)
    # Names that are asked for among built-in ones were seen in code.
    reach.note(compares=is_comparing(value))
    if value.__name__ in FORMATTING and type(value.__self__) is str:
        reach.note(fields_of(value.__self__))
    if said is not None:
        yield Accessor(said)
    elif any(value is each for each in _BY_TEXT):
        # Under another name, nobody sees what it is asked for.
        reach.note(dynamic=True)
    elif not isinstance(value.__self__, types.ModuleType | None):
        yield Accessor(views.BOUND)


def _logger(value: Any, reach: Reach) -> Openings:
    """Look at a logger's level and at the user's handlers, where code may ask it."""
    logs = reach.dynamic or not reach.names.isdisjoint(_LOGGING)
    if logs or not reach.names.isdisjoint(_ASKING):
        yield Accessor(standard.LEVEL)
    if not logs:
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


def _dict(value: dict[Any, Any], reach: Reach) -> Openings:
    if value is sys.modules:
        users = (
            name
            for name, each in list(value.items())
            if type(each) is types.ModuleType and owner_of_module(name, each) == "user"
        )
        yield Accessor(views.LOADED, frozenset(users))
    elif value is not vars(builtins):
        yield from _with_keys(value, reach)


def _with_keys(value: Any, _: Reach) -> Openings:
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


def _namespace(_: Any, reach: Reach) -> Openings:
    # A comparison and a repr read all attributes, and name none of them.
    if EQUATING in reach.used or "__repr__" in reach.names:
        reach.note(used=(UNNAMED,))
    yield Accessor(views.ATTRIBUTES, reach.attributes())


def _tuple(value: Any, _: Reach) -> Openings:
    if any(type(item) not in ATOMS for item in value):
        yield Accessor(views.TUPLE if isinstance(value, tuple) else views.SET)


def _always(*views_: View) -> Opened:
    return lambda _, __: iter([Accessor(view) for view in views_])


_ITEMS: Final[dict[type, Opened]] = {
    tuple: _always(views.TUPLE),
    list: _always(views.LIST),
    deque: _always(views.LIST, standard.MAXLEN),
    dict: _with_keys,
    defaultdict: _always(standard.FACTORY),
    set: _always(views.SET),
    frozenset: _always(views.SET),
    partial: _always(views.PARTIAL),
    weakref.ReferenceType: _always(standard.REFERENT),
    BaseException: _always(standard.RAISED),
}
"""How to look into what derives from these, besides its attributes."""

_ordered: OrderedDict[Any, Any] = OrderedDict()
_plain: dict[Any, Any] = {}
_parts: tuple[object, ...] = (
    *(_plain.keys(), _plain.values(), _plain.items()),
    *(_ordered.keys(), _ordered.values(), _ordered.items()),
)

_BY_TYPE: Final[Table] = {
    types.FunctionType: _function,
    types.MethodType: _always(views.SELF, views.INNER),
    types.ModuleType: _module,
    **dict.fromkeys((partial, partialmethod), _partial),
    property: _always(views.PROPERTY),
    **dict.fromkeys((staticmethod, classmethod), _always(views.INNER)),
    cached_property: _always(views.CACHED),
    **dict.fromkeys((tuple, frozenset), _tuple),
    list: _always(views.LIST),
    deque: _always(views.LIST, standard.MAXLEN),
    set: _always(views.SET),
    types.BuiltinMethodType: _built_in,
    weakref.CallableProxyType: _always(standard.PROXIED),
    ContextVar: _always(standard.CONTEXT),
    types.MappingProxyType: _always(standard.WHOLE),
    types.MethodWrapperType: _always(views.BOUND),
    weakref.ProxyType: _always(standard.PROXIED),
    weakref.ReferenceType: _always(standard.REFERENT),
    types.SimpleNamespace: _namespace,
    weakref.WeakKeyDictionary: _weak,
    weakref.WeakSet: _always(standard.MEMBERS),
    weakref.WeakValueDictionary: _weak,
    dict: _dict,
    **dict.fromkeys((io.BytesIO, io.StringIO), _always(standard.TEXT)),
    local: _by_name,
    Event: _always(standard.EVENT),
    **dict.fromkeys((operator.attrgetter, operator.methodcaller), _getter),
    standard.ENVIRONMENT: _always(standard.ENVIRON),
    **dict.fromkeys(map(type, _parts), _always(standard.WHOLE)),
    **dict.fromkeys((OrderedDict, Counter), _with_keys),
    defaultdict: _with_default,
    ChainMap: attributes("maps"),
    # By name, of modules that this one would be slower to import.
    ("_queue", "SimpleQueue"): _always(standard.SIZE),
    ("argparse", "Namespace"): _namespace,
    ("decimal", "Context"): _always(standard.DECIMAL),
}


def is_structural(value: Any, reach: Reach) -> bool:
    """Return whether another instance with the same inside is as good as this one."""
    cls = type(value)
    if cls is types.FunctionType:
        return reach.reads(value)
    if cls is types.BuiltinMethodType:
        # Where it belongs to no object, it is itself all there is.
        return not isinstance(value.__self__, types.ModuleType | None)
    named = (cls.__module__, cls.__qualname__)
    if cls is types.ModuleType or named == ("_queue", "SimpleQueue"):
        # What it holds does not show.
        return False
    known = said_in(_BY_TYPE, cls) is not None or dataclasses.is_dataclass(cls)
    return known or (issubclass(cls, tuple) and hasattr(cls, "_fields"))
