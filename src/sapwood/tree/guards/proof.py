"""What one value is, in a form that means the same in another process.

Plain values by type and bits, code by its instructions, classes and functions of
packages by name and version. What none of that can be said of has no proof.

Guards, and so fingerprints, know of what reached code names. What else code of the
standard library may read, on its own or in what it is passed, nobody sees: so only
what is listed here, and code of packages, goes without saying that it does not.
"""

from __future__ import annotations

import hashlib
import operator
import re
import sys
import threading
import types
from array import array
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeAlias

from sapwood.tree.guards.code import loads, only_looked_into
from sapwood.tree.guards.owners import owner_of_class, owner_of_code, owner_of_module
from sapwood.tree.guards.standard import is_host_array, said_by
from sapwood.tree.guards.views import EMPTY
from sapwood.tree.nests.containers import constant_key
from sapwood.tree.nests.plain import is_plain, to_json, to_text
from sapwood.tree.nests.structures import found_at

_SHORT: Final = 64


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


def _is_trusted(value: Any, name: str) -> bool:
    """Return whether a module, class or function reads nothing but what it is passed.

    It is found under this name, ``module:name``. What of it is the user's is read.
    """
    module = name.partition(":")[0]
    owner = owner_of_module(module)
    if owner == "user":
        # What is written in C is not.
        return isinstance(value, types.ModuleType | type | types.FunctionType)
    if owner != "standard" or isinstance(value, types.ModuleType):
        return True
    if isinstance(value, type) and issubclass(value, BaseException):
        return True
    return module in _MODULES or name in _FUNCTIONS or said_by(value) is not None


def is_users(value: object) -> bool:
    """Return whether a value is of the user's code: then who put it there is, too."""
    if isinstance(value, types.FunctionType):
        return owner_of_code(value.__code__) == "user"
    return owner_of_class(value if isinstance(value, type) else type(value)) == "user"


def proof(value: Any) -> bytes | None:
    """Return short bytes that only an equal value has, or None."""
    whole = _whole(value)
    if whole is None or len(whole) <= _SHORT:
        return whole
    return b"sha256 " + hashlib.sha256(whole).hexdigest().encode()


def _whole(value: Any) -> bytes | None:
    if value is EMPTY or value is NotImplemented:
        return repr(value).encode()
    if is_plain(value):
        return to_text(to_json(value))
    for fits, prove in _PROOFS:
        if fits(value):
            return prove(value)
    return None


def _code(code: types.CodeType) -> bytes | None:
    """Prove what runs; where it is written is no part of it."""
    return _joined(
        b"code",
        [
            code.co_code,
            code.co_exceptiontable,
            code.co_names,
            (code.co_varnames, code.co_freevars, code.co_cellvars),
            (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount),
            code.co_flags,
            *_constants(code),
        ],
    )


def _constants(code: types.CodeType) -> Iterator[Any]:
    """Yield the constants of code.

    The order of a set is the process's own: it is left out where code only looks into
    the set.
    """
    looked_into = only_looked_into((id(x), looks) for x, looks in loads(code))
    for value in code.co_consts:
        unordered = type(value) is frozenset and id(value) in looked_into
        yield sorted(value, key=repr) if unordered else value


def _joined(kind: bytes, parts: Iterable[Any]) -> bytes | None:
    digest = hashlib.sha256(kind)
    for part in parts:
        proved = _whole(part)
        if proved is None:
            return None
        digest.update(len(proved).to_bytes(8, "little") + proved)
    return kind + b" " + digest.hexdigest().encode()


def _items(value: Any) -> bytes | None:
    return _joined(type(value).__name__.encode(), value)


def _named(value: Any) -> bytes | None:
    name = name_of(value)
    return name.encode() if name is not None and _is_trusted(value, name) else None


def _is_packaged(value: Any) -> bool:
    # What the user's modules call by a name may be another thing tomorrow.
    module = getattr(value, "__module__", None)
    return isinstance(module, str) and owner_of_module(module) != "user"


def name_of(value: Any) -> str | None:
    """Return where a module, class or function is found, and in which version.

    None where its name leads elsewhere, or its package has no version.
    """
    module: Any
    name: Any
    if isinstance(value, types.ModuleType):
        module, name = value.__name__, ""
    else:
        module = getattr(value, "__module__", None) or ""
        name = getattr(value, "__qualname__", None) or getattr(value, "__name__", "")
        texts = isinstance(module, str) and isinstance(name, str)
        if not texts or not _leads(module, name, value):
            return None
    owner = owner_of_module(module)
    if owner in {"user", "standard"}:
        return f"{module}:{name}"
    version = _version(module.partition(".")[0])
    return None if version is None else f"{module}:{name} {version}"


def _leads(module: str, name: str, value: Any) -> bool:
    found = found_at(module, name)
    if isinstance(found, staticmethod | classmethod):
        found = found.__func__
    return found is value


@lru_cache(maxsize=256)
def _version(package: str) -> str | None:
    said = getattr(sys.modules.get(package), "__version__", None)
    if isinstance(said, str):
        return said
    # Costs more than all the rest of a fingerprint, and is seldom asked.
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        names = metadata.packages_distributions().get(package, ())
        return metadata.version(names[0]) if names else None


