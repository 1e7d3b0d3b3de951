"""What is known about calls with one signature under one set of ambient values."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import current_thread
from typing import Any, Final

from sapwood.errors import CaptureError
from sapwood.tree.call.roles import History, Role
from sapwood.tree.guards import AmbientKey
from sapwood.tree.node.node import Node
from sapwood.tree.watch.session import Broken, Warm

_UNCLEAR: Final = 4
WAYS: Final = 16
"""So many ways that calls go, by values that regions return, are known at most."""

_STRAY: Final = 3
_ASTRAY: Final = 60
"""A call that strays costs some three eager ones; so many in a row are too many."""


class Specialization:
    """The recordings of one signature and one set of ambient values.

    ``link`` builds a node of a recording of another process that serves its calls;
    ``asked`` says that such a recording was looked for. ``misses`` are the clock
    readings of the last two calls that no recording fitted, of ``missing`` in all.
    ``unrecordable`` is why its calls never are recorded, ``failed`` why the last
    attempt failed, where another one may not; ``unready`` counts those in a row that
    could not begin, ``reorders`` captures whose ops were in another order than those
    of the warm-up. The function ``reads_arguments`` by itself, too, from slots;
    it ``remembers``: a cached function has computed something in a warm-up. Its
    ``reads_decide``, all of them, once a few warm-ups were ``unclear`` about where that
    went which was only passed on. It has ``acted``: a warm-up did something outside,
    which may have been done once and for all. If it
    is ``branching``, calls go different ways by values that regions return: ``ways``
    are the warm-ups of all of them, and ``astray`` weighs calls that went a new one
    against those that were replayed. Until one is recorded, so many
    ``warmups_due`` come before the next capture: one more for each of the
    ``stray_captures``. They are done ``apart``, as captures, once one was.
    """

    def __init__(self, ambient_key: AmbientKey, max_variants: int) -> None:
        self.ambient_key, self.max_variants = ambient_key, max_variants
        self.nodes: list[Node] = []
        self.warm: Warm | None = None
        self.link: Callable[..., Any] | None = None
        self.asked = False
        self.unrecordable: CaptureError | None = None
        self.failed: CaptureError | None = None
        self.unready = self.reorders = 0
        self.places: list[History] = []
        self.ambient: dict[str, History] = {}
        self.misses: tuple[int, ...] = ()
        self.missing = 0
        self.reads_arguments = self.remembers = self.reads_decide = False
        self.unclear = 0
        self.branching = self.apart = self.acted = False
        self.astray = self.stray_captures = self.warmups_due = 0
        self.ways: list[Warm] = []

    @property
    def wants_another(self) -> bool:
        """Whether the next warm-up is to do the work of a capture.

        Where code asks whether one is on, captures may meet what the first did not. If
        that is behind a region, or in what an object in the result holds, the call
        could not go on: parts have run, or nobody can take the object apart.
        """
        warm = self.warm
        if warm is None:
            return self.apart
        doubted = warm.asks and (bool(warm.breaks) or self.unready > 0)
        return doubted and not warm.captured

    def told(self, answer: Callable[..., Any] | str | None) -> None:
        """Note what a source of recordings has said; None: it was not asked."""
        if answer is not None:
            self.asked = True
            self.link = self.link if isinstance(answer, str) else answer

    def is_warm_here(self) -> bool:
        """Return whether the warm-up ran on this thread.

        Some of what frameworks make at first use, they make for each thread.
        """
        return self.warm is not None and self.warm.thread() is current_thread()

    def missed(self, clock: int) -> None:
        """Note a call that no recording fitted."""
        self.misses = (*self.misses[-1:], clock)
        self.missing += 1

    def is_unclear(self) -> None:
        """Note a warm-up that did not show where something went that it passes on."""
        self.unclear += 1
        self.reads_decide = self.unclear >= _UNCLEAR

    def strays(self) -> bool:
        """Note a call that went another way than all recordings, by a plain value.

        Return whether that comes too often for recordings to pay.
        """
        self.branching = True
        self.astray += _STRAY
        return self.astray > _ASTRAY

    def captured_astray(self) -> bool:
        """Note a capture that went a way of no warm-up, as `strays` does.

        One more warm-up than after the last one is to come now: of values that take
        turns, every second call might meet the same ones, and captures the others.
        """
        self.warm, self.stray_captures = None, self.stray_captures + 1
        self.warmups_due = self.stray_captures
        return self.strays()

    def warmed(self, warm: Warm) -> None:
        """Note a warm-up, and the way that it went."""
        self.branching |= warm.branches
        self.apart |= warm.captured
        self.warm = warm
        if self.wants_another:
            return
        self.astray += self.warmups_due > 1
        self.warmups_due = max(0, self.warmups_due - 1)
        self._hold(warm)
        self.warm = None if self.warmups_due else warm

    def launched(self, capture: Warm) -> None:
        """Note a capture that ran for one call alone; the next are held against it."""
        self.branching |= capture.branches
        self._hold(capture)

    def _hold(self, warm: Warm) -> None:
        """Have captures held against what a call did, in place of others on its way."""
        self.warm = warm
        if self.branching:
            others = [way for way in self.ways if way.breaks != warm.breaks]
            self.ways = [*others[1 - WAYS :], warm]

    def on_way(self, ran: tuple[Broken, ...]) -> Warm | None:
        """Return the latest warm-up in which regions ``ran`` so, and maybe more."""
        known = (way for way in reversed(self.ways) if way.breaks[: len(ran)] == ran)
        return next(known, None)

    def went(self, calls: int = 1) -> None:
        """Note calls that went the way of its recordings."""
        self.astray = max(0, self.astray - calls)

    def missed_since(self, clock: int) -> int:
        """Return how many of the last two misses came after ``clock``."""
        return sum(miss > clock for miss in self.misses)

    def add(self, node: Node) -> None:
        """Add a recording; those that copy less are tried first."""
        if not self.nodes:
            # From here on, a call that strays is learnt from where it left.
            self.astray = self.stray_captures = 0
        self.nodes.append(node)
        self.nodes.sort(key=lambda n: (n.escapes, len(n.ferries), n.copied_bytes))

    def outdated(self) -> list[Node]:
        """Return the nodes that fix a place which comes from too many addresses."""
        return [node for node in self.nodes if self._fixes_moved(node)]

    def _fixes_moved(self, node: Node) -> bool:
        reached, unknown = node.places[node.argument_places :], History()
        ambient = [self.ambient.get(use.name, unknown) for use in reached]
        pairs = zip(node.places, [*self.places, *ambient], strict=True)
        return any(use.role is Role.INHERITED and past.moved for use, past in pairs)


def least_recent(nodes: Iterable[Node]) -> Node | None:
    """Return the node whose last use is longest ago."""
    return min(nodes, key=lambda node: node.last_used, default=None)
