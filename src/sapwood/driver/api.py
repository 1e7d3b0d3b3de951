"""The device as this library sees it: one Protocol, spoken in plain integers.

Implemented by the emulated device, and by CUDA; wrapped by the layers. Every call
may raise `DriverError`; one that raises has done nothing, except that a call which
*gives something back* (release, unmap, destroy, free) has done its work even when
it reports an error.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NewType, Protocol

from sapwood.units import Addr, Size

StreamHandle = NewType("StreamHandle", int)
EventHandle = NewType("EventHandle", int)
ExtentHandle = NewType("ExtentHandle", int)
ModuleHandle = NewType("ModuleHandle", int)
FunctionHandle = NewType("FunctionHandle", int)
GraphHandle = NewType("GraphHandle", int)
NodeHandle = NewType("NodeHandle", int)
ExecHandle = NewType("ExecHandle", int)

MOST_COPIES: Final = 128
"""No `CopiesOp` makes more copies."""


class Access(enum.Enum):
    """What kernels may do with mapped memory."""

    NONE = 0
    READ = 1
    READ_WRITE = 3


class CaptureStatus(enum.Enum):
    """Whether a stream is recording instead of running."""

    NONE = 0
    ACTIVE = 1
    INVALIDATED = 2


@dataclass(frozen=True, slots=True)
class KernelOp:
    """Run a kernel: packed parameter bytes, addresses among them, and a grid.

    So many blocks as are in a ``cluster`` run at a time, and see each other's memory.
    """

    function: FunctionHandle
    params: bytes
    grid: tuple[int, int, int] = (1, 1, 1)
    block: tuple[int, int, int] = (1, 1, 1)
    shared: int = 0
    cluster: tuple[int, int, int] = (1, 1, 1)


@dataclass(frozen=True, slots=True)
class CopyOp:
    """Copy ``size`` bytes from ``src`` to ``dst``; the intervals do not overlap."""

    dst: Addr
    src: Addr
    size: Size


@dataclass(frozen=True, slots=True)
class CopiesOp:
    """Copy ``sizes[i]`` bytes from ``srcs[i]`` to ``dsts[i]``, for all i in any order.

    At least one copy, at most `MOST_COPIES`. What one writes, none reads, nor another
    writes. In columns, because they are packed and compared by the column.
    """

    dsts: tuple[Addr, ...]
    srcs: tuple[Addr, ...]
    sizes: tuple[Size, ...]


@dataclass(frozen=True, slots=True)
class SetOp:
    """Set ``size`` bytes at ``dst`` to one byte ``value``."""

    dst: Addr
    value: int
    size: Size


@dataclass(frozen=True, slots=True)
class HostOp:
    """Call a host function in stream order; it may make no driver call."""

    call: Callable[[], None]


@dataclass(frozen=True, slots=True)
class EmptyOp:
    """Do nothing, after what it depends on: a join."""


Op = KernelOp | CopyOp | CopiesOp | SetOp | HostOp | EmptyOp


@dataclass(frozen=True, slots=True)
class Pointer:
    """An address inside a kernel's parameter bytes.

    ``offset`` is where its 8 bytes (little-endian) lie; the kernel touches
    ``[lo, hi)``, which contains the address or is empty, and ``writes`` to it or
    only reads. Where it is not ``exact``, that is all there is to know: the kernel may
    use, and write, anything around the address.
    """

    offset: int
    lo: Addr
    hi: Addr
    writes: bool
    exact: bool = True


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a device is and can do; asked for once."""

    name: str
    kind: str
    """``"emulated"`` or ``"cuda"``."""
    page: Size
    """The granularity of physical memory, in bytes."""
    exact_addresses: bool
    """`Driver.pointers` knows every address in the parameters of every kernel."""
    ordinal: int = 0
    """Its number among the devices of its kind."""


@dataclass(frozen=True, slots=True)
class MemoryInfo:
    """Physical device memory, in bytes."""

    free: Size
    total: Size


