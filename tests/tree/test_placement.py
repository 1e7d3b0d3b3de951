"""Temporaries packed by their lifetimes hold what they held."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from sapwood.allocator.planner import Buffer, largest_first
from sapwood.graphs.recording import (
    RANGE,
    WORD,
    Kind,
    RecordedOp,
    Recording,
    Relocation,
)
from sapwood.memory.blocks import ALIGNMENT, Blocks
from sapwood.tree.watch.placement import Made, lay_out
from sapwood.units import Addr, Size

BASE = Addr(1 << 40)


@dataclass
class Program:
    """Ops in a row over blocks of a range, as a capture would have made them."""

    blocks: Blocks = field(default_factory=lambda: Blocks(BASE, 2 * BASE))
    made: list[Made] = field(default_factory=list)
    alive: list[tuple[Addr, Size]] = field(default_factory=list)
    used: list[list[tuple[Addr, int]]] = field(default_factory=list)

    def allocate(self, size: Size) -> None:
        while (taken := self.blocks.take(size)) is None:
            self.blocks.grow(self.blocks.missing(size))
        self.made.append(Made(len(self.used), taken[0], size))
        self.alive.append((taken[0], size))

    def drop(self, which: int) -> None:
        self.blocks.give(self.alive.pop(which % len(self.alive))[0])

    def use(self, picks: Sequence[tuple[int, int]]) -> None:
        chosen = [(self.alive[i % len(self.alive)], at) for i, at in picks]
        self.used.append([(addr, at % size) for (addr, size), at in chosen])

    def recording(self) -> Recording:
        ops = tuple(RecordedOp(Kind.KERNEL, bytes(8 * len(u))) for u in self.used)
        relocations = tuple(
            Relocation(i, k * WORD.size, RANGE, addr + at - BASE)
            for i, used in enumerate(self.used)
            for k, (addr, at) in enumerate(used)
        )
        return Recording(ops, tuple(pairwise(range(len(ops)))), relocations, ())


def seen(recording: Recording) -> list[tuple[int, ...]]:
    """Run it: each op reads a byte by its first addresses, and writes the last."""
    memory: dict[int, int] = {}
    told = []
    for i in range(len(recording.ops)):
        at = [r.addend for r in recording.relocations if r.op == i]
        told.append(tuple(memory.get(a, -1) for a in at[:-1]))
        if at:
            memory[at[-1]] = i
    return told


@st.composite
def programs(draw: st.DrawFn) -> Program:
    program = Program()
    program.allocate(Size(1024))
    sizes = st.integers(1, 5000).map(Size)
    picks = st.lists(st.tuples(st.integers(0, 99), st.integers(0, 3)), max_size=3)
    for _ in range(draw(st.integers(0, 40))):
        step = draw(st.sampled_from(("allocate", "drop", "use", "use")))
        if step == "allocate" or not program.alive:
            program.allocate(draw(sizes))
        elif step == "drop":
            program.drop(draw(st.integers(0, 99)))
        else:
            program.use(draw(picks))
    return program


def packed(lives: Sequence[tuple[int, int, int]]) -> Sequence[int]:
    return largest_first([Buffer(a, b, Size(c)) for a, b, c in lives], ALIGNMENT)


@given(programs())
def test_every_op_reads_what_it_read(program):
    """Where an op wrote a byte of an allocation, later ops find it there."""
    recording = program.recording()
    kept = dict(program.alive)
    found = lay_out(recording, program.made, kept, BASE, packed)
    assert found is not None
    moved, end = found
    owners = own(program)
    before, after = seen(recording), seen(moved)
    for i, used in enumerate(program.used):
        for k in range(len(used) - 1):
            writer = before[i][k]
            if writer >= 0 and owners[writer][-1] == owners[i][k]:
                assert after[i][k] == writer
    assert all(
        r.addend < max(end - BASE, program.blocks.end - BASE) for r in moved.relocations
    )


def own(program: Program) -> list[list[int]]:
    """Return, for each op and address, which allocation it means: made last before."""
    return [
        [
            max(
                n
                for n, m in enumerate(program.made)
                if m.after <= i and m.address <= addr < m.address + m.size
            )
            for addr, _ in used
        ]
        for i, used in enumerate(program.used)
    ]


@given(programs())
def test_what_is_kept_stays(program):
    """Addresses of blocks that outlive the program are those of before."""
    recording = program.recording()
    found = lay_out(recording, program.made, dict(program.alive), BASE, packed)
    assert found is not None
    owners = own(program)
    last = {m.address: n for n, m in enumerate(program.made)}
    staying = {last[address] for address, _ in program.alive}
    for old, new in zip(recording.relocations, found[0].relocations, strict=True):
        if owners[old.op][old.offset // WORD.size] in staying:
            assert new == old


def test_lifetimes_that_do_not_meet_share_bytes():
    """Two temporaries that Python held at once, but no op did, lie at one address."""
    program = Program()
    for _ in range(2):
        program.allocate(Size(4096))
    program.use([(0, 0)])
    program.use([(1, 0)])
    program.drop(0)
    program.drop(0)
    found = lay_out(program.recording(), program.made, {}, BASE, packed)
    assert found is not None
    assert found[1] == BASE + 4096


def test_ops_that_may_overlap_are_left_alone():
    """Without a total order nothing is known of lifetimes."""
    program = Program()
    program.allocate(Size(64))
    program.use([(0, 0)])
    program.use([(0, 0)])
    forked = replace(program.recording(), edges=())
    assert lay_out(forked, program.made, {}, BASE, packed) is None
