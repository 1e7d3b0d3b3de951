"""The CUDA device: a GPU behind the Protocol, its rules kept where CUDA is lenient.

Handles are CUDA's own addresses. Work that fails ends the device, as GPUs do: every
later call says so. Streams that other libraries made are not waited for.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from sapwood.driver.api import Abilities, ExecHandle, NodeHandle
from sapwood.driver.cuda.bindings import open_library
from sapwood.driver.cuda.flow import Flow
from sapwood.driver.cuda.graphs import Graphs
from sapwood.driver.cuda.hosts import Hosts
from sapwood.driver.cuda.kernels import Kernels
from sapwood.driver.cuda.memory import Memory
from sapwood.driver.cuda.place import Place
from sapwood.driver.cuda.work import Work
from sapwood.driver.facade import Device, devices
from sapwood.driver.native import Native
from sapwood.driver.release import Release
from sapwood.driver.results import Refusal

R = TypeVar("R")

_BARE: Final = frozenset(
    {"capture_status", "launch_graph", "leave", "map"}
    | {"raw_stream", "record_event", "set_op", "wait_event"}
)
"""Calls that go to the device's place themselves, and only where they must.

CUDA answers them without a context, and allows them while capturing: launching a graph
takes half as long again otherwise, and recordings map dozens of extents.
"""


class Cuda(Device):
    """An NVIDIA GPU, by its number among those that the process sees.

    Not for use in a forked child. Raises `NoDevice`, with the reason, where there is
    none, or no driver for it that is new enough.
    """

    def __init__(self, ordinal: int = 0) -> None:
        library = open_library()
        self._place = place = Place(library, ordinal)
        self._memory = memory = Memory(library, ordinal)
        hosts = Hosts(library)
        self._flow = flow = Flow(library, hosts, place)
        self._kernels = kernels = Kernels(library)
        self._graphs = graphs = Graphs(library, place, kernels, hosts)
        work = Work(library, place, memory, hosts, flow, kernels, graphs)
        abilities = Abilities(
            place.name, "cuda", memory.page, exact_addresses=False, ordinal=ordinal
        )
        super().__init__(abilities, memory, flow, kernels, work, graphs)

    def around(self, name: str, call: Callable[..., R], args: tuple[Any, ...]) -> R:
        """Make a call in the device's place, its refusals named after it."""
        if self._barred is not None:
            raise self._barred.error(name)
        try:
            if name in _BARE:
                return call(*args)
            with self._place.here():
                return call(*args)
        except Refusal as refusal:
            raise refusal.error(name) from refusal.__cause__

    def close(self) -> None:
        """Wait, and give everything back; closing again does nothing."""
        if self._barred is not None:
            return
        memory, flow, graphs = self._memory, self._flow, self._graphs
        with Release() as release:
            release.each(self.destroy_stream, flow.origins)
            release(self.around, "settle", flow.settle, ())
            release.each(self.destroy_exec, graphs.execs.values)
            release.each(self.destroy_graph, graphs.graphs.values)
            release.each(self.unload_module, self._kernels.modules.values)
            release(self.around, "unload_kept", self._kernels.unload_kept, ())
            release.each(self.destroy_event, flow.events.values)
            release.each(self.destroy_stream, flow.streams.handles())
            release.each(self.release, memory.extents.values)
            release.each(self.free_host, memory.host)
            release.each(self.unregister_host, memory.registered)
            for address, size in list(memory.mappings.items()):
                release(self.unmap, address, size)
            for address, size in list(memory.reservations.items()):
                release(self.unreserve, address, size)
            release(self.around, "leave", self._place.leave, ())
            self._bar("the device was closed: open another one")

    def native(self, exec_: ExecHandle, nodes: Sequence[NodeHandle]) -> Native:
        """Return an exec as C knows it, with the nodes of copies that C may set."""
        return self.around("native", self._graphs.native, (exec_, nodes))


def _close_devices() -> None:
    for device in list(devices):
        if isinstance(device, Cuda):
            device.close()


# CUDA outlives the interpreter, and may call host functions until it is told to end.
atexit.register(_close_devices)