class MemoryCalls(Protocol):
    """Virtual memory, in multiples of the page, and host memory."""

    def memory_info(self) -> MemoryInfo: ...

    def reserve(self, size: Size) -> Addr:
        """Reserve addresses."""

    def unreserve(self, address: Addr, size: Size) -> None:
        """Give a whole reservation back; nothing may be mapped in it."""

    def create(self, size: Size) -> ExtentHandle:
        """Create physical memory, mapped nowhere yet; its contents are undefined."""

    def release(self, extent: ExtentHandle) -> None:
        """Give the handle back; the memory goes with its last mapping."""

    def map(self, address: Addr, extent: ExtentHandle) -> None:
        """Map a whole extent at reserved, unmapped addresses, without access."""

    def set_access(self, address: Addr, size: Size, access: Access) -> None:
        """Set access to a wholly mapped interval, which may span mappings."""

    def unmap(self, address: Addr, size: Size) -> None:
        """Unmap whole mappings. Does not wait for work that uses them."""

    # Host memory that the device can reach.

    def allocate_host(self, size: Size) -> Addr: ...
    def free_host(self, address: Addr) -> None: ...
    def register_host(self, address: Addr, size: Size) -> None:
        """Let the device reach memory that the process has, until `unregister_host`."""

    def unregister_host(self, address: Addr) -> None:
        """End what `register_host` began at ``address``; the memory stays."""


class StreamCalls(Protocol):
    """Streams and events, and captures of streams."""

    def create_stream(self, lasting: bool = False) -> StreamHandle:
        """Return a new stream; one that is ``lasting`` outlives its handle."""

    def destroy_stream(self, stream: StreamHandle) -> None:
        """End a stream; work given to it still runs. An adopted one is forgotten."""

    def adopt_stream(self, raw: int) -> StreamHandle:
        """Return the handle of a stream that is called ``raw`` outside this library.

        In CUDA that is a ``CUstream``; 0, 1 and 2 are its default streams. The stream
        stays its owner's, who keeps it until the handle is destroyed. One that has a
        handle already, adopted or made here, keeps it.
        """

    def raw_stream(self, stream: StreamHandle) -> int:
        """Return what a stream is called outside this library."""

    def synchronize_stream(self, stream: StreamHandle) -> None: ...
    def query_stream(self, stream: StreamHandle) -> bool:
        """Return whether all work given to the stream is done."""

    def create_event(self, timing: bool = False) -> EventHandle:
        """Create an event that marks nothing yet, with ``timing`` for `elapsed`."""

    def destroy_event(self, event: EventHandle) -> None: ...
    def record_event(self, event: EventHandle, stream: StreamHandle) -> None: ...
    def wait_event(self, stream: StreamHandle, event: EventHandle) -> None:
        """Order the stream's further work after what the event marks."""

    def query_event(self, event: EventHandle) -> bool: ...
    def synchronize_event(self, event: EventHandle) -> None: ...
    def elapsed(self, start: EventHandle, end: EventHandle) -> float:
        """Return milliseconds between two events with timing that are done."""

    def synchronize(self) -> None:
        """Wait for all work of the device."""

    def begin_capture(self, stream: StreamHandle) -> None: ...
    def capture_status(self, stream: StreamHandle) -> CaptureStatus: ...
    def counter(self, stream: StreamHandle) -> Callable[[], int]:
        """Return what tells how many nodes the capture of a stream has by now.

        It may be called on any thread, until that capture ends.
        """


class ModuleCalls(Protocol):
    """Modules and their kernels."""

    def load_module(self, image: bytes) -> ModuleHandle: ...
    def unload_module(self, module: ModuleHandle) -> None: ...
    def find_function(self, module: ModuleHandle, name: str) -> FunctionHandle: ...
    def pointers(
        self, function: FunctionHandle, params: bytes
    ) -> tuple[Pointer, ...] | None:
        """Return all addresses in ``params``; None where the device cannot know.

        Without `Abilities.exact_addresses` they may be others' that look like some.
        """


