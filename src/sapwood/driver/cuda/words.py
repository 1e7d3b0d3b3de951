"""Words in the nodes of a graph that may be addresses, whoever has captured them.

Less is told than of an op, and of more: nothing here depends on how a kernel is
launched, or on how many rows are copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from sapwood.driver.cuda.bindings import Library
from sapwood.driver.cuda.kernels import Kernels
from sapwood.driver.cuda.ops import kernel_words
from sapwood.units import Addr

__all__ = ["words_of"]


def words_of(
    library: Library, kernels: Kernels, nodes: Iterable[Any]
) -> frozenset[Addr] | None:
    """Return the words of all nodes; None where one is of a kind that hides some."""
    cu = library.cu
    of, found = cu.CUgraphNodeType, set[Addr]()
    without = {
        of.CU_GRAPH_NODE_TYPE_EMPTY,
        of.CU_GRAPH_NODE_TYPE_HOST,
        of.CU_GRAPH_NODE_TYPE_EVENT_RECORD,
        of.CU_GRAPH_NODE_TYPE_WAIT_EVENT,
    }
    for node in nodes:
        kind = library(cu.cuGraphNodeGetType, node)
        if kind == of.CU_GRAPH_NODE_TYPE_KERNEL:
            params = library(cu.cuGraphKernelNodeGetParams, node)
            found.update(kernel_words(params, kernels.foreign(params.func)))
        elif kind == of.CU_GRAPH_NODE_TYPE_MEMCPY:
            found.update(_ends(library, node))
        elif kind == of.CU_GRAPH_NODE_TYPE_MEMSET:
            found.add(Addr(int(library(cu.cuGraphMemsetNodeGetParams, node).dst)))
        elif kind not in without:
            return None
    return frozenset(found)


def _ends(library: Library, node: Any) -> Iterator[Addr]:
    """Yield where a copy begins to read and to write, but for arrays."""
    params = library(library.cu.cuGraphMemcpyNodeGetParams, node)
    src, dst = int(params.srcDevice), int(params.dstDevice)
    yield Addr(src + params.srcY * params.srcPitch + params.srcXInBytes)
    yield Addr(dst + params.dstY * params.dstPitch + params.dstXInBytes)
