"""A replay like the one before it, which C plays: it decides nothing anew.

The conditions under which a recording fits are of three kinds. What may change unseen
is looked at by every call: the arguments, the guarded slots, where the arrays lie, who
holds the outputs. What only this library changes has a counter, `STREAM_EPOCH`, and is
looked at when that has moved. All else is fixed when the recording is made. A call that
does not plainly fit is left to the decided replay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Self
from weakref import ref

from sapwood._fast.state import ReplayState
from sapwood.driver.streams import Stream
from sapwood.memory.storage import STREAM_EPOCH, Storage
from sapwood.tree.call.integration import Kept, LayoutProbe, Probe
from sapwood.tree.call.signature import NONE, Arrays
from sapwood.tree.choose.admit import overlap
from sapwood.tree.choose.recordings import Recordings
from sapwood.tree.guards import Slot
from sapwood.tree.node.node import Node
from sapwood.tree.node.outputs import Alias, Bytes, Constant, Fresh, Same
from sapwood.tree.replay.binding import planned
from sapwood.tree.replay.compiled import MISS, compiled, program_of
from sapwood.tree.replay.last_call import LastCall
from sapwood.tree.replay.replay import order, prepare

_PATIENCE: Final = 8
"""Decided replays in a row after which what a fast replay knows is outdated."""
_PATIENCE_AT_MOST: Final = 1024
_PAUSE_AT_MOST: Final = 64
_MANY: Final = 16
"""Replays in C for which it was worth the while to arm a fast replay."""
PLAIN: Final = {Alias, Constant, Fresh, Same}


class FastReplay(ReplayState):
    """One recording on one stream, and calls that look like the one of ``last_call``.

    It keeps what C needs and cannot see to. Used under the device's lock. One that
    ``is_part`` of a chain keeps what the others do: the first ``carried`` storages are
    made by parts before it, ``makers`` are its own, and ``reads`` gives what is read.
    One that is ``idle`` launches nothing.
    """

    __slots__ = ("__dict__", "__weakref__")

    is_first, is_part, idle = True, False, False
    carried, makers = 0, slice(None)
    reads: Callable[[], Sequence[Any] | None] | None = None

    def __init__(
        self,
        recordings: Recordings,
        node: Node,
        ambient: Arrays,
        last_call: LastCall,
        made: Sequence[Bytes] = (),
        *,
        binds: bool = True,
    ) -> None:
        self.last_call, self.node, self.recordings = last_call, node, recordings
        node.ambient.program.write()
        self.stream = ref(recordings.device.stream())
        self.ambient_lows = ambient.lows
        self.guard_epoch = node.ambient.program.epoch
        self.stream_epoch = -1
        self._missed, self.patience = 0, _PATIENCE
        self.kept: Kept | None = None
        self.rests = False
        self.own = node.passing()
        self.program = program_of(node, last_call.number_of, made, binds=binds)
        self._copiers = self.program.copiers(node, recordings)
        self.compiled: Any = None
        self.rivals: Sequence[Node] = ()
        self.epoch = 0
        self._rest, self._pause, self._played = 1, 1, 0

    @classmethod
    def of(
        cls,
        recordings: Recordings,
        node: Node,
        ambient: Arrays,
        last_call: LastCall,
        before: FastReplay | None = None,
    ) -> Self | None:
        """Return what replays a node again; None where every replay must be decided.

        It takes the place of one ``before``, which was outdated.
        """
        if not cls.can_play(node) or (node.which and last_call.again):
            return None
        if node.chain and last_call.within:
            return None  # a part would take its arrays for places
        if isinstance(last_call.probe, LayoutProbe):
            return None  # there is no such thing in C
        made = cls(recordings, node, ambient, last_call)
        if before is not None:
            made.patience = min(2 * before.patience, _PATIENCE_AT_MOST)
        return made

    @staticmethod
    def can_play(node: Node) -> bool:
        """Return whether C can do what every replay of a node does."""
        plain = {*map(type, (*node.outputs.leaves, *node.outputs.bound))} <= PLAIN
        return plain and not node.revokes

    def is_outdated(self) -> bool:
        """Count a decided replay of the node; return if too many came in a row."""
        self._missed += 1
        return self._missed >= self.patience

    def let_go(self) -> None:
        """Give up the kept storages; those with arrays live as long as the arrays."""
        self.recordings.kept.pop(self, None)
        self.kept, self.rests = None, False
        self.epoch += 1

    def rest(self) -> None:
        """Have the kept storages hold no pages, unless somebody has one."""
        kept = self.kept
        if kept is not None and not self.rests and kept.is_idle():
            self.rests = True
            self.recordings.leases.rest(kept.storages)

    def wake(self) -> bool:
        """Have the kept storages hold their pages; return whether the node is free.

        What others keep for their next replay gives way, while nobody has it.
        """
        recordings, clobbers = self.recordings, self.node.clobbers
        recordings.rest(clobbers)
        if recordings.device.pages.live & clobbers:
            return False
        if self.kept is not None:
            recordings.leases.wake(self.kept.storages)
            self.rests = False
        return True

    def arm(
        self, arrays: Sequence[Any], values: Sequence[Any], slots: Sequence[Slot]
    ) -> bool:
        """Have C play calls like one that was replayed; return if its player is new.

        ``arrays`` are the call's, ``values`` those that were bound to ``slots``. C is
        told the state as it is now. If that changes often, C is told ever more seldom.
        """
        if not self.has_all():
            return False
        self._rest -= 1
        if self._rest > 0:
            return False
        program = self.node.ambient.program
        found = program.read()
        if found is None:
            return False
        longer = min(2 * self._pause, _PAUSE_AT_MOST)
        self._pause = 1 if self._played >= _MANY else longer
        self._rest, self._played = self._pause, 0
        before = self.compiled
        self.compile(arrays, found, values, slots)
        return self.compiled is not before

    def has_all(self) -> bool:
        """Return whether there is what C needs to give a call its result."""
        gives = self.program.made or self.program.flown
        kept = self.kept is not None or not gives
        return kept and bool(not self.node.ferries or self.copies())

    def compile(
        self,
        arrays: Sequence[Any],
        found: Sequence[Any],
        values: Sequence[Any],
        slots: Sequence[Slot],
    ) -> None:
        """Make what plays calls, of the state as it is now, if C can do that."""
        self.guard_epoch = self.node.ambient.program.epoch
        self.stream_epoch = -1
        integration, guarded = self.recordings.integration, self.last_call.guarded
        probe = integration.probe_guarded if guarded else integration.probe
        probes = probe(arrays), integration.probe(found)
        # What another thread changed meanwhile, C is not to take for as it was.
        alike = self._look_alike(arrays, found, *probes)
        plan = planned(slots, values, found) if alike else None
        self.compiled = None if plan is None else compiled(self, plan, *probes)

    def play(self, arrays: Sequence[Any]) -> Any:
        """Return the result of a replay in C, or `MISS`."""
        return MISS if self.compiled is None else self.compiled(*arrays)

    def _are_those(self, arrays: Sequence[Any]) -> bool:
        """Return whether those are one that were, after a look at what is read."""
        which, ambient = self.node.which, self.node.ambient
        if not which:
            return True
        reached = [each() for each in ambient.program.latest]
        return ambient.aliasing.among(arrays, reached) == which

    def _look_alike(
        self, arrays: Sequence[Any], found: Sequence[Any], given: Probe, read: Probe
    ) -> bool:
        """Return whether probes are of arrays that the recording fits, where they are.

        These are of a call that it fitted.
        """
        node, last_call = self.node, self.last_call
        lows = last_call.whereabouts(arrays)
        there, layouts = self._read(found), node.ambient.layouts
        carried = [storage.address for storage in self._carried()]
        starts = [] if lows is None else last_call.starts(lows)
        besides = node.whereabouts.lows(found, layouts, self.recordings.integration)
        return (
            lows is not None
            and there is not None
            and [*given.lows] == [*lows]
            and all(starts[i] == at for i, at in node.fixed if i < len(starts))
            and not overlap(node, [*starts, *carried, *self.ambient_lows])
            and self._are_those(arrays)
            and [*there.lows] == [*self.ambient_lows]
            and [*read.lows] == [*(besides or ())]
        )

    def noted(self) -> tuple[list[int], list[int]]:
        """Return, once, when each replay in C began, and for how long it took."""
        found = [] if self.compiled is None else self.compiled.noted()
        self._played += len(found) // 2
        if found:
            self._missed, self.patience = 0, _PATIENCE
        return found[::2], found[1::2]

    def order(self, arrays: Sequence[Any], found: Sequence[Any]) -> bool:
        """Order the stream after all uses of what the node uses; return if that can be.

        ``arrays`` are the call's, ``found`` those that the function reads.
        """
        last_call, stream = self.last_call, self.stream()
        lows = last_call.whereabouts(arrays)
        given = None if lows is None else last_call.given(arrays, lows)
        if given is not None and self.carried:
            given = given._replace(storages=[*given.storages, *self._carried()])
        if stream is None or given is None or not self._order(given, found, stream):
            return False
        self.recordings.device.pages.claim(stream, self.node.clobbers)
        return True

    def _order(self, given: Arrays, found: Sequence[Any], stream: Stream) -> bool:
        node, changes = self.node, STREAM_EPOCH.now
        if changes == self.stream_epoch:
            order(node.used[: node.used_arguments], given.storages, stream)
            return True
        if self.kept is not None and not self.kept.is_only(stream):
            # Another stream uses the kept outputs. Let go, their lease ends like any
            # other, so that the decided replay waits for that use.
            self.let_go()
            return False
        ambient = self._read(found)
        if ambient is None or ambient.sharing != node.ambient_sharing:
            return False
        prepare(node, given, ambient, stream)
        self.stream_epoch = changes
        return True

    def _carried(self) -> Sequence[Storage]:
        return () if self.kept is None else self.kept.storages[: self.carried]

    def _read(self, found: Sequence[Any]) -> Arrays | None:
        """Return where the arrays that the function reads are; None if not alike."""
        node, integration = self.node, self.recordings.integration
        if not found:
            return NONE
        return node.whereabouts.look(found, node.ambient.layouts, integration)

    def copies(self) -> Sequence[Callable[[], Any]]:
        """Return the framework's own copiers of outputs; none if there are steps.

        A step could not end a copy in the framework's memory.
        """
        return () if self.recordings.stepped else self._copiers

    def keep(self, storages: Sequence[Storage]) -> None:
        """Keep new storages of outputs for replays to come, if there are none.

        There are no arrays over them yet: who has them would count as nobody.
        """
        recordings = self.recordings
        if self.kept is None and (storages or self.copies()):
            self.kept = recordings.integration.keep(storages, self.program.made)
            self.epoch += 1
            if storages:
                recordings.kept[self] = None
