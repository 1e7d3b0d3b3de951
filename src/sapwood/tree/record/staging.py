"""Room inside a range for the bytes that every replay copies in first.

While a function is captured, arrays over that room stand in for those it is passed,
and for those that lie elsewhere in every call in slots, where it reads by itself.
Replays copy in what the call was passed, and what the slots hold then, and back where
the function writes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from sapwood.errors import MisuseError
from sapwood.memory.device import Device
from sapwood.memory.range import Range
from sapwood.memory.storage import Storage
from sapwood.tree.call.integration import Array, Integration
from sapwood.tree.call.roles import Role
from sapwood.tree.call.signature import Arrays, Call, Place, look
from sapwood.tree.choose.recordings import Recordings
from sapwood.tree.choose.specialization import Specialization
from sapwood.tree.guards import Slot, Survey
from sapwood.units import Addr, Size

ALIGNMENT: Final = 512
"""A staged place keeps its address modulo this, so that it is as aligned."""


_HEADROOM: Final = Size(256 << 20)
"""What is reserved beyond what temporaries need: where larger extents are idle, more is
mapped than they need."""


def stage(
    place: Place, range_: Range, device: Device, *, late: bool = False
) -> Storage:
    """Allocate room for a place; ``late``: after capture."""
    size = Size(place.hi - place.lo + place.lo % ALIGNMENT)
    return range_.allocate(size, device.stream(), device.returns, line=None, late=late)


def reserved(
    specialization: Specialization,
    given: Arrays,
    recordings: Recordings,
    lent: Size | None = None,
) -> Range:
    """Reserve what a capture of a call on such arrays is likely to need.

    Where a framework allocates by itself, so much is ``lent`` to it.
    """
    pages, warm = recordings.device.pages, specialization.warm
    if warm is None and lent is None:
        return Range.reserve(pages)
    staged = sum(
        place.hi - place.lo + 2 * ALIGNMENT
        for place in given.places(recordings.integration)
    )
    room = 0 if warm is None or lent is not None else warm.room
    # Twice as many: `Range.lend` lends the framework half of these addresses.
    stays = room if lent is None else 2 * lent
    return Range.reserve(pages, Size(room + staged + _HEADROOM), Size(stays))


def landing(storage: Storage, place: Place) -> Addr:
    """Return where in its room a place's first byte is copied to."""
    return Addr(storage.address + place.lo % ALIGNMENT)


def stand_ins(
    given: Arrays, roles: Sequence[Role], range_: Range, recordings: Recordings
) -> tuple[dict[int, Storage], list[Array]]:
    """Stage the copied places of a call, and return arrays over them.

    The arrays stand in for the call's while it is captured; those of other places
    are the call's own.
    """
    stages: dict[int, Storage] = {}
    arrays = list(given.arrays)
    device, integration = recordings.device, recordings.integration
    places = given.places(integration)
    for i, (place, role) in enumerate(zip(places, roles, strict=True)):
        if role is not Role.COPIED:
            continue
        stages[i] = stage(place, range_, device)
        moved = landing(stages[i], place) - place.lo
        made: dict[int, Array] = {}
        for k in place.arrays:
            theirs = given.arrays[k]
            if id(theirs) not in made:
                made[id(theirs)] = moved_by(moved, theirs, stages[i], integration)
            arrays[k] = made[id(theirs)]
    return stages, arrays


def apart_from(
    reached: Iterable[Array],
    call: Call,
    passed: Sequence[Array],
    integration: Integration,
) -> list[Array]:
    """Return the arrays to pass: for those in slots, other objects over the same bytes.

    To bind an array to the slot that holds it changes nothing, so it would not be seen;
    a replay that is passed another array would leave the slot as it is. Arrays that are
    in a container are left, as the container would have to be another one, too.
    """
    held = {*map(id, reached)}
    alone = Counter(map(id, (*call.args, *call.kwargs.values())))
    leaves = Counter(map(id, call.leaves))
    own = {
        id(each): moved_by(0, each, integration.look(each).storage, integration)
        for each in passed
        if id(each) in held
        and alone[id(each)] == leaves[id(each)]
        and integration.is_bare(each)
    }
    return [own.get(id(each), each) for each in passed]


def moved_by(
    moved: int, array: Array, storage: Storage, integration: Integration
) -> Array:
    """Return an array that lies in another storage, so many bytes further on."""
    look = integration.look(array)
    return integration.make(look.layout, storage, Addr(look.address + moved))


def spoil(storages: Iterable[Storage], what: str, remedy: str) -> None:
    """Refuse what a capture that failed has left to whoever finds it in frames."""
    for storage in storages:
        storage.remedy = remedy
        storage.revoke(what)


