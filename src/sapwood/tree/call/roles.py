"""What replay does with the bytes of each argument: the choice. Pure.

Arguments that share a storage form one *place* and have one role. So do the ambient
arrays that a function reads.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from sapwood.units import Addr


class Role(enum.Enum):
    """What replay does with a place."""

    PINNED = "pinned"
    """Its address is baked in and compared."""
    INHERITED = "inherited"
    """The same; it is the output of another recording."""
    COPIED = "copied"
    """Copied into the range by every replay, and back where it is written."""

    @property
    def fixed(self) -> bool:
        """Whether the address is part of what is recorded."""
        return self in (Role.PINNED, Role.INHERITED)


@dataclass(slots=True)
class History:
    """What one place has looked like over the calls with one signature.

    ``last`` is its address in this call, ``steady`` says that it was there in the call
    before, ``varied`` that it ever moved; ``inherited`` are the addresses at which it
    came as an output of a recording, ``moved`` says that they are too many to be fixed.
    """

    last: Addr | None = None
    steady: bool = False
    inherited: frozenset[Addr] = frozenset()
    varied: bool = False
    moved: bool = False

    @property
    def fresh(self) -> bool:
        """Whether no call came before this one."""
        return not self.steady and not self.varied

    def saw(self, address: Addr, *, inherited: bool, max_variants: int) -> None:
        """Note one call."""
        self.steady = self.last == address
        self.varied |= self.last not in (None, address)
        self.last = address
        if inherited:
            self.inherited |= {address}
            self.moved |= len(self.inherited) > max_variants


def assign(history: History, inherited: bool, pinned: bool, *, anywhere: bool) -> Role:
    """Choose the role of a place for a recording of this call.

    With ``anywhere``, a place that has ever moved is copied, so that it may
    come from any address. ``pinned`` is what was declared so by the user.
    """
    if anywhere and (history.varied or inherited):
        return Role.COPIED
    if pinned:
        return Role.PINNED
    if history.moved:
        return Role.COPIED
    if inherited:
        return Role.INHERITED
    return Role.PINNED if history.steady else Role.COPIED
