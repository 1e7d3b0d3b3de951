"""A recording linked anew for a call: from another process, or for other pages.

Roles, addresses and pages are those of now; of the archive only what was computed is
kept. Whatever does not fit is a reason, and the call is then recorded as usual.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from sapwood.driver.release import Release
from sapwood.errors import MisuseError, StoreError
from sapwood.graphs.exec import link
from sapwood.graphs.inspect import inspect, is_refused, strays
from sapwood.graphs.recording import RANGE, Kind, Recording
from sapwood.memory.device import Device
from sapwood.memory.range import REACH, Range
from sapwood.memory.storage import Storage, Unowned
from sapwood.persist.archive import Archive, SlotBinding
from sapwood.tree.call.integration import Integration
from sapwood.tree.call.signature import Arrays, Place, look
from sapwood.tree.choose.recordings import Recordings
from sapwood.tree.guards import Ambient, Slot, Survey
from sapwood.tree.guards.views import EMPTY
from sapwood.tree.nests.containers import unflatten
from sapwood.tree.node.outputs import (
    Alias,
    Bytes,
    Constant,
    Fresh,
    Output,
    Outputs,
    View,
)
from sapwood.tree.record.build import LinkSpec, build
from sapwood.tree.record.recorder import Recorded, ambient_roles, argument_roles
from sapwood.tree.record.staging import late_stages
from sapwood.tree.record.taking import RecordRequest
from sapwood.units import Addr, Size

_ANYWHERE: Final = Addr(1 << 46)
"""Stands for where a range will be, while it is not known how large it is."""


def restore(
    archive: Archive, order: RecordRequest, survey: Survey, recordings: Recordings
) -> Recorded | str:
    """Build a node of an archive, or say why that cannot be.

    Raises `DriverError` or `OutOfMemory`, and then nothing is left of it.
    """
    integration, device = recordings.integration, recordings.device
    args, kwargs = unflatten(order.call.structure, order.call.leaves)
    finder = Finder(survey, order.bind(args, kwargs), integration)
    ambient = finder.ambient(archive.ambient)
    if isinstance(ambient, str):
        return ambient
    bound = finder.bindable(archive.bindings, archive.outputs.bound)
    if isinstance(bound, str):
        return bound
    read_by = look([slot.read() for slot in ambient.arrays], integration)
    given = order.call.given
    everything = look([*given.arrays, *read_by.arrays], integration)
    if everything.sharing != archive.sharing:
        return "other arrays share memory than when it was recorded"
    places = [*given.places(integration), *read_by.places(integration)]
    if len(places) != len(archive.roles) or len(given.lows) != archive.arguments:
        return "it was recorded on other arrays"
    range_ = None
    try:
        archive = _inspected(archive, places, device)
        pages = _pages(archive, device)
        size = Size((max(pages, default=0) + 1) * device.pages.page)
        range_ = Range.reserve(device.pages, size, Size(0))
        range_.back(pages)
        recording, own, hints = archive.recording, archive.arguments, archive.roles
        outputs = _outputs(archive.outputs, range_.base, given, read_by, recordings)
        _check_ops(recording, integration)
        roles = argument_roles(order, places[:own], recordings, hints[:own])
        names, more = ambient_roles(order, ambient, places[own:], hints[own:])
        roles = (*roles, *more)
        spec = LinkSpec(
            order=order.showing(outputs, integration),
            recording=recording,
            outputs=outputs,
            places=places,
            names=[*order.names, *names],
            roles=roles,
            stages=late_stages(places, roles, range_, device),
            ambient=ambient,
            ambient_arrays=read_by,
            link=partial(link, device.driver, recording, functions=device.function),
        )
        return Recorded(build(spec, range_), read_by, bound, None)
    except BaseException as error:
        if range_ is not None:
            with Release() as release:
                release(range_.close)
        if isinstance(error, StoreError) or is_refused(error):
            return str(error)
        raise


def _inspected(archive: Archive, places: Sequence[Place], device: Device) -> Archive:
    """Return an archive whose recording has its touches, wherever its range will be."""
    addresses = [_ANYWHERE, *(place.lo for place in places)]
    recording = inspect(archive.recording, addresses, device.driver, device.function)
    _check_bounds(recording, places)
    return replace(archive, recording=recording)


def _check_ops(recording: Recording, integration: Integration) -> None:
    """Raise `StoreError` for a kernel that would fail when it runs."""
    for number, op in enumerate(recording.ops):
        if op.kind == Kind.KERNEL:
            try:
                integration.files.check_op(op.name, op.params)
            except ValueError as error:
                raise StoreError(f"op {number}: {error}") from error


def _check_bounds(recording: Recording, places: Sequence[Place]) -> None:
    """Raise `StoreError` for an op that reaches beyond the range or its place."""
    shared: dict[Storage, list[Place]] = {}
    for place in places:
        shared.setdefault(place.storage, []).append(place)

    def bounds(symbol: int) -> Sequence[tuple[int, int]]:
        if symbol == RANGE:
            return [(0, REACH)]
        place = places[symbol - 1]
        # As in the capture: what shares a storage is one region.
        together = shared[place.storage]
        lo, hi = min(each.lo for each in together), max(each.hi for each in together)
        return [(lo - place.lo, hi - place.lo)]

    stray = strays(recording, bounds)
    if stray:
        touch = stray[0]
        raise StoreError(
            f"{len(stray)} address(es) lead outside what the recording may use, the "
            f"first to bytes {touch.lo} to {touch.hi} of symbol {touch.symbol}"
        )


def _pages(archive: Archive, device: Device) -> set[int]:
    """Return the pages of its range that a recording needs.

    Raises `StoreError` where a device has not so many.
    """
    touches, storages = archive.recording.touches, archive.outputs.storages
    spans = [(touch.lo, touch.hi) for touch in touches if touch.symbol == RANGE]
    spans += [(each.address, each.address + max(each.size, 1)) for each in storages]
    page = device.pages.page
    limit = device.driver.memory_info().total // page
    found: set[int] = set()
    if all(hi - lo <= limit * page for lo, hi in spans):
        for lo, hi in spans:
            found.update(range(lo // page, -(-hi // page)))
    if spans and not 0 < len(found) <= limit:
        raise StoreError("it needs more memory than the device has")
    return found


def _outputs(
    outputs: Outputs, base: Addr, given: Arrays, ambient: Arrays, recordings: Recordings
) -> Outputs:
    """Return outputs at the addresses of the range at ``base``.

    Raises `StoreError` where no result can be made of them.
    """
    integration, arrays = recordings.integration, [*given.arrays, *ambient.arrays]
    token, queue = Unowned(), recordings.device.returns
    storages = [
        Storage(Addr(base + each.address), each.size, token, queue)
        for each in outputs.storages
    ]

    def moved(output: Output) -> Output:
        match output:
            case Fresh(k, layout, offset):
                return Fresh(k, layout, Addr(base + offset))
            case Alias(k) | View(k):
                if k >= len(arrays):
                    raise StoreError("an output is of an array that is not there")
                if isinstance(output, View):
                    _check_view(output, arrays[k], integration)
        return output

    leaves, bound = tuple(map(moved, outputs.leaves)), tuple(map(moved, outputs.bound))
    places = tuple(Bytes(each.address, each.size) for each in storages)
    here = Outputs(outputs.structure, leaves, bound, places)
    try:
        here.make(integration, storages, given.arrays, ambient.arrays)
    except Exception as error:
        # Whatever somebody's container says to parts that it never had.
        raise StoreError(f"its result cannot be made: {error}") from error
    return here


def _check_view(view: View, array: object, integration: Integration) -> None:
    _, storage, address = integration.look(array)
    lo, hi = view.layout.extent
    at = address + view.offset
    if at + lo < storage.address or at + hi > storage.address + storage.size:
        raise StoreError("an output reaches beyond the array that it is a view of")


# Slots that were described in another process, found again in this one.

_ASTRAY: Final = object()
"""Stands for what a slot holds that is not there."""


class Finder:
    """Finds slots from what a call's function reaches, and from its ``arguments``.

    A description may be anybody's: a slot counts as found only where it holds what such
    slots hold, and where what guards find is the very same.
    """

    def __init__(
        self, survey: Survey, arguments: Mapping[str, object], integration: Integration
    ) -> None:
        self.survey, self.arguments, self.integration = survey, arguments, integration

    def ambient(self, bindings: Sequence[SlotBinding]) -> Ambient | str:
        """Return the guards of now, with arrays in ``bindings`` pinned, or why not."""
        wanted: set[int] = set()
        ways: list[Hashable] = []
        for binding in bindings:
            slot, held = self._found(binding)
            if slot is None or not self.integration.is_array(held):
                return f"{binding.path} holds no array any more"
            wanted.add(id(held))
            ways.append((slot.start, slot.steps))
        ambient = self.survey.guards(lambda array: id(array) in wanted)
        if [(slot.start, slot.steps) for slot in ambient.arrays] != ways:
            return "its arrays are reached by other names"
        return ambient

    def bindable(
        self, bindings: Sequence[SlotBinding], outputs: Sequence[Output]
    ) -> tuple[Slot, ...] | str:
        """Return the slots in ``bindings``, or why they cannot be bound.

        Those hold numbers or lists that such ``outputs`` are added to; others hold
        plain values where these are, or else arrays or none.
        """
        slots: list[Slot] = []
        for binding, output in zip(bindings, outputs, strict=True):
            slot, held = self._found(binding)
            if slot is not None and binding.adds and _may_add(held, output):
                slots.append(replace(slot, adds=True))
                continue
            plain = isinstance(output, Constant) or held is None or held is EMPTY
            fits = not binding.adds and (plain or self.integration.is_array(held))
            if slot is None or not slot.can_be_bound or not fits:
                return f"{binding.path} is not there to be bound"
            slots.append(slot)
        return tuple(slots)

    def _found(self, binding: SlotBinding) -> tuple[Slot | None, Any]:
        slot = self.survey.slot(binding.path, binding.start, binding.steps)
        if slot is None or len(slot.steps) != len(binding.steps):
            return None, _ASTRAY
        try:
            return slot, self._held(slot)
        except (AttributeError, LookupError, MisuseError, TypeError, ValueError):
            return None, _ASTRAY

    def _held(self, slot: Slot) -> Any:
        view, key = slot.steps[-1]
        space = view.open(slot.owner(self.arguments))
        if isinstance(space, Mapping):
            # Names are of text, however one came by them; any key may be in a dict.
            named = type(key) is str or view.extent == "keys"
            return space.get(key, EMPTY) if named else _ASTRAY
        return space[key] if type(key) is int else _ASTRAY


def _may_add(held: object, output: Output) -> bool:
    number = isinstance(output, Constant) and type(output.value) in (int, float)
    return type(held) is list or (type(held) in (int, float) and number)
