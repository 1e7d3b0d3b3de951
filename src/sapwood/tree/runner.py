"""One graphed function: each call is replayed, or warmed up, recorded, passed through.

Finding a recording that fits is the hot path, and stands here whole; what to do
otherwise is decided in `decide`, and recording is done in `recorder`.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sapwood.errors import CaptureError, MisuseError
from sapwood.events import Escaped, Evicted, Missed, PassedThrough, Recorded, WarmedUp
from sapwood.tree import session
from sapwood.tree.adapter import Array
from sapwood.tree.admit import explain, rejects
from sapwood.tree.ambient import BoundArray, Survey, survey
from sapwood.tree.explain import explain_function
from sapwood.tree.decide import Deed, Step, next_step
from sapwood.tree.forest import Forest
from sapwood.tree.group import Group, Warm
from sapwood.tree.miss import Miss, Why
from sapwood.tree.node import Node
from sapwood.tree.outputs import analyse
from sapwood.tree.parameters import Parameters
from sapwood.tree.recorder import Order, check_against, plain_changes, record
from sapwood.tree.replay import replay
from sapwood.tree.roles import History
from sapwood.tree.signature import Call, Place, describe, places_of
from sapwood.tree.stats import Stats, Tally
from sapwood.tree.watch import Watched, warm_up
from sapwood.units import Addr, Size

__all__ = ["Options", "Runner"]


@dataclass(frozen=True, slots=True)
class Options:
    """How a function is graphed, as the user said.

    ``tolerant`` functions run eagerly where they cannot be recorded.
    """

    name: str
    donate: tuple[str, ...] = ()
    pinned: tuple[str, ...] = ()
    max_variants: int = 4
    max_recordings: int = 64
    tolerant: bool = False
    verify: int = 0


class Found(NamedTuple):
    """A recording that fits a call, and the ambient arrays that it reads."""

    node: Node
    ambient: Sequence[Array]
    places: Sequence[Place]


class Runner:
    """Runs one function; ``groups`` are its recordings by signature.

    ``target`` gives the function: one that is a method may be gone by now.
    """

    def __init__(
        self, target: Callable[[], Callable[..., Any]], options: Options, forest: Forest
    ) -> None:
        self.target, self.options, self.forest = target, options, forest
        self.parameters = Parameters(target())
        self.tally = Tally()
        self.groups: OrderedDict[Hashable, list[Group]] = OrderedDict()
        self.nodes: dict[Node, tuple[Hashable, Group]] = {}
        self.bound: dict[Node, tuple[BoundArray, ...]] = {}
        self.misses: deque[tuple[str, tuple[Miss, ...]]] = deque(maxlen=32)

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one call, however it is best run."""
        forest = self.forest
        device = forest.device
        if device.closed:
            raise MisuseError(
                f"{self.options.name} was called after its runtime was closed. "
                "Graph it on a runtime that is open"
            )
        call = describe(args, kwargs, forest.adapter)
        with device.lock:
            if device.returns:
                device.returns.drain()
            if forest.before_call is not None:
                forest.before_call()
            found = self._find(call)
            if found is not None:
                self.tally["replays"] += 1
                return self._replay(found, call, args, kwargs)
        return self._missed(call, args, kwargs)

    # The hot path.

    def _find(self, call: Call) -> Found | None:
        adapter, live = self.forest.adapter, self.forest.device.pages.live
        asked, holds = None, False
        arrays: Sequence[Array] = ()
        addresses: tuple[Addr, ...] = ()
        places: Sequence[Place] = ()
        sharing: Hashable = None
        for group in self.groups.get(call.key, ()):
            for node in group.nodes:
                if node.ambient is not asked:
                    asked = node.ambient
                    holds = asked.holds()
                    if holds and asked.arrays:
                        arrays = [slot.read() for slot in asked.arrays]
                        addresses = tuple(map(adapter.address, arrays))
                        places, sharing = places_of(arrays, adapter)
                    else:
                        arrays, addresses, places, sharing = (), (), (), None
                if holds and not rejects(
                    node, live, call.places, addresses, places, sharing
                ):
                    return Found(node, arrays, places)
        return None

    def _replay(
        self,
        found: Found,
        call: Call,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        node = found.node
        result, values = replay(self.forest, node, call, found.ambient, found.places)
        tally = self.tally
        tally["copied_bytes"] += node.copied_bytes
        if node.escapes:
            tally["escaped"] += len(node.outputs.storages)
            size = Size(sum(s.size for s in node.outputs.storages))
            self.forest.emit(
                Escaped(self.options.name, node.label, len(node.outputs.storages), size)
            )
        if values:
            self._bind(node, values, args, kwargs)
        return result

    def _bind(
        self,
        node: Node,
        values: Sequence[Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> None:
        arguments = self.parameters.bind(args, kwargs)
        for slot, value in zip(self.bound[node], values, strict=True):
            slot.write(value, arguments)

    # Everything else.

    def _missed(
        self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        forest = self.forest
        arguments = self.parameters.bind(args, kwargs)
        before = survey(self.target(), arguments, forest.adapter)
        with forest.device.lock:
            # Another thread may have recorded it meanwhile.
            found = self._find(call)
            if found is not None:
                self.tally["replays"] += 1
                return self._replay(found, call, args, kwargs)
            group = self._group(call, before)
            self._note(call, group)
            nodes = list(self.nodes)
            step = next_step(group, nodes, self.options.max_recordings)
            if step.deed is Deed.RECORD:
                return self._record(call, args, kwargs, group, step, before)
        if step.deed is Deed.WARM_UP:
            return self._warm_up(call, args, kwargs, group, before)
        return self._pass_through(call, args, kwargs, step.reason)

    def _group(self, call: Call, before: Survey) -> Group:
        groups = self.groups.setdefault(call.key, [])
        self.groups.move_to_end(call.key)
        for group in groups:
            if group.ambient_key == before.key:
                return group
        group = Group(before.key, self.options.max_variants)
        group.places = [History() for _ in call.places]
        groups.append(group)
        self._bound_history(groups)
        return group

    def _bound_history(self, groups: list[Group]) -> None:
        """Forget the oldest signatures and ambient values that have no recording."""
        limit = 4 * self.options.max_recordings
        while len(groups) > limit:
            oldest = next((g for g in groups if not g.nodes), None)
            if oldest is None:
                break
            groups.remove(oldest)
        for key in list(self.groups):
            if len(self.groups) <= limit:
                break
            if not any(group.nodes for group in self.groups[key]):
                del self.groups[key]

    def _note(self, call: Call, group: Group) -> None:
        forest = self.forest
        group.missed(forest.tick())
        for history, place in zip(group.places, call.places, strict=True):
            history.saw(
                place.lo,
                inherited=forest.inherits(place.storage),
                max_variants=self.options.max_variants,
            )
        misses = tuple(self._why(call))
        text = self._text(call)
        self.misses.append((text, misses))
        forest.emit(
            Missed(
                self.options.name,
                text,
                len(group.nodes),
                "; ".join(dict.fromkeys(map(str, misses))),
            )
        )

    def _why(self, call: Call) -> list[Miss]:
        live, adapter = self.forest.device.pages.live, self.forest.adapter
        found: list[Miss] = []
        for group in self.groups.get(call.key, ()):
            for node in group.nodes:
                if not node.ambient.holds():
                    found.append(explain(node, Why.AMBIENT, live, call.places, ()))
                    continue
                arrays = [slot.read() for slot in node.ambient.arrays]
                addresses = tuple(map(adapter.address, arrays))
                places, sharing = places_of(arrays, adapter)
                why = rejects(node, live, call.places, addresses, places, sharing)
                if why is not None:
                    found.append(explain(node, why, live, call.places, places))
        return found or [Miss(Why.UNSEEN)]

    def _text(self, call: Call) -> str:
        names = self.parameters.names(call)
        return ", ".join(
            f"{name}: {self.forest.adapter.text(array)}"
            for name, array in zip(names, call.arrays, strict=True)
        )

    def _warm_up(
        self,
        call: Call,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        group: Group,
        before: Survey,
    ) -> Any:
        watching = session.Session(tolerant=self.options.tolerant)
        forest = self.forest
        watched = warm_up(self.target(), args, kwargs, forest.device, watching)
        after = survey(self.target(), self.parameters.bind(args, kwargs), forest.adapter)
        error = watching.unrecordable or plain_changes(after.changes_since(before))
        with forest.device.lock:
            self.tally["warmups"] += 1
            self._lease_loosely(watched)
            if error is None:
                group.warm = Warm(
                    tuple(map(hash, watching.ops)),
                    watched.stays,
                    analyse(watched.result, (), (), forest.adapter).constants(),
                )
                forest.emit(WarmedUp(self.options.name, self._text(call)))
            self._donate(call, watched.result)
        if error is not None:
            self._cannot(group, error)
        return watched.result

    def _cannot(self, group: Group, error: CaptureError) -> None:
        """Raise a capture error, or remember it where the user said so."""
        if not self.options.tolerant:
            raise error
        group.unrecordable = error

    def _pass_through(
        self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any], reason: str
    ) -> Any:
        watched = warm_up(self.target(), args, kwargs, self.forest.device, None)
        with self.forest.device.lock:
            self.tally["passed_through"] += 1
            self._lease_loosely(watched)
            self._donate(call, watched.result)
        self.forest.emit(PassedThrough(self.options.name, self._text(call), reason))
        return watched.result

    def _lease_loosely(self, watched: Watched) -> None:
        for storage in watched.storages:
            self.forest.leases.begin_loose(storage)

    def _donate(self, call: Call, result: Any) -> None:
        """End the leases of donated arguments, as a replay does."""
        outputs = analyse(result, (), call.arrays, self.forest.adapter)
        for i in self._declared(call, self.options.donate) - outputs.shown(call):
            self.forest.leases.revoke_one(
                call.places[i].storage, f"it was donated to {self.options.name}"
            )

    def _declared(self, call: Call, option: Sequence[str]) -> frozenset[int]:
        """Return the places that hold arguments for the parameters in ``option``."""
        if not option:
            return frozenset()
        arrays = self.parameters.named(self.parameters.names(call), option)
        return frozenset(
            i for i, place in enumerate(call.places) if arrays & set(place.arrays)
        )

    def _record(
        self,
        call: Call,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        group: Group,
        step: Step,
        before: Survey,
    ) -> Any:
        for victim in step.evict:
            self.forest.fell(victim, "a newer recording of the function takes its place")
        try:
            made = record(self._order(call, group, step, before), self.forest)
        except CaptureError as error:
            self._cannot(group, error)
            return self._pass_through(call, args, kwargs, str(error))
        node = made.node
        self._plant(call, group, node, made.bound)
        ambient = [slot.read() for slot in node.ambient.arrays]
        places, _ = places_of(ambient, self.forest.adapter)
        constants = node.outputs.constants()
        error = made.error
        if error is None and group.warm and constants != group.warm.constants:
            error = CaptureError(
                f"a plain result of {self.options.name} differs between two calls "
                "with the same arguments",
                remedy="Return it as a device array, or compute it outside",
            )
        if error is None:
            self.tally["recordings"] += 1
            self._emit_recorded(call, node)
            return self._replay(Found(node, ambient, places), call, args, kwargs)
        return self._once(Found(node, ambient, places), call, args, kwargs, group, error)

    def _once(
        self,
        found: Found,
        call: Call,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        group: Group,
        error: BaseException,
    ) -> Any:
        """Do what the function did before its error, once, and forget it."""
        try:
            result = self._replay(found, call, args, kwargs)
        finally:
            self.forest.fell(found.node, None)
        if not isinstance(error, CaptureError):
            raise error
        self._cannot(group, error)
        self.tally["passed_through"] += 1
        return result

    def _emit_recorded(self, call: Call, node: Node) -> None:
        self.forest.emit(
            Recorded(
                self.options.name,
                self._text(call),
                len(node.recording.ops),
                node.clobbers.bit_count(),
            )
        )

    def _order(self, call: Call, group: Group, step: Step, before: Survey) -> Order:
        forest = self.forest
        names = self.parameters.names(call)
        return Order(
            fn=self.target(),
            label=f"{self.options.name}#{forest.number()}",
            parent=None if forest.last is None else forest.last.label,
            call=call,
            names=[" and ".join(names[k] for k in p.arrays) for p in call.places],
            pinned=self._declared(call, self.options.pinned),
            donated=self._declared(call, self.options.donate),
            group=group,
            universal=step.universal,
            candidates=self._candidates(call),
            reached=frozenset(
                id(forest.adapter.storage(array)) for array in before.arrays()
            ),
            bind=self.parameters.bind,
        )

    def _candidates(self, call: Call) -> list[Any]:
        """Return output extents of other signatures: they exclude each other."""
        live = self.forest.device.pages.live
        mine = {
            extent
            for node, (key, _) in self.nodes.items()
            if key == call.key
            for extent in node.range.output_extents()
        }
        return list(
            dict.fromkeys(
                extent
                for node, (key, _) in self.nodes.items()
                if key != call.key
                for extent in node.range.output_extents()
                if extent not in mine and not extent.mask & live
            )
        )

    def _plant(
        self, call: Call, group: Group, node: Node, bound: tuple[BoundArray, ...]
    ) -> None:
        for other in group.nodes:
            if other.ambient == node.ambient:
                node.ambient = other.ambient
        group.add(node)
        self.nodes[node] = (call.key, group)
        self.bound[node] = bound
        self.forest.plant(node, self._forget)

    def _forget(self, node: Node, reason: str | None) -> None:
        _, group = self.nodes.pop(node)
        group.nodes.remove(node)
        del self.bound[node]
        if reason is not None:
            self.tally["evicted"] += 1
            self.forest.emit(
                Evicted(self.options.name, node.label, node.hits, reason)
            )

    # What users ask for.

    def stats(self) -> Stats:
        """Return what has happened to the calls so far."""
        return Stats(**self.tally)

    def explain(self) -> str:
        """Return the recordings and the recent misses, as text."""
        with self.forest.device.lock:
            refusals = [
                str(group.unrecordable)
                for groups in self.groups.values()
                for group in groups
                if group.unrecordable is not None
            ]
            return explain_function(
                self.options.name, self.stats(), self.nodes, self.misses, refusals
            )
