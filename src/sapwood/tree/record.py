"""Recording one call: capture it, account for every address, place its pages, link.

Nothing of the call has run when this is done. Whatever fails leaves no trace: pages,
handles and rebound slots are as before.
"""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sapwood.errors import CaptureError
from sapwood.graph.capture import Foreign, Region, describe_foreign, read_graph
from sapwood.graph.exec import Staged, link
from sapwood.graph.recording import RANGE, Recording
from sapwood.memory.device import Device
from sapwood.memory.pages import Extent
from sapwood.memory.range import RESERVE, Range
from sapwood.memory.storage import Storage
from sapwood.tree.adapter import Adapter, Array
from sapwood.tree.ambient import Ambient
from sapwood.tree.node import Node, PlaceUse
from sapwood.tree.outputs import Outputs, analyse
from sapwood.tree.roles import Role
from sapwood.tree.signature import Arrays, Call, Place, look
from sapwood.tree.watch import Captured
from sapwood.units import Addr, Mask, Size, size_text

__all__ = ["Drawing", "build", "placeholders"]

_STAGE = 512
"""A staged copy keeps its source's address modulo this, so that it is as aligned."""


@dataclass(frozen=True, slots=True)
class Drawing:
    """What is known of a captured call before it is built into a node.

    ``call`` is the user's, ``roles`` those of its places, ``stages`` the storages
    that stand in for copied ones. ``ambient`` are the arrays that the function reads
    besides; ``bound`` those that it bound to slots.
    """

    label: str
    parent: str | None
    call: Call
    places: Sequence[Place]
    names: Sequence[str]
    donated: frozenset[int]
    roles: Sequence[Role]
    stages: Mapping[int, Storage]
    stand_ins: Sequence[Array]
    ambient: Ambient
    ambient_arrays: Sequence[Array]
    ambient_names: Sequence[str]
    ambient_roles: Mapping[str, Role]
    bound: Sequence[Array]
    escapes: bool
    candidates: Sequence[Extent]


def placeholders(
    given: Arrays,
    places: Sequence[Place],
    roles: Sequence[Role],
    range_: Range,
    device: Device,
    adapter: Adapter,
) -> tuple[dict[int, Storage], list[Array]]:
    """Return storages inside the range for copied places, and arrays over them.

    The arrays stand in for the call's; those of other places are the call's own.
    """
    stages: dict[int, Storage] = {}
    arrays = list(given.arrays)
    stream = device.stream()
    for i, (place, role) in enumerate(zip(places, roles, strict=True)):
        if role is not Role.COPIED:
            continue
        slack = place.lo % _STAGE
        storage = range_.allocate(
            Size(place.hi - place.lo + slack), stream, device.returns, line=None
        )
        stages[i] = storage
        for k in place.arrays:
            offset = adapter.address(given.arrays[k]) - place.lo
            address = Addr(storage.address + slack + offset)
            template = adapter.template(given.arrays[k])
            arrays[k] = adapter.make(template, storage, address)
    return stages, arrays


def build(
    drawing: Drawing,
    captured: Captured,
    range_: Range,
    device: Device,
    adapter: Adapter,
) -> Node:
    """Return a node, linked and placed, for a captured call.

    Raises `CaptureError` where an address or an allocation cannot be accounted for.
    """
    ambient = look(drawing.ambient_arrays, adapter)
    ambient_places = ambient.places(adapter)
    places = [*drawing.places, *ambient_places]
    recording = _read(drawing, captured, places, range_, device)
    known = [*drawing.stand_ins, *drawing.ambient_arrays]
    outputs = analyse(captured.result, drawing.bound, known, adapter)
    stages = _ambient_stages(drawing, ambient_places, recording, range_, device)
    stages.update(drawing.stages)
    _check_survivors(outputs, stages, range_, device)
    uses = _uses(drawing, places, recording)
    if not drawing.escapes:
        spans = [
            (s.address, Addr(s.address + max(s.size, 1))) for s in outputs.storages
        ]
        range_.place(range_.page_indices(spans), drawing.candidates)
    staged = [
        Staged(
            i + 1,
            Addr(stages[i].address + places[i].lo % _STAGE),
            use.size,
            back=use.written and not use.donated,
        )
        for i, use in enumerate(uses)
        if use.role is Role.COPIED and use.used and use.size
    ]
    addresses = [range_.base, *(place.lo for place in places)]
    exec_ = link(device.driver, recording, addresses, staged, device.function)
    return Node(
        label=drawing.label,
        parent=drawing.parent,
        recording=recording,
        exec=exec_,
        range=range_,
        ambient=drawing.ambient,
        places=tuple(uses),
        argument_places=len(drawing.places),
        outputs=outputs,
        escapes=drawing.escapes,
        clobbers=range_.mask,
        output_masks=_output_masks(outputs, range_),
        ambient_lows=ambient.lows,
        ambient_sharing=ambient.sharing,
        watches_overlap=bool(ambient_places)
        and any(use.used and not use.role.fixed for use in uses),
        revokes=tuple(sorted(drawing.donated - outputs.shown(drawing.call))),
    )


