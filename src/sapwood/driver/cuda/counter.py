"""How many nodes a graph has while it is captured, asked before and after every op.

The bindings would take several times as long as CUDA: they make a list of no nodes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, Final

from sapwood.driver.cuda.bindings import Library
from sapwood.driver.cuda.native import address_of

__all__ = ["counter_of"]

_NAME: Final = "cuGraphGetNodes"
_ASK: Final = ctypes.PYFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
)
"""Of no arrays, it returns at once: to let other threads run would take longer."""


def counter_of(library: Library, graph: Any) -> Callable[[], int]:
    """Return what counts the nodes of a graph, which must exist when it is called."""
    ask, raw, found = _ASK(address_of(library, _NAME)), int(graph), ctypes.c_size_t()
    where = ctypes.addressof(found)

    def count() -> int:
        code = ask(raw, None, where)
        if code:
            cu = library.cu
            raise library.answer(cu.cuGraphGetNodes, cu.CUresult(code)).error(_NAME)
        return found.value

    return count
