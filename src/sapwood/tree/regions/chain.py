"""A call that is replayed in parts, with eager regions between them.

All parts are admitted together, when the call begins, and their output pages are kept
for it until it is over. What eager regions may have changed is looked at again before
each part; where that does not fit any more the call ends with `Midway`.
"""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from functools import partial, reduce
from itertools import pairwise
from operator import or_
from typing import Any, Final

from sapwood.driver.release import Release
from sapwood.errors import CaptureError
from sapwood.memory.storage import Storage
from sapwood.tree.call.integration import Array
from sapwood.tree.call.miss import Why
from sapwood.tree.call.parameters import Parameters
from sapwood.tree.call.roles import Role
from sapwood.tree.call.signature import NONE, Arrays, Call, carry
from sapwood.tree.choose.admit import explain, rejects, sharing
from sapwood.tree.choose.function_cache import Found, FunctionCache, ambient_arrays
from sapwood.tree.choose.recordings import Recordings
from sapwood.tree.node.node import Link, Live, Node, Undone
from sapwood.tree.node.passed_on import PassedOn, filled, put_in
from sapwood.tree.regions import crossing
from sapwood.tree.regions.branches import branches
from sapwood.tree.regions.rerun import Begun
from sapwood.tree.replay.binding import expect
from sapwood.tree.replay.replay import give, lease_outputs, replay
from sapwood.tree.watch.session import Branched, Broken, Midway, Passing
from sapwood.units import Mask, Size, size_text

_KEPT = (
    "Let the region return what changes as an array, or write it into one that is "
    "there, with x[...] = value"
)

_FEW: Final = 8
_LITTLE: Final = 1 << 20
"""So many places, and bytes that parts only read, are copied before each call.

Of more, the versions of arrays tell what a region has written, where there are any.
"""


def answer_for_all(
    links: Sequence[Link],
    used_later: AbstractSet[int],
    reached: AbstractSet[int],
    region_writes: AbstractSet[int],
) -> Node:
    """Return the first part as the node of the whole chain.

    ``used_later`` are its ambient places that only later parts use. Those that no part
    uses, be it by another name, may be anywhere. ``reached`` are the places that
    regions may write, ``region_writes`` those that they wrote when it was
    recorded.
    """
    parts = [link.part for link in links]
    head = parts[0]
    first = head.argument_places
    places = list(head.places)
    for i, use in enumerate(places):
        if i < first:
            used = any(part.places[i].used for part in parts)
            places[i] = use._replace(used=used)
        elif i in used_later:
            places[i] = use._replace(used=True)
        elif not use.used and links[0].shared[i - first] is None:
            places[i] = use._replace(role=Role.COPIED)
    head.chain, head.places = tuple(links), tuple(places)
    head.held = Mask(reduce(or_, (part.passing() for part in parts)))
    head.clobbers = Mask(reduce(or_, (part.clobbers for part in parts)))
    head.undone = _undone(links, reached, region_writes)
    head.asks = any(link.steady for link in links)
    lives = [link.live for link in links if link.live is not None]
    head.changes = any(live.writes for live in lives)
    head.is_seen = any(live.sees for live in lives)
    head.copied_bytes = Size(sum(part.copied_bytes for part in parts))
    head.watches_overlap = head.may_overlap()
    return head


def _undone(
    links: Sequence[Link], reached: AbstractSet[int], region_writes: AbstractSet[int]
) -> Undone | None:
    """Return what is written, and read, before the last region that may stray runs.

    None where none may.
    """
    stray = [k for k, pair in enumerate(pairwise(links), 1) if _may_stray(*pair)]
    if not stray:
        return None
    head = links[0].part
    first = head.argument_places
    names = {use.name: i for i, use in enumerate(head.places[first:], first)}
    results = {
        crossing.RESULT.format(link.live.name): link.live.name
        for link in links
        if link.live is not None
    }
    found: set[int] = set()
    read: set[int] = set()
    of_regions: set[str] = set()
    for link in links[: stray[-1]]:
        part = link.part
        for i, use in enumerate(part.places):
            which = found if use.written else read
            if i < first and use.used:
                which.add(i)
            elif i >= part.argument_places and use.used and use.name in names:
                which.add(names[use.name])
            elif use.used and use.name in results:
                of_regions.add(results[use.name])
    found |= read & region_writes
    read -= found
    places = tuple(sorted(found)), tuple(sorted(read)), tuple(sorted(read & reached))
    needed = any(not link.idle for link in links[1:])
    return Undone(*places, frozenset(of_regions), needed)


