"""A call, flattened: its arrays, its places, and a key that says what kind it is.

The key holds everything about the arguments but the addresses: their nesting, plain
values by type and bits, layouts, and which arrays share a storage at which offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from operator import attrgetter, call
from typing import Any, Final, NamedTuple
from weakref import ref

from sapwood.errors import MisuseError
from sapwood.memory.storage import Storage
from sapwood.tree.call.integration import Array, Integration, Probe
from sapwood.tree.nests.containers import Structure, constant_key, taken_apart
from sapwood.units import Addr

_stale: Final[Callable[[Storage], str | None]] = attrgetter("stale")


def probe_of(
    arrays: Sequence[Array],
    layouts: Sequence[Hashable],
    integration: Integration,
    *,
    guarded: bool = False,
) -> Probe | None:
    """Return what says whether arrays have these layouts; None where these have not.

    Raises `StaleOutput`.
    """
    made = (integration.probe_guarded if guarded else integration.probe)(arrays)
    if [integration.look(each).checked().layout for each in arrays] != [*layouts]:
        return None
    # The probe was made before the layouts were compared, and is asked behind that: if
    # another thread reshaped an array in between, it would stand for the wrong shape.
    return None if made(arrays) is None else made


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
            i for i, group in enumerate(self.groups()) if not arrays.isdisjoint(group)
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
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    integration: Integration,
    refusal: Callable[[Structure, int], str] | None = None,
) -> Call:
    """Flatten a call's arguments.

    Raises `TypeError` for a value that the adapter refuses, `StaleOutput` for an
    array that was revoked, `MisuseError` for a container that contains itself.
    ``refusal`` says that a leaf is refused, by the structure and its number.
    """
    nest = args, kwargs
    leaves, structure, containers = taken_apart(nest, integration.is_array)
    parts: list[Hashable] = []
    positions: list[int] = []
    arrays: list[Array] = []
    storages: list[Storage] = []
    lows: list[Addr] = []
    for i, leaf in enumerate(leaves):
        try:
            integration.refuse(leaf)
            seen = integration.look(leaf) if integration.is_array(leaf) else None
        except (TypeError, MisuseError) as error:
            if refusal is None or type(error) not in {TypeError, MisuseError}:
                raise
            raise type(error)(f"{refusal(structure, i)}: {error}") from None
        if seen is None:
            parts.append(constant_key(leaf))
            continue
        parts.append(seen.checked().layout)
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
    """Where arrays of certain layouts are, remembered for as long as they are there.

    Their storages are held weakly: one of an array which somebody else allocated may go
    before it.
    """

    __slots__ = ("_probe", "_seen")

    def __init__(self) -> None:
        self._probe: Probe | None = None
        self._seen: tuple[Any, Sequence[Callable[[], Any]], Arrays] | None = None

    def lows(
        self,
        arrays: Sequence[Array],
        layouts: Sequence[Hashable],
        integration: Integration,
    ) -> Sequence[Addr] | None:
        """Return where each array begins; None where they have not these layouts.

        Raises `StaleOutput`.
        """
        probe = self._probe
        if probe is None:
            self._probe = made = probe_of(arrays, layouts, integration)
            return None if made is None else made(arrays)
        lows = probe(arrays)
        if lows is None:
            for array in arrays:
                integration.look(array).checked()
        return lows

    def look(
        self,
        arrays: Sequence[Array],
        layouts: Sequence[Hashable],
        integration: Integration,
    ) -> Arrays | None:
        """Return what `look` does; None where they have not these layouts."""
        lows = self.lows(arrays, layouts, integration)
        if lows is None:
            return None
        if self._seen is not None and self._seen[0] == lows:
            _, references, (_, _, starts, sharing) = self._seen
            storages = [*map(call, references)]
            # Where one storage lies, as long as it lives, lies no other.
            if None not in storages and {None}.issuperset(map(_stale, storages)):
                return Arrays(arrays, storages, starts, sharing)
        found = look(arrays, integration)
        # All at once: what is interrupted in between would be taken for the same.
        kept = Arrays((), (), found.lows, found.sharing)
        self._seen = lows, [*map(ref, found.storages)], kept
        return found


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
    for group in groups.values():
        places = [lows[i] for i in group]
        first = min(places)
        firsts.append(first)
        sharing.append((tuple(group), tuple([low - first for low in places])))
    return Arrays(arrays, list(groups), firsts, tuple(sharing))


def carry(
    carried: Arrays, crossing: Sequence[Storage], passed: Sequence[Array]
) -> Arrays:
    """Return what is carried on: what was, and the storages that a part made.

    These are places without arrays; arrays that were ``passed``, or bound to slots, are
    only remembered, so that they are found again.
    """
    return Arrays(
        [*carried.arrays, *passed],
        [*carried.storages, *crossing],
        [*carried.lows, *(storage.address for storage in crossing)],
        (*groups_of(carried), *(((), ()) for _ in crossing)),
    )


def groups_of(arrays: Arrays) -> Sequence[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return the arrays of each place, by number, and how far behind its start."""
    if arrays.sharing is not None:
        return arrays.sharing
    return [((i,), (0,)) for i in range(len(arrays.arrays))]
