"""Which classes keep something of their instances in C, where no view shows it."""

from __future__ import annotations

import operator
import threading
from functools import lru_cache, partial
from types import (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    GetSetDescriptorType,
    MethodDescriptorType,
    SimpleNamespace,
    WrapperDescriptorType,
)
from typing import Final, Generic
from weakref import ReferenceType, WeakKeyDictionary

from sapwood.tree.guards.owners import owner_of_class

__all__ = ["is_hiding"]

_SEEN: Final[frozenset[type]] = frozenset(
    {object, tuple, list, dict, set, frozenset, partial, ReferenceType, Generic}
    | {SimpleNamespace, threading.local, type(lru_cache(operator.neg))}
)
"""Classes of C that have nothing to be seen, or are opened wherever they are a base."""

_OF_C: Final = (
    ClassMethodDescriptorType,
    MethodDescriptorType,
    WrapperDescriptorType,
)
_OF_EVERY_CLASS: Final = {"__dict__", "__weakref__"}


_known: WeakKeyDictionary[type, bool] = WeakKeyDictionary()


def is_hiding(cls: type) -> bool:
    """Return whether instances of a class may hold more than their views show."""
    if owner_of_class(cls) == "sapwood":
        return False
    return any(base not in _SEEN and _is_of_c(base) for base in cls.__mro__)


def _is_of_c(cls: type) -> bool:
    if cls not in _known:
        members = list(vars(cls).items())
        _known[cls] = any(_defines(cls, name, member) for name, member in members)
    return _known[cls]


def _defines(cls: type, name: str, member: object) -> bool:
    """Return whether a member is one that only classes written in C have."""
    if isinstance(member, BuiltinFunctionType):
        return name == "__new__" and member.__self__ is cls
    if isinstance(member, GetSetDescriptorType):
        return name not in _OF_EVERY_CLASS
    return isinstance(member, _OF_C) and member.__objclass__ is cls
