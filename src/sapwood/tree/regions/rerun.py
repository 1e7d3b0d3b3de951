"""A call in parts that went another way than its recording, and is run eagerly instead.

All that parts have written is put back, and the function runs from its beginning. An
eager region that ran does not run again: the function gets what it gave, and finds what
it left. That is right if the function comes to it as it did; where that cannot be
shown, all is left as the parts left it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sapwood.errors import MisuseError, OutOfMemory
from sapwood.memory.device import Device, routed
from sapwood.memory.storage import Storage
from sapwood.tree.call.integration import Array, Integration
from sapwood.tree.call.signature import Call
from sapwood.tree.guards import Slot
from sapwood.tree.nests.containers import constant_key, flatten, unflatten
from sapwood.tree.record.preserve import Preserved, bits_of
from sapwood.tree.record.staging import moved_by
from sapwood.tree.regions.crossing import Passed, Ran, seen
from sapwood.tree.watch.session import EagerRegion, Midway, Session, Warm, entered
from sapwood.tree.watch.watch import Caught, Watched, warm_up
from sapwood.units import Size

MOST: Final = Size(64 << 20)
"""So many bytes are saved, at most, before a call whose parts write them."""


class Begun:
    """What a call in parts began with, and which eager regions ``ran`` in it since.

    ``storages`` are those that are saved: parts write them before a region runs, or
    read them. ``bound`` are the slots that parts have bound, with what was there,
    ``plain`` those of plain values, with these, and ``found`` those in which the
    function finds arrays, and the arrays. ``lost`` says that not all of it can be put
    back, ``warm`` is the warm-up that its parts are held against. ``holds`` says
    whether what the function reads besides arrays is as it was.
    """

    def __init__(
        self,
        device: Device,
        storages: Sequence[Storage],
        warm: Warm | None,
        *,
        most: Size = MOST,
    ) -> None:
        self._device, self.warm, self._most = device, warm, most
        self.holds: Callable[[], bool] | None = None
        self.storages: list[Storage] = []
        self.ran: list[Ran] = []
        self.bound: list[tuple[Slot, Any]] = []
        self.plain: Sequence[tuple[Slot, Any]] = ()
        self.found: tuple[Sequence[Slot], Sequence[Array]] = (), ()
        self.lost = False
        self._behind = 0
        self._saved: list[Preserved] = []
        self._watched: Sequence[Array] = ()
        self._integration: Any = None
        self._versions: Sequence[int] | None = None
        self._looks: Any = []
        self._rewind = device.framework.chance()
        self._save(storages)

    def _save(self, storages: Sequence[Storage]) -> None:
        self.storages += storages
        self.lost |= sum(each.size for each in self.storages) > self._most
        if storages and not self.lost:
            try:
                self._saved.append(Preserved(self._device, storages).save())
            except OutOfMemory:
                self.lost = True

    def watch(
        self,
        arrays: Sequence[Array],
        read: Sequence[Storage],
        integration: Integration,
        *,
        few: bool,
    ) -> None:
        """Watch for regions that write some of the arrays, or change them in place.

        A part that has ``read`` one computes otherwise when the function runs again. If
        these are ``few``, or nobody counts who writes, their bytes are saved; else
        their versions tell.
        """
        versions = None if few else integration.versions(arrays)
        if versions is None:
            self._save(read)
        self._watched, self._integration = arrays, integration
        self._versions, self._looks = versions, self._looked()

    def _looked(self) -> Any:
        integration, arrays = self._integration, self._watched
        if self._versions is None:
            return [seen(each, integration) for each in arrays]
        return integration.marks(arrays)

    def save(self, storages: Sequence[Storage]) -> None:
        """Save storages that a part is about to write, unless they are saved."""
        known = {id(each) for each in self.storages}
        self._behind = len(self.ran)
        self._save([each for each in storages if id(each) not in known])

    def save_result(self, result: Any, integration: Integration) -> None:
        """Save what an eager region has returned, and a part is about to write."""
        is_array = integration.is_array
        arrays = filter(is_array, flatten(result, is_array)[0])
        self._save([*map(integration.storage, arrays)])

    def is_by_one(self) -> bool:
        """Return whether one region has run, and no part behind it."""
        return len(self.ran) == 1 and not self._behind

    def binds(self, slots: Iterable[tuple[Slot, Any]]) -> None:
        """Note what was in slots that a part binds anew."""
        self.bound += slots

    def is_untouched(self) -> bool:
        """Return whether no region wrote arrays that are watched, and not saved.

        What one wrote that is saved differs when the function comes to it again.
        """
        if self.lost or self._looked() != self._looks:
            return False
        if self._versions is None:
            return True
        storage, saved = self._integration.storage, {*map(id, self.storages)}
        now = self._integration.versions(self._watched) or ()
        return all(
            old == new or id(storage(array)) in saved
            for array, old, new in zip(self._watched, self._versions, now, strict=True)
        )

    def changed(self, arguments: Any) -> list[tuple[Slot, Any, Any]]:
        """Return the slots whose plain values regions changed: what was, and is there.

        Raises `MisuseError` where the way to one is gone.
        """
        held = [(slot, was, slot.held(arguments)) for slot, was in self.plain]
        return [x for x in held if constant_key(x[1]) != constant_key(x[2])]

    def put_back(self, arguments: Any) -> Sequence[tuple[Slot, Any]]:
        """Have all be as it was when the call began; return what was in slots."""
        now = [(slot, slot.held(arguments)) for slot, _ in self.bound]
        for slot, value in reversed(self.bound):
            slot.write(value, arguments)
        for saved in reversed(self._saved):
            saved.restore()
        self._rewind()
        return now


@dataclass(frozen=True, slots=True)
class Strayed:
    """A call in parts that cannot go on, and how it ended."""

    error: Midway | Caught
    begun: Begun


class Rerun:
    """Runs a call eagerly that has ``begun`` in parts.

    Where one region has run, and the function comes to it as it did, it gets what that
    gave, and finds what that left: in slots, and in arrays that parts use or made. What
    several have left is not known of each.
    """

    def __init__(self, begun: Begun, integration: Integration, device: Device) -> None:
        self._begun, self._ran, self._warm = begun, begun.ran, begun.warm
        self._integration, self._device = integration, device
        self._next, self._astray, self._tells = 0, False, True
        apart = begun.warm is not None and begun.warm.captured
        self.session = Session(tolerant=True, rehearses=not apart, as_captured=apart)
        self._now: Preserved
        self._bound: Sequence[tuple[Slot, Any]] = ()
        self._changed: Sequence[tuple[Slot, Any, Any]] = ()
        self._arguments: Any = None

    def may_run(self, arguments: Any, *, tells: bool) -> bool:
        """Return whether all can be put back that parts, and regions, have done.

        Where nobody ``tells`` what is launched, all that the function reads has to be
        as it was then.
        """
        self._arguments, self._tells = arguments, tells
        touched = any(x.passed.changed() or x.passed.reshaped() for x in self._ran)
        if self._warm is None or touched or not self._begun.is_untouched():
            return False
        try:
            self._changed = self._begun.changed(arguments)
        except MisuseError:
            return False
        return True

    def run(self, fn: Callable[..., Any], call: Call) -> Watched | None:
        """Return what the call gave, whose exceptions pass; None if all was left."""
        watched, begun = None, self._begun
        self._now = Preserved(self._device, begun.storages).save()
        self._bound = begun.put_back(self._arguments)
        if self._is_put_back():
            self.session.between = self._between
            try:
                watched = warm_up(
                    fn, call.args, call.kwargs, self._device, self.session
                )
            except Exception:
                if not self._is_astray():
                    raise
            finally:
                self.session.between = None
        if watched is None or self._is_astray():
            self._now.restore()
            self._set(self._bound)
            self._set((slot, now) for slot, _, now in self._changed)
            return None
        return watched

    def _is_put_back(self) -> bool:
        """Have slots hold what they held when the call began; say if all is as then."""
        begun, arguments = self._begun, self._arguments
        try:
            held = [
                (x, was, x.held(arguments)) for x, was in zip(*begun.found, strict=True)
            ]
        except MisuseError:
            return False
        rebound = [(slot, was, now) for slot, was, now in held if was is not now]
        self._changed = [*self._changed, *rebound]
        if self._changed and not begun.is_by_one():
            return False
        self._set((slot, was) for slot, was, _ in self._changed)
        return self._tells or (begun.holds is not None and begun.holds())

    def _set(self, slots: Iterable[tuple[Slot, Any]]) -> None:
        for slot, value in slots:
            slot.write(value, self._arguments)

    def _is_astray(self) -> bool:
        return self._astray or self._next < len(self._ran)

    def _between(
        self, part: EagerRegion, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Answer for a region that ran, or run one."""
        with self._device.framework.resting(), entered(None), routed(None):
            if self._next == len(self._ran):
                return part(*args, **kwargs)
            ran, self._next = self._ran[self._next], self._next + 1
            passed = Passed(args, kwargs, self._integration)
            if self._astray or not self._is_the_same(part, passed, ran):
                self._astray = True
                raise Midway("", remedy="")
            if ran.raised is not None:
                # Its traceback leads to this frame, which is not to name it.
                caught = Caught(ran.raised)
                del ran
                caught.reraise()
            return self._own(ran, passed)

    def _is_the_same(self, part: EagerRegion, passed: Passed, ran: Ran) -> bool:
        """Return whether the function came to a region as it had when that ran.

        Then it finds what that, or all that ran, have left.
        """
        if part.name != ran.name or self._warm is None:
            return False
        count = self._warm.breaks[self._next - 1][0]
        if self._tells and self.session.digests() != self._warm.ops[:count]:
            return False
        last, alone = self._next == len(self._ran), self._begun.is_by_one()
        differing = self._now.differing() if last else ()
        if differing and not alone:
            return False
        pairs = [*zip(passed.leaves, ran.passed.leaves, strict=False)]
        if len(passed.leaves) != len(ran.passed.leaves):
            return False
        if last:
            # A region may have written what parts made and bound to slots.
            pairs += [(x.held(self._arguments), value) for x, value in self._bound]
        other = [pair for pair in pairs if not self._is_one(*pair)]
        if other and not (alone and all(self._is_like(*pair) for pair in other)):
            return False
        if last:
            self._now.restore(differing)
            for mine, theirs in other:
                self._copy(theirs, mine)
            self._set((slot, now) for slot, _, now in self._changed)
        return True

    def _is_one(self, mine: Any, theirs: Any) -> bool:
        return bits_of(mine, self._integration) == bits_of(theirs, self._integration)

    def _is_like(self, mine: Any, theirs: Any) -> bool:
        integration = self._integration
        arrays = integration.is_array(mine) and integration.is_array(theirs)
        return arrays and integration.layout(mine) == integration.layout(theirs)

    def _copy(self, theirs: Array, mine: Array) -> None:
        """Have an array hold what a like one does."""
        integration, stream = self._integration, self._device.stream()
        integration.storage(theirs).order_read(stream)
        integration.storage(mine).order_write(stream)
        start, end = integration.span(theirs)
        at = integration.span(mine)[0]
        self._device.driver.copy(at, start, Size(end - start), stream.handle)

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
        storage = integration.storage(array)
        # Of several with one storage, that one itself, if it is among them.
        others = sorted(
            zip(theirs, mine, strict=False), key=lambda x: x[0] is not array
        )
        for other, own in others:
            if other is array:
                return own
            if integration.storage(other) is storage:
                moved = integration.address(own) - integration.address(other)
                return moved_by(moved, array, integration.storage(own), integration)
        return array
