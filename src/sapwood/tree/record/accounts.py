"""Every address in a captured graph, and every allocation, is accounted for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from sapwood.errors import CaptureError
from sapwood.graphs.capture import Foreign, GraphOps, Region, describe_foreign
from sapwood.graphs.recording import FIXED, RANGE, Recording
from sapwood.memory.device import Device
from sapwood.memory.framework import Framework
from sapwood.memory.range import Range
from sapwood.memory.storage import Storage
from sapwood.tree.call.integration import Array, Integration
from sapwood.tree.call.signature import Place
from sapwood.tree.guards import Survey
from sapwood.tree.node.outputs import Bytes, Outputs, keeping
from sapwood.tree.record.staging import landing
from sapwood.units import Addr, Size, hex_address, size_text

_REMEDY = (
    "Pass that array as an argument, or keep it in a variable, attribute or "
    "container that the function itself names"
)


Lost: TypeAlias = tuple[Addr, Size, str | None]
"""An allocation that nobody is known to hold, and the line that made it, if known."""


def memos_of(
    before: Survey, integration: Integration, framework: Framework
) -> tuple[dict[Storage, Array], list[object]]:
    """Return what is remembered just now, by functions that a survey has reached.

    That is arrays by their storages, and all that a recording is to hold.
    """
    kept, is_array = [*framework.remembered()], integration.is_array
    arrays = [*before.memoised().values(), *filter(is_array, kept)]
    known = {integration.look(each).storage: each for each in arrays}
    return known, [*known.values(), *(each for each in kept if not is_array(each))]


def read(
    ops: GraphOps,
    lines: Sequence[str | None],
    places: Sequence[Place],
    stages: Mapping[int, Storage],
    range_: Range,
    device: Device,
    memos: Iterable[Storage],
) -> Recording:
    """Return what is in a captured graph, ops from ``lines``, as a recording.

    ``memos`` may be used besides, by a function that remembers what it gave. Raises
    `CaptureError` for an address that is neither in the range nor in a place.
    """
    exact = device.driver.abilities.exact_addresses
    regions = _regions(places, stages, range_, exact=exact)
    known = {place.storage for place in places}
    regions += [
        Region(memo.address, Addr(memo.address + memo.size), FIXED, memo.address)
        for memo in memos
        if memo not in known and memo.size and not range_.holds(memo.address)
    ]
    found = ops.recording(regions)
    if isinstance(found, Foreign):
        raise CaptureError(
            f"{describe_foreign(found)}, which is neither an argument nor reachable "
            "from what the function's code names",
            where=lines[found.op] if found.op < len(lines) else None,
            remedy=_REMEDY,
        )
    return found


def _regions(
    places: Sequence[Place],
    stages: Mapping[int, Storage],
    range_: Range,
    *,
    exact: bool,
) -> list[Region]:
    """Say which addresses belong to what: the range, less its stages, and places.

    Where addresses are not exact, all of a place's storage belongs to it. Stages may be
    in the range of another part.
    """
    regions: list[Region] = []
    staged = sorted((s.address, Addr(s.address + s.size), i) for i, s in stages.items())
    for start, end, i in staged:
        regions.append(Region(start, end, i + 1, landing(stages[i], places[i])))
    gaps: list[tuple[Addr, Addr]] = []
    for at, stop in range_.spans():
        for start, end, _ in staged:
            if at <= start < stop:
                gaps.append((at, start))
                at = end  # noqa: PLW2901 - what is left of it
        gaps.append((at, stop))
    base = range_.base
    regions += [Region(at, stop, RANGE, base) for at, stop in gaps if at < stop]
    # An argument and an ambient array may share a storage. They get one region, since
    # an address must resolve to one symbol.
    shared: dict[Storage, list[int]] = {}
    for i, place in enumerate(places):
        if i not in stages and (place.lo < place.hi or not exact):
            shared.setdefault(place.storage, []).append(i)
    for symbols in shared.values():
        first = symbols[0]
        lo = Addr(min(places[i].lo for i in symbols))
        hi = Addr(max(places[i].hi for i in symbols))
        if not exact:
            whole = places[first].storage
            lo = min(lo, whole.address)
            hi = max(hi, Addr(whole.address + max(whole.size, 1)))
        regions.append(Region(lo, hi, first + 1, places[first].lo))
    return regions


def check_outputs(outputs: Outputs, range_: Range) -> set[Addr]:
    """Return where the new storages of outputs are.

    Raises `CaptureError` where one is no allocation of the function, nor anything it
    was given. A framework's empty ones are nowhere.
    """
    for storage in outputs.storages:
        if storage.size and not range_.holds(storage.address):
            raise stray(storage)
    return {storage.address for storage in outputs.storages}


def check_lost(
    lost: Sequence[Lost], outputs: Outputs, integration: Integration
) -> None:
    """Raise `CaptureError` where allocations outlive the function: who has them?"""
    if lost:
        addresses, where = {address for address, *_ in lost}, lost[0][2]
        raise keeping(outputs, addresses, integration, where) or outliving(lost)


def stray(storage: Bytes) -> CaptureError:
    """Return an error about an array that comes from nowhere."""
    return CaptureError(
        f"the function returns an array at {hex_address(storage.address)} "
        "that it was not given, does not make, and does not name",
        remedy=_REMEDY,
    )


def outliving(lost: Sequence[Lost]) -> CaptureError:
    """Return an error about allocations that nothing accounts for, and their lines."""
    _, size, line = lost[0]
    return CaptureError(
        f"{len(lost)} allocation(s) outlive the function, the first of "
        f"{size_text(size)}, and neither its result nor a slot that it names "
        "holds them",
        where=line,
        remedy="Return the array, or bind it to an attribute, global or dict "
        "item that the function names",
    )
