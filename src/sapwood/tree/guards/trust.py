"""Which code that is not read is known to read nothing but what it is passed.

Guards, and so fingerprints, know of what reached code names. What else code of the
standard library may read, on its own or in what it is passed, nobody sees: so only
what is listed here, and code of packages, goes without saying that it does not.
"""

from __future__ import annotations

import abc
import dis
from collections.abc import Iterator
from string import Formatter
from types import BuiltinMethodType, CodeType, FunctionType, ModuleType
from typing import Any, Final

from sapwood.tree.guards import views
from sapwood.tree.guards.accessors import NEVER_NAMED, OPERATORS, dunders
from sapwood.tree.guards.code import nested
from sapwood.tree.guards.owners import owner_of_class, owner_of_code, owner_of_module
from sapwood.tree.guards.reach import Node, Walk
from sapwood.tree.guards.scope import ATOMS
from sapwood.tree.guards.sources import is_random_source
from sapwood.tree.guards.standard import said_by


def _names(module: str, names: str) -> set[str]:
    return {f"{module}:{name}" for name in names.split()}


_MODULES: Final = frozenset(
    {"_bisect", "_collections", "_collections_abc", "_contextvars", "_decimal"}
    | {"_functools", "_hashlib", "_heapq", "_operator", "_pydecimal", "_random"}
    | {"_sre", "_statistics", "_struct", "_weakref", "_weakrefset", "abc", "array"}
    | {"base64", "binascii", "bisect", "cmath", "collections", "collections.abc"}
    | {"colorsys", "contextvars", "copy", "dataclasses", "decimal", "enum"}
    | {"fractions", "functools", "hashlib", "heapq", "itertools", "math", "numbers"}
    | {"operator", "re", "statistics", "struct", "textwrap", "types", "unicodedata"}
    | {"weakref", "zlib"}
)
"""Of these, everything."""

_BUILTINS: Final = _names(
    "builtins",
    "__build_class__ abs all anext any ascii bin bool bytearray bytes callable chr "
    "classmethod complex delattr dict dir divmod enumerate eval exec filter float "
    "format frozenset getattr globals hasattr hash hex id int isinstance issubclass "
    "iter len list locals map max memoryview min next object oct ord pow print "
    "property range repr reversed round set setattr slice sorted staticmethod str sum "
    "super tuple type vars zip",
)
"""Of those that read by names which code computes, the walk says so itself."""

_FUNCTIONS: Final = _BUILTINS.union(
    _names("_io", "BytesIO StringIO"),
    _names("_thread", "RLock _local allocate_lock lock"),
    _names("contextlib", "AbstractContextManager ContextDecorator contextmanager"),
    _names("contextlib", "ExitStack nullcontext suppress _GeneratorContextManager"),
    _names("datetime", "date datetime time timedelta timezone"),
    _names("pathlib", "PurePath PurePosixPath PureWindowsPath"),
    _names("pathlib._local", "PurePath PurePosixPath PureWindowsPath"),  # on 3.13
    _names("posix", "fspath"),
    _names("posixpath", "basename commonprefix dirname isabs join normpath split"),
    _names("posixpath", "splitext"),
    _names("random", "Random"),
    _names("threading", "RLock"),
    _names("uuid", "UUID"),
    _names("zoneinfo", "ZoneInfo"),
    _names("typing", "Generic NamedTuple NewType TypedDict cast final overload"),
)

_dump: Any = vars(abc)["_get_dump"]
"""Tells what is registered with an abstract class: a set of references comes first."""
_FRAMES: Final = frozenset({"ag_frame", "cr_frame", "gi_frame"})
_HERE: Final = frozenset(
    {"astimezone", "fromtimestamp", "now", "strftime", "timestamp", "today", "utcnow"}
)
"""What dates ask the process for."""
_SPECIAL: Final = dunders(
    "annotations class dict doc func getnewargs getnewargs_ex globals module name "
    "qualname replace self wrapped"
)
"""Special names of what the walk looks at, where they are in code."""
_FORMATTING: Final = frozenset({"format", "format_map"})


def is_trusted(value: Any, name: str) -> bool:
    """Return whether a module, class or function reads nothing but what it is passed.

    It is found under this name, ``module:name``. What of it is the user's is read.
    """
    module = name.partition(":")[0]
    owner = owner_of_module(module)
    if owner == "user":
        # What is written in C is not.
        return isinstance(value, ModuleType | type | FunctionType)
    if owner != "standard" or isinstance(value, ModuleType):
        return True
    if isinstance(value, type) and issubclass(value, BaseException):
        return True
    return module in _MODULES or name in _FUNCTIONS or said_by(value) is not None