def _read(
    drawing: Drawing,
    captured: Captured,
    places: Sequence[Place],
    range_: Range,
    device: Device,
) -> Recording:
    regions = _regions(drawing, places, range_)
    found = read_graph(device.driver, captured.graph, regions, device.name_of)
    if isinstance(found, Recording):
        return found
    raise _foreign(found, captured)


def _regions(drawing: Drawing, places: Sequence[Place], range_: Range) -> list[Region]:
    """Say which addresses belong to what: the range, less its stages, and places."""
    regions: list[Region] = []
    at = range_.base
    for i, storage in sorted(drawing.stages.items(), key=lambda item: item[1].address):
        origin = Addr(storage.address + places[i].lo % _STAGE)
        end = Addr(storage.address + storage.size)
        regions.append(Region(at, storage.address, RANGE, range_.base))
        regions.append(Region(storage.address, end, i + 1, origin))
        at = end
    regions.append(Region(at, Addr(range_.base + RESERVE), RANGE, range_.base))
    regions += [
        Region(place.lo, place.hi, i + 1, place.lo)
        for i, place in enumerate(places)
        if i not in drawing.stages and place.lo < place.hi
    ]
    return regions


def _foreign(foreign: Foreign, captured: Captured) -> CaptureError:
    lines = captured.session.lines
    return CaptureError(
        f"{describe_foreign(foreign)}, which is neither an argument nor reachable "
        "from what the function's code names",
        where=lines[foreign.op] if foreign.op < len(lines) else None,
        remedy="Pass that array as an argument, or keep it in a variable, attribute "
        "or container that the function itself names",
    )


def _ambient_stages(
    drawing: Drawing,
    places: Sequence[Place],
    recording: Recording,
    range_: Range,
    device: Device,
) -> dict[int, Storage]:
    """Allocate room in the range for ambient arrays that every replay copies."""
    stages: dict[int, Storage] = {}
    for i, place in enumerate(places, len(drawing.places)):
        name = drawing.ambient_names[place.arrays[0]]
        copied = drawing.ambient_roles.get(name) is Role.COPIED
        if copied and i + 1 in recording.symbols():
            size = Size(place.hi - place.lo + place.lo % _STAGE)
            stages[i] = range_.allocate(
                size, device.stream(), device.returns, line=None
            )
    return stages


def _uses(
    drawing: Drawing,
    places: Sequence[Place],
    recording: Recording,
) -> list[PlaceUse]:
    symbols = recording.symbols()
    first = len(drawing.places)
    uses: list[PlaceUse] = []
    for i, place in enumerate(places):
        if i < first:
            name, role = drawing.names[i], drawing.roles[i]
        else:
            name = drawing.ambient_names[place.arrays[0]]
            role = drawing.ambient_roles.get(name, Role.PINNED)
        uses.append(
            PlaceUse(
                name=name,
                role=role,
                address=place.lo,
                size=Size(place.hi - place.lo),
                used=i + 1 in symbols,
                written=bool(recording.written(i + 1)),
                donated=i in drawing.donated,
            )
        )
    return uses


def _check_survivors(
    outputs: Outputs,
    stages: Mapping[int, Storage],
    range_: Range,
    device: Device,
) -> None:
    """Raise where an allocation outlives the function and nothing says why."""
    named = {storage.address for storage in outputs.storages}
    named.update(storage.address for storage in stages.values())
    lost = _lost(range_, named, device)
    if lost:
        # Cycles and tracebacks keep arrays alive that nobody can reach.
        gc.collect()
        lost = _lost(range_, named, device)
    if lost:
        _, size, line = lost[0]
        raise CaptureError(
            f"{len(lost)} allocation(s) outlive the function, the first of "
            f"{size_text(size)}, and neither its result nor a slot that it names "
            "holds them",
            where=line,
            remedy="Return the array, or bind it to an attribute, global or dict "
            "item that the function names",
        )


def _lost(
    range_: Range, named: set[Addr], device: Device
) -> list[tuple[Addr, Size, str | None]]:
    device.returns.drain()
    return [survivor for survivor in range_.taken() if survivor[0] not in named]


def _output_masks(outputs: Outputs, range_: Range) -> tuple[Mask, ...]:
    return tuple(
        range_.mask_of(s.address, Addr(s.address + max(s.size, 1)))
        for s in outputs.storages
    )
