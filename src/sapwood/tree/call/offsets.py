"""Where a slot lies inside the objects of its class, for those who look from C."""

from __future__ import annotations

import ctypes
import functools
from types import MemberDescriptorType
from typing import Any, Final

__all__ = ["offset"]

_WORD: Final = ctypes.sizeof(ctypes.c_void_p)


@functools.cache
def offset(cls: type[Any], name: str) -> int | None:
    """Return how many bytes into an object the reference of a slot is.

    None where that cannot be told. It is found by looking: one object is made, and
    never initialised.
    """
    slot = getattr(cls, name, None)
    if not isinstance(slot, MemberDescriptorType):
        return None
    probe: Any = object.__new__(cls)
    mark = object()
    words = (ctypes.c_size_t * (cls.__basicsize__ // _WORD)).from_address(id(probe))
    before = list(words)
    slot.__set__(probe, mark)
    changed = [i for i, word in enumerate(words) if word != before[i]]
    found = [i * _WORD for i in changed if words[i] == id(mark)]
    return found[0] if len(found) == len(changed) == 1 else None
