"""A state machine of memory: eager arrays, recordings' ranges and leases, in any order.

`Allocations` makes a device on any driver, with little memory and a few streams, and
writes everything that it is given; whatever overlaps, comes too early or is unmapped
too soon shows in the bytes, and the books are validated after each step.
Needs Hypothesis.
"""

from __future__ import annotations

import gc
import mmap
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from hypothesis import strategies as st
from hypothesis.stateful import (
    initialize,
    invariant,
    precondition,
    rule,
)

from sapwood.allocator.caching.allocator import Allocator
from sapwood.driver.api import Driver
from sapwood.driver.emulated import Emulated
from sapwood.driver.layers import Checked
from sapwood.driver.streams import Stream
from sapwood.errors import InternalError, OutOfMemory
from sapwood.memory.device import Device
from sapwood.memory.range import Range
from sapwood.memory.snapshot import snapshot
from sapwood.memory.storage import Storage
from sapwood.memory.validate import validate
from sapwood.tree.node.leases import Lease, Leases
from sapwood.units import Addr, Mask, Size
from tests.support.machine import Machine

__all__ = ["Allocations", "Held", "Replayed", "small_device"]

_ARRAYS: Final = 4
_OUTPUTS: Final = 3
_RECORDINGS: Final = 3
_STREAMS: Final = 3

Span = tuple[Addr, Size]
_NO_PAGES: Final = Mask(0)


def small_device(schedule: str, pages: int) -> Driver:
    """Return an emulated device of so many of the smallest pages."""
    return Emulated(Size(pages * mmap.PAGESIZE), Size(mmap.PAGESIZE), schedule)


@dataclass(slots=True, eq=False)
class Held:
    """A storage that somebody holds, what its bytes must be, and its pages."""

    storage: Storage
    contents: bytes
    mask: Mask = _NO_PAGES


@dataclass(frozen=True, slots=True, eq=False)
class Replayed:
    """A stand-in for a recording: what its replays write, in this order."""

    range: Range
    dead: Sequence[Span]
    temporaries: Sequence[Span]
    outputs: Sequence[Span]


_place = st.integers(0, 11)
"""Picks one of however many there are."""
_stream = st.integers(0, _STREAMS - 1)
_streams = st.permutations(range(_STREAMS))
_number = st.integers(1, 2)
_eighths = st.sampled_from([1, 2, 8, 17])
"""A size, in eighths of a page."""


