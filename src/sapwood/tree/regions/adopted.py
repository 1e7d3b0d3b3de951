"""One call recorded in parts by a framework that captures by itself.

Each part is one of its captures, with an allocator of its own over the part's range.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from sapwood.driver.api import GraphHandle
from sapwood.errors import CaptureError
from sapwood.graphs.adopt import Owner, adopt
from sapwood.graphs.recording import Recording
from sapwood.memory.range import Range
from sapwood.tree.call.signature import Place
from sapwood.tree.choose.recordings import Recordings
from sapwood.tree.node.outputs import Bytes
from sapwood.tree.record.adopted import MORE, ROOM
from sapwood.tree.record.build import LinkSpec
from sapwood.tree.record.taking import RecordRequest
from sapwood.tree.regions.staged import StagedParts
from sapwood.tree.watch.capturer import Adopting, GraphCapturer, told_of
from sapwood.tree.watch.watch import Capture
from sapwood.units import Addr, Size, size_text

__all__ = ["AdoptedParts"]


class AdoptedParts(StagedParts):
    """The recording of one call whose parts a ``capturer`` captures.

    ``owners`` are the captures of all parts, the last one that of the part in progress.
    """

    def __init__(
        self, order: RecordRequest, recordings: Recordings, capturer: GraphCapturer
    ) -> None:
        super().__init__(order, recordings)
        self.capturer, self.lent = capturer, self._room()
        self.owners: list[Owner] = []
        self.first_op = self.first_code = self.first_constant = 0

    def _prepare(self) -> None:
        stream, warm = self.capturer.stream(), self.order.specialization.is_warm_here()
        owner = self.capturer.owner(self.inside(), self._room(), stream, warm=warm)
        self.owners.append(owner)
        # Other parts may use a stand-in, so that its pages are nobody else's.
        self.owner.follow(())

    @property
    def owner(self) -> Owner:
        """The capture of the part in progress."""
        return self.owners[-1]

    def _room(self) -> Size:
        """Return how much a part can allocate: nothing can be done twice."""
        warm = self.order.specialization.warm
        return Size(MORE * (ROOM + (warm.room if warm else 0)))

    def _capturing(self, range_: Range) -> Capture:
        """Return the capture of all parts."""
        self.adopting = Adopting(self.device, self.capturer, range_, self.owner)
        return self.adopting

    def _hold(self) -> None:
        session = self.session
        self.first_op, self.first_code = len(session.ops), len(session.code)
        self.first_constant = len(session.constants)
        self.adopting.owner = self.owner
        arrays = [*self.frame.arrays, *self.before.arrays()]
        self.holding.enter_context(self.owner.holding(arrays))

    # What was captured.

    def _refuse(self, shown: Any, *, last: bool) -> None:
        if self.owner.short:
            raise CaptureError(
                f"the function allocates more than {size_text(self._room())} while a "
                "part of it is captured",
                remedy="Graph what is before and behind the region each for itself",
            )
        # What a region is passed leads nowhere: no gradient comes back from there.
        refusal = self.owner.refusal(shown if last else None, self.frame.arrays)
        if refusal is not None:
            raise refusal

    def _recorded(self, graph: GraphHandle, places: Sequence[Place]) -> Recording:
        del graph
        frame = self.frame
        return told_of(
            self.session,
            places,
            frame.stages,
            self.inside(),
            self.first_op,
            frame.crossing,
        )

    def _survivors(self) -> list[Bytes]:
        return [Bytes(*each) for each in self.owner.survivors()]

    def _adopted(self, drawing: LinkSpec, graph: GraphHandle) -> LinkSpec:
        code = tuple(each for _, each in self.session.code[self.first_code :])
        code += tuple(self.session.constants[self.first_constant :])
        driver = self.device.driver
        link = partial(adopt, driver, graph, owner=self.owner, code=code)
        return replace(drawing, lives=self.owner.lives(()), link=link)

    # The end.

    def _alive(self) -> list[tuple[Addr, Size]]:
        return [each for owner in self.owners for each in owner.survivors()]

    def _drop(self) -> None:
        # Those of nodes go with these.
        for owner in self.owners[len(self.links) :]:
            owner.close()
