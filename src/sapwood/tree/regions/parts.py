"""One call recorded in parts, around its eager regions, and run meanwhile.

Where the function calls an eager region, what was captured so far becomes a node of its
own, which is launched there and then. So all that the function holds is real when the
eager region runs, and its Python runs once. Arguments are moved by relocation.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from sapwood.driver.api import GraphHandle
from sapwood.driver.release import Release
from sapwood.errors import CaptureError, InternalError
from sapwood.graphs.recording import Recording
from sapwood.memory.pages import Extent
from sapwood.memory.range import Range
from sapwood.memory.storage import Storage
from sapwood.tree.call.integration import Array
from sapwood.tree.call.roles import Role
from sapwood.tree.call.signature import Arrays, Place, look
from sapwood.tree.choose.admit import sharing
from sapwood.tree.choose.recordings import Recordings
from sapwood.tree.guards import Ambient, BoundArray, Slot, Survey, kept_states
from sapwood.tree.nests.containers import flatten
from sapwood.tree.node.node import Link, Node, PlaceUse
from sapwood.tree.node.outputs import Bytes, Outputs, analyse, each_anew
from sapwood.tree.record.accounts import outliving, read, stray
from sapwood.tree.record.build import LinkSpec, Plan, build
from sapwood.tree.record.memos import Memos, memos_of
from sapwood.tree.record.recorder import (
    Recorded,
    RecordedParts,
    ambient_roles,
    argument_roles,
)
from sapwood.tree.record.repeated import outcome_of
from sapwood.tree.record.staging import late_stages, reserved
from sapwood.tree.record.taking import RecordRequest, plain_changes, undo
from sapwood.tree.regions.chain import answer_for_all
from sapwood.tree.regions.crossing import (
    REMEDY,
    RESULT,
    Break,
    Passed,
    Ran,
    Returned,
    carry,
    caught_at,
    changed_by,
    hold_weakly,
    made_inside,
    only_returns,
    receive,
    refuse_manner,
    returned,
    shown_places,
    unlike,
    unlocked,
    which_are_one,
)
from sapwood.tree.regions.rerun import Begun
from sapwood.tree.replay.replay import replay_in_place
from sapwood.tree.watch.session import EagerRegion, Session
from sapwood.tree.watch.watch import Capture, Caught
from sapwood.uncollected import collected, uncollected
from sapwood.units import Addr, Size


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
            self._names.append(RESULT.format(name))
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


class Parts:
    """The recording of one call; ``carried`` is what the part in progress may use.

    ``made`` are the storages that parts made so far; ``shown`` the identities of those
    that something is known to hold; ``stirred`` says that what is guarded has changed
    meanwhile. ``gives`` is what the last part that ran shows to others, ``bound`` what
    it has put into slots; ``still_shown`` are places that may not be ended, for a slot
    or the result shows them. Behind the last region the function only ``returns``.
    If the call failed, ``written`` says that not all that the part in progress wrote
    could be put back.
    """

    copies: ClassVar[bool] = False
    """Whether an eager region is passed copies of the function's own containers."""

    def __init__(
        self, order: RecordRequest, recordings: Recordings, began: Begun
    ) -> None:
        self.order, self.recordings, self.device = order, recordings, recordings.device
        self.began = began
        self.call = order.plan.call
        self.args, self.kwargs = self.call.args, self.call.kwargs
        self.arguments = order.bind(self.args, self.kwargs)
        self.carried = order.plan.call.given
        self.roles = CarriedRoles(order, recordings)
        self.made: list[Storage] = []
        self.shown: set[int] = set()
        self.links: list[Link] = []
        self.session = Session(
            tolerant=False,
            holds=order.before.holds,
            guarded=order.before.guards_hosts,
        )
        self.session.between = self._between
        self.error: CaptureError | None = None
        self.first_key: Hashable = None
        self.unfit, self.stirred = "", False
        self.gives: Any = None
        self.bound: list[Array] = []
        self.still_shown: frozenset[int] = frozenset()
        self.outside = self.device.framework.manner()
        self.begun = self.written = self.returns = False
        self.lent: Size | None = None
        self.range: Range | None = None

    def record(self) -> RecordedParts:
        """Run the function, and return what was made of it."""
        self._open()
        self.capture = self._capturing(self.inside())
        self._begin()
        self.first_arrays = self.arrays
        order, session = self.order, self.session
        run = self.capture.run
        cached = order.before.cached()
        try:
            captured = uncollected(self, run, order.fn, self.args, self.kwargs, session)
        finally:
            cached.forget()
        if session.unrecordable is not None:
            self.device.driver.destroy_graph(captured.graph)
            raise session.unrecordable.anew()
        node = self._end(captured.graph, captured.result, last=True)
        result, self.gives = self.gives, None
        other = outcome_of(order.specialization.warm, session, node.outputs)
        if isinstance(other, CaptureError) and self.stirred:
            self.unfit, other = self.unfit or str(other), None
        error = captured.error or self.error or other or self._unheld()
        if error is not None:
            self.spoil()
        head = answer_for_all(self.links, self.roles.used_later)
        made = Recorded(head, self.first_arrays, (), error)
        return RecordedParts(result, made, self.unfit)

    def close(self) -> None:
        """Give back what was made, for a call that failed."""
        with Release() as release:
            release(self._undo)
            for link in self.links:
                release(link.part.exec.close)
                release(link.part.range.close)
            if self.range is not None and not self.range.closed:
                release(self.range.close)

    def spoil(self) -> None:
        """Refuse what only the function had, to whoever finds it in an exception."""

    def _undo(self) -> None:
        """Have slots hold what they held before a part that did not run."""
        if self.begun:
            undo(self.before, self.states)
            self.written = bool(self._survey().changes_since(self.before))

    def let_go(self) -> None:
        """Forget what the call made: from now on others say how long it lives."""
        self.recordings.leases.crossed(self.made)
        self.made.clear()
        self.bound = []
        self.carried = self.order.plan.call.given
        # Else what was read would live until garbage is collected.
        self.session.between = None

    # One part.

    def inside(self) -> Range:
        """Return the range of the part in progress."""
        if self.range is None:
            raise InternalError("a part is recorded into a range")
        return self.range

    def _open(self) -> None:
        """Make room for the coming part."""
        self.range = reserved(
            self.order.specialization, self.carried, self.recordings, self.lent
        )

    def _capturing(self, range_: Range) -> Capture:
        """Return the capture of all parts."""
        warm, stream = self.order.specialization.warm, self.recordings.capture_stream()
        # What a device copies is replayed where it was captured.
        escapes = self.order.plan.escapes and not self.copies
        stays = warm.stays if warm else ()
        return Capture(self.device, stream, range_, frozenset(stays), escapes=escapes)

    def _begin(self) -> None:
        """Look at all that the coming part may use."""
        integration = self.recordings.integration
        self.before = self._survey()
        self.states = kept_states(self.before)
        if not self.links:
            self.order.check_same(self.before)
        self.stirred |= bool(self.links) and self.before.key != self.first_key
        self.first_key = self.first_key if self.links else self.before.key
        self.ambient = self.before.guards(lambda _: True)
        self.arrays = look([slot.read() for slot in self.ambient.arrays], integration)
        self.begun = True
        self.first_line = len(self.session.lines)
        self.first = self.capture.allocations.count()

    def _end(self, graph: GraphHandle, shown: Any, *, last: bool) -> Node:
        """Make a node of what was captured, and run it."""
        range_ = self.inside()
        survivors = self.capture.survivors(self.first)
        lines = self.session.lines[self.first_line :]
        try:
            bound = self._bound(last=last)
            outputs = self._outputs(shown, bound, survivors)
            new = _in_order(survivors, outputs)
            made = self._escaping(new)
            places = [
                *self._places(),
                *(Place(s, s.address, Addr(s.address + s.size), ()) for s in made),
            ]
            known = self._memos().arrays
            recording = read(graph, lines, places, {}, range_, self.device, known)
        finally:
            self.device.driver.destroy_graph(graph)
        drawing = self._drawing(recording, outputs, places, len(made), last=last)
        node = build(drawing, range_, self.device)
        idle = last and not (recording.ops or bound) and self._gives_given(node)
        slots = tuple(change.slot for change in bound)
        self._append(node, slots, idle=idle)
        self._save(node, places)
        replay_in_place(self.recordings, node, self.carried, self.arrays, new)
        self.made += new
        self.begun, self.gives = False, shown
        self.bound = [change.new for change in bound if change.new is not None]
        return node

    def _save(self, node: Node, places: Sequence[Place]) -> None:
        """Save what a part is about to write of what others have."""
        made = {id(storage) for storage in self.made}
        uses = zip(node.places[: len(node.places) - node.made], places, strict=False)
        written = [place.storage for use, place in uses if use.written]
        self.began.save([each for each in written if id(each) not in made])

    def _append(self, node: Node, slots: tuple[Slot, ...], *, idle: bool) -> None:
        """Add a part to the chain."""
        shared = sharing(self.arrays, self.carried)
        which = which_are_one(self.ambient, self.arrays, self.carried)
        self.links.append(Link(node, slots, shared, which, None, idle))

    def _gives_given(self, node: Node) -> bool:
        """Return whether the last part can only give what it was given."""
        return self.returns and node.outputs.only_given(len(self.carried.arrays))

    def _drawing(
        self,
        recording: Recording,
        outputs: Outputs,
        places: Sequence[Place],
        made: int,
        *,
        last: bool,
    ) -> LinkSpec:
        """Say what replays do with each place; the last ``made`` they allocate."""
        if last:
            outputs = each_anew(outputs, self.order.plan.call.leaves, self.before.holds)
        symbols, old = recording.symbols(), places[: len(places) - made]
        integration = self.recordings.integration
        self.still_shown |= shown_places(outputs, self.carried, integration, last=last)
        if self.links:
            first = self.links[0].part.places
            names, roles = self.roles.later(
                self.ambient, self.carried, old, symbols, first
            )
        else:
            names, roles = self.roles.first(self.ambient, old)
        roles += [Role.PATCHED] * made
        staged = [r if i in symbols else Role.PINNED for i, r in enumerate(roles, 1)]
        return LinkSpec(
            plan=self._plan(last=last),
            recording=recording,
            outputs=outputs,
            places=places,
            names=[*names, *(f"new array {i}" for i in range(made))],
            roles=roles,
            stages=self._stages(places, staged),
            ambient=self.ambient,
            ambient_arrays=self.arrays,
            made=made,
            memos=self._memos().everything(),
        )

    def _memos(self) -> Memos:
        return memos_of(self.before, self.recordings.integration)

    def _stages(
        self, places: Sequence[Place], roles: Sequence[Role]
    ) -> Mapping[int, Storage]:
        """Return the room for what is copied."""
        return late_stages(places, roles, {}, self.inside(), self.device)

    def _escaping(self, new: Sequence[Storage]) -> Sequence[Storage]:
        """Return the new storages that replays allocate: all, or none are."""
        made = [storage for storage in new if not storage.captured]
        if self.order.plan.escapes and len(made) < len(new):
            self.unfit = "an array outlives its part that did not in the warm-up"
        return made

    def _survey(self) -> Survey:
        """Look at what the function reads, in the modes that it was called in."""
        with self.outside():
            return self.order.survey(self.arguments)

    def _bound(self, *, last: bool) -> list[BoundArray]:
        """Return the arrays that the part bound; plain values are an error, later."""
        after = self.order.survey(self.arguments) if last else self._survey()
        changes = after.changes_since(self.before)
        self.error = self.error or plain_changes(changes)
        bound = [change for change in changes if isinstance(change, BoundArray)]
        self.began.binds((change.slot, change.old) for change in bound)
        return bound

    def _plan(self, *, last: bool) -> Plan:
        """Return the plan of a part; only the last one may lose what was donated."""
        plan, number = self.order.plan, len(self.links)
        return replace(
            plan,
            label=f"{plan.label}/{number + 1}" if number else plan.label,
            call=plan.call._replace(given=self.carried),
            donated=plan.donated - self.still_shown if last else frozenset(),
            escapes=plan.escapes and not self.unfit,
            candidates=self._candidates(),
        )

    def _candidates(self) -> list[Extent]:
        """Return what may still be shared: by no other part, and by nothing live."""
        pages, mine = self.device.pages, 0
        for link in self.links:
            mine |= link.part.clobbers
        taken, known = pages.live | mine, pages.extents
        return [
            each
            for each in self.order.plan.candidates
            if each in known and not each.mask & taken
        ]

    def _outputs(
        self, shown: Any, bound: Sequence[BoundArray], survivors: Sequence[Storage]
    ) -> Outputs:
        """Describe what the part shows; all that outlives it lies on output pages."""
        values = [change.new for change in bound]
        made = [Bytes(storage.address, storage.size) for storage in survivors]
        outputs = self._shows(shown, values, self.carried.arrays, self.made, made)
        storage = self.recordings.integration.storage
        self.shown.update(id(storage(x)) for x in self._arrays_in((shown, values)))
        return outputs

    def _shows(
        self,
        shown: Any,
        values: Sequence[Array],
        given: Sequence[Array],
        before: Sequence[Storage | Bytes],
        made: Sequence[Bytes],
        *,
        rest: bool = True,
    ) -> Outputs:
        """Describe what the part shows; the ``rest`` of what it made crosses on.

        It was ``given`` arrays, over what parts ``before`` have made, too.
        """
        known = [*given, *self.arrays.arrays]
        outputs = analyse(shown, values, known, self.recordings.integration, before)
        left = {each.address: each for each in made}
        for storage in outputs.storages:
            is_made = left.pop(storage.address, None) is not None
            # A framework's empty ones are nowhere.
            if not is_made and (storage.size or not self.copies):
                raise stray(storage)
        if not rest:
            return outputs
        return replace(outputs, storages=(*outputs.storages, *left.values()))

    def _places(self) -> list[Place]:
        """Return the places of what is carried to the part, and of what it reads."""
        integration = self.recordings.integration
        places = self.carried.places(integration)
        return [*places, *self.arrays.places(integration)]

    def _arrays_in(self, nest: Any) -> list[Array]:
        is_array = self.recordings.integration.is_array
        return [leaf for leaf in flatten(nest, is_array)[0] if is_array(leaf)]

    # Eager regions.

    def _between(
        self, part: EagerRegion, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run what was captured so far, then an eager region; then capture on."""
        framework, capture = self.device.framework, self.capture
        run = Capture.run.__code__
        told = Passed(args, kwargs, self.recordings.integration).text()
        met = Break(part, told, framework.manner(), caught_at(run), only_returns(run))
        refuse_manner(part.name, met.manner, self.outside, self.session)
        try:
            with framework.resting():
                graph = capture.pause()
                with collected(self), capture.live(graph):
                    self._end(graph, (args, kwargs), last=False)
                    result, raised = self._cross(met)
                    self._open()
                    result = self._taken_in(result, (args, kwargs))
                    self._begin()
                capture.resume(self.inside())
        except BaseException as failed:
            capture.failed = Caught(failed)
            raise
        if raised is not None:
            raised.reraise()
        return result

    def _cross(self, met: Break) -> tuple[Any, Caught | None]:
        """Run a region; return its result, or its exception, for the function."""
        args, kwargs = self.gives
        integration, self.returns = self.recordings.integration, met.returns
        passed = Passed(args, kwargs, integration)
        asked = Passed(self.call.args, self.call.kwargs, integration)
        result, raised = unlocked(self.device, met.part, args, kwargs)
        changed = None if met.returns else changed_by(asked, met.part.name)
        if changed is not None:
            raise changed
        # Not by a name of this frame: the error's traceback leads to it.
        self.began.ran.append(
            Ran(met.part.name, passed, result, raised.error if raised else None)
        )
        self._carry(met, passed, result, raised)
        return result, raised

    def _taken_in(self, result: Any, own: Any) -> Any:
        """Return what the function, which has passed its ``own``, gets for a result."""
        del own
        return result

    def _carry(
        self, met: Break, passed: Passed, result: Any, raised: Caught | None
    ) -> Returned | None:
        """Note what the next part may use of what there is now; return its result."""
        link, integration, part = self.links[-1], self.recordings.integration, met.part
        crossing = self.made[len(self.made) - len(link.part.outputs.storages) :]
        remembered = [*passed.arrays(), *self.bound]
        self.carried = carry(self.carried, crossing, remembered)
        self.roles.made(link.part)
        if raised is not None:
            self.unfit = f"the eager region {part.name} raised {raised.text}"
            self.stirred = True
            return None
        got = returned(part.name, result, passed, self.carried, integration)
        self.session.broken(part, met.told, got.kind)
        self._check(part.name, got, passed)
        link.part.outputs = hold_weakly(link.part.outputs)
        leaves, outputs = self.order.plan.call.leaves, link.part.outputs
        inside = made_inside(part.name, outputs, leaves, self.before)
        self.error = self.error or inside
        self.links[-1] = replace(link, live=met.live(got, flat=passed.flat))
        known = len(self.carried.storages)
        self.carried = receive(self.carried, got)
        self.roles.returned(part.name, self.carried.places(integration)[known:])
        return got

    def _check(self, name: str, got: Returned, passed: Passed) -> None:
        """Refuse a result that no replay could take, or that differs from the last."""
        warm = self.order.specialization.warm
        then = () if warm is None else warm.breaks
        refused = got.refused or unlike(name, got, self.session.breaks, then)
        if refused and self.order.tolerant and not (self.copies and passed.changed()):
            self.error = self.error or CaptureError(refused, remedy=REMEDY)
        elif refused:
            self.session.refuse(refused, REMEDY)

    # The end.

    def _lines(self) -> dict[Addr, str | None]:
        ranges = [link.part.range for link in self.links]
        return {at: line for each in ranges for at, _, line in each.taken()}

    def _unheld(self) -> CaptureError | None:
        """Let go of what was made; return an error about what nothing accounts for."""
        lines = self._lines()
        others = [weakref.ref(s) for s in self.made if id(s) not in self.shown]
        self.let_go()
        if any(other() is not None for other in others):
            # Cycles keep arrays alive that nobody can reach.
            gc.collect()
        lost = [storage for other in others if (storage := other()) is not None]
        told = [(s.address, s.size, lines.get(s.address)) for s in lost]
        return outliving(told) if told else None


def _in_order(survivors: Sequence[Storage], outputs: Outputs) -> list[Storage]:
    by_address = {storage.address: storage for storage in survivors}
    return [by_address[made.address] for made in outputs.storages]
