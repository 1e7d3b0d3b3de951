"""One call recorded in parts, around its eager regions, and run meanwhile.

Where the function calls an eager region, what was captured so far becomes a node of its
own, which is launched there and then. So all that the function holds is real when the
eager region runs, and its Python runs once.

The function works on stand-ins; each part is replayed where it was captured, like any
recording, and eager regions, and whoever has the result, get what these replays give
them.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Container, Hashable, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from functools import partial, reduce
from operator import or_
from typing import Any

from sapwood.driver.api import GraphHandle
from sapwood.driver.release import Release
from sapwood.errors import CaptureError, DriverError, OutOfMemory
from sapwood.graphs.adopt import Adopted, Owner
from sapwood.graphs.capture import ops_of
from sapwood.graphs.exec import forgotten, instantiate
from sapwood.graphs.recording import Recording
from sapwood.memory.range import Range
from sapwood.memory.storage import Storage
from sapwood.tree.call.integration import Array
from sapwood.tree.call.roles import Role
from sapwood.tree.call.signature import Arrays, Place, carry, look
from sapwood.tree.choose.admit import sharing
from sapwood.tree.choose.recordings import Recordings
from sapwood.tree.choose.skips import skip_of
from sapwood.tree.guards import (
    Ambient,
    Slot,
    Survey,
    kept_states,
    lists_added_to,
    survey,
)
from sapwood.tree.guards.changes import BoundArray, Change, Repeated, undo_bound
from sapwood.tree.nests.containers import arrays_in
from sapwood.tree.node.copy_out import ferries
from sapwood.tree.node.node import Link, Live, Node, PlaceUse
from sapwood.tree.node.outputs import Bytes, Outputs, analyse, each_anew
from sapwood.tree.node.passed_on import (
    PassedOn,
    Written,
    appended,
    emptied,
    filled,
    put_in,
    without,
)
from sapwood.tree.record.accounts import memos_of, outliving, read, stray
from sapwood.tree.record.adopted import MORE, ROOM, TRIES, is_spoilt
from sapwood.tree.record.build import LinkSpec, build
from sapwood.tree.record.recorder import (
    Recorded,
    argument_roles,
    is_to_stay,
)
from sapwood.tree.record.repeated import Added, outcome_of, sealed_in
from sapwood.tree.record.staging import (
    Swaps,
    landing,
    moved_by,
    moving,
    reserved,
    spoil,
    stage,
)
from sapwood.tree.record.taking import (
    RecordRequest,
    added,
    plain_changes,
    undo,
    with_leaves,
)
from sapwood.tree.regions import crossing
from sapwood.tree.regions.chain import answer_for_all
from sapwood.tree.regions.flow import passed_on
from sapwood.tree.regions.frame import Frame
from sapwood.tree.regions.rerun import Begun, Rerun
from sapwood.tree.replay.replay import replay
from sapwood.tree.watch.capturer import Adopting, lasting, told_of
from sapwood.tree.watch.session import (
    EagerRegion,
    Hopeless,
    Midway,
    Session,
    Unready,
    Warm,
    run_live,
    user_line,
)
from sapwood.tree.watch.watch import Capture, Captured, Caught
from sapwood.uncollected import collected, uncollected
from sapwood.units import Addr, Mask, Size, size_text


def record_parts(
    order: RecordRequest,
    recordings: Recordings,
    begun: Begun,
    rerun: Rerun | None = None,
) -> Recorded:
    """Run a call, part by part, and return a node that is a chain of them.

    Called with the device's lock held, which eager regions run without. ``begun`` is
    told of what runs. Regions that ran before, of a ``rerun``, do not run again. If
    others spoil the capture of the first part, that is captured again. Raises
    `Unready`, or another `CaptureError`, where nothing has run; where parts have,
    `Midway`, `DriverError` or `OutOfMemory`.
    """
    left = TRIES
    while True:
        left -= 1
        parts = _Parts(order, recordings, begun, rerun)
        try:
            return _recorded(parts)
        except DriverError as error:
            recordings.renew_capture_stream()
            if left and is_spoilt(error) and not (parts.links or parts.written):
                continue
            if not order.tolerant or (parts.links and not is_spoilt(error)):
                raise
            skip = skip_of(error)
        if parts.links:
            raise Midway(skip.what, where=skip.where, remedy=skip.remedy)
        raise Unready(skip.what, where=skip.where)


def _recorded(parts: _Parts) -> Recorded:
    try:
        return parts.record()
    except BaseException as error:
        parts.close()
        if not (isinstance(error, CaptureError) and parts.links):
            raise
        what = (
            f"{error.what}; {crossing.RAN}"
            if isinstance(error, Unready)
            else error.what
        )
        raise Midway(what, where=error.where, remedy=error.remedy) from None
    finally:
        parts.let_go()


class _CarriedRoles:
    """Names and ``roles`` of the places carried so far, in the recording of one call.

    ``used_later`` are the ambient places of the first part that only later ones use.
    ``error`` is about one that a later part uses, and that no replay would find.
    """

    def __init__(self, order: RecordRequest, recordings: Recordings) -> None:
        places = order.call.given.places(recordings.integration)
        self._names = list(order.names)
        self.roles = [*argument_roles(order, places, recordings)]
        self.error: CaptureError | None = None
        self._first: dict[str, tuple[int, Place]] = {}
        self.used_later: set[int] = set()

    def carry(self, name: str, count: int, role: Role = Role.COPIED) -> None:
        """Add places of one name: what a part has made, or a region has returned."""
        self._names += [name] * count
        self.roles += [role] * count

    def is_where_it_was(self, name: str, place: Place) -> bool:
        """Return whether an ambient place is where the first part found it."""
        then = self._first.get(name)
        return then is not None and then[1][:3] == place[:3]

    def of(
        self,
        ambient: Ambient,
        carried: Arrays,
        places: Sequence[Place],
        symbols: Container[int],
        staged: Container[int],
        first: Sequence[PlaceUse] | None,
    ) -> tuple[list[str], list[Role]]:
        """Return the names and roles of a part's places, whose ops use ``symbols``.

        Something stands in for the places that are ``staged``; ``first`` are those of
        the first part, None while that is it. Behind it the parts before were already
        run, so that no address may be asked for that was not asked for then.
        """
        names, roles = list(self._names), list(self.roles)
        owners = {storage: i for i, storage in enumerate(carried.storages)}
        for i, place in enumerate(places[len(roles) :], len(roles)):
            name = ambient.arrays[place.arrays[0]].path
            role = Role.COPIED if i in staged else Role.PINNED
            if first is None:
                self._first[name] = i, place
            elif role.fixed and i + 1 not in symbols:
                role = Role.COPIED
            elif role.fixed:
                owner = owners.get(place.storage)
                owned = None if owner is None else roles[owner]
                role = self._later(name, place, owned, first)
            names.append(name)
            roles.append(role)
        return names, roles

    def _later(
        self, name: str, place: Place, owner: Role | None, first: Sequence[PlaceUse]
    ) -> Role:
        """Return the role of a place that a later part uses where it is.

        ``owner`` is that of the carried place with its storage, if there is one.
        """
        then = self._first[name][0] if self.is_where_it_was(name, place) else None
        if owner is None and then is not None and first[then].role.fixed:
            self.used_later.add(then)
            return first[then].role
        if owner is None or not owner.fixed:
            self.error = CaptureError(
                f"behind an eager region the function finds {name} by itself, "
                "where a replay would find another array than it was recorded with",
                remedy="Use the array itself there, or write into the one that was "
                "bound when the call began, with x[...] = value",
            )
        return Role.PINNED


class _Parts:
    """The recording of one call; ``carried`` is what the part in progress may use.

    ``frame`` has the function's own arrays, where ``carried`` has those of others; in
    slots it finds its own by ``swaps``, while it is captured. ``rooms`` is that of what
    stands in for state, by the places of that, ``stand_ins`` those of the part in
    progress, by number. ``reached`` are those of the call that
    regions may write, ``region_writes`` those that they wrote. A ``capturer``
    makes the captures, if there is one. ``ranges`` and ``owners`` of captures are those
    of all parts, the last one that of the part in progress, with as much room as is
    ``lent`` to each. What is ``holding`` arrays ends with the capture of a part.

    What parts make stays ``in_place`` until the call is over where no region may keep
    what it is passed; then what the function has ``added`` to numbers and lists, or
    assigned, is written again by replays. ``after`` is what it had written when the
    last part ended.

    ``made`` are the storages that parts made so far for others, ``mine`` what was made
    while they were captured, ``named`` the addresses that the function has shown;
    ``stirred`` says that what is guarded has changed meanwhile. ``gives`` is what the
    last part that ran shows to others, ``bound`` what it has put into slots; ``own`` is
    what the function has for the arrays in these. ``still_shown`` are places that
    may not be ended, for a slot or the result shows them. Behind the last region the
    function only ``returns``. It has ``branched`` at the line where a region returned
    another value than in the warm-up. If the call failed, ``written`` says that not all
    that the part in progress wrote could be put back.
    """

    added: Added = ()
    appends: tuple[Written, ...] = ()
    passed: Sequence[tuple[PassedOn, Any]] = ()

    def __init__(
        self,
        order: RecordRequest,
        recordings: Recordings,
        began: Begun,
        rerun: Rerun | None,
    ) -> None:
        self.rerun, self.warm = rerun, order.specialization.warm
        # Regions that see nothing keep nothing: what they get is nobody's behind it.
        self.in_place = self.warm is not None and not self.warm.sees
        self.order, self.recordings, self.device = order, recordings, recordings.device
        self.capturer = recordings.capturer
        self.began = began
        self.call = order.call
        self.args, self.kwargs = self.call.args, self.call.kwargs
        self.arguments = self.theirs = order.bind(self.args, self.kwargs)
        self.carried, self.last = self.call.given, recordings.last
        self.frame = Frame(self.carried, recordings)
        self.roles = _CarriedRoles(order, recordings)
        self.made: list[Storage] = []
        self.mine: list[weakref.ref[Storage]] = []
        self.named: set[Addr] = set()
        self.links: list[Link] = []
        self.session = Session(
            tolerant=False,
            splits=order.tolerant,
            decides=order.specialization.reads_decide,
            holds=order.before.holds,
            guarded=order.before.guards_hosts,
        )
        self.session.between = self._between
        self.error: CaptureError | None = None
        self.first_key: Hashable = None
        self.unfit, self.stirred = "", False
        self.reached: set[int] = set()
        self.region_writes: set[int] = set()
        self.known: dict[str, Array] = {}
        self.steady: tuple[tuple[int, str], ...] = ()
        self.gives: Any = None
        self.bound: list[Array] = []
        self.own: list[Array] = []
        self.still_shown: frozenset[int] = frozenset()
        self.outside = self.device.framework.manner()
        self.begun = self.written = self.returns = False
        self.branched: str | None = None
        self.ranges: list[Range] = []
        self.lent: Size | None = None
        self.owners: list[Owner] = []
        self.holding = ExitStack()
        self.holds: list[Mask] = []
        self.swaps = Swaps()
        self.stages: Mapping[int, Storage] = {}
        self.stand_ins: Mapping[int, Storage] = {}
        self.rooms: dict[tuple[Storage, Addr, Addr], Storage] = {}

    def record(self) -> Recorded:
        """Run the function, and return what was made of it."""
        order, session = self.order, self.session
        if self.capturer is not None:
            # Nothing can be done twice, for want of room.
            ways = order.specialization.ways or filter(None, [self.warm])
            room = max((way.room for way in ways), default=0)
            self.lent = Size(MORE * (ROOM + room))
        self._open()
        self.capture = self._capturing()
        self._begin()
        self.first_arrays = self.arrays
        captured = self._captured()
        if session.unrecordable is not None:
            self.device.driver.destroy_graph(captured.graph)
            raise session.unrecordable.anew()
        passed = session.passed_on
        shown = emptied(captured.result, passed)
        if shown is None:
            self.unfit = "what it passes on is not what a region has returned"
        node = self._end(captured.graph, *(shown or (captured.result,)), last=True)
        result, self.gives = self.gives, None
        if shown is not None:
            result = filled(result, self.passed)
        # Regions run without the lock, so that other warm-ups may have come since.
        order.specialization.warm = self.warm
        other = outcome_of(self.warm, session, node.outputs, self.added)
        held: CaptureError | None = None
        if captured.error is None:
            held = sealed_in(node.outputs, other, self.warm) or self._unheld(other)
        if isinstance(other, CaptureError) and self.stirred:
            self.unfit, other = self.unfit or str(other), None
        error = captured.error or self.error or other
        if self.branched is not None and isinstance(error, CaptureError):
            held = held or error  # no warm-up has shown what others then hold
        if held is not None:
            self.begun = True  # what this part has written is put back, too
            raise held.anew()
        if error is not None:
            self._spoil()
        head = answer_for_all(
            self.links, self.roles.used_later, self.reached, self.region_writes
        )
        return Recorded(
            head, self.first_arrays, (), error, result, self.unfit, self.branched
        )

    def _captured(self) -> Captured:
        """Run the function, all of it."""
        order, session, before = self.order, self.session, self.before
        cached, run = order.before.cached(), self.capture.run
        # Behind a region that sees all, nobody knows how to take back a sum.
        listening = before.listening() if self.in_place else nullcontext(bool)
        try:
            with listening as session.exactly:
                args, kwargs = self.args, self.kwargs
                captured = uncollected(self, run, order.fn, args, kwargs, session)
        finally:
            cached.forget()
        if before.has_asked_more():
            self.unfit = "it asks of a number what it had not asked before"
        return captured

    def close(self) -> None:
        """Give back what was made, for a call that failed."""
        # What the function made is garbage by now, or lives in its exception.
        gc.collect()
        with Release() as release:
            release(self._spoil)
            release(self._put_back)
            release(self.holding.close)
            # The captures of parts that are nodes go with these.
            for owner in self.owners[len(self.links) :]:
                release(owner.close)
            release(self._undo)
            for link in self.links:
                release(link.part.exec.close)
            for each in self.ranges:
                release(each.close)

    def _spoil(self) -> None:
        """Refuse what only the function had, to whoever finds it in an exception."""
        own = [storage for ref in self.mine if (storage := ref()) is not None]
        spoil(
            [*self.frame.stages.values(), *self.rooms.values(), *own],
            "it was the function's own while a call was recorded that then failed",
            "Look at what was passed to the call",
        )

    def _undo(self) -> None:
        """Have slots hold what they held before a part that did not run."""
        if self.begun:
            undo(self.before, self.states)
            self.written = bool(self._survey().changes_since(self.before))

    def let_go(self) -> None:
        """Forget what the call made: from now on others say how long it lives."""
        self.recordings.leases.crossed(self.made)
        self.made.clear()
        self.bound, self.own, self.gives = [], [], None
        self.carried = self.call.given
        # Else what was read would live until garbage is collected.
        self.session.between = None
        self.frame.let_go()
        self.args, self.kwargs, self.arguments = (), {}, self.theirs
        for mask in self.holds:
            self.device.pages.drop(mask)
        for each in (self.holds, self.rooms, self.known):
            each.clear()
        # Nobody looks for a part by itself.
        if self.recordings.last in [link.part for link in self.links]:
            self.recordings.last = (
                self.last if self.last in self.recordings.nodes else None
            )

    # One part.

    def _open(self) -> None:
        """Make room for the coming part, and for stand-ins of what is new."""
        specialization = self.order.specialization
        range_ = reserved(specialization, self.carried, self.recordings, self.lent)
        self.ranges.append(range_)
        if self.capturer is not None and self.lent is not None:
            warm = specialization.is_warm_here()
            owner = self.capturer.owner(range_, self.lent, warm=warm)
            self.owners.append(owner)
            # Other parts may use a stand-in, so that its pages are nobody else's.
            owner.follow(())
        self.frame.stand_in(self.carried, self.roles.roles, range_)
        if not self.links:
            self.args, self.kwargs = with_leaves(self.call, self.frame.arrays)
            self.arguments = self.order.bind(self.args, self.kwargs)

    def _capturing(self) -> Capture:
        """Return the capture of all parts."""
        device, range_ = self.device, self.ranges[-1]
        if self.capturer is not None:
            return Adopting(device, self.capturer, range_, self.owners[-1])
        stays = frozenset(self.warm.stays if self.warm else ())
        return Capture(device, self.recordings.capture_stream(), range_, stays)

    def _begin(self, *, anew: bool = True) -> None:
        """Look at all that the coming part may use, unless nobody has written since."""
        session = self.session
        if anew:
            self._look_around()
        else:
            self.began.reads(None)
        self.first_line, self.first_op = len(session.lines), len(session.ops)
        self.first_code = len(session.code)
        self.first_constant = len(session.constants)
        self.first = self.capture.allocations.count()
        session.go_on()
        if anew:
            self.stand_ins = self._stand_in()
            self._swap_in()
        if isinstance(self.capture, Adopting):
            self.capture.owner = self.owners[-1]
            # What stands in for state is held, too: x.data = y would end with it.
            arrays = [*self.frame.owned(), *self.before.arrays()]
            self.holding.enter_context(self.capture.owner.holding(arrays))
        first = len(self.carried.storages)
        rooms = {first + i: room for i, room in self.stand_ins.items()}
        self.stages = self.frame.stages | rooms

    def _look_around(self) -> None:
        """Note what the function finds, and what of it is where it was."""
        integration = self.recordings.integration
        self.before = self._survey()
        self.states = kept_states(self.before)
        if not self.links:
            self.began.appends(lists_added_to(self.before))
            self.order.check_same(self.before)
            self.first_key = self.before.key
        self.stirred |= self.before.key != self.first_key
        self.ambient = self.before.guards(lambda _: True)
        self.began.reads(self.ambient)
        self.arrays = look([slot.read() for slot in self.ambient.arrays], integration)
        now = {
            slot.path: array
            for slot, array in zip(self.ambient.arrays, self.arrays.arrays, strict=True)
        }
        known = enumerate(now.items())
        self.steady = tuple((i, x) for i, (x, y) in known if self.known.get(x) is y)
        self.known |= now
        self.begun = True

    def _stand_in(self) -> dict[int, Storage]:
        """Have stand-ins for what is elsewhere in each call; return their room.

        That is by the places of what the function finds. Behind an eager region it is
        what that has bound to slots.
        """
        integration, given = self.recordings.integration, self.carried.storages
        places = self.arrays.places(integration)
        known = {place.storage: place for place in places}

        def stays(path: str, storage: Storage) -> bool:
            place = known.get(storage)
            if place is None or place[:3] in self.rooms:
                return place is None
            if self.links:
                return self.roles.is_where_it_was(path, place)
            return is_to_stay(self.order, self.recordings, path, storage)

        slots = [
            (slot, array, known[integration.look(array).storage])
            for slot, array in moving(self.before, given, stays, integration)
        ]
        for *_, place in slots:
            # Later parts work on the same: the function may have them in its own names.
            if place[:3] not in self.rooms:
                self.rooms[place[:3]] = stage(place, self.ranges[-1], self.device)
                self.frame.new.append(self.rooms[place[:3]])
        for _, array, place in slots:
            room = self.rooms[place[:3]]
            moved = landing(room, place) - place.lo
            self.frame.pair(array, moved_by(moved, array, room, integration))
        moves = {place.storage for *_, place in slots}
        return {
            i: self.rooms[place[:3]]
            for i, place in enumerate(places)
            if place.storage in moves
        }

    def _swap_in(self) -> None:
        """Have the function find its own arrays in slots, where others have copies."""
        every = self.before.slots_of_arrays()
        found = [(slot, self.frame.own(x, self.carried), x) for slot, x in every]
        # More of an array than the function has is refused, if it is used.
        other = [x for x in found if x[1] is not None and x[1] is not x[2]]
        self.swaps.enter(other, self.arguments)

    def _put_back(self) -> None:
        """Have others find theirs again, but for what the function has bound anew."""
        self.swaps.leave(self.arguments)

    def _end(
        self, graph: GraphHandle, shown: Any, *, last: bool, seen: bool = True
    ) -> Node:
        """Make a node of what was captured, and run it.

        Unless what the function has written by now is to be ``seen``, that is left to
        a later part.
        """
        driver = self.device.driver
        with forgotten(driver, graph) as made:
            does = bool(driver.nodes(graph))
            node, bound = self._made(graph, shown, last=last, seen=seen)
            made.append(node.exec)
        only_gives = self.returns and node.outputs.only_given(len(self.carried.arrays))
        self._append(node, bound, idle=last and only_gives and not (does or bound))
        self._save(node)
        values = self._replay(node, bound)
        if not last:
            slots = [slot for slot, _ in bound]
            self.began.binds(zip(slots, values, strict=True))
        self.bound = [value for value in values if value is not None]
        is_array = self.recordings.integration.is_array
        self.own = [] if last else arrays_in(shown, is_array)
        self.own += [own for _, own in bound if own is not None]
        self.begun = not seen
        return node

    def _made(
        self, graph: GraphHandle, shown: Any, *, last: bool, seen: bool
    ) -> tuple[Node, list[tuple[Slot, Array]]]:
        """Return a node of what was captured, and what it binds."""
        if seen:
            self._put_back()
        with self.holding:
            if self.capturer is not None:
                self._refuse(shown, last=last)
            bound = self._bound(last=last) if seen else []
            alive = self._survivors()
            outputs = self._outputs(shown, [own for _, own in bound], alive, last=last)
            drawing = self._drawing(graph, outputs, last=last)
            node = build(drawing, self.ranges[-1])
        if self.in_place and not last:
            node.ferries = ()
        elif self.in_place and self.order.escapes:
            made = [each for link in self.links for each in link.part.outputs.storages]
            every, count = [*outputs.storages, *made], len(outputs.storages)
            shown = [count + k for k in outputs.carried()]
            node.ferries = ferries(every, [*range(count), *shown])
        return node, bound

    def _save(self, node: Node) -> None:
        """Save what a part is about to write of what others have."""
        made = {id(storage) for storage in self.made}
        uses = zip(node.places, self._places(), strict=False)
        written = [place.storage for use, place in uses if use.written]
        self.began.save([each for each in written if id(each) not in made])

    def _append(
        self, node: Node, bound: Sequence[tuple[Slot, Array]], *, idle: bool
    ) -> None:
        """Add a part to the chain."""
        for mask in self.holds:
            # It copies into stand-ins in the ranges of parts before.
            node.clobbers = Mask(node.clobbers | mask)
        shared = sharing(self.arrays, self.carried)
        which = crossing.which_are_one(self.ambient, self.arrays, self.carried)
        slots = tuple(slot for slot, _ in bound)
        link = Link(node, slots, shared, which, None, idle, self.steady, self.appends)
        self.links.append(link)
        self.holds.append(node.held)
        self.device.pages.hold(node.held)

    def _replay(
        self, node: Node, bound: Sequence[tuple[Slot, Array]]
    ) -> Sequence[Array | None]:
        """Replay a part, bind what it made, and return that."""
        recordings = self.recordings
        with self.outside():
            done = replay(recordings, node, self.carried, self.arrays, self.made)
        recordings.leases.cross(done.storages)
        self.made += done.storages
        self.gives = done.result
        # Once: what is appended and returned is one.
        self.passed = [(each, each.shown(x)) for each, x in self.session.passed_on]
        values = put_in(done.values, self.appends, self.passed)
        # A slot may be bound to None, which is carried nowhere.
        for (slot, own), value in zip(bound, values, strict=True):
            if own is not None:
                self.frame.pair(value, own)
            self.known[slot.path] = value
        # Two loops: a new nest is put together from its leaves in turn, once for the
        # containers that were passed, and once for those that the function sees.
        for (slot, _), value in zip(bound, values, strict=True):
            if not slot.adds:
                slot.write(value, self.arguments)
        for (slot, _), value in zip(bound, values, strict=True):
            slot.write(value, self.theirs)
        return done.values

    # What was captured.

    def _refuse(self, shown: Any, *, last: bool) -> None:
        """Raise where the function did what no replay of the part could do."""
        owner = self.owners[-1]
        if owner.short:
            raise CaptureError(
                f"the function allocates more than {size_text(self.lent or 0)} while a "
                "part of it is captured",
                remedy="Graph what is before and behind the region each for itself",
            )
        # What a region is passed leads nowhere: no gradient comes back from there.
        refusal = owner.refusal(shown if last else None, self.frame.arrays)
        if refusal is not None:
            raise refusal

    def _survivors(self) -> Sequence[Storage | Bytes]:
        """Return what the part has allocated that somebody has."""
        if self.capturer is not None:
            return [Bytes(*each) for each in self.owners[-1].survivors()]
        alive = [*self.capture.allocations.alive(self.first).values()]
        for storage in alive:
            # For the parts to come it is memory like any other.
            storage.captured, storage.writer, storage.readers = False, None, ()
        self.mine += map(weakref.ref, alive)
        return alive

    def _drawing(self, graph: GraphHandle, outputs: Outputs, *, last: bool) -> LinkSpec:
        """Say what replays do with each place."""
        integration = self.recordings.integration
        known, memos = memos_of(self.before, integration, self.device.framework)
        places = self._places()
        recording = self._recorded(graph, places, known)
        if last:
            outputs = each_anew(outputs, self.call.leaves, self.before.holds)
        symbols = recording.symbols()
        self.still_shown |= outputs.shown(self.carried, integration, result=last)
        first = self.links[0].part.places if self.links else None
        names, roles = self.roles.of(
            self.ambient, self.carried, places, symbols, self.stages, first
        )
        self.error = self.error or self.roles.error
        drawing = LinkSpec(
            order=self._order(last=last),
            recording=recording,
            outputs=outputs,
            places=places,
            names=names,
            roles=roles,
            stages=self.stages,
            ambient=self.ambient,
            ambient_arrays=self.arrays,
            memos=memos,
            link=partial(instantiate, self.device.driver, graph),
        )
        held = [Bytes(each.address, each.size) for each in self.frame.new]
        if self.order.escapes and not last:
            held += outputs.storages
        if self.capturer is None:
            return replace(drawing, held=held)
        owner, session = self.owners[-1], self.session
        code = tuple(each for _, each in session.code[self.first_code :])
        code += tuple(session.constants[self.first_constant :])
        link = partial(Adopted, self.device.driver, graph, owner=owner, code=code)
        return replace(drawing, held=held, lives=owner.lives(()), link=link)

    def _recorded(
        self,
        graph: GraphHandle,
        places: Sequence[Place],
        memos: Mapping[Storage, Array],
    ) -> Recording:
        frame, range_, session = self.frame, self.ranges[-1], self.session
        if self.capturer is None:
            lines = session.lines[self.first_line :]
            ops = ops_of(self.device.driver, graph, self.device.name_of)
            return read(ops, lines, places, self.stages, range_, self.device, memos)
        first, crossing = self.first_op, frame.crossing
        return told_of(session, places, self.stages, range_, memos, first, crossing)

    def _survey(self) -> Survey:
        """Look at what the function reads, in the modes that it was called in."""
        with self.outside():
            return self.order.survey(self.arguments)

    def _bound(self, *, last: bool) -> list[tuple[Slot, Array]]:
        """Return the arrays that the part bound; plain values are an error, later."""
        after = self.order.survey(self.arguments) if last else self._survey()
        self.after = after
        changes: Sequence[Change] = after.changes_since(self.before)
        which = appended(changes, self.session.passed_on) if last else {}
        if which is None:
            self.unfit = "what it appends is not told from what else it appends"
        changes = without(changes, which or {})
        # What nobody has seen before the end of a call is written there by replays.
        repeats = Repeated if last and self.in_place else BoundArray
        self.error = self.error or plain_changes(changes, but=repeats)
        bound = [change for change in changes if isinstance(change, repeats)]
        written = {id(changes[i]): each for i, each in (which or {}).items()}
        self.appends = tuple(
            written[id(change)]._replace(slot=k)
            for k, change in enumerate(bound)
            if id(change) in written
        )
        if last:
            self.added = added(changes, self.recordings.integration.is_array)
            undo_bound([each for each in bound if not isinstance(each, BoundArray)])
        return [(change.slot, change.new) for change in bound]

    def _order(self, *, last: bool) -> RecordRequest:
        """Return the order of a part; only the last one may lose what was donated."""
        order, number, pages = self.order, len(self.links), self.device.pages
        # Stand-ins are written while others may hold outputs: nothing is shared.
        extents = () if order.escapes else order.candidates
        # Those are left that neither another part has, nor anything live.
        clobbers = (link.part.clobbers for link in self.links)
        taken, known = reduce(or_, clobbers, pages.live), pages.extents
        return replace(
            order,
            label=f"{order.label}/{number + 1}" if number else order.label,
            call=self.call._replace(given=self.carried),
            donated=order.donated - self.still_shown if last else frozenset(),
            escapes=order.escapes and not self.unfit,
            candidates=[x for x in extents if x in known and not x.mask & taken],
        )

    def _outputs(
        self,
        shown: Any,
        values: Sequence[Array],
        alive: Sequence[Storage | Bytes],
        *,
        last: bool,
    ) -> Outputs:
        """Describe what the part shows; what else outlives it goes to the next one."""
        integration = self.recordings.integration
        # In slots, too, the function finds its own where something stands in.
        read = ((self.frame.own(x, self.carried), x) for x in self.arrays.arrays)
        known = [*self.frame.arrays, *(x if own is None else own for own, x in read)]
        before = [each for link in self.links for each in link.part.outputs.storages]
        outputs = analyse(shown, values, known, integration, before)
        left = {each.address: Bytes(each.address, each.size) for each in alive}
        for storage in outputs.storages:
            is_made = left.pop(storage.address, None) is not None
            # A framework's empty ones are nowhere.
            if not is_made and storage.size:
                raise stray(storage)
        leaves = arrays_in((shown, values), integration.is_array)
        self.named.update(integration.look(each).storage.address for each in leaves)
        if last:
            return outputs
        return replace(outputs, storages=(*outputs.storages, *left.values()))

    def _places(self) -> list[Place]:
        """Return the places of what is carried to the part, and of what it reads."""
        integration = self.recordings.integration
        places = self.carried.places(integration)
        return [*places, *self.arrays.places(integration)]

    # Eager regions.

    def _between(
        self, part: EagerRegion, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run what was captured so far, then an eager region; then capture on."""
        framework, capture = self.device.framework, self.capture
        if capture.failed is not None:
            raise Hopeless  # what has failed once is tried no more
        run, manner = Capture.run.__code__, framework.manner()
        # Optimizers have their steps within contexts of the profiler.
        caught, within = crossing.caught_at(run, users=not part.sees)
        self.returns = crossing.only_returns(run)
        told = crossing.Passed(args, kwargs, self.recordings.integration).text()
        goes = passed_on(part, self.session, run)
        crossing.refuse_manner(part.name, manner, self.outside, self.session)
        live = partial(
            Live,
            part.name,
            part.held(),
            caught=caught,
            within=within,
            manner=manner,
            where=user_line(),
            writes=part.writes,
            sees=part.sees,
            passed_on=goes,
            drops=crossing.drops_result(run),
        )
        with framework.resting():
            live = partial(live, alone=self._is_alone(part, args))
            try:
                graph = capture.pause()
                with collected(self), capture.live(graph):
                    self._end(graph, (args, kwargs), last=False, seen=part.sees)
                    result, raised = self._cross(part, told, live)
                    self._open()
                    result = self.frame.taken_in(result, self.gives, (args, kwargs))
                    self._begin(anew=part.sees)
                capture.resume(self.ranges[-1])
            except BaseException as failed:
                capture.failed = Caught(failed)
                self._divert()
                raise
        if raised is not None:
            raised.reraise()
        return result

    def _is_alone(self, part: EagerRegion, args: tuple[Any, ...]) -> bool:
        """Return whether a region is passed all that the function has written."""
        if part.sees or not part.writes:
            return False
        passed = {id(each) for each in args}
        changes = self._survey().changes_since(self.before)
        return all(
            isinstance(each, Repeated)
            and (
                (isinstance(each, BoundArray) and id(each.new) in passed)
                # One that listens stands for what was there.
                or (isinstance(each.new, int) and each.new == each.old)
            )
            for each in changes
        )

    def _divert(self) -> None:
        """Capture what handlers of the function launch on the way out, for nobody."""
        capture = self.capture
        # Where this fails, too, an error of the function is on its way already.
        with suppress(CaptureError, DriverError, OutOfMemory):
            if not capture.is_on():
                self._open()
                if isinstance(capture, Adopting):
                    capture.owner = self.owners[-1]
                capture.resume(self.ranges[-1])

    def _cross(
        self, part: EagerRegion, told: str, live: partial[Live]
    ) -> tuple[Any, Caught | None]:
        """Run a region, and note what the next part may use of what there is now.

        Returns its result, or its exception, for the function.
        """
        args, kwargs = self.gives
        integration, link = self.recordings.integration, self.links[-1]
        passed = crossing.Passed(args, kwargs, integration)
        asked = crossing.Passed(self.call.args, self.call.kwargs, integration)
        if part.writes:
            self._reaches(part, passed)
        found = self.after.guards(lambda _: True) if part.sees else None
        self.began.enters(passed, self.session, writes=part.writes, found=found)
        ran = self.rerun is not None and self.rerun.answers()
        run = partial(self.rerun.answer, self.session) if self.rerun else run_live
        result, raised = crossing.unlocked(self.device, run, part, args, kwargs)
        # Not by a name of this frame: the error's traceback leads to it.
        wrote = self.began.leaves(
            crossing.Ran(part.name, passed, result, raised.error if raised else None)
        )
        # What an answer leaves is copied there, and nobody counts that.
        self._note_writes(None if ran else wrote)
        changed = None if self.returns else crossing.changed_by(asked, part.name)
        if changed is not None:
            raise changed
        first, count = len(self.carried.storages), len(link.part.outputs.storages)
        remembered = [*passed.arrays(), *self.bound] if part.sees else []
        self.carried = carry(
            self.carried, self.made[len(self.made) - count :], remembered
        )
        self.frame.passes(self.own if part.sees else [], remembered)
        self.frame.crosses(link.part, first, self.device.returns)
        role = Role.COPIED if link.part.ferries else Role.INHERITED
        self.roles.carry(f"what {link.part.label} made", count, role)
        if raised is None:
            self._receive(part, told, live, passed, result)
        else:
            self.unfit = f"the eager region {part.name} raised {raised.text}"
            self.stirred = True
        return result, raised

    def _note_writes(self, wrote: Sequence[Storage] | None) -> None:
        """Note which places of the call a region wrote; None: nobody knows."""
        which = self.reached if wrote is None else self.region_writes
        storages = self._storages()
        which.update(i for i, x in enumerate(storages) if wrote is None or x in wrote)

    def _storages(self) -> list[Storage]:
        """Return those of the call, and of what its first part found, in order."""
        return [*self.call.given.storages, *self.first_arrays.storages]

    def _reaches(self, part: EagerRegion, passed: crossing.Passed) -> None:
        """Note which places of the call a region is passed, or names."""
        integration = self.recordings.integration
        try:
            named: Sequence[Array] = survey(part.runs, {}, integration).arrays()
        except CaptureError:  # it reaches too much to be gone through
            named = [*self.call.given.arrays, *self.first_arrays.arrays]
        found = {integration.look(x).storage for x in (*named, *passed.arrays())}
        storages = self._storages()
        self.reached.update(i for i, each in enumerate(storages) if each in found)

    def _receive(
        self,
        part: EagerRegion,
        told: str,
        live: partial[Live],
        passed: crossing.Passed,
        result: Any,
    ) -> None:
        """Note a region's result, and what replays are to know of the region."""
        name, integration, link = part.name, self.recordings.integration, self.links[-1]
        goes = live.keywords["passed_on"]
        goes = goes and goes.settled(result)
        got = crossing.returned(
            name,
            result,
            passed,
            self.carried,
            integration,
            is_last=self.returns,
            strict=not self.order.tolerant,
            passed_on=goes,
        )
        self.session.broken(
            part, told, got.kind, branches=got.branches, passed_on=(goes, result)
        )
        self._check(name, got, passed)
        link.part.outputs = outputs = crossing.hold_weakly(link.part.outputs)
        inside = crossing.made_inside(name, outputs, self.call.leaves, self.before)
        self.error = self.error or inside
        flat, known = passed.flat, len(self.carried.storages)
        behind = live(
            key=got.key,
            shared=got.shared,
            text=got.text,
            flat=flat,
            branches=self.order.specialization.branching,
            passed_on=goes,
            done=(told, self.began.told[-1]),
        )
        self.links[-1] = replace(link, live=behind)
        self.carried = crossing.receive(self.carried, got)
        count = len(self.carried.storages) - known
        self.roles.carry(crossing.RESULT.format(name), count)
        self._know_again(name, known)
        self.frame.returned(name, got, self.carried)

    def _know_again(self, name: str, first: int) -> None:
        """Let state that a region returned be where the function has it.

        ``first`` is the first place of what it returned. Raises `CaptureError` where a
        region returned a larger or smaller part of such an array.
        """
        places = self.carried.places(self.recordings.integration)
        held = {storage for storage, *_ in self.rooms}
        for i, place in enumerate(places[first:], first):
            room = self.rooms.get(place[:3])
            if room is not None:
                self.frame.stages[i] = room
            elif place.storage in held:
                raise CaptureError(
                    f"the eager region {name} returned another part of an array than "
                    f"the function reads by itself; {crossing.RAN}",
                    remedy="Return a copy of it, or that array itself",
                )

    def _check(
        self, name: str, got: crossing.Returned, passed: crossing.Passed
    ) -> None:
        """Refuse a result that no replay could take, or that differs from the last.

        What was changed in place the function itself has as it was: it cannot go on.
        """
        then = () if self.warm is None else self.warm.breaks
        other = ""
        if self.branched is None:
            other = crossing.unlike(name, got, self.session.breaks, then)
        refused = got.refused or other
        stays = not (passed.changed() or passed.reshaped())
        branches = got.branches or self.order.specialization.branching
        if other and branches and stays:
            self._branch(other)
        elif refused and self.order.tolerant and stays:
            self.error = self.error or CaptureError(refused, remedy=crossing.REMEDY)
        elif refused:
            self.session.refuse(refused, crossing.REMEDY)

    def _branch(self, other: str) -> None:
        """Hold what follows against a warm-up that went the same way, if one did."""
        ran = tuple(self.session.breaks)
        warm = self.order.specialization.on_way(ran)
        if warm is None or (self.in_place and warm.sees):
            self.unfit, self.stirred = other.removesuffix(f"; {crossing.RAN}"), True
            self.branched = user_line() or ""
            return
        self.warm = self.began.warm = warm
        self.capture.stays = frozenset(warm.stays)

    # The end.

    def _unheld(self, other: CaptureError | Warm | None) -> CaptureError | None:
        """Let go of what was made; return an error about what nothing accounts for.

        Or that which stand-ins have done is ``other`` work.
        """
        lines = {at: line for each in self.ranges for at, _, line in each.taken()}
        self.let_go()
        lost = lasting(self._lost)
        if self.session.stands_in and isinstance(other, CaptureError):
            return other
        return (
            outliving([(*each, lines.get(each[0])) for each in lost]) if lost else None
        )

    def _lost(self) -> list[tuple[Addr, Size]]:
        """Return what parts have allocated that somebody has, and was not shown."""
        alive = [each for owner in self.owners for each in owner.survivors()]
        held = (ref() for ref in self.mine)
        alive += [(each.address, each.size) for each in held if each is not None]
        return [each for each in alive if each[0] not in self.named]
