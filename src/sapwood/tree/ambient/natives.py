"""How to look into objects of the standard library.

Those written in Python are opened by the names that reached code, or the code of
their own class, uses; those of C by one view each. Machinery is left alone: what
locks, loggers and executors do inside is no value that a function reads.
"""

from __future__ import annotations

import io
import logging
import operator
import os
import sys
from argparse import Namespace
from collections import OrderedDict
from collections.abc import Callable
from contextvars import ContextVar
from decimal import Context
from functools import cache
from threading import Event
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
    WeakValueDictionary,
)

from sapwood.tree.ambient import standard, views
from sapwood.tree.ambient.code import names_of
from sapwood.tree.ambient.owners import owner_of_class, owner_of_module
from sapwood.tree.ambient.scope import Opening, Openings, Reach
from sapwood.tree.ambient.sources import STATE, is_random_source
from sapwood.tree.containers import Identity, constant_key

__all__ = ["NATIVES", "built_in", "class_names", "instance", "is_machinery", "module"]

_MACHINERY: Final = frozenset(
    {"_frozen_importlib", "_frozen_importlib_external", "_thread", "abc", "asyncio"}
    | {"concurrent", "importlib", "inspect", "logging", "multiprocessing", "socket"}
    | {"subprocess", "tempfile", "threading", "traceback", "typing", "unittest"}
)
"""Standard modules whose objects keep books of their own that no program reads."""

_BY_TEXT: Final = (getattr, setattr, hasattr, delattr, vars, dir, eval, exec)
_STREAMS: Final = frozenset({"stdin", "stdout", "stderr"})
_LOGGING: Final = frozenset({"critical", "debug", "error", "exception", "info"}) | {
    "log",
    "warn",
    "warning",
}
_ASKING: Final = frozenset({"isEnabledFor", "getEffectiveLevel", "level", "disabled"})


def is_machinery(cls: type) -> bool:
    """Return whether a standard class only makes things run."""
    return cls.__module__.partition(".")[0] in _MACHINERY


def class_names(cls: type, owners: frozenset[str]) -> frozenset[str]:
    """Return the attributes named by the code of those of a class and its bases
    that are of ``owners``, machinery left out.
    """
    bases = [base for base in cls.__mro__ if owner_of_class(base) in owners]
    return frozenset().union(*(_own_names(base) for base in bases))


def _own_names(base: type) -> frozenset[str]:
    ...


def module(value: ModuleType, reach: Reach) -> Openings:
    """Look into a module of the standard library or of a package."""
    ...
