"""Faulty variants of the memory room, which `Allocations` or `folded` must catch.

Each is one line of the library written wrongly; `mutant` says how it is put there.
"""

from __future__ import annotations

from typing import Final

from sapwood.allocator.caching.blocks import Bin
from sapwood.memory import fold
from sapwood.memory.heap import Everybody, Heap, Uses
from sapwood.memory.pages import Pages
from sapwood.memory.range import Loan, Range
from sapwood.memory.storage import Storage
from sapwood.tree.node.leases import Leases
from tests.support.tree_mutants import mutant

__all__ = ["FOLD_MUTANTS", "MEMORY_MUTANTS"]


MEMORY_MUTANTS: Final = (
    mutant(
        "scratch shared with outputs",
        Range.place,
        "runs(inside & outputs), candidates",
        "runs(inside & outputs)",
    ),
    mutant("unmap without wait", Pages.settle, "release(finish, stream)", "pass"),
    mutant(
        "trim without wait",
        Everybody.synchronize_stream,
        "release.each(finish, self.uses.streams())",
        "pass",
    ),
    mutant(
        "lease released twice",
        Leases._leave,
        "self.pages.drop(lease.mask)",
        "self.pages.drop(lease.mask), self.pages.drop(lease.mask)",
    ),
    mutant("holds not counted", Pages.drop, "if holds > 1:", "if False:"),
    mutant("coalescing skipped", Bin.join, "if after.state is FREE:", "if False:"),
    mutant("wait lost in a split", Uses.take, "(end, hi, behind)", "(hi, hi, behind)"),
    mutant(
        "wait lost in a merge",
        Uses.take,
        "for *_, streams in touched",
        "for *_, streams in touched[-1:]",
    ),
    mutant(
        "read hazard dropped",
        Storage.order_write,
        "for other in readers if writer is None else (writer, *readers):",
        "for other in () if writer is None else (writer,):",
    ),
    mutant("reuse without wait", Heap.allocate, "stream.wait(other)", "pass"),
    mutant("wait forgotten", Heap.allocate, "storage.writer = stream", "pass"),
    mutant("clobber without wait", Pages.claim, "stream.wait(other)", "pass"),
    mutant(
        "live pages unmapped", Range.close, "if not e.mask & live", "if not e.mask & 0"
    ),
    mutant(
        "closed range forgotten",
        Range.close,
        "self.pages.lingering[self] = None",
        "pass",
    ),
    mutant(
        "extent mapped twice",
        Loan.spare,
        "if e not in taken",
        "",
    ),
    mutant(
        "page number used twice",
        Pages._free_numbers,
        "(self._numbers >> first) & want",
        "0",
    ),
)

FOLD_MUTANTS: Final = (
    mutant(
        "life ends early",
        fold._moments,
        "bisect_left(births, died)",
        "max(bisect_left(births, died) - 1, 0)",
    ),
    mutant(
        "life begins late",
        fold._moments,
        "after - bits[born]",
        "after - min(after, 2 * bits[born])",
    ),
    mutant(
        "shared while alive",
        fold._Room._fitting,
        "not slot.alive & alive and",
        "",
    ),
    mutant(
        "only the last is alive",
        fold._Room._using,
        "slot.alive |= stretch.alive",
        "slot.alive = stretch.alive",
    ),
    mutant(
        "joined over a gap",
        fold._merged,
        "last.first + last.pages == each.first",
        "more",
    ),
    mutant(
        "joined with an output",
        fold.joined,
        "last.output or each.output",
        "last.output",
    ),
    mutant(
        "joined, but alive as the first",
        fold._merged,
        "last.alive | each.alive",
        "last.alive",
    ),
    mutant("never joined", fold.best_fold, "fold(joined(found)", "fold((found)"),
    mutant(
        "joined whatever is new",
        fold.best_fold,
        "all(output for _, output in coarse.made)",
        "True",
    ),
    mutant(
        "joined whatever is mapped", fold.best_fold, "len(coarse.pieces) < least", "1"
    ),
    mutant("joined whatever it costs", fold.best_fold, "all(map(", "any(map("),
    mutant(
        "opened piece by piece",
        Range._open,
        "touching(mapped)",
        "mapped",
    ),
    mutant(
        "outputs on scratch",
        Range._map_folded,
        "scratch=not output",
        "scratch=True",
    ),
    mutant(
        "extent counted by the mapping",
        Range._map_extent,
        "if not self.mask & extent.mask:",
        "if True:",
    ),
)
"""What `folded` must catch."""