class WorkCalls(Protocol):
    """What streams are given, which is recorded instead of run while they capture."""

    def launch(self, op: KernelOp, stream: StreamHandle) -> None: ...
    def copy(self, dst: Addr, src: Addr, size: Size, stream: StreamHandle) -> None: ...
    def set(self, dst: Addr, value: int, size: Size, stream: StreamHandle) -> None: ...
    def call_host(self, call: Callable[[], None], stream: StreamHandle) -> None: ...
    def upload(self, dst: Addr, data: memoryview, stream: StreamHandle) -> None:
        """Copy host bytes in, in stream order; ``data`` is read before returning."""

    def download(self, src: Addr, size: Size, stream: StreamHandle) -> bytearray:
        """Copy bytes out, in stream order, and wait for them."""

    def end_capture(self, stream: StreamHandle) -> GraphHandle:
        """End the capture that began on ``stream``; its forks must have joined."""

    def launch_graph(self, exec_: ExecHandle, stream: StreamHandle) -> None: ...


class GraphCalls(Protocol):
    """Graphs, and what is made of them to be launched."""

    def create_graph(self) -> GraphHandle: ...
    def destroy_graph(self, graph: GraphHandle) -> None: ...
    def add_node(
        self, graph: GraphHandle, op: Op, after: tuple[NodeHandle, ...] = ()
    ) -> NodeHandle: ...
    def nodes(self, graph: GraphHandle) -> tuple[NodeHandle, ...]:
        """Return the nodes in an order in which they may run."""

    def edges(self, graph: GraphHandle) -> tuple[tuple[NodeHandle, NodeHandle], ...]:
        """Return ``(before, after)`` pairs."""

    def node_op(self, node: NodeHandle) -> Op: ...
    def instantiate(self, graph: GraphHandle) -> ExecHandle:
        """Make a graph launchable; the graph may be destroyed afterwards."""

    def destroy_exec(self, exec_: ExecHandle) -> None:
        """Destroy an executable graph; launches already made are not affected."""

    def set_op(self, exec_: ExecHandle, node: NodeHandle, op: Op) -> None:
        """Change the parameters of a node for further launches, not its kind."""

    # Graphs that another library has captured, run as they are.

    def adopt_graph(self, raw: int) -> GraphHandle:
        """Return the handle of a graph that is called ``raw`` outside this library.

        In CUDA that is a ``CUgraph``. It stays its owner's, who keeps it until the
        handle, and those of all that was made of it, are destroyed.
        """

    def words(self, graph: GraphHandle) -> frozenset[Addr] | None:
        """Return whatever may be an address among what the nodes of a graph are given.

        None where there is a node that cannot be looked into.
        """

    def surround(
        self, graph: GraphHandle, first: tuple[Op, ...], last: tuple[Op, ...]
    ) -> tuple[tuple[NodeHandle, ...], tuple[NodeHandle, ...]]:
        """Add nodes that run before all others of a graph, and some after them all."""

    def adopt_exec(self, graph: GraphHandle, raw: int) -> ExecHandle:
        """Return the handle of what its owner has instantiated of an adopted graph."""


class Driver(MemoryCalls, StreamCalls, ModuleCalls, WorkCalls, GraphCalls, Protocol):
    """A device."""

    @property
    def abilities(self) -> Abilities: ...

    def close(self) -> None:
        """End the device: nothing of it may be used afterwards."""


def check_driver(driver: object) -> None:
    """Raise TypeError for what is no driver."""
    if not isinstance(getattr(driver, "abilities", None), Abilities):
        raise TypeError(
            f"driver={driver!r} is no Driver: open one, such as "
            "sapwood.driver.cuda.Cuda(0) or sapwood.driver.emulated.Emulated()"
        )
