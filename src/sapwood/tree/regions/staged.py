"""One call recorded in parts, where a device does not know every address.

What may lie elsewhere in the next call has a stand-in, which every part that uses it
copies in, and back where it writes. The function works on those. Eager regions, and
whoever has the result, get what the replays of the parts give them: each part is
replayed where it was captured, like any recording.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Final

from sapwood.driver.api import GraphHandle
from sapwood.driver.release import Release
from sapwood.driver.streams import Queue, Stream
from sapwood.errors import CaptureError, MisuseError
from sapwood.graphs.adopt import Owner, adopt
from sapwood.graphs.recording import Recording
from sapwood.memory.device import Device
from sapwood.memory.pages import Extent
from sapwood.memory.range import Range
from sapwood.memory.storage import Storage
from sapwood.tree.call.integration import Array, Integration
from sapwood.tree.call.roles import Role
from sapwood.tree.call.signature import Arrays, Place
from sapwood.tree.choose.recordings import Recordings
from sapwood.tree.guards import Slot
from sapwood.tree.nests.containers import container_of, flatten, unflatten
from sapwood.tree.node.node import Node
from sapwood.tree.node.outputs import Bytes, Outputs
from sapwood.tree.record.accounts import outliving, read
from sapwood.tree.record.adopted import MORE, ROOM
from sapwood.tree.record.build import LinkSpec, build
from sapwood.tree.record.staging import landing, spoil, stand_ins
from sapwood.tree.record.taking import RecordRequest, with_leaves
from sapwood.tree.regions.crossing import RAN, Break, Passed, Returned
from sapwood.tree.regions.parts import Parts
from sapwood.tree.regions.rerun import Begun
from sapwood.tree.replay.replay import replay
from sapwood.tree.watch.capturer import (
    Adopting,
    GraphCapturer,
    forgotten,
    lasting,
    told_of,
)
from sapwood.tree.watch.watch import Capture, Caught
from sapwood.units import Addr, Mask, Size, size_text


class _Nobody:
    """The token of bytes that somebody else gives back."""

    def ended(self, streams: tuple[Stream, ...]) -> None:
        del streams


_NOBODY: Final = _Nobody()


class Frame:
    """The function's ``arrays``, in the order of those that are carried for others.

    ``stages`` is the room of what is copied in, by place; ``new`` are the stand-ins
    that the part in progress brings. ``crossing`` are the places that parts have made,
    by where the function has them, and ``blocks`` those bytes, in their order.
    """

    # What others have is known by its identity, together with what is the function's:
    # both stay, so that nothing else gets it.

    def __init__(self, carried: Arrays, integration: Integration) -> None:
        self._integration = integration
        self.arrays: list[Array] = list(carried.arrays)
        self.stages: dict[int, Storage] = {}
        self.new: list[Storage] = []
        self.crossing: dict[Addr, int] = {}
        self.blocks: list[Bytes] = []
        self._own: dict[int, tuple[Array, Array]] = {}
        self._stood = self._results = 0

    def pair(self, theirs: Array, own: Array) -> Array:
        """Have an array be the function's own for one of others; return its first."""
        return self._own.setdefault(id(theirs), (theirs, own))[1]

    def stand_in(
        self, carried: Arrays, roles: Sequence[Role], range_: Range, device: Device
    ) -> None:
        """Have stand-ins, in a range, for what came since the last time."""
        places = carried.places(self._integration)
        roles = [
            role if i >= self._stood and i not in self.stages else Role.PINNED
            for i, role in enumerate(roles)
        ]
        stages, arrays = stand_ins(
            carried, places, roles, range_, device, self._integration
        )
        for k, (theirs, array) in enumerate(zip(carried.arrays, arrays, strict=True)):
            if array is not theirs:
                self.arrays[k] = self.pair(theirs, array)
        self.stages |= stages
        self.new, self._stood = list(stages.values()), len(places)

    def crosses(self, node: Node, first: int, dropped: Queue) -> None:
        """Take note of what a part has made, whose places begin with the ``first``."""
        for k, block in enumerate(node.outputs.storages):
            self.crossing[block.address] = first + k
            if node.escapes:
                storage = Storage(block.address, block.size, _NOBODY, dropped)
                self.stages[first + k] = storage

    def passes(self, own: Sequence[Array], theirs: Sequence[Array]) -> None:
        """Take note of what the function passes, and what a region gets for it."""
        for mine, other in zip(own, theirs, strict=True):
            self.pair(other, mine)
        self.arrays += own
        self._results = len(self.arrays)

    def returned(self, name: str, got: Returned, carried: Arrays) -> None:
        """Take note of an eager region's result; ``carried`` is all that others have.

        Raises `CaptureError` for what the function has no room for.
        """
        arrays = list(got.arrays.arrays)
        for specialization, known in zip(got.arrays.groups(), got.shared, strict=True):
            for k in specialization if known is not None else ():
                own = self.own(arrays[k], carried)
                if own is None:
                    raise CaptureError(
                        f"the eager region {name} returned more of an array than the "
                        f"function had before; {RAN}",
                        remedy="Return a copy of it, or pass the whole array",
                    )
                arrays[k] = own
        self.arrays += arrays

    def own(self, array: Array, carried: Arrays) -> Array | None:
        """Return what the function has for an array of others; None if it has none."""
        known = self._own.get(id(array))
        if known is not None:
            return known[1]
        integration = self._integration
        storage = integration.storage(array)
        i = next((i for i, s in enumerate(carried.storages) if s is storage), -1)
        stage = self.stages.get(i)
        if stage is None:
            return array  # it lies where the function has it, too
        place, (low, end) = carried.places(integration)[i], integration.span(array)
        if not place.lo <= low <= end <= place.hi:
            return None
        at = Addr(landing(stage, place) + integration.address(array) - place.lo)
        return self.pair(
            array, integration.make(integration.template(array), stage, at)
        )

    def let_go(self) -> None:
        """Forget all arrays."""
        self.arrays.clear()
        self._own.clear()

    def taken_in(self, result: Any, theirs: Any, own: Any) -> Any:
        """Return an eager region's result, made of what the function has itself.

        The function passed its ``own``, and the eager region got ``theirs``. Raises
        `CaptureError` for a container in which there is one of those that it got.
        """
        is_array = self._integration.is_array
        pairs = zip(
            _containers(theirs, is_array), _containers(own, is_array), strict=True
        )
        known = {id(other): mine for other, mine in pairs}
        if id(result) in known:
            return known[id(result)]
        if any(id(each) in known for each in _containers(result, is_array)):
            raise CaptureError(
                "a region returned a container in which there is one that it was "
                f"passed; {RAN}",
                remedy="Return that one itself, or only the arrays in it",
            )
        arrays = self.arrays[self._results :]
        if not arrays:
            return result
        leaves, structure = flatten(result, is_array)
        rest = iter(arrays)
        taken = [next(rest) if is_array(leaf) else leaf for leaf in leaves]
        return unflatten(structure, taken)


