"""A call in parts that went another way than its recording, and is run eagerly instead.

All that parts have written is put back, and the function runs from its beginning. An
eager region that ran does not run again: the function gets what it gave, and finds what
it left. That is right if the function comes to it as it did; where that cannot be
shown, all is left as the parts left it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, ClassVar, NoReturn, TypeAlias

from sapwood.errors import MisuseError, OutOfMemory, StaleOutput
from sapwood.memory.device import Device, routed
from sapwood.memory.storage import Storage
from sapwood.tree.call.integration import Array, Integration, Look
from sapwood.tree.call.signature import Call
from sapwood.tree.choose.specialization import Specialization
from sapwood.tree.guards import Ambient, Slot, Survey
from sapwood.tree.guards.restoring import Edit, Own, fill_again
from sapwood.tree.nests.containers import (
    arrays_in,
    constant_key,
    flatten,
    taken_apart,
    unflatten,
)
from sapwood.tree.nests.contents import (
    Items,
    are_same,
    contents_of,
    fill,
    has_attributes,
    mapped,
)
from sapwood.tree.record.preserve import Preserved
from sapwood.tree.record.staging import moved_by
from sapwood.tree.regions.crossing import Passed, Ran, seen
from sapwood.tree.watch.session import (
    Broken,
    EagerRegion,
    Hopeless,
    Midway,
    Passing,
    Session,
    Warm,
    entered,
)
from sapwood.tree.watch.watch import Caught, Watched, warm_up
from sapwood.units import Size


def _redo_all(edits: Iterable[Edit], own: Own = lambda value: value) -> None:
    """Have all be as a region left it."""
    for each in edits:
        each(own)


@dataclass(frozen=True, slots=True)
class Left:
    """What an eager region left behind.

    ``saved`` is what was in arrays that it may have written, ``bound`` how many slots
    parts had bound.
    """

    saved: Preserved | None
    bound: int


def _append_again(grown: list[Any], items: Sequence[Any], own: Own) -> None:
    grown.extend(map(own, items))


Form: TypeAlias = Callable[[Array], object]
"""Gives an array certain looks and memory, in place: see `Framework.forms`."""


def _can_be_filled(thing: Any, was: Items) -> bool:
    fillable = isinstance(thing, dict | list | deque) or has_attributes(thing)
    return fillable or are_same(contents_of(thing), was)


class Begun:
    """What a call in parts began with, and which eager regions ``ran`` in it since.

    ``storages`` are those that are saved: parts write them before a region runs, or
    read them. ``states`` are what the function read, and found, where each part began,
    None where the region before it had written nothing.
    ``lost`` says that not all of it can be put back, ``warm`` is the warm-up that its
    parts are held against, and ``told``, if anything, what was done before each region
    instead. ``arguments`` are the call's, by name.
    Up to ``MOST`` bytes are saved, unless another limit is given. ``lefts`` are what
    the regions left, None for one that nothing ran behind.
    """

    MOST: ClassVar = Size(256 << 20)

    def __init__(
        self,
        device: Device,
        storages: Sequence[Storage],
        warm: Warm | None,
        arguments: Callable[[], Mapping[str, object]],
        *,
        most: Size | None = None,
    ) -> None:
        self._device, self.warm = device, warm
        self._most = self.MOST if most is None else most
        self.arguments = arguments
        self.storages: list[Storage] = []
        self.ran: list[Ran] = []
        self.told: list[tuple[bytes, ...]] = []
        self.states: list[tuple[Ambient, Sequence[Any]] | None] = []
        self.lost = False
        self.lefts: list[Left | None] = []
        self.bound: list[tuple[Slot, Any]] = []
        self._shown: list[Array] = []
        self._saved: list[Preserved] = []
        self._watched: Sequence[Array] = ()
        self._near: Sequence[Array] = ()
        self._forms: list[list[tuple[Array, Look, Form]]] = []
        self._integration: Any = None
        self._versions: Sequence[tuple[Any, int]] | None = None
        self._looks: Any = []
        self._containers: Sequence[tuple[Any, Items]] = ()
        self._held: Sequence[Items] = ()
        self._stamps: Sequence[tuple[Any, int]] | None = None
        self._writes, self._untold = 0, False
        self._last = self._quiet = False
        self._filled: list[list[tuple[Any, Items]]] = []
        self._lists: Sequence[tuple[list[Any], int]] = ()
        self._grown: list[tuple[int, list[Any], list[Any]]] = []
        self._entered: dict[int, tuple[Ambient, Sequence[Any]]] = {}
        self._sizes: Sequence[int] = ()
        framework = device.framework
        self._rewind = framework.chance(), framework.chance_on_host()
        self.save(storages)

    def save(self, storages: Sequence[Storage]) -> None:
        """Save storages that a part is about to write, unless they are saved."""
        known = {id(each) for each in self.storages}
        storages = [each for each in storages if id(each) not in known]
        self.storages += storages
        self.lost |= sum(each.size for each in self.storages) > self._most
        saved = self._preserved(storages) if storages and not self.lost else None
        if saved is not None:
            self._saved.append(saved)

    def _preserved(self, storages: Sequence[Storage]) -> Preserved | None:
        """Return what storages hold; None, and all is lost, where memory is short."""
        usable = [each for each in storages if each.stale is None]
        try:
            return Preserved(self._device, usable).save()
        except OutOfMemory:
            self.lost = True
            return None

    def reads(self, ambient: Ambient | None) -> None:
        """Note what the function finds where a part begins, and keep that alive.

        None: the region before has written nothing. What the function has written by
        then it writes again by itself.
        """
        if ambient is None:
            self.states.append(None)
            return
        picture = ambient.picture()
        self.lost |= picture is None
        self.states.append((ambient, picture or ()))

    def appends(self, lists: Sequence[list[Any]]) -> None:
        """Note lists that the function appends to, when the call begins."""
        self._lists = [(each, len(each)) for each in lists]

    def watch(
        self,
        nest: Any,
        arrays: Sequence[Array],
        read: Sequence[Storage],
        integration: Integration,
        reached: Sequence[Storage] = (),
        near: Sequence[Array] | None = None,
        *,
        few: bool,
    ) -> None:
        """Watch for regions that write some of the arrays, or change them in place.

        Or the containers of a ``nest``, which are the call's arguments.
        A part that has ``read`` one computes otherwise when the function runs again. If
        these are ``few``, or nobody counts who writes, their bytes are saved; else
        those of what regions may have ``reached``, unless that is too much, and
        versions tell of the others. How those lie is kept that are ``near`` regions;
        None: all.
        """
        things = taken_apart(nest, integration.is_array)[2] if nest else ()
        self._containers = [(each, contents_of(each)) for each in things]
        self._watched, self._integration = arrays, integration
        self._near = arrays if near is None else near
        self._versions = None if few else integration.versions(arrays)
        if self._versions is None:
            self._looks = self._looked()
            self.save(read)
        elif sum(each.size for each in reached) <= self._most:
            self.save(reached)

    def _looked(self) -> Any:
        return [seen(each, self._integration) for each in self._watched]

    def save_result(self, result: Any) -> None:
        """Save what an eager region has returned, and a part is about to write."""
        self.save(self._storages(arrays_in(result, self._integration.is_array)))

    def binds(self, slots: Iterable[tuple[Slot, Any]]) -> None:
        """Note the slots that the latest part binds, with the new arrays."""
        self.bound += slots

    def enters(
        self,
        passed: Passed,
        session: Session | None = None,
        *,
        last: bool = False,
        writes: bool = True,
        found: Ambient | None = None,
    ) -> None:
        """Note what an eager region is about to be passed; if it is the last, no more.

        What the last one leaves is what there is when the call strays, and one that
        writes nothing leaves all as it was. Where there is a ``session``, that knows
        what the function has done so far. Where that may be more than to bind arrays,
        it is seen from what is ``found``.
        """
        picture = None if found is None else found.picture()
        if found is not None and picture is not None:
            self._entered[len(self.ran)] = found, picture
        if session is not None:
            self.told.append(session.digests())
        self._quiet = not writes
        if self._quiet:
            self._forms.append([])
            return
        self._held = [contents_of(each) for each, _ in self._containers]
        self._sizes = [len(each) for each, _ in self._lists]
        self._shown += passed.arrays()
        self._forms.append(self._lie([*passed.arrays(), *self._near]))
        self._writes = self._device.pages.writes
        self._last, self._stamps = last, None if last else self._counted()

    def _lie(self, arrays: Sequence[Array]) -> list[tuple[Array, Look, Form]]:
        """Return arrays, how they lie, and what has one lie so again."""
        forms = self._device.framework.forms(arrays)  # none, maybe
        looks = map(self._integration.look, arrays)
        return [*zip(arrays, looks, forms, strict=False)]

    def _lie_again(self, edits: Sequence[list[Edit]]) -> bool:
        """Have all lie as before the regions; return whether they do.

        What puts back how a region left them is added to its edits.
        """
        integration, forms_of = self._integration, self._device.framework.forms
        right = True
        for k, forms in reversed([*enumerate(self._forms)]):
            for array, then, form in forms:
                if integration.look(array) == then:
                    continue
                (now,) = forms_of([array])
                edits[k].append(partial(self._lie_as, now, array, then))
                with suppress(AttributeError, RuntimeError, ValueError):
                    form(array)  # which a framework may refuse
                right &= integration.look(array) == then
        return right

    def _lie_as(self, form: Form, array: Array, then: Look, own: Own) -> None:
        """Have an array lie as a region left it, and the function's own for it.

        The own one has memory of its own, where the region has given it no other.
        """
        form(array)
        mine, integration = own(array), self._integration
        if mine is array:
            return
        here, now = integration.look(mine), integration.look(array)
        if now.storage is then.storage:
            moved = here.address - then.address
            like = moved_by(moved, array, here.storage, integration)
            (form,) = self._device.framework.forms([like])
        form(mine)

    def leaves(self, ran: Ran) -> list[Storage] | None:
        """Note a region that ran, and what it left behind.

        Return the storages that it wrote; None if nobody knows.
        """
        self.ran.append(ran)
        self._filled.append([] if self._quiet else self._fills())
        if self._quiet:
            self.lefts.append(Left(None, len(self.bound)))
            return []
        for (each, _), size in zip(self._lists, self._sizes, strict=True):
            self._grown.append((len(self.ran) - 1, each, each[size:]))
        written = self._written()
        self._shown += arrays_in(ran.result, self._integration.is_array)
        left = None if self._last else self.left(written)
        self.lefts.append(left)
        return written

    def _fills(self) -> list[tuple[Any, Items]]:
        """Return the containers that the last region has filled, and with what."""
        held = zip(self._containers, self._held, strict=True)
        found = [(each, contents_of(each), was) for (each, _), was in held]
        return [(each, now) for each, now, was in found if not are_same(now, was)]

    def _reach(self) -> list[Array]:
        """Return the arrays that regions may have written so far."""
        bound = [new for _, new in self.bound if new is not None]
        return [*self._watched, *self._shown, *bound]

    def _counted(self) -> Sequence[tuple[Any, int]] | None:
        """Return the versions of all in reach; None where one of them has none."""
        found: Sequence[tuple[Any, int]] | None = None
        with suppress(StaleOutput):  # a step in a region has ended it
            found = self._integration.versions(self._reach())
        return found

    def _written(self) -> list[Storage] | None:
        """Return the storages that the last region wrote; None if nobody knows.

        Versions do not count what replays write, of functions that a region calls.
        """
        untold = self._device.pages.writes != self._writes
        self._untold |= untold
        before = None if untold else self._stamps
        now = None if before is None else self._counted()
        if before is None or now is None:
            return None
        counts = zip(self._reach(), before, now, strict=True)
        return self._storages([array for array, old, new in counts if old != new])

    def _storages(self, arrays: Iterable[Array]) -> list[Storage]:
        return [self._integration.look(each).storage for each in arrays]

    def left(self, written: Sequence[Storage] | None = None) -> Left:
        """Return what there is behind a region, where only some may be ``written``."""
        if written is None:
            written = [*self.storages, *self._storages(self._reach())]
        return Left(None if self.lost else self._preserved(written), len(self.bound))

    def lists(self) -> Sequence[tuple[list[Any], list[Any]]]:
        """Return the lists that the function appends to, and what is in them."""
        return [(each, [*each]) for each, _ in self._lists]

    def drop_regions(self) -> None:
        """Take those that ran, and only read, for some that did not: they run again."""
        for each in (self.ran, self.told, self.lefts, self.bound):
            each.clear()
        self._forms, self._filled, self._grown = [], [], []
        del self.states[1:]

    def forget(self) -> None:
        """Let go of all that regions were passed, have given and left."""
        held = self.ran, self.lefts, self.bound, self._shown, self.states, self._forms
        for each in (*held, self._filled, self._grown, self._entered):
            each.clear()
        self._near = self._held = self._containers = self._lists = ()

    def is_untouched(self) -> bool:
        """Return whether no region wrote arrays that are watched, and not saved.

        What one wrote that is saved differs when the function comes to it again.
        """
        if self.lost:
            return False
        if self._versions is None:
            return bool(self._looked() == self._looks)
        look, saved = self._integration.look, {*map(id, self.storages)}
        now = self._integration.versions(self._watched) or ()
        # Where it is, and whether it was written.
        return all(
            old[0] == new[0]
            and (
                (old[1] == new[1] and not self._untold)
                or id(look(array).storage) in saved
            )
            for array, old, new in zip(self._watched, self._versions, now, strict=True)
        )

    def put_back(self) -> list[list[Edit]] | None:
        """Have all be as when the call began; return how to have it as regions left it.

        One list for each part that began. None where not all can be put back: then
        nothing is.
        """
        edits: list[list[Edit]] = [[] for _ in self.states]
        right = bool(edits) and self._lie_again(edits) and self.is_untouched()
        try:
            for thing, was in self._containers:
                now = contents_of(thing)
                if right and not are_same(now, was):
                    fill(thing, was)
                    # As below: a region's, or written again by the function.
                    edits[-1].append(partial(fill_again, thing, now))
        except MisuseError:
            right = False
        for own, filled in zip(edits, self._filled, strict=False):
            own += [partial(fill_again, *each) for each in filled]
        mine: list[Edit] = []
        if not (right and self._unwind(edits, mine)):
            _redo_all(chain(mine, *edits))
            return None
        for saved in reversed(self._saved):
            saved.restore()
        self._shrink(edits)
        for each in self._rewind:
            each()
        return edits

    def _unwind(self, edits: list[list[Edit]], mine: list[Edit]) -> bool:
        """Have slots hold what they held when the call began; return whether they do.

        What regions did is added to their edits, and to ``mine`` what, as is known, the
        function did: that it does again by itself.
        """
        # What was written last is a region's only if the call strays right behind one:
        # else no region answers for that part, and the function writes it again.
        whose, holds = edits[-1], True
        for k, state in reversed([*enumerate(self.states)]):
            if k in self._entered:
                ambient, picture = self._entered[k]
                edits[k] += ambient.restore(picture)
                whose = mine
            if state is not None:
                ambient, picture = state
                whose += ambient.restore(picture)
                holds = ambient.holds()
                whose = edits[k - 1]
        return holds

    def _shrink(self, edits: Sequence[list[Edit]]) -> None:
        """Have lists be as long as they were; add to edits what regions appended."""
        for k, grown, items in self._grown:
            edits[k].append(partial(_append_again, grown, items))
        for grown, size in self._lists:
            del grown[size:]


@dataclass(frozen=True, slots=True)
class Strayed:
    """A call in parts that cannot go on, and how it ended.

    One that goes a new way, by a value that a region returned, is to be a ``branch`` of
    what is recorded; so regions ``ran`` in it.
    """

    error: Midway | Caught
    begun: Begun
    branch: Specialization | None = None
    ran: tuple[Broken, ...] = ()

    def reraise(self) -> NoReturn:
        """Raise what the call ended with."""
        if isinstance(self.error, Caught):
            self.error.reraise()
        if isinstance(self.error, Passing) and self.error.__cause__ is not None:
            raise self.error.__cause__  # as if nothing were around the region
        raise self.error


class Rerun:
    """Runs a call eagerly that has ``begun`` in parts.

    Where nobody ``tells`` what is launched, less is held against what ran.

    Where the function comes to a region that ran, it gets what that gave, and finds
    what that left: in slots, and in arrays that parts use or made.
    """

    def __init__(
        self, begun: Begun, integration: Integration, device: Device, *, tells: bool
    ) -> None:
        self._begun, self._ran, self._warm = begun, begun.ran, begun.warm
        self._integration, self._device = integration, device
        self._next, self._astray, self._tells = 0, False, tells
        apart = begun.warm is not None and begun.warm.captured
        self.session = Session(
            tolerant=True, rehearses=not apart, splits=True, as_captured=apart
        )
        self._pairs: list[tuple[Array, Array]] = []
        self._mine: dict[int, Any] = {}
        self._now: Preserved | None = None
        self._left: Sequence[Left] = ()
        self._edits: Sequence[list[Edit]] = ()
        self._lists: Sequence[tuple[list[Any], list[Any]]] = ()

    def put_back(self) -> bool:
        """Have all be as when the call began, and return True; or leave all."""
        begun = self._begun
        now, self._lists = begun.left(), begun.lists()
        edits = None if now.saved is None else begun.put_back()
        if edits is None:
            return False
        self._now, self._edits = now.saved, edits
        self._left = [each or now for each in begun.lefts]
        return True

    def again(self) -> Rerun:
        """Forget a run that came to nothing, and was put back."""
        self._next, self._astray = 0, False
        self._pairs, self._mine = [], {}
        return self

    def run(self, fn: Callable[..., Any], call: Call, before: Survey) -> Watched | None:
        """Return what the call gave, whose exceptions pass; None if all was left.

        ``before`` is what the function finds.
        """
        watched = None
        self.session.holds, self.session.guarded = before.holds, before.guards_hosts
        self.session.between = self._between
        try:
            watched = warm_up(fn, call.args, call.kwargs, self._device, self.session)
        except (Exception, Hopeless):
            if not self._is_astray():
                raise
        finally:
            self.session.between = None
        return None if self.gave_up() else watched

    def gave_up(self) -> bool:
        """Return whether the function did not come to all regions that ran.

        Then all is as these have left it.
        """
        if self._is_astray() and self._now is not None:
            self._pairs, self._mine = [], {}  # nobody gets what it has come to
            self._now.restore()
            _redo_all(chain(*self._edits))
            for each, items in self._lists:
                each[:] = items
            self._now = None
        return self._is_astray()

    def _is_astray(self) -> bool:
        return self._astray or self._next < len(self._ran)

    def _between(
        self, part: EagerRegion, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Answer for a region that ran, or run one."""
        with self._device.framework.resting(), entered(None), routed(None):
            return self.answer(self.session, part, args, kwargs)

    def answers(self) -> bool:
        """Return whether the next region that the function comes to has run."""
        return self._next < len(self._ran)

    def answer(
        self,
        session: Session,
        part: EagerRegion,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Answer for a region that ran, or run one; ``session`` is the function's."""
        if not self.answers():
            return part(*args, **kwargs)
        ran, left = self._ran[self._next], self._left[self._next]
        self._next += 1
        passed = Passed(args, kwargs, self._integration)
        if self._astray:
            raise Hopeless
        if not self._is_the_same(session, part, passed, ran):
            self._astray = True
            raise Midway("", remedy="")
        self._leave(left, ran.passed, passed)
        if ran.raised is not None:
            # Its traceback leads to this frame, which is not to name it.
            caught = Caught(ran.raised)
            del ran
            caught.reraise()
        return self._own(ran, passed)

    def _is_the_same(
        self, session: Session, part: EagerRegion, passed: Passed, ran: Ran
    ) -> bool:
        """Return whether the function came to a region as it had when that ran."""
        k, told, warm = self._next - 1, self._begun.told, self._warm
        if warm is not None and not told:  # each part is as it was there
            told = [warm.ops[:count] for count, *_ in warm.breaks]
        if part.name != ran.name or k >= len(told):
            return False
        if self._tells and session.digests() != told[k]:
            return False
        mine, theirs = passed, ran.passed
        shapes = len(mine.leaves), [type(each) for each, _ in mine.containers]
        return (
            shapes == (len(theirs.leaves), [type(x) for x, _ in theirs.containers])
            and all(map(self._is_like, mine.leaves, theirs.leaves))
            and all(_can_be_filled(*each) for each in theirs.containers)
        )

    def _is_like(self, mine: Any, theirs: Any) -> bool:
        integration = self._integration
        if not (integration.is_array(mine) and integration.is_array(theirs)):
            return constant_key(mine) == constant_key(theirs)
        one, other = (integration.look(x).checked() for x in (mine, theirs))
        return one.layout == other.layout

    def _leave(self, left: Left, theirs: Passed, own: Passed) -> None:
        """Have the function find what a region left that was passed ``theirs``."""
        arguments, look = self._begun.arguments(), self._integration.look
        self._pairs += zip(theirs.arrays(), own.arrays(), strict=True)
        # Once: a region may bind a slot to something else.
        held = [
            (new, slot.held(arguments))
            for slot, new in self._begun.bound[: left.bound]
            if id(new) not in self._mine
        ]
        is_array = self._integration.is_array
        self._pairs += [pair for pair in held if all(map(is_array, pair))]
        things = [*zip(theirs.containers, own.containers, strict=True)]
        self._mine |= {id(x): y for (x, _), (y, _) in things}
        self._mine |= {id(x): y for x, y in self._pairs}
        for (thing, was), (mine, _) in things:
            now = contents_of(thing)
            if not are_same(now, was):
                fill(mine, mapped(now, self._as_own))
        if left.saved is not None:
            left.saved.restore()
            for array, mine in self._pairs:
                # What others have too was restored.
                if self._is_other(array, mine) and look(array).storage in left.saved:
                    self._copy(array, mine)
        _redo_all(self._edits[self._next - 1], self._as_own)

    def _as_own(self, value: Any) -> Any:
        """Return what the function has itself for a value that a region has left."""
        if id(value) in self._mine or not self._integration.is_array(value):
            return self._mine.get(id(value), value)
        theirs, mine = ([pair[k] for pair in self._pairs] for k in range(2))
        return self._twin(value, theirs, mine)

    def _is_other(self, theirs: Any, mine: Any) -> bool:
        integration = self._integration
        arrays = integration.is_array(mine) and integration.is_array(theirs)
        if not arrays:
            return False
        one, other = (integration.look(x).storage for x in (mine, theirs))
        return one is not other

    def _copy(self, theirs: Array, mine: Array) -> None:
        """Have an array hold what a like one does."""
        look, stream = self._integration.look, self._device.stream()
        source, target = look(theirs), look(mine)
        source.storage.order_read(stream)
        target.storage.order_write(stream)
        start, end = source.span
        self._device.driver.copy(target.low, start, Size(end - start), stream.handle)

    def _own(self, ran: Ran, passed: Passed) -> Any:
        """Return a region's result, made of what the function has itself."""
        integration = self._integration
        leaves, structure = flatten(ran.result, integration.is_array)
        theirs, mine = ran.passed.arrays(), passed.arrays()
        own = [
            self._twin(leaf, theirs, mine) if integration.is_array(leaf) else leaf
            for leaf in leaves
        ]
        same = all(new is old for new, old in zip(own, leaves, strict=True))
        return ran.result if same else unflatten(structure, own)

    def _twin(self, array: Array, theirs: list[Array], mine: list[Array]) -> Array:
        """Return what of the function's own is where an array is of what was passed."""
        integration = self._integration
        storage = integration.look(array).storage
        # Of several with one storage, that one itself, if it is among them.
        others = sorted(
            zip(theirs, mine, strict=False), key=lambda x: x[0] is not array
        )
        for other, own in others:
            if other is array:
                return own
            there = integration.look(other)
            if there.storage is storage:
                here = integration.look(own)
                moved = here.address - there.address
                return moved_by(moved, array, here.storage, integration)
        return array
