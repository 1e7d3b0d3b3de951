"""A replay in parts like the one before it: C plays the parts, and regions run between.

Only where parts write little before the last region that reads, which is saved: so a
call that goes another way, or does not fit in the middle, leaves nothing that anybody
could see. It is begun again, and decided. Behind a region that writes no call goes
another way, and what does not fit there is replayed as it is decided.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from itertools import accumulate, pairwise
from operator import or_
from time import perf_counter_ns
from typing import Any, Final

from sapwood.errors import InternalError
from sapwood.memory.storage import Storage
from sapwood.tree.call.integration import Kept
from sapwood.tree.call.signature import Arrays, carry
from sapwood.tree.choose.recordings import Recordings
from sapwood.tree.guards import Slot
from sapwood.tree.guards.steps import GuardProgram
from sapwood.tree.nests.containers import constant_key
from sapwood.tree.node.node import Link, Live, Node
from sapwood.tree.node.outputs import Carried
from sapwood.tree.node.passed_on import PassedOn, filled
from sapwood.tree.record.preserve import Preserved
from sapwood.tree.replay.binding import expect
from sapwood.tree.replay.compiled import MISS
from sapwood.tree.replay.fast_replay import PLAIN, FastReplay
from sapwood.tree.replay.last_call import LastCall
from sapwood.tree.replay.replay import give, lease_outputs, replay
from sapwood.units import Mask

_PAUSE_AT_MOST: Final = 64
_FEW: Final = 8
_LITTLE: Final = 1 << 20
"""So many storages, and bytes, are saved before each call at the most."""


class _Read:
    """What the first part found that the function reads: the others use the same."""

    __slots__ = ("_found", "_guards")

    def __init__(self, guards: GuardProgram) -> None:
        self._guards = guards
        self._found: Sequence[Any] | None = None

    def anew(self) -> Sequence[Any] | None:
        self._found = self._guards.read()  # which may have been made anew
        return self._found

    def latest(self) -> Sequence[Any] | None:
        return self._found

    def forget(self) -> None:
        self._found = None


class FastChain(FastReplay):
    """The first part of a chain, which has those ``behind`` it played, too.

    It keeps what all of them make. While a call is ``going`` no other is played. Calls
    that went another way are followed by ever more that are decided.
    """

    def __init__(
        self,
        recordings: Recordings,
        node: Node,
        ambient: Arrays,
        last_call: LastCall,
    ) -> None:
        super().__init__(recordings, node, ambient, last_call, binds=False)
        self.going = False
        self.own = Mask(0)
        self._seen, links = _Read(node.ambient.program), node.chain
        self.reads = self._seen.anew
        self.behind: list[FastReplay] = []
        so_far = [*node.outputs.storages]
        for link in links[1:]:
            # What is bound before regions that only read is bound at the end, too.
            binds = link.live is None
            of = recordings, link.part, ambient, last_call, so_far
            part = FastReplay(*of, binds=binds)
            part.is_first, part.idle = False, link.idle
            part.reads = self._seen.latest
            self.behind.append(part)
            so_far += link.part.outputs.storages
        for link, part in zip(links, self._parts(), strict=True):
            if link.live is not None:
                # Not as they were passed, in a tuple and a dict: alone.
                part.program = part.program._replace(shape=tuple)
        ends = accumulate((len(part.program.made) for part in self._parts()), initial=0)
        for part, (start, end) in zip(self._parts(), pairwise(ends), strict=True):
            part.makers = slice(start, end)
        for part in self._parts():
            part.is_part = True
            copied, masks = part.node.copied(), enumerate(part.node.output_masks)
            kept = (mask for k, mask in masks if k not in copied)
            self.own = Mask(reduce(or_, kept, self.own))
        # What parts use besides their outputs is held while a call goes on.
        self._beyond = Mask(node.held & ~self.own)
        self._lives = [link.live for link in links if link.live is not None]
        self._astray = self._left = 0
        self._written = _written_before(node)
        self._notes: list[tuple[int, int]] = []
        # Which of the values that a call has bound are one, without the values.
        self.alike: Sequence[object] | None = None

    def _parts(self) -> list[FastReplay]:
        return [self, *self.behind]

    @staticmethod
    def can_play(node: Node) -> bool:
        """Return whether nobody sees what a call did that does not come to its end.

        And whether C can do what the parts do.
        """
        links = node.chain
        *front, last = links
        lives = [link.live for link in front if link.live is not None]
        return (
            not node.asks
            and _can_end(lives, last)
            and _appends_apart(last)
            and all(link.part.ambient is node.ambient for link in links)
            and not any(link.part.revokes for link in links)
            and not any(link.part.ferries for link in front)
            and _is_little(node)
            and all(map(_is_told, front))
            and all(map(_is_plain, links))
            and last.live is None
        )

    def let_go(self) -> None:
        """Give up what is kept: no part fits any more."""
        super().let_go()
        for part in self.behind:
            part.kept = None
            part.epoch += 1

    def rest(self) -> None:
        """Have what is kept hold no pages, unless it is used."""
        if not self.going:
            super().rest()

    def has_all(self) -> bool:
        """Return whether there is what C needs; keep what it is to be made over."""
        if any(part.node.ferries and not part.copies() for part in self._parts()):
            return False
        return self.kept is not None or self._makes_room()

    def _makes_room(self) -> bool:
        """Keep storages for what all parts make, if nobody has their pages."""
        recordings, node = self.recordings, self.node
        recordings.device.returns.drain_dropped()
        recordings.rest(node.clobbers)
        stream = self.stream()
        if stream is None or recordings.device.pages.live & node.clobbers:
            return False
        new: list[Storage] = []
        for part in self._parts():
            part.carried = len(new)
            new += lease_outputs(recordings, part.node, part.node.copied())
        for storage in new:
            storage.writer = stream
        made = [each for part in self._parts() for each in part.program.made]
        kept = recordings.integration.keep(new, made)
        for part in self._parts():
            part.kept = kept
            part.epoch += 1
        recordings.kept[self] = None
        return True

    def compile(
        self,
        arrays: Sequence[Any],
        found: Sequence[Any],
        values: Sequence[Any],
        slots: Sequence[Slot],
    ) -> None:
        """Make what plays each part, if C can do that of all of them."""
        del slots  # those of the last part, but for what C does not write
        super().compile(arrays, found, (), ())
        for link, part in zip(self.node.chain[1:], self.behind, strict=True):
            own = () if link.live else _without_appended(link)
            part.compile(arrays, found, values, own)
        if any(part.compiled is None for part in self.behind):
            self.compiled = None

    def noted(self) -> tuple[list[int], list[int]]:
        """Return, once, when each replay began, and for how long it took."""
        for part in self._parts():
            FastReplay.noted(part)
        notes, self._notes = self._notes, []
        return [began for began, _ in notes], [took for _, took in notes]

    def play(self, arrays: Sequence[Any]) -> Any:
        """Return the result of a call, or `MISS`: then nothing of it has been done."""
        if self._left:
            self._left -= 1
            return MISS
        began, device = perf_counter_ns(), self.recordings.device
        with device.lock:
            players = [part.compiled for part in self._parts()]
            if self.going or None in players:
                return MISS
            kept = [self.kept]  # until this is over, whoever lets go of it
            back = self._saved(arrays)
            shown = MISS if back is None else self._first(players[0], arrays)
            if shown is MISS:
                return MISS
        passed: list[tuple[PassedOn, Any]] = []
        decided: _Decided | None = None
        wrote = False
        try:
            for k, live in enumerate(self._lives):
                wrote |= live.writes
                if not _goes_on(live, shown, passed, ends=wrote):
                    shown = MISS
                    break
                with device.lock:
                    shown = MISS if decided else players[k + 1](*arrays)
                    if wrote and shown is MISS:
                        decided = decided or _Decided(self, k, arrays, kept)
                        shown = decided.replay(k)
                    if live is self._lives[-1] and shown is not MISS:
                        self._append(passed)
                if shown is MISS:
                    break
        finally:
            with device.lock:
                self.going = False
                self._seen.forget()  # what the call has rebound is nobody's any more
                self.recordings.leave(self.node, self._beyond)
                for each in back if back and shown is MISS else ():
                    each()
        kept.clear()
        self._went(began, strayed=shown is MISS)
        return shown if shown is MISS else filled(shown, passed)

    def _append(self, passed: Sequence[tuple[PassedOn, Any]]) -> None:
        """Append what is passed on, which C knows nothing of."""
        last = self.node.chain[-1]
        for each in last.appends:
            last.bound[each.slot].write(each.value(passed))

    def found(self) -> Arrays | None:
        """Return where the arrays are that the call in progress has read."""
        return self._read(self._seen.latest() or ())

    def _first(self, player: Callable[..., Any], arrays: Sequence[Any]) -> Any:
        """Return what the first part shows, and hold what it uses; or `MISS`."""
        shown: Any = MISS
        try:
            shown = player(*arrays)
        finally:
            if shown is MISS:
                self._seen.forget()
        if shown is not MISS:
            self.going = True
            self.recordings.enter(self.node, self._beyond)
        return shown

    def _saved(self, arrays: Sequence[Any]) -> Sequence[Callable[[], object]] | None:
        """Return what undoes all that parts do before the last region.

        None where they write too much.
        """
        device = self.recordings.device
        rewind = device.framework.chance()
        if not self._written:
            return [rewind]
        read = self.node.ambient.program.read()
        if read is None:
            return None
        look, reached = self.recordings.integration.look, [*arrays, *read]
        storages = [look(reached[i]).storage for i in self._written]
        if sum(each.size for each in storages) > _LITTLE:
            return None
        return [rewind, Preserved(device, storages).save().restore]

    def _went(self, began: int, *, strayed: bool) -> None:
        """Note how a call ended, and if those to come had better be decided."""
        if strayed:
            self._astray = min(2 * self._astray + 1, _PAUSE_AT_MOST)
            self._left = self._astray
            return
        self._astray = max(0, self._astray - 1)
        self._notes.append((began, perf_counter_ns() - began))


class _Decided:
    """Replays the parts that C does not, behind a region that nobody can undo.

    ``number`` is that of the first. It goes on from what parts in front have made.
    """

    def __init__(
        self,
        fast: FastChain,
        number: int,
        arrays: Sequence[Any],
        kept: list[Kept | None],
    ) -> None:
        self._recordings, self._chain = fast.recordings, fast.node.chain
        (mine,), last_call = kept, fast.last_call
        lows = last_call.whereabouts(arrays)
        given = None if lows is None else last_call.given(arrays, lows)
        found = fast.found()
        if mine is None or given is None or found is None:
            raise InternalError("the arguments of a call are what they were")
        self._made = [*mine.storages[: fast.behind[number].carried]]
        self._given, self._found = carry(given, self._made, ()), found
        # The pages of what these parts make are nobody's then.
        fast.let_go()
        kept.clear()
        del mine
        fast.recordings.device.returns.drain_dropped()

    def replay(self, number: int) -> Any:
        """Return what the part behind the region of that number shows."""
        recordings, link = self._recordings, self._chain[number + 1]
        if link.idle:
            return give(recordings, link.part, self._given, self._made)
        done = replay(recordings, link.part, self._given, self._found, self._made)
        if link.live is not None:
            self._made += done.storages
            self._given = carry(self._given, done.storages, ())
            args, _ = done.result
            return args
        slots = _without_appended(link)
        for slot, value in zip(slots, done.values, strict=True):
            slot.write(value)
        expect(link.part, link.bound, done.values)
        return done.result


def _goes_on(
    live: Live, shown: Any, passed: list[tuple[PassedOn, Any]], *, ends: bool
) -> bool:
    """Run an eager region; return whether it gave what it is to give.

    What it returns may be ``passed`` on. If nobody can undo what was done by then, what
    it raises ``ends`` the call.
    """
    function = live.held()
    if function is None:
        return False
    try:
        with live.manner():
            result = function(*shown)
    except Exception:
        if ends:
            raise
        return False  # the call is begun again, and raises it then
    if live.passed_on is not None:
        if live.key != live.passed_on.key(result):
            return False
        passed.append((live.passed_on, live.passed_on.shown(result)))
        return True
    if result is None:
        return live.key is None
    return live.key == (constant_key(result),)


def _written_before(node: Node) -> tuple[int, ...]:
    """Return which places of a call parts write before a region where it may stray.

    Behind those of its arguments are those that the function reads. What parts before
    have made, which is between them, nobody else sees.
    """
    given, found = node.argument_places, set[int]()
    lives = [link.live for link in node.chain]
    strays = (k for k, live in enumerate(lives, 1) if live and not _is_sure(live))
    for link in node.chain[: max(strays, default=0)]:
        count = link.part.argument_places
        written = (i for i, is_written in link.part.used if is_written)
        found |= {
            i if i < given else i - count + given
            for i in written
            if not given <= i < count
        }
    return tuple(sorted(found))


def _is_sure(live: Live) -> bool:
    """Return whether no call goes another way behind a region."""
    return live.writes or (live.passed_on is not None and not live.passed_on.asks)


def _is_little(node: Node) -> bool:
    """Return whether what calls that stray put back can be saved each time."""
    written = _written_before(node)
    alone = len(node.ambient.arrays) == len(node.places) - node.argument_places
    size = sum(node.places[i].size for i in written)
    return not written or (alone and len(written) <= _FEW and size <= _LITTLE)


class _Nowhere:
    """Stands for a slot that is written by others."""

    root, path, attribute = None, "", ""

    def bearer(self) -> None:
        """Return what the slot is an attribute of: nothing."""

    def write(self, value: object) -> None:
        """Write nothing."""


def _without_appended(link: Link) -> list[Any]:
    """Return the slots that a part binds, but for what it appends that is passed on."""
    which = {each.slot for each in link.appends}
    return [_Nowhere() if i in which else slot for i, slot in enumerate(link.bound)]


def _appends_apart(link: Link) -> bool:
    """Return whether lists get what is passed on, or what C appends, and not both."""
    which = {each.slot for each in link.appends}
    both: list[set[str]] = [set(), set()]
    for i, slot in enumerate(link.bound):
        both[i in which].add(slot.path)
    roots = (link.bound[i].root for i in which)
    return both[0].isdisjoint(both[1]) and not any(type(x) is str for x in roots)


def _can_end(lives: Sequence[Live], last: Link) -> bool:
    """Return whether no call goes another way behind a region that writes."""
    wrote = False
    for live in lives:
        decides = live.passed_on is None or bool(live.passed_on.asks)
        if live.caught or live.within or (wrote and decides):
            return not any(each.writes for each in lives)
        if live.writes and not live.alone:
            return False
        wrote |= live.writes
    in_arguments = any(type(slot.root) is str for slot in last.bound)
    return not (wrote and in_arguments)


def _is_told(link: Link) -> bool:
    """Return whether a region returned one plain value, which says all, or None."""
    live = link.live
    if live is None or live.shared or not live.flat:
        return False
    alone = isinstance(live.key, tuple) and len(live.key) == 1
    return live.key is None or alone or live.passed_on is not None


def _is_plain(link: Link) -> bool:
    """Return whether C knows how to make what a part gives, and binds at the end."""
    outputs = link.part.outputs
    made = outputs.leaves if link.live else (*outputs.leaves, *outputs.bound)
    return {*map(type, made)} <= {*PLAIN, Carried}
