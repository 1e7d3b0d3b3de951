"""References that do not keep objects alive, where these can be referred to so."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import MethodType
from typing import Any

__all__ = ["weakly", "weakly_bound"]


def weakly(value: Any) -> Callable[[], Any]:
    """Return what gives an object while it is alive, else None.

    What cannot be referred to weakly is kept alive.
    """
    if _is_forgetful(type(value)):
        return lambda: value
    try:
        return weakref.ref(value)
    except TypeError:
        return lambda: value


def weakly_bound(method: MethodType) -> Callable[[], Any]:
    """Return what binds a method anew while its object is alive, else gives None."""
    function, owner = weakly(method.__func__), weakly(method.__self__)

    def bound() -> Any:
        now = function(), owner()
        return None if None in now else MethodType(*now)

    return bound


def _is_forgetful(cls: type) -> bool:
    """Return whether instances leave weak references to themselves as they are.

    Torch's streams and events of CUDA do when they go, and then those point anywhere
    (torch 2.11; https://github.com/pytorch/pytorch/pull/183403).
    """
    return any(
        base.__name__ in {"Stream", "Event"} and base.__module__ == "torch"
        for base in cls.__mro__
    )
