"""Recordings that share pages by when anything on them is alive, replayed at random.

Programs of writes and copies are captured over lent addresses, with an allocator of
their own that uses blocks again. Replays must give what the same steps give on plain
bytes, whatever was replayed, kept, dropped and poisoned in between; and what backs
them must cost no more than it need, in new pages and in calls of the driver.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from sapwood.allocator.caching.allocator import Allocator
from sapwood.driver.api import ExecHandle
from sapwood.driver.emulated import Emulated
from sapwood.driver.layers import Checked, Recorded
from sapwood.errors import DriverError, InternalError, OutOfMemory
from sapwood.memory.device import Device
from sapwood.memory.fold import Life, Stretch, fold, stretches
from sapwood.memory.pages import Extent, page_numbers
from sapwood.memory.range import Range
from sapwood.memory.snapshot import snapshot
from sapwood.memory.validate import validate
from sapwood.units import Addr, Mask, Size, align_up, touching

__all__ = ["Program", "steps_until_wrong"]

_PAGE: Final = Size(mmap.PAGESIZE)
_PAGES: Final = 96
_ROOM: Final = 64
_TURNS: Final = 400
_STEPS: Final = 30
_RECORDINGS: Final = 4
_KEPT: Final = 3
_EIGHTHS: Final = 1, 3, 8, 17, 40
_ALIGNMENT: Final = 512
_GROWS: Final = 0.6
_AGAIN: Final = 0.5
_RECORDS: Final = 0.4
_GAPS: Final = 0.1

Block = tuple[Addr, Size]
_Do = Callable[[Checked, dict[Addr, bytearray] | None, int], None]


def steps_until_wrong(seed: int) -> int | None:
    """Return after how many turns something was wrong; None where nothing was."""
    world = _World(Random(seed))
    for turn in range(_TURNS):
        try:
            world.turn()
        except (DriverError, InternalError):
            world.abandon()
            return turn
    world.finish()
    return None


@dataclass
class Program:
    """What is captured: its steps, what lived when, and what outlives it.

    A step is ``(block, value)``, to be written, or ``(block, source, size)``, to be
    copied. ``stop`` is the end of the addresses that were used.
    """

    start: Addr
    stop: Addr
    steps: list[tuple[Block, int] | tuple[Block, Addr, Size]] = field(
        default_factory=list
    )
    lives: list[Life] = field(default_factory=list)
    outputs: list[Block] = field(default_factory=list)
    _free: list[Block] = field(default_factory=list)

    @classmethod
    def drawn(cls, start: Addr, chance: Random) -> Program:
        """Return a program that allocates from ``start`` on."""
        program = cls(start, start)
        alive: dict[Block, int] = {}
        for moment in range(_STEPS):
            block = program._taken(chance) if chance.random() < _GROWS else None
            if block is not None:
                alive[block] = moment
                program.steps.append((block, chance.randrange(256)))
                program._copied(chance.choice([*alive]), block)
            elif len(alive) > 1:
                gone = chance.choice([*alive])
                program._lived(gone, alive.pop(gone), moment)
                # All that it was shows in something that lives on.
                program._copied(gone, chance.choice([*alive]))
                program._free.append(gone)
        program.outputs = chance.sample([*alive], min(2, len(alive)))
        for block, born in alive.items():
            program._lived(block, born, None if block in program.outputs else _STEPS)
        return program

    def _taken(self, chance: Random) -> Block | None:
        """Return a block that was used before, or new addresses if there are any."""
        size = Size(chance.choice(_EIGHTHS) * _PAGE // 8)
        again = [block for block in self._free if block[1] == size]
        if again and chance.random() < _AGAIN:
            self._free.remove(again[0])
            return again[0]
        whole = align_up(size, _ALIGNMENT)
        # Behind some blocks pages are not used at all.
        gap = 2 * _PAGE if chance.random() < _GAPS else 0
        at = Addr(self.stop + gap)
        if at + whole > self.start + _ROOM * _PAGE:
            return None
        self.stop = Addr(at + whole)
        self.lives.append(Life(at, self.stop, 0, 0))
        return at, size

    def _copied(self, source: Block, block: Block) -> None:
        size = Size(min(source[1], block[1]) // 2)
        if source != block:
            self.steps.append((block, source[0], size))

    def _lived(self, block: Block, born: int, died: int | None) -> None:
        self.lives.append(Life(block[0], Addr(block[0] + block[1]), born, died))

    def given(self) -> Iterator[bytes]:
        """Yield what the outputs hold, by the same steps on plain bytes."""
        memory = bytearray(_ROOM * _PAGE)
        for (address, size), *how in self.steps:
            at = address - self.start
            if len(how) == 1:
                memory[at : at + size] = bytes([how[0]]) * size
            else:
                source, count = how[0] - self.start, how[1]
                memory[at : at + count] = memory[source : source + count]
        for address, size in self.outputs:
            at = address - self.start
            yield bytes(memory[at : at + size])


@dataclass(eq=False)
class _Recording:
    program: Program
    range: Range
    exec: ExecHandle
    results: tuple[bytes, ...]


@dataclass(eq=False)
class _Kept:
    recording: _Recording
    mask: Mask


class _World:
    """A small device, its recordings, and the outputs that are kept."""

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.emulated = Emulated(Size(_PAGES * _PAGE), _PAGE, "latest")
        self.driver = Checked(self.emulated)
        self.recorded = Recorded(self.driver)
        self.device = Device(self.recorded, Allocator)
        self.recordings: list[_Recording] = []
        self.kept: list[_Kept] = []

    def turn(self) -> None:
        """Record, replay, or drop something; raises where anything is wrong."""
        if not self.recordings or self.chance.random() < _RECORDS:
            self._record()
        self._replay(self.chance.choice(self.recordings))
        while len(self.kept) > self.chance.randrange(_KEPT + 1):
            gone = self.kept.pop(self.chance.randrange(len(self.kept)))
            self.device.pages.drop(gone.mask)
        self._check()

    def _record(self) -> None:
        if len(self.recordings) == _RECORDINGS:
            self._close(self.recordings.pop(self.chance.randrange(_RECORDINGS)))
        range_ = Range.reserve(self.device.pages)
        try:
            recording = self._captured(range_)
        except OutOfMemory:
            range_.close()
        else:
            self.recordings.append(recording)

    def _captured(self, range_: Range) -> _Recording:
        known = dict(self.device.pages.extents)
        start, _ = range_.lend(Size(_ROOM * _PAGE))
        program = Program.drawn(start, self.chance)
        stream = self.device.default.handle
        self.driver.begin_capture(stream)
        for (address, size), *how in program.steps:
            if len(how) == 1:
                self.driver.set(address, how[0], size, stream)
            else:
                self.driver.copy(address, Addr(how[0]), Size(how[1]), stream)
        graph = self.driver.end_capture(stream)
        shared = self._shared()
        spans = [(at, Addr(at + size)) for at, size in program.outputs]
        outputs = range_.page_indices(spans)
        self.recorded.reset()
        range_.fold(program.lives, outputs, shared)
        found = stretches(program.lives, outputs, range_.base, _PAGE)
        self._check_costs(range_, found, known, shared)
        handle = self.driver.instantiate(graph)
        self.driver.destroy_graph(graph)
        return _Recording(program, range_, handle, tuple(program.given()))

    def _shared(self) -> dict[Extent, None]:
        live = self.device.pages.live
        return {
            extent: None
            for other in self.recordings
            for extent in other.range.output_extents()
            if not extent.mask & live and self.chance.random() < 0.5
        }

    def _check_costs(
        self,
        range_: Range,
        found: Sequence[Stretch],
        known: Collection[Extent],
        shared: Collection[Extent],
    ) -> None:
        """Raise where a fold has cost more than it need; ``known`` was there before."""
        counts, extents = self.recorded.counts(), self.device.pages.extents
        pieces = len(range_.mappings())
        if counts.get("map", 0) > pieces:
            raise InternalError("each piece is mapped once")
        if counts.get("set_access", 0) > len(_runs(found)):
            raise InternalError("adjacent pages are opened at once")
        idle = [e.pages for e in known if e.scratch]
        fine = fold(found, idle, [e.pages for e in shared])
        if pieces > len(fine.pieces):
            raise InternalError("folding coarsely takes no more pieces")
        new = sum(e.pages for e in extents if e not in known)
        if new > sum(count for count, _ in fine.made):
            raise InternalError("folding coarsely takes no more pages")
        outputs = [each for each in found if each.output]
        lone = len(fold(outputs, (), [e.pages for e in shared]).pieces)
        rest = [each for each in found if not each.output]
        covers = covered(_runs(rest), idle)
        if covers is not None and pieces > lone + len(covers):
            raise InternalError("what is idle is mapped in few pieces")

    def _replay(self, recording: _Recording) -> None:
        pages, stream = self.device.pages, self.device.default
        if recording.range.mask & pages.live:
            return
        self._poison()
        pages.claim(stream, recording.range.mask)
        self.driver.launch_graph(recording.exec, stream.handle)
        mask = Mask(0)
        for address, size in recording.program.outputs:
            mask = Mask(mask | recording.range.mask_of(address, Addr(address + size)))
        pages.hold(mask)
        self.kept.append(_Kept(recording, mask))

    def _poison(self) -> None:
        live = self.device.pages.live
        spans = {
            number: Addr(address + i * _PAGE)
            for recording in self.recordings
            for address, extent in recording.range.mappings()
            for i, number in enumerate(page_numbers(extent.mask))
            if not live >> number & 1
        }
        self.driver.poison((address, _PAGE) for address in spans.values())

    def _check(self) -> None:
        handle = self.device.default.handle
        for kept in self.kept:
            recording = kept.recording
            for (address, size), result in zip(
                recording.program.outputs, recording.results, strict=True
            ):
                if self.driver.download(address, size, handle) != result:
                    raise InternalError("a replay gives what its steps give")
        named = {str(i): each.range for i, each in enumerate(self.recordings)}
        for broken in validate(snapshot(self.device, named)):
            raise InternalError(str(broken))

    def _close(self, recording: _Recording) -> None:
        recording.range.close()
        self.driver.destroy_exec(recording.exec)

    def finish(self) -> None:
        """Close everything; raises `InternalError` where something is left."""
        for kept in self.kept:
            self.device.pages.drop(kept.mask)
        for recording in self.recordings:
            self._close(recording)
        self.device.close()
        if self.driver.leaks():
            raise InternalError("all is given back", self.driver.leaks())
        self.emulated.close()

    def abandon(self) -> None:
        """Give everything back by force."""
        self.emulated.close()


def covered(lengths: Iterable[int], sizes: Iterable[int]) -> list[int] | None:
    """Return the extents that cover runs, the largest first; None if some are new.

    Each serves one run, without folding.
    """
    left, found = sorted(sizes, reverse=True), list[int]()
    for length in lengths:
        rest = length
        for size in tuple(left):
            if size <= rest:
                rest -= size
                left.remove(size)
                found.append(size)
        if rest:
            return None
    return found


def _runs(found: Sequence[Stretch]) -> list[int]:
    """Return how many pages each run of adjacent stretches has."""
    return [count for _, count in touching(each[:2] for each in found)]
