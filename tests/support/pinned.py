"""Everything that may happen to pinned memory, in any order, contents checked.

`PinnedBlocks` writes each block full of a number of its own. Copies of it, whenever
they run, and replays of copies that were captured must find that number, and so must
whoever holds the block.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from itertools import count
from typing import Final

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from sapwood.allocator.caching.picture import PoolId
from sapwood.allocator.caching.settings import Settings
from sapwood.allocator.pinned import PinnedAllocator
from sapwood.driver.api import Access, Driver, ExecHandle, StreamHandle
from sapwood.driver.emulated import Emulated
from sapwood.driver.layers import Checked
from sapwood.errors import InternalError, MisuseError
from sapwood.units import Addr, Size
from tests.support.machine import Machine

__all__ = ["MODES", "PinnedBlocks"]

MODES: Final = (
    Settings(),
    Settings(pinned_max_round_threshold=Size(0)),
    Settings(pinned_max_round_threshold=Size(4096)),
    Settings(pinned_max_round_threshold=Size(0), pinned_max_cached_size=Size(0)),
    Settings(pinned_max_cached_size=Size(1 << 15)),
    Settings(pinned_reserve_segment_size=Size(1 << 16)),
    Settings(pinned_use_cuda_host_register=True, pinned_num_register_threads=2),
)
"""Ways to allocate that the machine goes from one to another of."""

_PAGE = Size(1 << 16)
_SLOTS = 16
_WIDTH = 8
_SIZES = st.one_of(
    st.integers(_WIDTH, 3000),
    *2 * [st.sampled_from([_WIDTH, 700, 4096, 5000, 1 << 15, 70_000])],
)


@dataclass(frozen=True, slots=True)
class _Held:
    address: Addr
    size: int
    number: int


@dataclass(frozen=True, slots=True)
class _Graph:
    """A captured copy: when replayed, ``number`` is in ``slot``."""

    exec_: ExecHandle
    pool: PoolId
    number: int
    slot: int


class PinnedBlocks(Machine):
    """An allocator of pinned memory, blocks of it, copies and captured copies.

    ``open_driver`` may be replaced: streams of what it opens must run nothing before
    somebody waits for it, for a copy that comes too late to show.
    """

    @staticmethod
    def open_driver() -> Driver:
        """Return a new device; the machine closes it."""
        return Emulated(Size(8 * _PAGE), _PAGE, "latest")

    @initialize(mode=st.sampled_from(MODES))
    def begin(self, mode: Settings) -> None:
        """Open a device with two streams and a page of slots."""
        self.driver = Checked(self.open_driver())
        self.begun()
        self.allocator = PinnedAllocator(self.driver, mode)
        self.streams = [self.driver.create_stream() for _ in range(2)]
        self.page = self.driver.reserve(_PAGE)
        extent = self.driver.create(_PAGE)
        self.driver.map(self.page, extent)
        self.driver.release(extent)
        self.driver.set_access(self.page, _PAGE, Access.READ_WRITE)
        self.numbers, self.pools = count(1), count(1)
        self.held: list[_Held] = []
        self.graphs: list[_Graph] = []
        self.read: set[_Held] = set()
        self.promised: dict[int, tuple[int, StreamHandle]] = {}

    @rule(size=_SIZES)
    def allocate(self, size: int) -> None:
        """Take a block and write it full of its number."""
        address = self.allocator.malloc(size)
        for other in self.held:
            if address < other.address + other.size and other.address < address + size:
                raise InternalError("two blocks that are held have no byte in common")
        number = next(self.numbers) % 255 + 1
        ctypes.memset(address, number, size)
        self.held.append(_Held(address, size, number))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), side=st.integers(0, 1), end=st.booleans())
    def copy(self, data: st.DataObject, side: int, end: bool) -> None:
        """Copy a part of a block into a slot of the stream's own."""
        block, stream = data.draw(st.sampled_from(self.held)), self.streams[side]
        slot = data.draw(st.integers(0, _SLOTS - 1)) * 2 + side
        source = Addr(block.address + (block.size - _WIDTH if end else 0))
        self.driver.copy(self._slot(slot), source, Size(_WIDTH), stream)
        self.allocator.record_use(source, stream)
        self.read.add(block)
        self.promised[slot] = (block.number, stream)

    @precondition(lambda self: set(self.held) - self.read)
    @rule(data=st.data(), side=st.integers(0, 1))
    def overwrite_and_free(self, data: st.DataObject, side: int) -> None:
        """Let the device write a block that nobody reads, and is freed before."""
        unread = [block for block in self.held if block not in self.read]
        block, stream = data.draw(st.sampled_from(unread)), self.streams[side]
        self.driver.set(block.address, 0, Size(block.size), stream)
        self.allocator.record_use(block.address, stream)
        self._free(block)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        """Free a block; once more is refused."""
        block = data.draw(st.sampled_from(self.held))
        self._free(block)
        try:
            self.allocator.free(block.address)
        except MisuseError:
            return
        raise InternalError("a block is freed once")

    @rule(side=st.integers(0, 1))
    def wait(self, side: int) -> None:
        """Wait for a stream: all that it was to copy is there."""
        stream = self.streams[side]
        self.driver.synchronize_stream(stream)
        for slot, (number, of) in list(self.promised.items()):
            if of == stream:
                self._look(slot, number)
                del self.promised[slot]

    @precondition(lambda self: self.held)
    @rule(data=st.data(), again=st.booleans())
    def capture(self, data: st.DataObject, again: bool) -> None:
        """Capture a copy of a block, which may be freed at once."""
        block, stream = data.draw(st.sampled_from(self.held)), self.streams[0]
        pool = PoolId(next(self.pools), 0)
        slot = 2 * _SLOTS + pool.capture
        with self.allocator.using(pool):
            self.driver.begin_capture(stream)
            self.driver.copy(self._slot(slot), block.address, Size(_WIDTH), stream)
            self.allocator.record_use(block.address, stream)
            self.read.add(block)
            if not again:
                self._free(block)
            graph = self.driver.end_capture(stream)
        exec_ = self.driver.instantiate(graph)
        self.driver.destroy_graph(graph)
        self.graphs.append(_Graph(exec_, pool, block.number, slot))

    @precondition(lambda self: self.graphs)
    @rule(data=st.data(), side=st.integers(0, 1))
    def replay(self, data: st.DataObject, side: int) -> None:
        """Launch a captured copy; what it is to copy is there, whenever it runs."""
        graph, stream = data.draw(st.sampled_from(self.graphs)), self.streams[side]
        now = self.promised.get(graph.slot)
        if now is None or now[1] == stream:
            self.driver.launch_graph(graph.exec_, stream)
            self.promised[graph.slot] = (graph.number, stream)

    @precondition(lambda self: self.graphs)
    @rule(told=st.sampled_from([True, True, False]), last=st.booleans())
    def forget(self, told: bool, last: bool) -> None:
        """End a graph, perhaps after a last launch, and what was kept for it."""
        graph = self.graphs.pop()
        if last and graph.slot not in self.promised:
            self.driver.launch_graph(graph.exec_, self.streams[1])
            self.promised[graph.slot] = (graph.number, self.streams[1])
        self.driver.destroy_exec(graph.exec_)
        self.allocator.release_pool(graph.pool, after=self.streams if told else None)

    @rule(mode=st.sampled_from(MODES))
    def configure(self, mode: Settings) -> None:
        """Go on in another way."""
        self.allocator.configure(mode)

    @rule()
    def empty(self) -> None:
        """Give back what is idle."""
        self.allocator.empty_cache()

    @invariant()
    def laws(self) -> None:
        """Whoever holds a block finds its number, and counters agree."""
        if not hasattr(self, "held"):
            return
        self.stepped()
        for block in self.held:
            data = ctypes.string_at(block.address, block.size)
            if data.count(block.number) != block.size:
                raise InternalError("nobody else writes to a block that is held")
        stats = self.allocator.memory_stats()
        if not (
            len(self.held) <= stats["active_requests.current"]
            and sum(block.size for block in self.held)
            <= stats["requested_bytes.current"]
            <= stats["active_bytes.current"]
            <= stats["allocated_bytes.current"]
            <= stats["allocated_bytes.peak"]
        ):
            raise InternalError("counters are of what is there", stats)

    def end(self) -> None:
        """Wait for all copies, and give all back: nothing is left, nor in parts."""
        for side in range(2):
            self.wait(side)
        while self.graphs:
            self.forget(told=False, last=False)
        for block in list(self.held):
            self._free(block)
        self.driver.synchronize()
        self.allocator.empty_cache()
        stats = self.allocator.memory_stats()
        reserve = 1 << 16 if stats["allocated_bytes.current"] else 0
        if stats["allocated_bytes.current"] != reserve:
            raise InternalError("free neighbours are one", stats)
        self.allocator.close()
        self._give_back()
        if leaks := self.driver.leaks():
            raise InternalError("what was given is given back", leaks)

    def leave(self) -> None:
        """End the device."""
        self.driver.close()

    def _free(self, block: _Held) -> None:
        self.held.remove(block)
        self.allocator.free(block.address)

    def _slot(self, slot: int) -> Addr:
        return Addr(self.page + slot * _WIDTH)

    def _look(self, slot: int, number: int) -> None:
        data = self.driver.download(self._slot(slot), Size(_WIDTH), self.streams[0])
        if data != bytes([number]) * _WIDTH:
            raise InternalError("a copy finds what was there when it was given")

    def _give_back(self) -> None:
        self.driver.unmap(self.page, _PAGE)
        self.driver.unreserve(self.page, _PAGE)
        for stream in self.streams:
            self.driver.destroy_stream(stream)
