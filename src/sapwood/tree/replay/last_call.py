"""The call before: one like it is known at a glance.

Most calls have the nest of the call before, and mostly its arrays too. Then no layout
is compared and no key is made: what the call before was called, this one is called.
Arrays are remembered weakly; whatever is not plainly the same is described anew.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from operator import call, is_
from typing import Any, Final, TypeAlias

from sapwood.tree.call.integration import Integration
from sapwood.tree.call.signature import Arrays, Call, Likeness
from sapwood.tree.nests.containers import Structure, container_of, is_shared
from sapwood.units import Addr

Match: TypeAlias = Callable[[Any, list[Any]], bool]
"""Appends the leaves of a nest; false where it has another structure."""

_PLAIN: Final = {bool, bytes, complex, float, int, str, type(None)}


class LastCall:
    """What a call looked like whose arrays have a storage each."""

    __slots__ = (
        "constants",
        "flat",
        "integration",
        "key",
        "layouts",
        "likeness",
        "lows",
        "marks",
        "match",
        "positions",
        "references",
        "settled",
        "structure",
    )

    def __init__(
        self,
        seen: Call,
        layouts: Sequence[Any],
        constants: Sequence[tuple[int, Any]],
        integration: Integration,
    ) -> None:
        self.integration, self.key, self.structure = (
            integration,
            seen.key,
            seen.structure,
        )
        self.positions, self.layouts, self.constants = (
            seen.positions,
            layouts,
            constants,
        )
        self.lows = list(seen.given.lows)
        self.references: list[Callable[[], Any]] = [
            weakref.ref(array) for array in seen.given.arrays
        ]
        self.match = _match(seen.structure)
        # All that is passed is arrays, by position.
        self.flat = _is_flat(seen.structure) and not constants
        self.marks = integration.marks(seen.given.arrays)
        self.likeness = Likeness()
        # No array of this framework can be given other looks.
        self.settled = integration.settled

    @classmethod
    def of(cls, seen: Call, integration: Integration) -> LastCall | None:
        """Return what is to be remembered of a call; None where that is too much."""
        key: Any = seen.key
        _, parts, sharing = key
        arrays = set(seen.positions)
        constants = [(i, x) for i, x in enumerate(seen.leaves) if i not in arrays]
        if sharing is not None or any(type(x) not in _PLAIN for _, x in constants):
            return None
        if not _are_apart(seen.structure, arrays):
            return None
        return cls(seen, [parts[i] for i in seen.positions], constants, integration)

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
        return Call(
            self.key, leaves, self.structure, self.positions, given, args, kwargs
        )

    def leaves(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Sequence[Any] | None:
        """Return a call's leaves; None where its nest or a plain value is another."""
        if self.flat and not kwargs and len(args) == len(self.positions):
            return args
        leaves: list[Any] = []
        if not self.match((args, kwargs), leaves):
            return None
        for i, value in self.constants:
            if leaves[i] is not value:
                return None
        return leaves

    def arguments(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Sequence[Any] | None:
        """Return a call's arrays; None where its nest or a plain value is another."""
        leaves = self.leaves(args, kwargs)
        return None if leaves is None else self.arrays(leaves)

    def arrays(self, leaves: Sequence[Any]) -> Sequence[Any]:
        """Return the arrays among a call's leaves."""
        if self.constants:
            return [leaves[i] for i in self.positions]
        return leaves

    def whereabouts(self, arrays: Sequence[Any]) -> Sequence[Addr] | None:
        """Return where arrays are, `lows` for the same ones; None if not alike."""
        if all(map(is_, map(call, self.references), arrays)):
            marks = self.integration.marks(arrays)
            if marks == self.marks:
                alike = self.likeness.holds(arrays, self.layouts, self.integration)
                return self.lows if alike else None
        return self._moved(arrays)

    def given(self, arrays: Sequence[Any], lows: Sequence[Addr]) -> Arrays | None:
        """Return arrays with their storages; None where two of them share one.

        Raises `StaleOutput` for an array that was revoked.
        """
        storages = self.integration.storages(arrays)
        if lows is not self.lows and len(set(storages)) < len(storages):
            return None
        return Arrays(arrays, storages, lows, None)

    def _moved(self, arrays: Sequence[Any]) -> list[Addr] | None:
        """Return where the arrays are, if those that are others look the same."""
        lows: list[Addr] = list(self.lows)
        look, layouts = self.integration.look, self.layouts
        for k, (reference, array) in enumerate(
            zip(self.references, arrays, strict=True)
        ):
            # One that can be given other looks is looked at, were it the same.
            if reference() is not array or not self.settled:
                seen = look(array)
                if seen is None or seen[0] != layouts[k]:
                    return None
                lows[k] = seen[2]
        return lows


def _are_apart(structure: Any, arrays: AbstractSet[int]) -> bool:
    """Return whether no two containers of calls that are alike could be one.

    Those with arrays could not: these, at positions in ``arrays``, would be the same.
    """
    walk = _Walk(arrays)
    args, kwargs = structure[2]
    # What names go into is made by every call.
    for each in (*args[2], *kwargs[2]):
        walk.into(each)
    return not walk.repeats and walk.bare <= 1


class _Walk:
    """Counts containers without arrays, leaf by leaf."""

    def __init__(self, arrays: AbstractSet[int]) -> None:
        self._arrays, self._leaf = arrays, 0
        self.bare, self.repeats = 0, False

    def into(self, structure: Any) -> bool:
        """Go through a nest; return whether there is an array in it."""
        if structure is None:
            self._leaf += 1
            return self._leaf - 1 in self._arrays
        if type(structure) is int:
            self.repeats = True
            return False
        found = [self.into(child) for child in structure[2]]
        self.bare += is_shared(structure[0]) and not any(found)
        return any(found)


def _is_flat(structure: Structure) -> bool:
    parts: Any = structure
    args, kwargs = parts[2]
    return not any(args[2]) and not kwargs[2]


def _match(structure: Structure) -> Match:
    parts: Any = structure
    cls, rest, folded = parts
    inner = [None if part is None else _match(part) for part in folded]
    plain = cls is tuple or cls is list
    if any(inner) or not (plain or (cls is dict and type(rest) is tuple)):
        return _nest(cls, None if plain else _children(cls, rest), inner)
    return _sequence(cls, len(inner)) if plain else _dict(rest)


def _sequence(cls: Any, count: int) -> Match:
    def sequence(value: Any, leaves: list[Any]) -> bool:
        if type(value) is not cls or len(value) != count:
            return False
        leaves += value
        return True

    return sequence


def _dict(keys: tuple[str, ...]) -> Match:
    def mapping(value: Any, leaves: list[Any]) -> bool:
        if type(value) is not dict or (*value,) != keys:
            return False
        leaves += value.values()
        return True

    return mapping


def _nest(
    cls: Any,
    children: Callable[[Any], Sequence[Any] | None] | None,
    inner: Sequence[Match | None],
) -> Match:
    """Match a container with others in it; without ``children`` it is a sequence."""

    def nest(value: Any, leaves: list[Any]) -> bool:
        if type(value) is not cls:
            return False
        found: Sequence[Any] | None = value
        if children is not None:
            found = children(value)
        if found is None or len(found) != len(inner):
            return False
        for match, child in zip(inner, found, strict=True):
            if match is None:
                leaves.append(child)
            elif not match(child, leaves):
                return False
        return True

    return nest


def _children(cls: type, rest: Any) -> Callable[[Any], Sequence[Any] | None]:
    container = container_of(cls)

    def taken_apart(value: Any) -> Sequence[Any] | None:
        if container is None:
            return None
        found, other = container.flatten(value)
        return found if other == rest else None

    return taken_apart
