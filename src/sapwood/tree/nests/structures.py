"""Structures of nests as JSON, and back, for other processes.

A class is written as its name and looked up among the modules that are loaded:
reading imports nothing, and makes nothing but containers.
"""

from __future__ import annotations

import sys
from collections import OrderedDict, defaultdict, deque
from dataclasses import is_dataclass
from types import SimpleNamespace
from typing import Any, Final

from sapwood.errors import MisuseError, StoreError
from sapwood.tree.nests import containers
from sapwood.tree.nests.containers import Structure
from sapwood.tree.nests.plain import Json, from_json, to_json

_DEPTH: Final = 200
_DICTS: Final = (dict, OrderedDict, defaultdict)
_FACTORIES: Final = {
    each.__name__: each for each in (bool, dict, float, int, list, set, str, tuple)
}


def dump_structure(structure: Structure) -> Json:
    """Return a structure as JSON.

    Raises `ValueError` for a class that is not found under its name, and for keys
    and rests that are no plain values.
    """
    if structure is None or type(structure) is int:
        return structure
    parts: Any = structure
    cls: type = parts[0]
    _, rest, children = parts
    name = f"{cls.__module__}:{cls.__qualname__}"
    if _class(name) is not cls:
        raise ValueError(f"the class {cls.__qualname__} is not found under its name")
    return [name, _dump_rest(cls, rest), [dump_structure(child) for child in children]]


def _dump_rest(cls: type, rest: Any) -> Json:
    if cls is defaultdict:
        factory, keys = rest
        named = getattr(factory, "__name__", None)
        if factory is not None and _FACTORIES.get(named or "") is not factory:
            raise ValueError(f"{factory!r} is no factory that is known")
        return [named, to_json(list(containers.plain_keys(keys)))]
    if cls in _DICTS:
        return to_json(list(containers.plain_keys(rest)))
    return to_json(rest)


def load_structure(found: Json) -> tuple[Structure, int]:
    """Return a structure and its number of leaves.

    Raises `StoreError` for what `dump_structure` would not have written, and for
    classes that are not loaded here, by name.
    """
    return _load(found, 0, [])


def _load(found: Json, depth: int, ended: list[type]) -> tuple[Structure, int]:
    if found is None:
        return None, 1
    if type(found) is int and 0 <= found < len(ended):
        return found, 0
    if type(found) is not list or len(found) != 3 or depth == _DEPTH:
        raise _damaged("it is no nest")
    name, rest, parts = found
    if type(name) is not str or type(parts) is not list:
        raise _damaged("it is no nest")
    cls = _container(name)
    loaded = [_load(part, depth + 1, ended) for part in parts]
    children = tuple(structure for structure, _ in loaded)
    structure = (cls, _load_rest(cls, rest, len(children)), children)
    ended += [cls] if containers.is_shared(cls) else []
    return structure, sum(leaves for _, leaves in loaded)


def _container(name: str) -> type:
    cls = _class(name)
    try:
        container = None if cls is None else containers.container_of(cls)
        known = container is not None and container.portable
    except MisuseError:
        known = False
    if cls is None or not known:
        raise StoreError(
            f"the result is a {name}, which is not known here: import its module, or "
            "register it as a container, before the recording is read"
        )
    return cls


def _damaged(how: str) -> StoreError:
    return StoreError(f"the nest of a result is damaged: {how}. Record it anew")


def flat_structure(leaves: int) -> Structure:
    """Return the structure of a list of so many leaves."""
    return (list, None, (None,) * leaves)


def _load_rest(cls: type, found: Json, count: int) -> Any:
    if cls is defaultdict:
        if type(found) is not list or len(found) != 2:
            raise _damaged("a defaultdict has no factory")
        name, keys = found
        if name is not None and (type(name) is not str or name not in _FACTORIES):
            raise _damaged("there is no such factory")
        factory = None if name is None else _FACTORIES[name]
        return (factory, _load_keys(keys, count))
    if cls in _DICTS:
        return _load_keys(found, count)
    rest = from_json(found)
    if containers.registered(cls) is None:
        _check_rest(cls, rest, count)
    return rest


def _load_keys(found: Json, count: int) -> Any:
    keys = from_json(found)
    try:
        made = dict.fromkeys(keys if type(keys) is list else ())
    except TypeError:
        raise _damaged("a key of a dict cannot be one") from None
    if type(keys) is not list or not len(keys) == len(made) == count:
        raise _damaged("there are as many keys as items")
    return containers.keys_of(made)


def _check_rest(cls: type, rest: Any, count: int) -> None:
    if is_dataclass(cls) or cls is SimpleNamespace:
        fits = type(rest) is tuple and len(rest) == count and all(map(_is_field, rest))
    elif hasattr(cls, "_fields"):
        fits = rest is None and len(cls._fields) == count
    elif cls is deque:
        fits = rest is None or (type(rest) is int and count <= rest <= sys.maxsize)
    else:
        fits = rest is None
    if not fits:
        raise _damaged(f"a {cls.__qualname__} is not made of such parts")


def _is_field(name: object) -> bool:
    return type(name) is str and name.isidentifier() and not name.startswith("__")


def _class(name: str) -> type | None:
    found = found_at(*name.partition(":")[::2])
    return found if isinstance(found, type) else None


def found_at(module: str, path: str) -> Any:
    """Return what is found in a module that is loaded, by a dotted path; else None."""
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, "__dict__", {}).get(part)
    return found