class Allocations(Machine):
    """Everything that may happen to device memory, with its contents.

    Subclass it and set ``driver``: given a schedule and a number of pages, it opens a
    device; one that is not emulated heeds what it can of them. Raises `InternalError`
    for a broken law, `DriverError` where the device notices first.
    """

    driver: Callable[[str, int], Driver] = staticmethod(small_device)

    @initialize(
        schedule=st.sampled_from(["latest", "random:3", "latest", "earliest"]),
        pages=st.sampled_from([24, 64]),
        limit=st.sampled_from([None, 16]),
    )
    def begin(self, schedule: str, pages: int, limit: int | None) -> None:
        """Open a device."""
        self.checked = Checked(type(self).driver(schedule, pages))
        self.begun()
        self.page = self.checked.abilities.page
        self.device = Device(
            self.checked, Allocator, None if limit is None else Size(limit * self.page)
        )
        self.device.pages.reclaim = self._reclaim
        self.leases = Leases(self.device.pages)
        self.streams = [
            self.device.default,
            *(self.device.new_stream() for _ in range(_STREAMS - 1)),
        ]
        self.written = 0
        self.arrays: list[Held] = []
        self.outputs: list[Held] = []
        self.recordings: list[Replayed] = []
        self.record([1], [1, 8], dead=0, stays=False, shared=False)

    def _reclaim(self) -> bool:
        if self.device.heap.trim():
            return True
        if not self.recordings:
            return False
        self.recordings.pop(0).range.close()
        return True

    # Arrays, and outputs, which are arrays all the same.

    @rule(eighths=_eighths, stream=_stream, user=_stream)
    def allocate(self, eighths: int, stream: int, user: int) -> None:
        """Make an array on one stream and write it on another, or the same."""
        del self.arrays[: len(self.arrays) - _ARRAYS + 1]
        size = Size(eighths * self.page // 8)
        try:
            storage = self.device.allocate_on_heap(size, self.streams[stream])
        except OutOfMemory:
            return
        self.arrays.append(Held(storage, b""))
        self._set(self.arrays[-1], self.streams[user])

    @rule(eighths=_eighths, streams=_streams, gone=_number, made=_number)
    def hand_over(self, eighths: int, streams: list[int], gone: int, made: int) -> None:
        """Drop new arrays with their writes still queued, for others of their bytes."""
        for stream in streams[:gone]:
            self.allocate(2 * eighths // gone, stream, stream)
        dropped = self.arrays[-gone:]
        del self.arrays[-gone:]
        while dropped:
            del dropped[0]
        for stream, user in zip(streams[1:], streams[-made:], strict=False):
            self.allocate(2 * eighths // made, stream, user)
        self._settle(streams)

    @precondition(lambda self: self.arrays)
    @rule(place=_place)
    def free(self, place: int) -> None:
        """Drop an array, whatever still uses it."""
        del self.arrays[place % len(self.arrays)]

    @precondition(lambda self: self.arrays or self.outputs)
    @rule(place=_place, stream=_stream)
    def write(self, place: int, stream: int) -> None:
        """Write an array in place, held or live as it is."""
        self._set(self._any(place), self.streams[stream])

    @precondition(lambda self: self.arrays or self.outputs)
    @rule(of=_place, to=_place, stream=_stream)
    def copy(self, of: int, to: int, stream: int) -> None:
        """Read one array into another, without waiting on the host."""
        src, dst = self._any(of), self._any(to)
        if src is dst:
            return
        on = self.streams[stream]
        size = min(src.storage.size, dst.storage.size)
        src.storage.order_read(on)
        dst.storage.order_write(on)
        self.checked.copy(dst.storage.address, src.storage.address, size, on.handle)
        dst.contents = src.contents[:size] + dst.contents[size:]

    @rule(eighths=_eighths, streams=_streams)
    def overwrite(self, eighths: int, streams: list[int]) -> None:
        """Copy an array, and write it with that still queued."""
        first, second, third = streams
        self.allocate(eighths, first, first)
        self.allocate(eighths, second, second)
        if len(self.arrays) > 1:
            self.copy(-2, -1, second)
            self.write(-2, third)
        self._settle(streams)

    @precondition(lambda self: self.arrays or self.outputs)
    @rule(place=_place, stream=_stream)
    def read(self, place: int, stream: int) -> None:
        """Compare one array, which waits for no more than it needs."""
        self._check(self._any(place), self.streams[stream])

    def _any(self, place: int) -> Held:
        held = [*self.outputs, *self.arrays]
        return held[place % len(held)]

    def _set(self, held: Held, stream: Stream) -> None:
        storage, value = held.storage, self._new_byte()
        storage.order_write(stream)
        self.checked.set(storage.address, value, storage.size, stream.handle)
        held.contents = bytes([value]) * storage.size

    def _new_byte(self) -> int:
        # No two writes within sight of each other may look alike.
        self.written += 1
        return self.written % 256

    def _check(self, held: Held, stream: Stream) -> None:
        storage = held.storage
        storage.order_read(stream)
        found = self.checked.download(storage.address, storage.size, stream.handle)
        if found != held.contents:
            wrong = next(i for i, b in enumerate(found) if b != held.contents[i])
            raise InternalError(
                "what is held does not change",
                {"byte": wrong, "of": storage.size, "is": found[wrong]},
            )

    # Recordings.

    @rule(
        temporaries=st.lists(_eighths, max_size=3),
        outputs=st.lists(_eighths, min_size=1, max_size=2),
        dead=st.integers(0, 2),
        stays=st.booleans(),
        shared=st.booleans(),
    )
    def record(
        self,
        temporaries: list[int],
        outputs: list[int],
        dead: int,
        stays: bool,
        shared: bool,
    ) -> None:
        """Open a range, back it as a capture would, and place its outputs."""
        if len(self.recordings) == _RECORDINGS:
            self.close(0, [])
        range_ = Range.reserve(self.device.pages)
        try:
            early = self._back(range_, temporaries[:dead], stays=False)
            gone = _spans(early)
            del early
            late = self._back(range_, temporaries[dead:], stays=False)
            kept = self._back(range_, outputs, stays=stays)
            recording = Replayed(range_, gone, _spans(late), _spans(kept))
            del late, kept
            self._place_outputs(recording, shared=shared)
        except OutOfMemory:
            range_.close()
        else:
            self.recordings.append(recording)

    def _back(
        self, range_: Range, sizes: Sequence[int], *, stays: bool
    ) -> list[Storage]:
        self._drain()
        return [
            range_.allocate(
                Size(eighths * self.page // 8),
                self.streams[0],
                self.device.returns,
                line=None,
                stays=stays,
            )
            for eighths in sizes
        ]

    def _place_outputs(self, recording: Replayed, *, shared: bool) -> None:
        spans = [(lo, Addr(lo + size)) for lo, size in recording.outputs]
        others = {
            extent: None
            for other in self.recordings
            for extent in other.range.output_extents()
        }
        recording.range.place(
            recording.range.page_indices(spans), others if shared else ()
        )

    @precondition(lambda self: self.recordings)
    @rule(place=_place, streams=_streams, times=_number)
    def replay(self, place: int, streams: list[int], times: int) -> None:
        """Run a recording, perhaps twice; hold what came of the last time."""
        recording = self.recordings[place % len(self.recordings)]
        self._run_on(recording, streams[:times])
        self._settle(streams)

    def _run_on(self, recording: Replayed, streams: Sequence[int]) -> None:
        """Replay where nothing live is clobbered, on one stream after the other."""
        made: list[Held] = []
        for stream in streams:
            made.clear()
            self._drain()
            if recording.range.mask & self.device.pages.live:
                return
            made += self._replay(recording, self.streams[stream])
        self.outputs += made
        del self.outputs[: len(self.outputs) - _OUTPUTS]

    def _replay(self, recording: Replayed, stream: Stream) -> Iterator[Held]:
        range_ = recording.range
        self.device.pages.claim(stream, range_.mask)
        contents = self._run(recording, stream)
        for (address, size), data in zip(recording.outputs, contents, strict=True):
            mask = range_.mask_of(address, Addr(address + size))
            lease = Lease(self.leases, range_, mask)
            storage = Storage(address, size, lease, self.device.returns)
            storage.writer = stream
            self.leases.begin(lease, storage)
            yield Held(storage, data, mask)

    def _run(self, recording: Replayed, stream: Stream) -> list[bytes]:
        """Write temporaries, make outputs of them, and return what those must be."""
        for address, size in recording.dead:
            self.checked.set(address, 0, size, stream.handle)
        values = [self._new_byte() for _ in recording.temporaries]
        for (address, size), value in zip(recording.temporaries, values, strict=True):
            self.checked.set(address, value, size, stream.handle)
        contents = []
        for address, size in recording.outputs:
            data = bytes([self._new_byte()]) * size
            self.checked.set(address, data[0], size, stream.handle)
            sources = enumerate(zip(recording.temporaries, values, strict=True), 1)
            for i, ((source, length), value) in sources:
                part = min(length, size) // i
                self.checked.copy(address, source, Size(part), stream.handle)
                data = bytes([value]) * part + data[part:]
            contents.append(data)
        return contents

    @precondition(lambda self: self.outputs)
    @rule(place=_place)
    def drop(self, place: int) -> None:
        """Drop an output, whatever still uses it."""
        del self.outputs[place % len(self.outputs)]

    @precondition(lambda self: self.outputs)
    @rule(place=_place)
    def revoke(self, place: int) -> None:
        """End a lease before its storage is gone."""
        held = self.outputs.pop(place % len(self.outputs))
        self.leases.revoke_one(held.storage, "the machine revoked it")

    @precondition(lambda self: self.recordings)
    @rule(place=_place, streams=st.lists(_stream, max_size=1))
    def close(self, place: int, streams: list[int]) -> None:
        """Close a recording's range, whatever runs and whatever is live."""
        recording = self.recordings.pop(place % len(self.recordings))
        self._run_on(recording, streams)
        recording.range.close()

    @rule(eighths=_eighths, stream=_stream)
    def trim(self, eighths: int, stream: int) -> None:
        """Give the free end of the heap back, with a write of it still queued."""
        self.allocate(2 * eighths, stream, stream)
        del self.arrays[-1:]
        self._drain()
        with self.device.lock:
            self.device.heap.trim()

    def _settle(self, streams: Sequence[int]) -> None:
        """Let each stream run to its end, the last first, and compare everything."""
        for number in reversed(streams):
            self.streams[number].synchronize()
        self._check_all()

    def _drain(self) -> None:
        with self.device.lock:
            self.device.returns.drain()

    # Laws.

    @invariant()
    def books_are_true(self) -> None:
        """No law of `validate` is broken."""
        self.stepped()
        self._drain()
        names = {str(i): r.range for i, r in enumerate(self.recordings)}
        picture = snapshot(self.device, names)
        broken = validate(picture)
        if broken:
            raise InternalError(str(broken[0]), picture)

    @invariant()
    def live_pages_are_held(self) -> None:
        """A page is live while an output on it is held, and no longer."""
        held = Mask(0)
        for output in self.outputs:
            held = Mask(held | output.mask)
        if held != self.device.pages.live:
            raise InternalError(
                "live pages are those of outputs that are held",
                {"held": held, "live": self.device.pages.live},
            )

    def abandon(self) -> None:
        """The traceback holds storages, whose device is gone when they go."""
        self.device.returns.append = deque[Any](maxlen=0).append

    def leave(self) -> None:
        """Close the device."""
        self.checked.close()

    def end(self) -> None:
        """Compare everything, close with outputs held, and look for what is left."""
        while self.recordings:
            self.close(0, [])
        self.device.close()
        self._check_all()
        for mine in (self.arrays, self.outputs, self.streams):
            mine.clear()
        if self.checked.leaks():
            gc.collect()
        if self.checked.leaks():
            raise InternalError("closing leaks nothing", self.checked.leaks())

    def _check_all(self) -> None:
        for held in (*self.outputs, *self.arrays):
            self._check(held, self.streams[0])


def _spans(storages: Sequence[Storage]) -> list[Span]:
    return [(storage.address, storage.size) for storage in storages]