def late_stages(
    places: Sequence[Place], roles: Sequence[Role], range_: Range, device: Device
) -> dict[int, Storage]:
    """Stage the copied places of what was captured before, in another range."""
    return {
        i: stage(place, range_, device, late=True)
        for i, (place, role) in enumerate(zip(places, roles, strict=True))
        if role is Role.COPIED
    }


class SlotStandIns:
    """What stands in, in a range, for the arrays in slots; ``stages`` is their room."""

    def __init__(
        self, slots: Sequence[tuple[Slot, Array]], range_: Range, recordings: Recordings
    ) -> None:
        found = look([array for _, array in slots], recordings.integration)
        roles = [Role.COPIED] * len(found.storages)
        stages, own = stand_ins(found, roles, range_, recordings)
        self.stages = {storage: stages[i] for i, storage in enumerate(found.storages)}
        pairs = zip(found.arrays, own, strict=True)
        self._own = {id(array): (array, mine) for array, mine in pairs}
        self._slots, self._swaps = slots, Swaps()

    def own(self, array: Array) -> Array:
        """Return what the function finds for an array: that itself, or a stand-in."""
        known = self._own.get(id(array))
        return array if known is None else known[1]

    def arrays(self) -> list[Array]:
        """Return the stand-ins."""
        return [own for _, own in self._own.values()]

    def pairs(self) -> list[tuple[Array, Array]]:
        """Return the stand-ins, with what they stand in for."""
        return [(own, array) for array, own in self._own.values()]

    def enter(self, arguments: Mapping[str, object]) -> None:
        """Have the function find the stand-ins."""
        self._swaps.enter(
            [(x, self.own(each), each) for x, each in self._slots], arguments
        )

    def leave(self, arguments: Mapping[str, object]) -> None:
        """Have slots hold their arrays again, but for what the function has bound."""
        self._swaps.leave(arguments)


class Swaps:
    """Slots in which a function finds arrays of its own instead of others'."""

    def __init__(self) -> None:
        self._swapped: list[tuple[Slot, Array, Array]] = []
        self._tuples: list[tuple[Slot, Any]] = []

    def enter(
        self,
        swaps: Iterable[tuple[Slot, Array, Array]],
        arguments: Mapping[str, object],
    ) -> None:
        """Bind slots to the function's ``own``: each is ``(slot, own, array)``.

        A slot that cannot be bound is left as it is: what is there is refused, if it is
        used.
        """
        found: list[tuple[Slot, Slot, Array, Array]] = []
        for slot, own, array in swaps:
            with suppress(MisuseError):
                found.append((slot, slot.where_it_is(arguments), own, array))
        # Each write binds another tuple, and code may ask which one there is.
        around = {there.outermost(): there for _, there, *_ in found}
        self._tuples += [(x, x.held()) for x, there in around.items() if x != there]
        for slot, there, own, array in found:
            with suppress(MisuseError):
                slot.write(own, arguments)
                self._swapped += ((there, own, array), (slot, own, array))

    def leave(self, arguments: Mapping[str, object]) -> None:
        """Have slots hold others' arrays again, but for what the function has bound."""
        # What the function has put another in the place of, no way leads to any more.
        while self._swapped:
            put_back(*self._swapped.pop(), arguments)
        while self._tuples:
            slot, was = self._tuples.pop()
            if _is_made_of(slot.held(), was):
                slot.write(was)


def _is_made_of(one: Any, other: Any) -> bool:
    """Return whether two things are one, or tuples made of the same things."""
    if one is other or type(one) is not type(other) or not isinstance(one, tuple):
        return one is other
    items = [tuple.__iter__(one), tuple.__iter__(other)]
    return len(one) == len(other) and all(map(_is_made_of, *items))


def put_back(
    slot: Slot, own: Array, array: Array, arguments: Mapping[str, object]
) -> None:
    """Have a slot hold an array again, unless the function has bound another one."""
    with suppress(MisuseError):  # the function has done away with the way there
        if slot.held(arguments) is own:
            slot.write(array, arguments)


def moving(
    survey: Survey,
    given: Iterable[Storage],
    fixed: Callable[[str, Storage], bool],
    integration: Integration,
) -> list[tuple[Slot, Array]]:
    """Return the slots whose arrays move with every call, and can be stood in for.

    Those are not that share a storage with an array ``given`` as an argument, or with
    one in a slot that cannot be bound. ``fixed`` says which slot's arrays are where
    they were.
    """
    slots = survey.slots_of_arrays()
    keys = {id(key) for key in survey.array_keys()}
    stay = {*given}
    moves: set[Storage] = set()
    for slot, array in slots:
        storage = integration.look(array).storage
        if not slot.can_be_bound or id(array) in keys or not integration.is_bare(array):
            stay.add(storage)
        elif not fixed(slot.path, storage):
            moves.add(storage)
    moves -= stay
    return [each for each in slots if integration.look(each[1]).storage in moves]
