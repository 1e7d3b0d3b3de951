"""From a recording to a node: page placement, linking, and what admission compares."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_

from sapwood.graphs.exec import Exec, Staged
from sapwood.graphs.recording import Recording
from sapwood.memory.fold import Life
from sapwood.memory.range import Range
from sapwood.memory.storage import Storage
from sapwood.tree.call.roles import Role
from sapwood.tree.call.signature import Arrays, Place
from sapwood.tree.guards import Ambient
from sapwood.tree.node.copy_out import ferries
from sapwood.tree.node.node import Node, PlaceUse
from sapwood.tree.node.outputs import Bytes, Outputs
from sapwood.tree.record.staging import landing
from sapwood.tree.record.taking import RecordRequest
from sapwood.units import Addr, Mask, Size

Linker = Callable[[Sequence[Addr], Sequence[Staged]], Exec]
"""Makes a graph launchable, its symbols at these addresses, copies around it."""


@dataclass(frozen=True, slots=True)
class LinkSpec:
    """What is known of a captured call before it is built into a node.

    ``names`` and ``roles`` are those of ``places``, the call's and behind them those
    of ``ambient_arrays``; ``stages`` is the room for those that are copied. ``lives``
    are of what a framework has allocated by itself. What is ``held`` is used by other
    parts of the call, behind this one; ``memos`` as in `Node`.
    """

    order: RecordRequest
    recording: Recording
    outputs: Outputs
    places: Sequence[Place]
    names: Sequence[str]
    roles: Sequence[Role]
    stages: Mapping[int, Storage]
    ambient: Ambient
    ambient_arrays: Arrays
    link: Linker
    lives: Sequence[Life] = ()
    held: Sequence[Bytes] = ()
    memos: Sequence[object] = ()


def build(drawing: LinkSpec, range_: Range) -> Node:
    """Return a node, placed and linked. Raises `DriverError` or `OutOfMemory`."""
    order, outputs = drawing.order, drawing.outputs
    held = [_span(each) for each in drawing.held]
    made = frozenset(range(len(outputs.storages)))
    copied = made if order.escapes else order.copies & made
    staying = (each for k, each in enumerate(outputs.storages) if k not in copied)
    lasting = [_span(each) for each in staying]
    placed = range_.page_indices([*lasting, *held])
    if placed or not order.escapes:
        range_.place(placed, order.candidates)
    range_.fold(drawing.lives, placed, order.candidates)
    uses = _uses(drawing)
    return Node(
        label=order.label,
        number=order.number,
        parent=order.parent,
        recording=drawing.recording,
        exec=_link(drawing, uses, range_),
        range=range_,
        ambient=drawing.ambient,
        places=uses,
        argument_places=len(order.call.given.lows),
        outputs=outputs,
        escapes=order.escapes,
        clobbers=range_.mask,
        output_masks=tuple(range_.mask_of(*_span(each)) for each in outputs.storages),
        ferries=ferries(outputs.storages, copied),
        ambient_lows=drawing.ambient_arrays.lows,
        ambient_sharing=drawing.ambient_arrays.sharing,
        held=_mask(held, range_),
        memos=tuple(drawing.memos),
    )


def _link(drawing: LinkSpec, uses: Sequence[PlaceUse], range_: Range) -> Exec:
    staged = [
        Staged(
            i + 1,
            landing(drawing.stages[i], drawing.places[i]),
            use.size,
            back=use.written and not use.donated,
        )
        for i, use in enumerate(uses)
        if use.role is Role.COPIED and use.used and use.size
    ]
    addresses = [range_.base, *(place.lo for place in drawing.places)]
    return drawing.link(addresses, staged)


def _uses(drawing: LinkSpec) -> tuple[PlaceUse, ...]:
    used, changed = drawing.recording.symbols(), drawing.recording.changed()
    described = zip(drawing.places, drawing.names, drawing.roles, strict=True)
    return tuple(
        PlaceUse(
            name=name,
            role=role,
            address=place.lo,
            size=Size(place.hi - place.lo),
            used=i + 1 in used,
            written=i + 1 in changed,
            donated=i in drawing.order.donated,
        )
        for i, (place, name, role) in enumerate(described)
    )


def _span(storage: Bytes) -> tuple[Addr, Addr]:
    # An empty storage has a block of its own, too: its page must be an output page.
    return storage.address, Addr(storage.address + max(storage.size, 1))


def _mask(spans: Sequence[tuple[Addr, Addr]], range_: Range) -> Mask:
    return Mask(reduce(or_, (range_.mask_of(*span) for span in spans), 0))
