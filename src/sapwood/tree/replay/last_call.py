"""What the last call looked like, so that one like it needs no description.

Most calls have the nest of the call before, and mostly its arrays, too. Then no layout
is compared and no key is made: the call has the key of the one before. Arrays are
remembered weakly. A call that is not plainly the same is described in full.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Final

from sapwood.tree.call.integration import Integration, Probe
from sapwood.tree.call.signature import Arrays, Call, groups_of, probe_of
from sapwood.tree.nests.containers import container_of, is_shared
from sapwood.units import Addr

_PLAIN: Final = {bool, bytes, complex, float, int, str, type(None)}


@dataclass(slots=True, eq=False)
class LastCall:
    """What a call looked like.

    An array that is passed again is looked at once: ``firsts`` are the leaves that are
    looked at, ``again`` the others, and the leaf that each is. ``begins`` says which of
    those arrays begins each place; ``within`` are those that share the storage of one,
    that one, and how many bytes they begin behind it. ``flat``: all that is passed is
    arrays, by position, each once; ``guarded``: as `Options` has it.
    """

    integration: Integration
    key: Hashable
    structure: Any
    positions: Sequence[int]
    constants: Sequence[tuple[int, Any]]
    firsts: Sequence[int]
    again: Sequence[tuple[int, int]]
    begins: Sequence[int]
    within: Sequence[tuple[int, int, int]]
    sharing: Any
    probe: Probe
    lows: Sequence[Addr]
    flat: bool
    guarded: bool

    @classmethod
    def of(
        cls, seen: Call, integration: Integration, *, guarded: bool = False
    ) -> LastCall | None:
        """Return what is to be remembered of a call; None where that is too much."""
        key: Any = seen.key
        _, parts, sharing = key
        arrays = set(seen.positions)
        constants = [(i, x) for i, x in enumerate(seen.leaves) if i not in arrays]
        twins = range(len(arrays)) if sharing is None else sharing[1]
        pairs = [*zip(seen.positions, (seen.positions[k] for k in twins), strict=True)]
        firsts = [i for i, k in pairs if i == k]
        given = seen.given
        if any(type(x) not in _PLAIN for _, x in constants):
            return None
        if not _are_apart(seen.structure, arrays):
            return None
        # The call itself may have ended what it was donated.
        if any(each.stale is not None for each in given.storages):
            return None
        layouts = [parts[i] for i in firsts]
        looked = [seen.leaves[i] for i in firsts]
        probe = probe_of(looked, layouts, integration, guarded=guarded)
        if probe is None:
            return None
        numbers = {leaf: k for k, leaf in enumerate(firsts)}
        begins, within = _placed(given, [numbers[k] for _, k in pairs])
        if [probe.lows[k] for k in begins] != [*given.lows]:
            return None
        again = [pair for pair in pairs if pair[0] != pair[1]]
        return cls(
            integration,
            seen.key,
            seen.structure,
            seen.positions,
            constants,
            firsts,
            again,
            begins,
            within,
            given.sharing,
            probe,
            probe.lows,
            flat=seen.is_flat and not (seen.kwargs or constants or again),
            guarded=guarded,
        )

    def recognise(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Call | None:
        """Return a call that is like the one before, or None.

        Raises `StaleOutput` for an array that was revoked.
        """
        leaves = self.leaves(args, kwargs)
        if leaves is None:
            return None
        arrays = self.arrays(leaves)
        lows = self.whereabouts(arrays)
        if lows is None:
            return None
        given = self.given(arrays, lows)
        if given is None:
            return None
        if self.again:
            given = given._replace(arrays=[leaves[i] for i in self.positions])
        return Call(
            self.key, leaves, self.structure, self.positions, given, args, kwargs
        )

    def leaves(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Sequence[Any] | None:
        """Return a call's leaves; None where its nest or a plain value is another."""
        if self.flat and not kwargs and len(args) == len(self.firsts):
            return args
        leaves: list[Any] = []
        passed, named = self.structure[2]
        if not (_append(leaves, args, passed) and _append(leaves, kwargs, named)):
            return None
        for i, value in self.constants:
            if leaves[i] is not value:
                return None
        for i, k in self.again:
            if leaves[i] is not leaves[k]:
                return None
        return leaves

    def arguments(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Sequence[Any] | None:
        """Return a call's arrays; None where its nest or a plain value is another."""
        leaves = self.leaves(args, kwargs)
        return None if leaves is None else self.arrays(leaves)

    def arrays(self, leaves: Sequence[Any]) -> Sequence[Any]:
        """Return the arrays among a call's leaves, each once."""
        if self.constants or self.again:
            return [leaves[i] for i in self.firsts]
        return leaves

    def number_of(self, array: int) -> int:
        """Return the number among `arrays` of one of the call's, or of one behind."""
        if array >= len(self.positions):
            return array - len(self.again)
        leaf = self.positions[array]
        return self.firsts.index(dict(self.again).get(leaf, leaf))

    def whereabouts(self, arrays: Sequence[Any]) -> Sequence[Addr] | None:
        """Return where arrays are, `lows` for the same ones; None if not alike."""
        lows = self.probe(arrays)
        if lows is None or lows is self.lows:
            return lows
        for array in arrays:
            self.integration.refuse(array)
        return lows

    def starts(self, lows: Sequence[Addr]) -> Sequence[Addr]:
        """Return where each place begins, of arrays that begin at ``lows``."""
        return [lows[k] for k in self.begins] if self.within else lows

    def given(self, arrays: Sequence[Any], lows: Sequence[Addr]) -> Arrays | None:
        """Return arrays with their places; None where they share other storages.

        Raises `StaleOutput` for an array that was revoked.
        """
        every = [self.integration.look(x).checked().storage for x in arrays]
        storages = [every[k] for k in self.begins] if self.within else every
        if lows is not self.lows and len(set(storages)) < len(storages):
            return None
        if any(
            every[i] is not every[k] or lows[i] - lows[k] != behind
            for i, k, behind in self.within
        ):
            return None
        return Arrays(arrays, storages, self.starts(lows), self.sharing)


def _placed(
    given: Arrays, numbers: Sequence[int]
) -> tuple[list[int], list[tuple[int, int, int]]]:
    """Return the arrays that begin each place, and those that lie in the place of one.

    ``numbers`` are those by which arrays are known here, of each of the call's.
    """
    begins: list[int] = []
    within: dict[int, tuple[int, int, int]] = {}
    for group, offsets in groups_of(given):
        first = numbers[group[offsets.index(0)]]
        begins.append(first)
        for i, behind in zip(group, offsets, strict=True):
            if numbers[i] != first:
                within[numbers[i]] = numbers[i], first, behind
    return begins, [*within.values()]


def _are_apart(structure: Any, arrays: AbstractSet[int]) -> bool:
    """Return whether no two containers of calls that are alike could be one.

    Those with arrays could not: these, at positions in ``arrays``, would be the same.
    """
    leaves, bare = itertools.count(), 0

    def has_arrays(structure: Any) -> bool:
        nonlocal bare
        if structure is None:
            return next(leaves) in arrays
        if type(structure) is int:  # a container that is passed once more
            bare += 2
            return False
        found = [*map(has_arrays, structure[2])]
        bare += is_shared(structure[0]) and not any(found)
        return any(found)

    args, kwargs = structure[2]
    # The dict of keyword arguments itself is left out: every call makes a new one.
    for each in (*args[2], *kwargs[2]):
        has_arrays(each)
    return bare <= 1


def _append(leaves: list[Any], value: Any, structure: Any) -> bool:
    """Append the leaves of a nest; return false where it has another structure."""
    cls, rest, folded = structure
    children = _children(value, cls, rest)
    if children is None or len(children) != len(folded):
        return False
    if not any(folded):
        leaves += children
        return True
    for inner, child in zip(folded, children, strict=True):
        if inner is None:
            leaves.append(child)
        elif not _append(leaves, child, inner):
            return False
    return True


def _children(value: Any, cls: Any, rest: Any) -> Any:
    """Return what is in a container; None where it is of another kind."""
    if type(value) is not cls:
        return None
    if cls is tuple or cls is list:
        return value
    if cls is dict and type(rest) is tuple:
        return value.values() if (*value,) == rest else None
    container = container_of(cls)
    if container is None:
        return None
    found, other = container.flatten(value)
    return found if other == rest else None
