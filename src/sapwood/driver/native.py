"""What C needs to aim copies, and to launch, without a call of Python's.

Numbers only: functions of CUDA's driver, handles as it knows them, and where words lie.
Whoever writes other words sets their node next, and puts the old ones back if that is
refused; the words are always those that the exec holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from sapwood.driver.api import ExecHandle, NodeHandle


class NativeCopies(NamedTuple):
    """A node of copies: its CUgraphNode, and where its CUDA_KERNEL_NODE_PARAMS lie.

    ``dsts`` and ``srcs`` are where ``number`` words of 8 bytes each begin: the
    addresses that are copied to and from.
    """

    node: int
    params: int
    dsts: int
    srcs: int
    number: int


class Native(NamedTuple):
    """An exec as C knows it, good until that is destroyed or its copies change size.

    ``launch``, ``set_params`` and ``context_of`` are the addresses of cuGraphLaunch,
    cuGraphExecKernelNodeSetParams (its second version) and cuCtxGetCurrent. Nodes may
    be set where ``context`` is current, and only there.
    """

    launch: int
    set_params: int
    context_of: int
    exec_: int
    context: int
    copies: tuple[NativeCopies, ...]
    owners: Sequence[Any]
    """What the words lie in, to be kept as long as they are used."""


@runtime_checkable
class Lender(Protocol):
    """A device whose execs C may launch; no layer is one, for it would not see it."""

    def native(self, exec_: ExecHandle, nodes: Sequence[NodeHandle]) -> Native:
        """Return an exec as C knows it, with the nodes of copies that C may set."""
