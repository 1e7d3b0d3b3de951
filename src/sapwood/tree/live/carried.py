"""What the places of a part are called, and what a replay does with each.

Places are those of the call, of what was carried to the part, and of ambient arrays.
What a place was given when the call began it keeps; what came since may be anywhere.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from sapwood.memory.storage import Storage
from sapwood.tree.ambient import Ambient
from sapwood.tree.forest import Forest
from sapwood.tree.node import PlaceUse
from sapwood.tree.recorder import Order, ambient_roles, argument_roles
from sapwood.tree.roles import Role
from sapwood.tree.signature import Arrays, Place

__all__ = ["CarriedRoles"]


class CarriedRoles:
    """Names and roles of the places carried so far, in the recording of one call.

    ``used_later`` are the ambient places of the first part that only later ones use.
    """

    def __init__(self, order: Order, forest: Forest) -> None:
        self._order, self._forest = order, forest
        given = order.plan.call.given
        self._names = list(order.names)
        self._roles = list(argument_roles(order, given.places(forest.adapter), forest))
        self._first: dict[str, tuple[int, Place]] = {}
        self.used_later: set[int] = set()

    def made(self, label: str, storages: Sequence[Storage]) -> None:
        """Add storages that the part called ``label`` has made."""
        role = Role.PATCHED if self._order.plan.escapes else Role.INHERITED
        self._names += [f"what {label} made"] * len(storages)
        self._roles += [role] * len(storages)

    def returned(self, name: str, places: Iterable[Place]) -> None:
        """Add places that the live part called ``name`` has returned."""
        for place in places:
            self._names.append(f"the result of {name}")
            self._roles.append(self._anywhere(place))

    def first(
        self, ambient: Ambient, places: Sequence[Place]
    ) -> tuple[list[str], list[Role]]:
        """Return the names and roles of the first part's places."""
        count = len(self._roles)
        names, roles = ambient_roles(self._order, ambient, places[count:], self._forest)
        found = enumerate(places[count:], count)
        self._first = dict(zip(names, found, strict=True))
        return [*self._names, *names], [*self._roles, *roles]

    def later(
        self,
        ambient: Ambient,
        carried: Arrays,
        places: Sequence[Place],
        symbols: Container[int],
        first: Sequence[PlaceUse],
    ) -> tuple[list[str], list[Role]]:
        """Return those of a later part, whose ops use ``symbols``.

        ``first`` are the places of the first part. Here the parts before were already
        run, so that no address may be asked for that was not asked for then.
        """
        names, roles = list(self._names), list(self._roles)
        owners = {storage: i for i, storage in enumerate(carried.storages)}
        for i, place in enumerate(places[len(roles) :], len(roles)):
            name = ambient.arrays[place.arrays[0]].path
            owner, then = owners.get(place.storage), self._first.get(name)
            role = self._anywhere(place)
            if owner is not None:
                whole = places[owner]
                if not whole.lo <= place.lo <= place.hi <= whole.hi:
                    roles[owner] = role = Role.PINNED
            elif then is not None and then[1][:3] == place[:3] and i + 1 in symbols:
                self.used_later.add(then[0])
                role = first[then[0]].role
            names.append(name)
            roles.append(role)
        return names, roles

    def _anywhere(self, place: Place) -> Role:
        large = place.hi - place.lo >= self._forest.patch_from
        return Role.PATCHED if large else Role.COPIED