def _containers(value: Any, is_array: Callable[[Any], bool]) -> Iterator[Any]:
    """Yield all containers of a nest, each before those in it."""
    container = container_of(type(value))
    if container is None or is_array(value):
        return
    yield value
    for child in container.flatten(value)[0]:
        yield from _containers(child, is_array)


class StagedParts(Parts):
    """The recording of one call in which stand-ins take the place of what may move.

    ``frame`` has the function's own arrays, where ``carried`` has those of others, and
    ``passed`` are those of the last eager region's arguments, ``owned`` those that the
    last part has put into slots; in ``swapped`` slots the function finds its own while
    it is captured. ``named`` are the addresses that the function has shown. What is
    ``holding`` arrays ends with the capture of a part.
    """

    copies: ClassVar[bool] = True

    def __init__(
        self, order: RecordRequest, recordings: Recordings, began: Begun
    ) -> None:
        super().__init__(order, recordings, began)
        self.theirs, self.last = self.arguments, recordings.last
        self.frame = Frame(self.carried, recordings.integration)
        self.passed: list[Array] = []
        self.owned: list[Array] = []
        self.named: set[Addr] = set()
        self.mine: list[weakref.ref[Storage]] = []
        self.holding = ExitStack()
        self.holds: list[Mask] = []
        self.swapped: list[tuple[Slot, Array, Array]] = []

    # One part.

    def _open(self) -> None:
        """Make room for the coming part, and for stand-ins of what is new."""
        super()._open()
        self._prepare()
        self.frame.stand_in(self.carried, self.roles.now(), self.inside(), self.device)
        if not self.links:
            self.args, self.kwargs = with_leaves(self.call, self.frame.arrays)
            self.arguments = self.order.bind(self.args, self.kwargs)

    def _prepare(self) -> None:
        """Make ready for the capture of the coming part."""

    def _begin(self) -> None:
        super()._begin()
        self.session.go_on()
        self._hold()
        self._swap_in()

    def _hold(self) -> None:
        """Take note of what there is when the capture of the coming part begins."""

    def _swap_in(self) -> None:
        """Have the function find its own arrays in slots, where others have copies."""
        for slot, array in zip(self.ambient.arrays, self.arrays.arrays, strict=True):
            own = self.frame.own(array, self.carried)
            # More of an array than the function has is refused, if it is used.
            if own is not None and own is not array:
                # One that cannot be bound is refused, if it is used.
                with suppress(MisuseError):
                    slot.write(own, self.arguments)
                    self.swapped.append((slot, own, array))

    def _put_back(self) -> None:
        """Have others find theirs again, but for what the function has bound anew."""
        while self.swapped:
            slot, own, array = self.swapped.pop()
            with suppress(MisuseError):
                if slot.read(self.arguments) is own:
                    slot.write(array, self.arguments)

    def _end(self, graph: GraphHandle, shown: Any, *, last: bool) -> Node:
        """Make a node of what was captured, and replay it."""
        driver = self.device.driver
        with forgotten(driver, graph) as nodes:
            does = bool(driver.nodes(graph))
            node, bound = self._made(graph, shown, last=last)
            nodes.append(node)
        self.passed = [] if last else self._arrays_in(shown)
        idle = last and not (does or bound) and self._gives_given(node)
        self._link(node, tuple(slot for slot, _ in bound), idle=idle)
        self._save(node, self._places())
        self._replay(node, bound)
        self.begun = False
        return node

    def _made(
        self, graph: GraphHandle, shown: Any, *, last: bool
    ) -> tuple[Node, list[tuple[Slot, Array]]]:
        """Return a node of what was captured, and the slots that it binds to what."""
        integration = self.recordings.integration
        self._put_back()
        with self.holding:
            self._refuse(shown, last=last)
            bound = [(change.slot, change.new) for change in self._bound(last=last)]
            outputs = self._given(shown, [new for _, new in bound], last=last)
            places = self._places()
            recording = self._recorded(graph, places)
            drawing = self._drawing(recording, outputs, places, 0, last=last)
            self._check_found()
            held = [Bytes(each.address, each.size) for each in self.frame.new]
            if self.order.plan.escapes and not last:
                held += outputs.storages
            drawing = self._adopted(replace(drawing, held=held), graph)
            node = build(drawing, self.inside(), self.device)
        with self.outside():
            marks = integration.marks(self.arrays.arrays)
        node.whereabouts.others = () if marks is None else marks[1]
        return node, bound

    def _link(self, node: Node, slots: tuple[Slot, ...], *, idle: bool) -> None:
        """Add a part to the chain."""
        for mask in self.holds:
            # It copies into stand-ins in the ranges of parts before.
            node.clobbers = Mask(node.clobbers | mask)
        self._append(node, slots, idle=idle)
        self.holds.append(node.held)
        self.device.pages.hold(node.held)

    def _refuse(self, shown: Any, *, last: bool) -> None:
        """Raise where the function did what no replay of the part could do."""

    def _check_found(self) -> None:
        """Note where the function finds an array by itself that a replay would not."""
        where = self.roles.astray
        if where is not None:
            self.error = self.error or CaptureError(
                f"behind an eager region the function finds {where} by itself, where a "
                "replay would find another array than it was recorded with",
                remedy="Use the array itself there, or write into the one that was "
                "bound when the call began, with x[...] = value",
            )

    def _stages(
        self, places: Sequence[Place], roles: Sequence[Role]
    ) -> Mapping[int, Storage]:
        """Return the room of the stand-ins."""
        del places, roles
        return self.frame.stages

    def _given(self, shown: Any, values: Sequence[Array], *, last: bool) -> Outputs:
        """Describe what the part shows; what outlives it crosses to the next one."""
        frame, storage = self.frame, self.recordings.integration.storage
        made = self._survivors()
        outputs = self._shows(
            shown, values, frame.arrays, frame.blocks, made, rest=not last
        )
        leaves = self._arrays_in((shown, values))
        self.named.update(storage(each).address for each in leaves)
        return outputs

    def _survivors(self) -> list[Bytes]:
        alive = self.capture.survivors(self.first)
        for storage in alive:
            # For the parts to come it is memory like any other.
            storage.captured, storage.writer, storage.readers = False, None, ()
        self.mine += map(weakref.ref, alive)
        return [Bytes(storage.address, storage.size) for storage in alive]

    def _recorded(self, graph: GraphHandle, places: Sequence[Place]) -> Recording:
        lines, stages = self.session.lines[self.first_line :], self.frame.stages
        range_, known = self.inside(), self._memos().arrays
        return read(graph, lines, places, stages, range_, self.device, known)

    def _adopted(self, drawing: LinkSpec, graph: GraphHandle) -> LinkSpec:
        """Return a part's drawing, with what is known of whoever captured it."""
        del graph
        return drawing

    def _candidates(self) -> list[Extent]:
        # Stand-ins are written while others may hold outputs.
        return [] if self.order.plan.escapes else super()._candidates()

    def _replay(self, node: Node, bound: Sequence[tuple[Slot, Array]]) -> None:
        """Replay a part, and bind what it made."""
        recordings = self.recordings
        with self.outside():
            done = replay(recordings, node, self.carried, self.arrays, self.made)
        recordings.leases.cross(done.storages)
        self.made += done.storages
        self.frame.blocks += node.outputs.storages
        self.gives = done.result
        # A slot may be bound to None, which is carried nowhere.
        self.bound = [value for value in done.values if value is not None]
        self.owned = [own for _, own in bound if own is not None]
        for (slot, own), value in zip(bound, done.values, strict=True):
            if own is not None:
                self.frame.pair(value, own)
            # A container that was passed is the function's own one.
            slot.write(value, self.arguments)
            slot.write(value, self.theirs)

    # Eager regions.

    def _carry(
        self, met: Break, passed: Passed, result: Any, raised: Caught | None
    ) -> Returned | None:
        """Note what the next part may use of what there is now."""
        first = len(self.carried.storages)
        got = super()._carry(met, passed, result, raised)
        self.frame.crosses(self.links[-1].part, first, self.device.returns)
        remembered = [*passed.arrays(), *self.bound]
        self.frame.passes([*self.passed, *self.owned], remembered)
        if got is not None:
            self.frame.returned(met.part.name, got, self.carried)
        return got

    def _taken_in(self, result: Any, own: Any) -> Any:
        """Return an eager region's result, with stand-ins of what is new."""
        return self.frame.taken_in(result, self.gives, own)

    # The end.

    def _unheld(self) -> CaptureError | None:
        """Let go of what was made; return an error about what nothing accounts for."""
        lines = self._lines()
        self.let_go()
        lost = lasting(self._lost)
        if not lost:
            return None
        return outliving([(at, size, lines.get(at)) for at, size in lost])

    def _lost(self) -> list[tuple[Addr, Size]]:
        return [each for each in self._alive() if each[0] not in self.named]

    def _alive(self) -> list[tuple[Addr, Size]]:
        """Return what parts have allocated that somebody has."""
        held = (ref() for ref in self.mine)
        return [(each.address, each.size) for each in held if each is not None]

    def let_go(self) -> None:
        """Forget what the call made: from now on others say how long it lives."""
        super().let_go()
        self.passed, self.owned, self.gives = [], [], None
        self.frame.let_go()
        self.args, self.kwargs, self.arguments = (), {}, self.theirs
        for mask in self.holds:
            self.device.pages.drop(mask)
        self.holds.clear()
        # Nobody looks for a part by itself.
        if self.recordings.last in [link.part for link in self.links]:
            self.recordings.last = (
                self.last if self.last in self.recordings.nodes else None
            )

    def spoil(self) -> None:
        """Refuse stand-ins, and what was made where it was captured."""
        own = [storage for ref in self.mine if (storage := ref()) is not None]
        spoil(
            [*self.frame.stages.values(), *own],
            "it was the function's own while a call was recorded that then failed",
            "Look at what was passed to the call",
        )

    def close(self) -> None:
        """Give back what was made, for a call that failed."""
        # What the function made is garbage by now, or lives in its exception.
        gc.collect()
        with Release() as release:
            release(self.spoil)
            release(self._put_back)
            release(self.holding.close)
            release(self._drop)
            release(super().close)

    def _drop(self) -> None:
        """Give back what the capture of a part has, of which there is no node."""


class AdoptedParts(StagedParts):
    """The recording of one call whose parts a ``capturer`` captures.

    ``owners`` are the captures of all parts, the last one that of the part in progress.
    """

    def __init__(
        self,
        order: RecordRequest,
        recordings: Recordings,
        began: Begun,
        capturer: GraphCapturer,
    ) -> None:
        super().__init__(order, recordings, began)
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
            self._memos().arrays,
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