def _is_host_array(value: Any) -> bool:
    return is_host_array(type(value)) and hasattr(type(value), "dtype")


def _host_array(value: Any) -> bytes | None:
    if getattr(value.dtype, "hasobject", True):
        return None
    looks = tuple(value.shape), getattr(value, "strides", None)
    flags, base = str(getattr(value, "flags", None)), getattr(value, "base", None)
    contents = bytes(value.tobytes())
    return _joined(b"array", [type(value), value.dtype, looks, flags, contents, base])


def _function(value: types.FunctionType) -> bytes | None:
    """Prove a function whose code is not read by its name, else by what it is made of.

    Its globals are those of its module, which has a version.
    """
    if name_of(value) is not None:
        return _named(value)
    cells = [cell.cell_contents for cell in value.__closure__ or ()]
    module = sys.modules.get(value.__module__ or "")
    inner = (each for each in cells if isinstance(each, types.FunctionType))
    if not all(map(name_of, inner)):
        # Functions may close over each other.
        return None
    if not _is_trusted(value, f"{value.__module__}:"):
        return None
    made_of = [module, value.__code__, value.__defaults__, *cells]
    return None if value.__kwdefaults__ else _joined(b"made", made_of)


def _reduced(value: Any) -> bytes | None:
    make, given = value.__reduce__()
    return _joined(b"made", [make, *given]) if make is type(value) else None


def _alias(value: Any) -> bytes | None:
    made_of = getattr(value, "__origin__", types.UnionType)
    return _joined(b"alias", [made_of, value.__args__])


def _dtype(value: Any) -> bytes | None:
    # Not all of what fields are is in its text.
    fields = [field[0] for field in (value.fields or {}).values()]
    inner = [] if value.subdtype is None else [value.subdtype[0]]
    extra = list((value.metadata or {}).items())
    told = [value.str, repr(value), value.isalignedstruct]
    return _joined(b"dtype", [*told, extra, *fields, *inner])


def _is_dtype(value: Any) -> bool:
    named = [(base.__module__, base.__name__) for base in type(value).__mro__]
    return ("numpy", "dtype") in named


def _descriptor(value: Any) -> bytes | None:
    return _joined(b"descriptor", [value.__objclass__, value.__name__])


def _member(value: Enum) -> bytes | None:
    # Whoever has one may ask its class for the others.
    every = [(name, each.value) for name, each in type(value).__members__.items()]
    return _joined(b"member", [type(value), value.name, value.value, every])


def _said(value: Any) -> bytes | None:
    """Prove a value by the text that it is compared by; its class comes first."""
    key: Any = constant_key(value)
    # The text of a time zone is what a class of the user's may say.
    users = is_users(getattr(value, "tzinfo", None))
    return None if users else _joined(b"value", key)


def _ufunc(value: Any) -> bytes | None:
    name = f"numpy:{value.__name__} {_version('numpy')}"
    return name.encode() if _leads("numpy", value.__name__, value) else None


def _is_ufunc(value: Any) -> bool:
    return (type(value).__module__, type(value).__name__) == ("numpy", "ufunc")


def _by_text(value: Any) -> bool:
    key = constant_key(value)
    return (
        type(key) is tuple
        and key[0] is type(value)
        and all(is_plain(part) for part in key[1:])
    )


_DESCRIPTORS: Final = {
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
}
_NAMED: Final = types.ModuleType, type, types.BuiltinFunctionType
_GETTERS: Final = {
    *(operator.attrgetter, operator.itemgetter, operator.methodcaller),
    type(vars(NamedTuple("_Pair", [("a", int)]))["a"]),
}
_LOCKS: Final = {type(threading.Lock()), type(threading.RLock())}

_Prove: TypeAlias = Callable[[Any], bytes | None]
_PROOFS: Final[tuple[tuple[Callable[[Any], bool], _Prove], ...]] = (
    (lambda v: isinstance(v, types.CodeType), _code),
    (lambda v: type(v) in {tuple, list, set, frozenset}, _items),
    (lambda v: type(v) is types.FunctionType, _function),
    (lambda v: issubclass(type(v), _NAMED), _named),
    (lambda v: type(v) in _GETTERS, _reduced),
    (lambda v: type(v) in {types.UnionType, types.GenericAlias}, _alias),
    (_is_dtype, _dtype),
    (lambda v: isinstance(v, Enum), _member),
    (lambda v: type(v) in _DESCRIPTORS, _descriptor),
    (
        lambda v: type(v) is re.Pattern,
        lambda v: _joined(b"pattern", [v.pattern, v.flags]),
    ),
    # Whether a lock is held is nothing that a program reads.
    (lambda v: type(v) in _LOCKS, lambda v: type(v).__qualname__.encode()),
    (_is_ufunc, _ufunc),
    (_is_host_array, _host_array),
    (
        lambda v: type(v) is array,
        lambda v: _joined(b"array", [v.typecode, v.tobytes()]),
    ),
    (_by_text, _said),
    (_is_packaged, _named),
)
