"""Objects that a function makes and returns, which every replay makes anew.

A class that leaves it to Python how its instances are copied keeps attributes and
nothing else. Whether a function makes an object, or returns one that was there before,
shows where two calls are compared: the same object comes again, or another one.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import suppress
from itertools import chain, repeat, starmap
from operator import is_
from types import GetSetDescriptorType, NoneType
from typing import Any, Final, TypeAlias

from sapwood.errors import MisuseError
from sapwood.tree.nests.containers import (
    Identity,
    Structure,
    constant_key,
    container_of,
    flatten,
    unflatten,
)
from sapwood.tree.nests.kinds import HEAP, Of, Unpacked, slots_of

Told: TypeAlias = tuple[Hashable, ...]
"""The keys of the plain values in a result; an object's are in a tuple, behind `Of`."""

ARRAY: Final = object()
"""Stands for an array, of which there is no key."""


class _Endless(Exception):
    """A result holds itself, or too much."""


_OWN: Final = (
    *("__copy__", "__deepcopy__", "__del__", "__getnewargs__", "__getnewargs_ex__"),
    *("__getstate__", "__new__", "__reduce__", "__reduce_ex__", "__setstate__"),
)
"""What a class says by that its instances are more than their attributes."""

_DEEP: Final = 64
_MANY: Final = 4096
"""So deep, and so many, objects and containers are unpacked in one result."""


def unpacked(result: Any, is_array: Callable[[Any], bool]) -> Any:
    """Return a result with all objects in it unpacked that can be."""
    try:
        return _Taking(is_array, _is_unknown, Identity).taken(result)
    except (MisuseError, _Endless):
        return result


def fresh(result: Any, is_array: Callable[[Any], bool], before: Told) -> Any:
    """Return a result in containers of its own.

    Those objects in it are unpacked that were others in the call ``before``, and
    held the same plain values.
    """
    new = {*_new(told(result, is_array), before)}
    taking = _Taking(is_array, lambda x: id(x) in new, lambda _: None, fresh=True)
    try:
        return taking.taken(result)
    except (MisuseError, _Endless):
        leaves, structure = flatten(result, is_array)
        return unflatten(structure, leaves)


def told(result: Any, is_array: Callable[[Any], bool]) -> Told:
    """Return the keys of the plain values in a result, and in the objects in it."""
    leaves, structure = flatten(unpacked(result, is_array), is_array)
    return tell(structure, (ARRAY if is_array(x) else constant_key(x) for x in leaves))


def tell(structure: Structure, keys: Iterable[Hashable]) -> Told:
    """Return the keys of plain values by the objects that they are in.

    There is a key for each leaf of the structure, and `ARRAY` for an array.
    """
    return tuple(_told(structure, iter(keys)))


def _told(structure: Any, keys: Iterator[Hashable]) -> Iterator[Hashable]:
    if structure is None:
        key = next(keys)
        if key is not ARRAY:
            yield key
    elif type(structure) is not int:
        cls, rest, folded = structure
        inner = [key for part in folded for key in _told(part, keys)]
        if cls is Unpacked:
            yield (rest, *inner)
        else:
            yield from inner


def agree(now: Told, before: Told) -> bool:
    """Return whether a result says the same as the one before it.

    ``before`` all objects are unpacked, ``now`` those that were made anew.
    """
    return len(now) == len(before) and all(map(_agrees, now, before))


def _agrees(now: Any, before: Any) -> bool:
    then = _of(before)
    if then is None or now == before:
        return bool(now == before)
    of = _of(now)
    if of is None:
        return bool(now == then.identity)
    return of == then and agree(now[1:], before[1:])


def _of(key: Any) -> Of | None:
    is_object = type(key) is tuple and key and type(key[0]) is Of
    return key[0] if is_object else None


def _new(now: Told, before: Told) -> Iterator[int]:
    """Yield the numbers of the objects that are others than before, and like those."""
    for one, other in zip(now, before, strict=False):
        of, then = _of(one), _of(other)
        if of is None or then is None:
            continue
        if _agrees(one, other) and isinstance(of.identity, Identity):
            yield id(of.identity.target())
            yield from _new(one[1:], other[1:])  # type: ignore[index]


def first_other(now: Told, before: Told) -> object | None:
    """Return the first object that is another one than before, if there is any."""
    for one, other in zip(now, before, strict=False):
        if isinstance(one, Identity) and not _agrees(one, other):
            return one.target()
    return None


def are_others(now: Told, before: Told) -> bool:
    """Return whether an object is another one than before, or what is bound to one."""
    pairs = zip(now, chain(before, repeat(None)), strict=False)
    return any(_is_object(one) and not _agrees(one, other) for one, other in pairs)


def _is_object(key: object) -> bool:
    return isinstance(key, Identity) or (
        type(key) is tuple and any(map(_is_object, key))
    )


def _is_unknown(value: Any) -> bool:
    """Return whether nobody follows what becomes of an object.

    Neither does what was told of the call before, in which it then was no other.
    """
    return not weakref.getweakrefcount(value)


def _is_plain(cls: type) -> bool:
    """Return whether the instances of a class are their attributes, and no more."""
    if not cls.__weakrefoffset__ or type(cls).__call__ is not type.__call__:
        return False
    for each in cls.__mro__[:-1]:
        own = vars(each)
        named = own.get("__dict__")
        if not each.__flags__ & HEAP or any(name in own for name in _OWN):
            return False
        if not isinstance(named, GetSetDescriptorType | NoneType):
            return False
    try:
        object.__new__(cls)
    except TypeError:  # it is made in C
        return False
    return True


def _attributes(value: Any) -> dict[str, Any]:
    """Return the attributes of a plain object; none of its own code runs."""
    found: dict[str, Any] = {}
    for name in slots_of(type(value).__mro__):
        with suppress(AttributeError):
            found[name] = object.__getattribute__(value, name)
    with suppress(AttributeError):
        found.update(object.__getattribute__(value, "__dict__"))
    return found


class _Taking:
    """Unpacks the objects in one result that are ``wanted``.

    Containers are kept where nothing in them is other than it was, unless all are to be
    ``fresh``.
    """

    def __init__(
        self,
        is_array: Callable[[Any], bool],
        wanted: Callable[[Any], bool],
        identity: Callable[[Any], Hashable],
        *,
        fresh: bool = False,
    ) -> None:
        self._is_array, self._wanted, self._identity = is_array, wanted, identity
        self._fresh = fresh
        self._known: dict[int, tuple[Any, Any]] = {}

    def taken(self, value: Any, depth: int = 0) -> Any:
        """Return a nest of unpacked objects. Raises `_Endless`, or `MisuseError`."""
        known = self._known.get(id(value))
        if known is not None:
            if known[1] is _BEGUN:
                raise _Endless
            return known[1]
        cls = type(value)
        if self._is_array(value):
            return value
        container = container_of(cls)
        if container is None and not (_is_plain(cls) and self._wanted(value)):
            return value
        if depth == _DEEP or len(self._known) == _MANY:
            raise _Endless
        self._known[id(value)] = value, _BEGUN
        if container is None:
            attributes = _attributes(value)
            of = Of(cls, tuple(attributes), self._identity(value))
            inner = [self.taken(each, depth + 1) for each in attributes.values()]
            made = Unpacked(of, inner)
        else:
            children, rest = container.flatten(value)
            inner = [self.taken(each, depth + 1) for each in children]
            same = all(starmap(is_, zip(inner, children, strict=True)))
            kept = same and not self._fresh
            made = value if kept else container.unflatten(cls, rest, inner)
        self._known[id(value)] = value, made
        return made


_BEGUN: Final = object()
