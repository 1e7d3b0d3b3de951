"""What a warm-up showed, for the recording to be held against."""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Thread, current_thread
from weakref import ref

from sapwood.tree.node.objects import Told
from sapwood.tree.watch.session import Broken

__all__ = ["Warm"]


@dataclass(frozen=True, slots=True)
class Warm:
    """What a warm-up showed, for the recording to be held against.

    ``ops`` are digests of the ops, addresses left out; ``stays`` the allocations, by
    their order, that outlived the function or were alive when an eager region ran;
    ``told`` the plain values in the result; ``breaks`` and ``room`` as in `Session`;
    ``code`` what tells compiled code apart; ``thread`` the one that it ran on.
    ``asks`` as in `Session`; one that is of a capture was ``captured``.
    """

    ops: tuple[bytes, ...]
    stays: frozenset[int]
    told: Told
    breaks: tuple[Broken, ...] = ()
    room: int = 0
    code: frozenset[str] = frozenset()
    asks: bool = False
    captured: bool = False
    thread: ref[Thread] = field(
        default_factory=lambda: ref(current_thread()), compare=False
    )
