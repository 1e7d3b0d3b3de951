"""A call, flattened: its arrays, its places, and a key that says what kind it is.

The key holds everything about the arguments but the addresses: their nesting, plain
values by type and bits, layouts, and which arrays share a storage at which offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from operator import call, is_
from typing import Any, Final, NamedTuple
from weakref import ref

from sapwood.memory.storage import Storage
from sapwood.tree.call.integration import Array, Integration, Marks
from sapwood.tree.nests.containers import constant_key, taken_apart
from sapwood.units import Addr


class Likeness:
    """Says of arrays, again and again, whether they have the same layouts."""

    __slots__ = ("_witness",)

    def __init__(self) -> None:
        self._witness: Callable[[Sequence[Any]], bool] | None = None

    def holds(
        self,
        arrays: Sequence[Array],
        layouts: Sequence[Hashable],
        integration: Integration,
    ) -> bool:
        """Return whether arrays that had these layouts once, or their like, have them.

        Raises `StaleOutput`.
        """
        if integration.settled or (self._witness and self._witness(arrays)):
            return True
        made = integration.steady(arrays)
        pairs = zip(arrays, layouts, strict=True)
        if any(integration.look(x).checked().layout != layout for x, layout in pairs):
            return False
        # The witness was made before the layouts were compared, and is asked behind
        # that: if another thread reshaped an array in between, it would stand for the
        # wrong shape.
        if made is not None and made(arrays):
            self._witness = made
        return True


class Place(NamedTuple):
    """The bytes of arrays that share a storage; ``lo`` and ``hi`` bound them all.

    ``arrays`` are positions in a list of arrays; without any, it is all of a storage.
    """

    storage: Storage
    lo: Addr
    hi: Addr
    arrays: tuple[int, ...]


class Arrays(NamedTuple):
    """Some arrays and their places: storages, and where each place starts.

    ``sharing`` is None where every array has a storage of its own; else it says which
    share one, and at which offsets.
    """

    arrays: Sequence[Array]
    storages: Sequence[Storage]
    lows: Sequence[Addr]
    sharing: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...] | None

    def groups(self) -> list[tuple[int, ...]]:
        """Return the positions of the arrays of each place."""
        if self.sharing is None:
            return [(i,) for i in range(len(self.arrays))]
        return [arrays for arrays, _ in self.sharing]

    def holding(self, arrays: AbstractSet[int]) -> frozenset[int]:
        """Return the places that hold any of the arrays at these positions."""
        return frozenset(
            i
            for i, specialization in enumerate(self.groups())
            if not arrays.isdisjoint(specialization)
        )

    def places(self, integration: Integration) -> list[Place]:
        """Return the places with their ends."""
        groups = self.groups()
        ends = [integration.look(array).span[1] for array in self.arrays]
        highs = [
            max((ends[i] for i in group), default=Addr(storage.address + storage.size))
            for group, storage in zip(groups, self.storages, strict=True)
        ]
        return [*map(Place, self.storages, self.lows, highs, groups)]


NONE: Final = Arrays([], [], [], None)
"""No arrays."""


class Unread(NamedTuple):
    """A call of which no more is known than what was passed."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


class Call(NamedTuple):
    """One call of a graphed function.

    ``positions`` say where in ``leaves`` each array stands. ``containers`` are the
    call's own, in the order of their numbers, the last one that of names; of a call
    that was recognised, none are known. ``args`` and ``kwargs`` are what was passed.
    """

    key: Hashable
    leaves: Sequence[Any]
    structure: Hashable
    positions: Sequence[int]
    given: Arrays
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    containers: Sequence[Any] = ()

    @property
    def nests(self) -> Sequence[Any]:
        """The containers that somebody else may have, too."""
        return self.containers[:-1]

    @property
    def is_flat(self) -> bool:
        """Whether no argument, by position or by name, is a container."""
        nest: Any = self.structure
        args, kwargs = nest[2]
        return not any(args[2]) and not any(kwargs[2])