def is_users(value: object) -> bool:
    """Return whether a value is of the user's code: then who put it there is, too."""
    if isinstance(value, FunctionType):
        return owner_of_code(value.__code__) == "user"
    return owner_of_class(value if isinstance(value, type) else type(value)) == "user"


def doubts(walk: Walk) -> Iterator[str]:
    """Yield what reached code may read, and nobody can tell what is there."""
    names = walk.reach.names
    for name in sorted(names):
        if name in _FRAMES | _HERE or _is_special(name):
            yield f"what {name} gives"
    if not names.isdisjoint(_FORMATTING) or any(map(_is_format, walk.nodes)):
        sites = [site for code in _codes(walk) for site in _formats(code)]
        if any(site is None or _reads(site) for site in sites or [None]):
            yield "what the fields of a format name"
    if "print" in walk.reach.builtins and any(map(_prints_elsewhere, _codes(walk))):
        yield "what print writes to"
    asks = not walk.reach.builtins.isdisjoint({"isinstance", "issubclass"})
    for path, value in _found(walk):
        if asks and isinstance(value, abc.ABCMeta) and _registers(value):
            yield f"what {path} has registered"
        if value is print and path != "builtins.print":
            yield f"what {path} writes to"


def _found(walk: Walk) -> Iterator[tuple[str, Any]]:
    """Yield all that code may have by a name: bases and classes of values are not."""
    for inside in walk.guarded():
        if inside.view not in {views.BASES, views.TYPE}:
            for row in inside.rows:
                yield walk.path(inside, row.key), row.value
    yield from named_in_modules(walk)


def _registers(cls: type) -> bool:
    """Return whether others' classes pass for instances of an abstract one.

    Or for those of a class below it.
    """
    known = [each() for each in _dump(cls)[0]]
    if any(each is not None and owner_of_class(each) == "user" for each in known):
        return True
    lower: list[type] = type.__subclasses__(cls)
    return any(isinstance(each, abc.ABCMeta) and _registers(each) for each in lower)


def named_in_modules(walk: Walk) -> Iterator[tuple[str, Any]]:
    """Yield what reached code may find in modules that are not walked, by its path."""
    seen: set[str] = set()
    waiting = [*_modules(walk)]
    while waiting:
        module = waiting.pop()
        name = module.__name__
        if name in seen or is_random_source(module):
            continue
        seen.add(name)
        space = vars(module)
        for each in sorted(walk.reach.names & space.keys()):
            value = space[each]
            if isinstance(value, ModuleType):
                waiting.append(value)
            elif type(value) not in ATOMS:
                yield f"{name}.{each}", value


def _modules(walk: Walk) -> Iterator[ModuleType]:
    rows = (row.value for inside in walk.guarded() for row in inside.rows)
    for value in (*(node.value for node in walk.nodes), *rows):
        if isinstance(value, ModuleType) and owner_of_module(value.__name__, value) in {
            "standard",
            "installed",
        }:
            yield value


def _is_special(name: str) -> bool:
    known = OPERATORS, NEVER_NAMED, _SPECIAL
    dunder = name.startswith("__") and name.endswith("__")
    return dunder and not any(name in each for each in known)


def _codes(walk: Walk) -> Iterator[CodeType]:
    for node in walk.nodes:
        if type(node.value) is FunctionType and walk.reach.reads(node.value):
            yield from nested(node.value.__code__)


def _is_format(node: Node) -> bool:
    value = node.value
    return type(value) is BuiltinMethodType and value.__name__ in _FORMATTING


def _formats(code: CodeType) -> Iterator[str | None]:
    """Yield texts whose method ``format`` code names; None for an unknown one."""
    ops = [op for op in dis.get_instructions(code) if op.opname != "EXTENDED_ARG"]
    for at, op in enumerate(ops):
        if op.argval in _FORMATTING and op.opname in {"LOAD_ATTR", "LOAD_METHOD"}:
            before = ops[at - 1]
            text = before.argval if before.opname == "LOAD_CONST" else None
            yield text if isinstance(text, str) else None


def _prints_elsewhere(code: CodeType) -> bool:
    """Return whether code may pass ``file=`` on."""
    named = any(type(each) is tuple and "file" in each for each in code.co_consts)
    spread = any(op.opname == "CALL_FUNCTION_EX" for op in dis.get_instructions(code))
    return named or spread


def _reads(text: str) -> bool:
    """Return whether a format reads attributes or items of what it is given."""
    try:
        fields = [*Formatter().parse(text)]
    except ValueError:
        return False
    return any(
        "." in (name or "") or "[" in (name or "") or _reads(spec or "")
        for _, name, spec, _ in fields
    )
