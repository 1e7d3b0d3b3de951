"""What the places of a part are called, and what a replay does with each.

Places are those of the call, of what was carried to the part, and of ambient arrays.
What a place was given when the call began it keeps; what came since may be anywhere.
Where a device does not know every address, what may be anywhere is copied; and what the
function finds by itself has to be where it was.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from sapwood.tree.call.roles import Role
from sapwood.tree.call.signature import Arrays, Place
from sapwood.tree.choose.recordings import Recordings
from sapwood.tree.guards import Ambient
from sapwood.tree.node.node import Node, PlaceUse
from sapwood.tree.record.recorder import ambient_roles, argument_roles
from sapwood.tree.record.taking import RecordRequest

__all__ = ["CarriedRoles"]


class CarriedRoles:
    """Names and roles of the places carried so far, in the recording of one call.

    ``used_later`` are the ambient places of the first part that only later ones use.
    ``astray`` names one that a later part uses, and that no replay would find.
    """

    def __init__(self, order: RecordRequest, recordings: Recordings) -> None:
        self._order, self._recordings = order, recordings
        self._exact = recordings.device.driver.abilities.exact_addresses
        given = order.plan.call.given
        self._names = list(order.names)
        roles = argument_roles(order, given.places(recordings.integration), recordings)
        self._roles = [self._possible(role, Role.COPIED) for role in roles]
        self.astray: str | None = None
        self._first: dict[str, tuple[int, Place]] = {}
        self.used_later: set[int] = set()

    def _possible(self, role: Role, otherwise: Role) -> Role:
        return role if self._exact or role.fixed else otherwise

    def now(self) -> Sequence[Role]:
        """Return the roles of the places that are carried so far."""
        return tuple(self._roles)

    def made(self, part: Node) -> None:
        """Add the storages that a part has made."""
        moved = self._possible(Role.PATCHED, Role.COPIED)
        count = len(part.outputs.storages)
        self._names += [f"what {part.label} made"] * count
        self._roles += [moved if part.escapes else Role.INHERITED] * count

    def returned(self, name: str, places: Iterable[Place]) -> None:
        """Add places that the eager region called ``name`` has returned."""
        for place in places:
            self._names.append(f"the result of {name}")
            self._roles.append(self._anywhere(place))

    def first(
        self, ambient: Ambient, places: Sequence[Place]
    ) -> tuple[list[str], list[Role]]:
        """Return the names and roles of the first part's places."""
        count = len(self._roles)
        names, roles = ambient_roles(
            self._order, ambient, places[count:], self._recordings
        )
        roles = [self._possible(role, Role.PINNED) for role in roles]
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
            stays = then is not None and then[1][:3] == place[:3]
            used = i + 1 in symbols
            role = self._anywhere(place)
            if used and not self._exact:
                role = Role.PINNED
            if owner is not None and self._exact:
                whole = places[owner]
                if not whole.lo <= place.lo <= place.hi <= whole.hi:
                    roles[owner] = role = Role.PINNED
            elif owner is not None:
                if used and not roles[owner].fixed:
                    self.astray = name
            elif then is not None and stays and used:
                self.used_later.add(then[0])
                role = first[then[0]].role
            elif used and not self._exact:
                self.astray = name
            names.append(name)
            roles.append(role)
        return names, roles

    def _anywhere(self, place: Place) -> Role:
        large = place.hi - place.lo >= self._recordings.patch_from
        return Role.PATCHED if large and self._exact else Role.COPIED
