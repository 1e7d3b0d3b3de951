"""A recording's place in the tree: what it may be replayed on, and how."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import Any, NamedTuple

from sapwood.graphs.exec import Exec
from sapwood.graphs.recording import Recording
from sapwood.memory.range import Range
from sapwood.tree.call.roles import Role
from sapwood.tree.call.signature import Whereabouts
from sapwood.tree.guards import Ambient, Slot
from sapwood.tree.node.copy_out import Ferry
from sapwood.tree.node.outputs import Bytes, Outputs
from sapwood.tree.node.passed_on import PassedOn, Written
from sapwood.units import Addr, Mask, Size

Shared = tuple[tuple[int, int] | None, ...]
"""For each of some places: which place before it has its storage, how far on."""


class PlaceUse(NamedTuple):
    """What a recording does with one place.

    ``address`` is where it was when it was recorded, which fixed roles require.
    """

    name: str
    role: Role
    address: Addr
    size: Size
    used: bool
    written: bool
    donated: bool


class Undone(NamedTuple):
    """What a call in parts has to save, to be run from its beginning again.

    ``places`` are those of the call that parts write, ``read`` those that they only
    read, ``reached`` those of them that regions were passed, or name, ``results`` the
    names of eager regions whose results they use. It is ``needed`` where a region may
    change what parts behind it go by, not only return something else at the end.
    """

    places: tuple[int, ...]
    read: tuple[int, ...]
    reached: tuple[int, ...]
    results: frozenset[str]
    needed: bool


@dataclass(eq=False, slots=True)
class Node:
    """One recording, linked, with its footprint and counters.

    ``places`` are the arguments' and behind them the ambient arrays'; ``escapes``
    says that all new storages are copied out after every replay, ``ferries`` which are,
    if any, and behind them which of those that parts before it have made;
    ``clobbers`` are the pages that a replay overwrites; ``took`` and ``spent``
    are the nanoseconds of host time of the call that made it, and of ``timed`` replays;
    ``revokes`` the places whose leases it ends; of the places ``used`` the first
    ``used_arguments`` are arguments', and some are written where it ``writes``.

    A recording with eager regions is a ``chain``, and this node its first part, which
    answers for all: its ``places`` and ``clobbers`` are those of the whole. ``held``
    are pages that a call in parts keeps until it is over: of one part those that parts
    behind it use besides its outputs, of the first all of them.
    ``running`` counts the calls on their way through it; it stays until they are.
    ``expects``: which of the values to bind its guards expect, and where, once that
    was found out. A part of a chain ``asks`` whether arrays are those that the function
    had found, a region ``changes`` arrays, and by one what the function has else
    ``is_seen``: in any of the ways that its call may go. One that is ``apart`` does
    work that the function does in captures alone.
    ``which`` and ``nests`` as in `AmbientKey`. ``undone`` is what parts write before
    the last eager region runs; None where that is not to be put back. ``memos`` are
    arrays that its ops use where they are, and that are to stay there: those that
    cached functions remember.
    """

    label: str
    number: int
    parent: str | None
    recording: Recording
    exec: Exec
    range: Range
    ambient: Ambient
    places: tuple[PlaceUse, ...]
    argument_places: int
    outputs: Outputs
    escapes: bool
    clobbers: Mask
    output_masks: tuple[Mask, ...]
    ambient_lows: Sequence[Addr]
    ambient_sharing: object
    signature: str = ""
    restored: bool = False
    took: int = 0
    spent: int = 0
    timed: int = 0
    hits: int = 0
    last_used: int = 0
    held: Mask = field(default=Mask(0))
    ferries: tuple[Ferry, ...] = ()
    chain: tuple[Link, ...] = ()
    running: int = 0
    apart: bool = False
    asks: bool = False
    changes: bool = False
    is_seen: bool = False
    which: tuple[int, ...] = ()
    nests: tuple[int, ...] = ()
    expects: tuple[tuple[int, int], ...] | None = None
    undone: Undone | None = None
    memos: tuple[object, ...] = ()
    whereabouts: Whereabouts = field(default_factory=Whereabouts)
    fixed: tuple[tuple[int, Addr], ...] = field(init=False)
    revokes: tuple[int, ...] = field(init=False)
    watches_overlap: bool = field(init=False)
    aimed: tuple[int, ...] = field(init=False)
    used: tuple[tuple[int, bool], ...] = field(init=False)
    used_arguments: int = field(init=False)
    writes: bool = field(init=False)
    copied_bytes: Size = field(init=False)

    def __post_init__(self) -> None:
        places = [*enumerate(self.places)]
        given = places[: self.argument_places]
        self.fixed = tuple((i, use.address) for i, use in given if use.role.fixed)
        self.aimed = tuple(i for i, use in places if use.used and not use.role.fixed)
        self.used = tuple((i, use.written) for i, use in places if use.used)
        self.writes = any(written for _, written in self.used)
        self.used_arguments = sum(i < self.argument_places for i, _ in self.used)
        self.revokes = tuple(i for i, use in places if use.donated)
        self.watches_overlap = self.may_overlap()
        self.copied_bytes = Size(
            sum(
                use.size * (1 + (use.written and not use.donated))
                for use in self.places
                if use.role is Role.COPIED and use.used
            )
        )

    def may_overlap(self) -> bool:
        """Return whether places may meet that were apart: some may be anywhere."""
        if len(self.places) == self.argument_places:
            return False
        return any(use.used and not use.role.fixed for use in self.places)

    def parts(self) -> Iterator[Node]:
        """Yield the recorded parts of a chain, or this node alone."""
        if not self.chain:
            yield self
        for link in self.chain:
            yield link.part

    def made(self) -> list[Bytes]:
        """Return what is new of all parts, in their order."""
        return [each for part in self.parts() for each in part.outputs.storages]

    def passing(self) -> Mask:
        """Return the pages of this part that a call needs until it is over."""
        copied = self.copied()
        masks = (m for k, m in enumerate(self.output_masks) if k not in copied)
        return Mask(reduce(or_, masks, self.held))

    def copied(self) -> frozenset[int]:
        """Return which of the new storages are copied out after every replay."""
        every = (k for ferry in self.ferries for k in ferry.storages)
        return frozenset(k for k in every if k < len(self.output_masks))


@dataclass(frozen=True, slots=True)
class Live:
    """What runs live behind a part.

    ``held`` gives the function, which is called at a line, ``where``. Its result must
    have the ``key`` that it had, and share storages with what came before as it did, by
    ``shared``. ``caught`` is where the function would catch its exceptions, if
    anywhere; ``within``: it is in a `with`. ``manner`` makes contexts in the
    framework's modes that the function is in there; ``flat`` says that no argument is a
    container, ``drops`` that the function has no use for the result. If it
    ``branches``, the key may have plain values in it: for others, another recording is
    gone on with that had ``done`` the same so far. One that ``writes`` may have written
    arrays, one that ``sees`` found, kept or changed whatever the function has. One that
    writes is ``alone`` where it sees nothing, is passed all that the function had
    written by then, and binds that itself if it raises: nothing is undone behind it.
    What it returns may only be ``passed_on``.
    """

    name: str
    held: Callable[[], Callable[..., Any] | None]
    key: Hashable
    shared: Shared
    text: str
    caught: str | None
    within: bool
    manner: Callable[[], AbstractContextManager[object]]
    flat: bool
    drops: bool
    branches: bool
    writes: bool
    sees: bool
    alone: bool
    passed_on: PassedOn | None
    done: tuple[str, Sequence[bytes]]
    where: str | None


@dataclass(frozen=True, slots=True)
class Link:
    """One part of a chain: what it binds, and what runs live behind it.

    ``shared``: which of the ambient arrays that it reads share storages with what is
    carried to it, as far as it hangs on that; ``which`` of both are one object, where
    the function may ask. ``steady`` are numbers of arrays that the part reads, with
    their paths: each was the one that the function had found there before, and it may
    have kept that. The last one is ``idle`` where it only gives what it was given, and
    decides nothing: it may be replayed whatever is the case. It ``appends`` values that
    are only passed on: which of what it binds is which of these.
    """

    part: Node
    bound: tuple[Slot, ...]
    shared: Shared
    which: tuple[int, ...]
    live: Live | None
    idle: bool = False
    steady: tuple[tuple[int, str], ...] = ()
    appends: tuple[Written, ...] = ()