def describe(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], integration: Integration
) -> Call:
    """Flatten a call's arguments.

    Raises `TypeError` for a value that the adapter refuses, `StaleOutput` for an
    array that was revoked, `MisuseError` for a container that contains itself.
    """
    nest = args, kwargs
    leaves, structure, containers = taken_apart(nest, integration.is_array)
    parts: list[Hashable] = []
    positions: list[int] = []
    arrays: list[Array] = []
    storages: list[Storage] = []
    lows: list[Addr] = []
    for i, leaf in enumerate(leaves):
        integration.refuse(leaf)
        if not integration.is_array(leaf):
            parts.append(constant_key(leaf))
            continue
        seen = integration.look(leaf).checked()
        parts.append(seen.layout)
        positions.append(i)
        arrays.append(leaf)
        storages.append(seen.storage)
        lows.append(seen.low)
    given = _grouped(arrays, storages, lows)
    sharing = None if given.sharing is None else (given.sharing, _twins(arrays))
    key = (structure, tuple(parts), sharing)
    return Call(key, leaves, structure, positions, given, args, kwargs, containers)


def _twins(arrays: Sequence[Array]) -> tuple[int, ...]:
    """Return, for each array, the first that is the same object: a function may ask."""
    first: dict[int, int] = {}
    return tuple([first.setdefault(id(x), k) for k, x in enumerate(arrays)])


def look(arrays: Sequence[Array], integration: Integration) -> Arrays:
    """Return where some arrays are, and which share a storage."""
    looks = [*map(integration.look, arrays)]
    storages, lows = [x.storage for x in looks], [x.low for x in looks]
    return _grouped(arrays, storages, lows)


class Whereabouts:
    """Where some arrays are, remembered for as long as they are the same objects.

    They are held weakly, and so are their storages: that of an array which somebody
    else allocated may go before it. ``others`` is what else than addresses marked
    them when they were recorded, where that may change; ``marks`` is all that marked
    them when they were looked at last. ``likeness`` is asked besides: guards know an
    array that stays the same object, whatever shape it is given.
    """

    __slots__ = ("_seen", "likeness", "marks", "others")

    def __init__(self) -> None:
        self._seen: _Seen | None = None
        self.likeness = Likeness()
        self.others: Sequence[object] = ()
        self.marks: Marks | None = None

    def look(
        self,
        arrays: Sequence[Array],
        integration: Integration,
        layouts: Sequence[Hashable],
    ) -> Arrays | None:
        """Return what `look` does; None where an array is otherwise than it was."""
        self.marks = marks = integration.marks(arrays)
        if marks is not None and marks[1] != self.others:
            return None
        if not self.likeness.holds(arrays, layouts, integration):
            return None
        seen = self._seen
        if seen is not None and seen.are_there(arrays, marks):
            storages = [*map(call, seen.storages)]
            if None not in storages:
                return Arrays(arrays, storages, seen.lows, seen.sharing)
        found = look(arrays, integration)
        # One assignment: an interrupt between several would leave the new arrays with
        # the old addresses.
        self._seen = _Seen(
            [ref(array) for array in arrays],
            () if marks is None else marks[0],
            [ref(storage) for storage in found.storages],
            found.lows,
            found.sharing,
        )
        return found


class _Seen(NamedTuple):
    """What was found at a look: the arrays, what marked them, and where they were."""

    arrays: Sequence[Callable[[], Any]]
    addresses: Sequence[int]
    storages: Sequence[Callable[[], Any]]
    lows: Sequence[Addr]
    sharing: Any

    def are_there(self, arrays: Sequence[Array], marks: Marks | None) -> bool:
        """Return whether arrays are these, by what marks them, or else one by one."""
        if marks is not None:
            # Two living storages never have one address, so addresses tell them apart.
            return marks[0] == self.addresses
        if len(self.arrays) != len(arrays):
            return False
        return all(map(is_, map(call, self.arrays), arrays))


def _grouped(
    arrays: Sequence[Array], storages: Sequence[Storage], lows: Sequence[Addr]
) -> Arrays:
    if len(set(storages)) == len(storages):
        return Arrays(arrays, storages, lows, None)
    groups: dict[Storage, list[int]] = {}
    for i, storage in enumerate(storages):
        groups.setdefault(storage, []).append(i)
    firsts: list[Addr] = []
    sharing: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    for specialization in groups.values():
        places = [lows[i] for i in specialization]
        first = min(places)
        firsts.append(first)
        sharing.append((tuple(specialization), tuple([low - first for low in places])))
    return Arrays(arrays, list(groups), firsts, tuple(sharing))