def _takes_from_anywhere(node: Node, region: int) -> bool:
    """Return whether what is behind a region takes what parts made from anywhere."""
    return any(link.part.ferries for link in node.chain[: region + 1])


def _may_stray(link: Link, following: Link) -> bool:
    """Return whether a call may go another way than recorded behind a part's region."""
    live = link.live
    if live is None or live.caught or live.within:
        return True
    if live.passed_on is not None and not live.passed_on.asks:
        return False
    ends = following.idle and live.drops and live.flat
    return live.key is not None or not (ends or live.alone)


class Passage:
    """One call on its way through a chain; ``flat``: no argument is a container.

    It goes on with the rest of another ``node`` where a region returns what that was
    recorded with; it has ``entered`` all of these. ``begun`` is what there was before,
    for a call that ends with `Midway`; ``values`` are what the last part has bound.
    """

    def __init__(
        self,
        recordings: Recordings,
        found: Found,
        call: Call,
        parameters: Parameters,
        cache: FunctionCache,
    ) -> None:
        self.recordings, self.node, self.ambient = recordings, found.node, found.ambient
        self.cache, self.entered = cache, [found.node]
        self._found = found.ambient, found.node.ambient
        self._crossed: list[tuple[Live, crossing.Returned]] = []
        self.args, self.kwargs, self.parameters = call.args, call.kwargs, parameters
        self.flat = call.is_flat
        self.carried = self.given = call.given
        self.made: list[Storage] = []
        self.values: Sequence[Any] = ()
        self.begun: Begun | None = None
        self._new: Sequence[Storage] = ()
        self._bound: Sequence[Array] = ()
        self._known: dict[str, Array] = {}
        self._shown: Any = None
        self._passed: list[tuple[PassedOn, Any]] = []

    @property
    def breaks(self) -> tuple[Broken, ...]:
        """The regions that ran, as in `Session`."""
        return tuple(
            (len(live.done[1]), live.name, live.done[0], got.kind)
            for live, got in self._crossed
        )

    def start(self) -> None:
        """Replay the first part, under the lock that it was found under."""
        self._know(self.node, self.ambient)
        self.recordings.enter(self.node, self.node.held)
        try:
            self._replay(self.node.chain[0])
        except BaseException:
            self._leave()
            raise

    def _nodes(self) -> Sequence[Node]:
        """Return the recordings that the call may go on with."""
        known = self.cache.nodes.get(self.node)  # evicted, maybe
        return [self.node] if known is None else known[1].nodes

    def prepare(self) -> CaptureError | None:
        """Save what is needed should the call end with `Midway`; before it starts.

        Return why that cannot be, where it cannot.
        """
        undone, device = self.node.undone, self.recordings.device
        warm = self.cache.warm[self.node]
        if undone is not None:
            storages = [*self.carried.storages, *self.ambient.storages]
            written = [storages[i] for i in undone.places]
            read = [storages[i] for i in undone.read]
            reached = [storages[i] for i in undone.reached]
            arrays = [*self.carried.arrays, *self.ambient.arrays]
            near = self._arrays_at(undone.reached)
            arguments = partial(self.parameters.bind, self.args, self.kwargs)
            self.begun = Begun(device, written, warm, arguments)
            if not self.node.changes:
                # Only what a part writes is not as it was.
                arrays, read, reached, near = [], [], [], []
            nest = None if self.flat else (self.args, self.kwargs)
            few = len(written) + len(read) <= _FEW
            few = few and sum(each.size for each in read) <= _LITTLE
            integration = self.recordings.integration
            self.begun.watch(nest, arrays, read, integration, reached, near, few=few)
            if self.begun.lost and undone.needed:
                return CaptureError(
                    "before an eager region it writes, or reads what the region may "
                    f"write, more than can be put back: {size_text(Begun.MOST)}, or "
                    "what memory is free",
                    remedy="Call the region before such writes, or behind all of them; "
                    "or say that it never changes what follows, with fullgraph=True",
                )
            self.begun.reads(self.node.ambient if self.node.is_seen else None)
        return None

    def _arrays_at(self, places: Sequence[int]) -> list[Array]:
        """Return the arrays at these places, of the call and behind them ambient."""
        given, first = self.carried, len(self.carried.storages)
        arrays, groups = given.arrays, given.groups()
        others, behind = self.ambient.arrays, self.ambient.groups()
        return [
            (arrays if i < first else others)[k]
            for i in places
            for k in (groups[i] if i < first else behind[i - first])
        ]

    def finish(self) -> Any:
        """Run the eager regions, without the lock, and replay the others."""
        try:
            region = 0
            while (live := self.node.chain[region].live) is not None:
                self._cross(live, region)
                region += 1
            self.begun = None  # it has what regions were passed
            return filled(self._shown, self._passed)  # let go of at the end
        except Midway:
            raise
        except BaseException:
            # Its traceback holds this, which is not to hold arrays.
            self.begun = None
            raise
        finally:
            with self.recordings.device.lock:
                self._leave()

    def _replay(self, link: Link) -> None:
        recordings = self.recordings
        if link.idle:
            self._shown = give(recordings, link.part, self.carried, self.made)
            return
        done = replay(recordings, link.part, self.carried, self._found[0], self.made)
        recordings.leases.cross(done.storages)
        self.made += done.storages
        self._shown, self._new = done.result, done.storages
        if link.live is None:
            self.values = done.values
        self._bound = [value for value in done.values if value is not None]
        if link.bound:
            arguments = self.parameters.bind(self.args, self.kwargs)
            if self.begun is not None and link.live is not None:
                self.begun.binds(zip(link.bound, done.values, strict=True))
            values = put_in(done.values, link.appends, self._passed)
            for slot, value in zip(link.bound, values, strict=True):
                slot.write(value, arguments)
                self._known[slot.path] = value
            if link.live is None:
                expect(link.part, link.bound, done.values)

    def _cross(self, live: Live, region: int) -> None:
        """Run an eager region, by its number, and replay the part behind it."""
        integration, device = self.recordings.integration, self.recordings.device
        following = self.node.chain[region + 1]
        args, kwargs = self._shown
        passed = crossing.Passed(
            args, kwargs, integration, flat=live.flat, stays=not live.sees
        )
        asked = None
        if live.sees and (live.branches or not following.idle):
            asked = crossing.Passed(self.args, self.kwargs, integration, flat=self.flat)
        if self.begun is not None:
            last = following.live is None and not live.branches
            self.begun.enters(passed, last=last, writes=live.writes)
        result = self._run(live, args, kwargs, passed)
        changed = None if asked is None else crossing.changed_by(asked, live.name)
        if changed is not None:
            raise Midway(changed.what, remedy=changed.remedy)
        remembered = [*passed.arrays(), *self._bound] if live.sees else []
        carried = carry(self.carried, self._new, remembered)
        is_last = following.idle and live.key is None and live.drops
        result = None if is_last else result
        got = crossing.returned(
            live.name,
            result,
            passed,
            carried,
            integration,
            is_last=is_last,
            passed_on=live.passed_on,
        )
        if got.refused:
            raise Midway(got.refused, remedy=crossing.REMEDY)
        self._crossed.append((live, got))
        self.carried = crossing.receive(carried, got)
        with device.lock:
            crossing.check_open(device, live.name)
            device.returns.drain_dropped()
            if got.key != live.key or got.shared != live.shared:
                self._turn(live, region, got)
                following = self.node.chain[region + 1]
            turned = self.node.chain[region].live
            goes = None if turned is None else turned.passed_on
            if goes is not None:
                self._passed.append((goes, goes.shown(result)))
            guards = following.part.ambient
            if live.sees or got.arrays.arrays or guards is not self._found[1]:
                self._found = self._admitted(following, live), guards
            self._save(following, live)
            self._replay(following)

    def _turn(self, live: Live, region: int, got: crossing.Returned) -> None:
        """Go on with another chain, where a region returned what that was made with."""
        known = self._nodes() if live.branches else ()
        for each in known:
            self.recordings.rest(each.clobbers)
        live_pages = self.recordings.device.pages.live
        fits = (
            each
            for each in branches(self.node, known, region, got)
            if rejects(each, live_pages, self.given, self.ambient) is None
        )
        other = next(fits, None)
        if other is None:
            another = "" if got.text != live.text else ", another array"
            new = live.branches or got.branches
            raise (Branched if new else Midway)(
                f"the region {live.name} returned {got.text}, and {live.text} when "
                f"it was recorded{another}; {crossing.RAN}",
                where=live.where,
                remedy=crossing.FEWER if new else crossing.REMEDY,
            )
        self._settle_in(other, region)
        other.last_used = self.recordings.tick()
        other.hits += 1
        self.recordings.enter(other, other.held)
        self.entered.append(other)
        self.node = other
        if self.begun is not None:
            self.begun.warm = self.cache.warm[other]

    def _settle_in(self, node: Node, region: int) -> None:
        """Copy what parts made to where a chain expects it, if it expects it anywhere.

        Nobody else has it: the regions so far have written nothing.
        """
        if _takes_from_anywhere(node, region):
            return
        recordings, device = self.recordings, self.recordings.device
        stream, copy = device.stream(), device.driver.copy
        device.pages.claim(stream, node.clobbers)
        parts = [link.part for link in node.chain[: region + 1]]
        new = [each for part in parts for each in lease_outputs(recordings, part)]
        for old, to in zip(self.made, new, strict=True):
            old.order_read(stream)
            if old.size:
                copy(to.address, old.address, old.size, stream.handle)
            to.writer = stream
        there = dict(zip(self.made, new, strict=True))
        self.carried = crossing.move(self.carried, there, recordings.integration)
        recordings.leases.cross(new)
        recordings.leases.crossed(self.made)
        self.made = new

    def _save(self, link: Link, live: Live) -> None:
        """Note what a part finds and writes behind a region, if another may stray."""
        if self.begun is None or link.live is None or link.idle:
            return
        self.begun.reads(link.part.ambient if live.sees else None)
        storages = [*self.carried.storages, *self._found[0].storages]
        written = [storages[i] for i, is_written in link.part.used if is_written]
        made = {*map(id, self.made)}
        self.begun.save([each for each in written if id(each) not in made])

    def _run(
        self,
        live: Live,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        passed: crossing.Passed,
    ) -> Any:
        """Run an eager region in the modes that the function would call it in."""
        function = live.held()
        if function is None:
            raise Midway(
                f"the eager region {live.name}, or its object, is gone; {crossing.RAN}",
                remedy="Keep it alive while the function is in use",
            )
        begun = self.begun
        try:
            with live.manner():
                result = function(*args, **kwargs)
        except BaseException as error:
            ordinary = live.caught is not None and isinstance(error, Exception)
            # Where it saw nothing, the function has yet to write what it had by then.
            strays = live.caught or live.within or not live.sees
            if not (ordinary or (begun and strays)):
                raise
            if begun is not None:
                begun.leaves(crossing.Ran(live.name, passed, None, error))
            raise (Midway if ordinary else Passing)(
                f"the eager region {live.name} raised {error!r}, and no replay runs "
                f"what the function does then; {crossing.RAN}",
                where=live.caught,
                remedy="Catch it inside the eager region",
            ) from error
        if begun is not None:
            begun.leaves(crossing.Ran(live.name, passed, result))
            if self.node.undone and live.name in self.node.undone.results:
                begun.save_result(result)
        return result

    def _admitted(self, link: Link, live: Live) -> Arrays:
        """Return the ambient arrays of a part; raise where it may not be replayed."""
        node, integration = link.part, self.recordings.integration
        if link.idle:
            return NONE
        ambient = ambient_arrays(node, integration)
        why: Why | None = Why.AMBIENT
        if ambient is not None:
            why = rejects(node, Mask(0), self.carried, ambient)
            which = crossing.which_are_one(node.ambient, ambient, self.carried)
            if why is None and sharing(ambient, self.carried) != link.shared:
                why = Why.OVERLAP
            elif why is None and which != link.which:
                why = Why.WHICH
        if why is not None or ambient is None:
            miss = explain(node, why or Why.AMBIENT, Mask(0), self.carried, ambient)
            raise Midway(
                f"after the region {live.name}, {miss}: what follows was recorded "
                f"under something else; {crossing.RAN}",
                remedy=_KEPT,
            )
        for i, path in link.steady:
            if self._known.get(path) is not ambient.arrays[i]:
                raise Midway(
                    f"the region {live.name} has bound {path} to another array, and "
                    f"the function may go on with the one before; {crossing.RAN}",
                    remedy=_KEPT,
                )
        self._know(node, ambient)
        storages = [*self.carried.storages, *ambient.storages]
        for i, _ in node.used:
            storages[i].check()
        return ambient

    def _know(self, node: Node, ambient: Arrays) -> None:
        """Note which arrays the function finds, and may go on with, if parts ask."""
        if not self.node.asks:
            return
        pairs = zip(node.ambient.arrays, ambient.arrays, strict=True)
        self._known |= {slot.path: array for slot, array in pairs}

    def _leave(self) -> None:
        recordings = self.recordings
        with Release() as release:
            release(recordings.leases.crossed, self.made)
            # The traceback of an error may hold this, which is not to hold arrays.
            self.made, self._new, self._bound, self._shown = [], [], [], None
            self._known, self._passed = {}, []
            self.carried = self.given = self.ambient
            self._found = self.ambient, self.node.ambient
            self.args, self.kwargs = (), {}
            # Not a part of it: that would keep what an evicted one had.
            known = self.node in recordings.nodes
            recordings.last = self.node if known else None
            for node in self.entered:
                release(recordings.leave, node, node.held)
