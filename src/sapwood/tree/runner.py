"""One graphed function: each call is replayed, or warmed up, recorded, passed through.

Finding a recording that fits is the hot path, and stands here whole; what to do
otherwise is decided in `decide`, and recording is done in `recorder`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sapwood.errors import CaptureError, MisuseError
from sapwood.events import Escaped, Evicted, Missed, PassedThrough, Recorded, WarmedUp
from sapwood.tree import session
from sapwood.tree.ambient import Survey, survey, undo_bound
from sapwood.tree.build import Plan
from sapwood.tree.decide import Deed, Step, next_step
from sapwood.tree.explain import explain_function
from sapwood.tree.families import Families, Found
from sapwood.tree.forest import Forest
from sapwood.tree.group import Group, Warm
from sapwood.tree.leases import rehearsal
from sapwood.tree.miss import Miss, Why
from sapwood.tree.node import Node
from sapwood.tree.outputs import analyse
from sapwood.tree.parameters import Parameters
from sapwood.tree.preserve import Preserved
from sapwood.tree.recorder import Order, plain_changes, record
from sapwood.tree.replay import replay
from sapwood.tree.signature import Call, describe
from sapwood.tree.stats import Stats, Tally
from sapwood.tree.verify import reachable, verified
from sapwood.tree.watch import Watched, warm_up
from sapwood.units import Size

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
        self.families = Families(
            forest.adapter,
            forest.device.pages,
            limit=max(1024, 4 * options.max_recordings),
        )
        self.misses: deque[tuple[str, tuple[Miss, ...]]] = deque(maxlen=32)

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one call, however it is best run."""
        forest = self.forest
        device = forest.device
        call = describe(args, kwargs, forest.adapter)
        with device.lock:
            self._check_open()
            if device.returns:
                device.returns.drain()
            if forest.before_call is not None:
                forest.before_call()
            found = self.families.find(call)
            if found is not None:
                verify = self.options.verify
                if verify and (self.tally["replays"] + 1) % verify == 0:
                    result = self._verified(found, call, args, kwargs)
                else:
                    result = self._replay(found, call, args, kwargs)
                self.tally["replays"] += 1
                return result
        return self._missed(call, args, kwargs)

    def _check_open(self) -> None:
        if self.forest.device.closed:
            raise MisuseError(
                f"{self.options.name} was called after its runtime was closed. "
                "Graph it on a runtime that is open"
            )

    def __del__(self) -> None:
        # Nobody can call the function any more: its recordings go with it.
        if self.families.nodes:
            item = (self.forest.fell_all, tuple(self.families.nodes))
            self.forest.device.returns.append(item)

    def _replay(
        self,
        found: Found,
        call: Call,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:
        node, ambient = found
        result, values = replay(self.forest, node, call.given, ambient)
        tally = self.tally
        tally["copied_bytes"] += node.copied_bytes
        if node.escapes:
            self._escaped(node)
        if values:
            self._bind(node, values, args, kwargs)
        return result

    def _escaped(self, node: Node) -> None:
        storages = node.outputs.storages
        self.tally["escaped"] += len(storages)
        size = Size(sum(storage.size for storage in storages))
        self.forest.emit(Escaped(self.options.name, node.label, len(storages), size))

    def _bind(
        self,
        node: Node,
        values: Sequence[Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> None:
        arguments = self.parameters.bind(args, kwargs)
        for slot, value in zip(self.families.bound[node], values, strict=True):
            slot.write(value, arguments)

    # Everything else.

    def _missed(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        forest = self.forest
        before = self._look(args, kwargs)
        with forest.device.lock:
            self._check_open()
            # Another thread may have recorded it meanwhile.
            found = self.families.find(call)
            if found is not None:
                result = self._replay(found, call, args, kwargs)
                self.tally["replays"] += 1
                return result
            group = self.families.group(call, before.key, self.options.max_variants)
            reasons = self._note(call, group)
            step = next_step(
                group, list(self.families.nodes), reasons, self.options.max_recordings
            )
            if step.deed is Deed.RECORD:
                return self._record(call, args, kwargs, group, step, before)
        if step.deed is Deed.WARM_UP:
            return self._warm_up(call, args, kwargs, group, before)
        return self._pass_through(call, args, kwargs, step.reason)

    def _note(self, call: Call, group: Group) -> dict[Node, Why]:
        """Remember a call that no recording fits; return why none does."""
        forest = self.forest
        group.missed(forest.tick())
        given = call.given
        places = zip(group.places, given.lows, given.storages, strict=True)
        for history, low, storage in places:
            history.saw(
                low,
                inherited=forest.inherits(storage),
                max_variants=self.options.max_variants,
            )
        misses = self.families.misses(call)
        reasons = tuple(misses.values()) or (Miss(Why.UNSEEN),)
        text = self._text(call)
        self.misses.append((text, reasons))
        told = "; ".join(dict.fromkeys(map(str, reasons)))
        forest.emit(Missed(self.options.name, text, len(misses), told))
        return {node: miss.why for node, miss in misses.items()}

    def _text(self, call: Call) -> str:
        names = self.parameters.names(call)
        return ", ".join(
            f"{name}: {self.forest.adapter.text(array)}"
            for name, array in zip(names, call.given.arrays, strict=True)
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
        changes = self._look(args, kwargs).changes_since(before)
        error = watching.unrecordable or plain_changes(changes)
        with forest.device.lock:
            self._lease_loosely(watched)
            if error is None:
                self.tally["warmups"] += 1
                group.warm = Warm(
                    tuple(map(hash, watching.ops)),
                    watched.stays,
                    analyse(watched.result, (), (), forest.adapter).constants(),
                )
                forest.emit(WarmedUp(self.options.name, self._text(call)))
            self._donate(call, watched.result)
        if error is not None:
            self._cannot(group, error)
            self._passed_through(call, str(error))
        return watched.result

    def _cannot(self, group: Group, error: CaptureError) -> None:
        """Raise a capture error, or remember it where the user said so."""
        if not self.options.tolerant:
            raise error
        group.unrecordable = error

    def _passed_through(self, call: Call, reason: str) -> None:
        self.tally["passed_through"] += 1
        self.forest.emit(PassedThrough(self.options.name, self._text(call), reason))

    def _pass_through(
        self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any], reason: str
    ) -> Any:
        watched = warm_up(self.target(), args, kwargs, self.forest.device, None)
        with self.forest.device.lock:
            self._lease_loosely(watched)
            self._donate(call, watched.result)
            self._passed_through(call, reason)
        return watched.result

    def _lease_loosely(self, watched: Watched) -> None:
        for storage in watched.storages:
            self.forest.leases.begin_loose(storage)

    def _donate(self, call: Call, result: Any) -> None:
        """End the leases of donated arguments, as a replay does."""
        outputs = analyse(result, (), call.given.arrays, self.forest.adapter)
        for i in self._declared(call, self.options.donate) - outputs.shown(call):
            self.forest.leases.donate(call.given.storages[i], self.options.name)

    def _declared(self, call: Call, option: Sequence[str]) -> frozenset[int]:
        """Return the places that hold arguments for the parameters in ``option``."""
        if not option:
            return frozenset()
        arrays = self.parameters.named(self.parameters.names(call), option)
        return call.given.holding(arrays)

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
            self.forest.fell(
                victim, "a newer recording of the function takes its place"
            )
        try:
            made = record(self._order(call, group, step, before), self.forest)
        except CaptureError as error:
            self._cannot(group, error)
            return self._pass_through(call, args, kwargs, str(error))
        node = made.node
        self.families.plant(call, group, node, made.bound)
        self.forest.plant(node, self._forget)
        found = Found(node, made.ambient)
        if made.error is not None:
            return self._once(found, call, args, kwargs, group, made.error)
        self.tally["recordings"] += 1
        self._emit_recorded(call, node)
        return self._replay(found, call, args, kwargs)

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
        self._passed_through(call, str(error))
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
            plan=self._plan(call, step),
            names=[
                " and ".join(names[k] for k in group) for group in call.given.groups()
            ],
            pinned=self._declared(call, self.options.pinned),
            group=group,
            anywhere=step.anywhere,
            reached=frozenset(
                id(forest.adapter.storage(array)) for array in before.arrays()
            ),
            bind=self.parameters.bind,
        )

    def _plan(self, call: Call, step: Step) -> Plan:
        forest = self.forest
        return Plan(
            label=f"{self.options.name}#{forest.number()}",
            parent=None if forest.last is None else forest.last.label,
            call=call,
            donated=self._declared(call, self.options.donate),
            escapes=step.escapes,
            candidates=self.families.candidates(call),
        )

    def _forget(self, node: Node, reason: str | None) -> None:
        self.families.remove(node)
        if reason is not None:
            self.tally["evicted"] += 1
            self.forest.emit(Evicted(self.options.name, node.label, node.hits, reason))

    def _verified(
        self,
        found: Found,
        call: Call,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        forest, fn = self.forest, self.target()
        return verified(
            forest,
            found.node.label,
            reachable(call, self._look(args, kwargs), forest.adapter),
            lambda: warm_up(fn, args, kwargs, forest.device, None).result,
            lambda: self._look(args, kwargs),
            lambda: self._replay(found, call, args, kwargs),
        )

    # What users ask for.

    def warm(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Warm up and record for such arguments; arrays are left as they are."""
        forest = self.forest
        call = describe(args, kwargs, forest.adapter)
        looked = self._look(args, kwargs)
        storages = reachable(call, looked, forest.adapter)
        before = Preserved(forest.device, storages).save()
        try:
            with rehearsal():
                # A warm-up and a recording; what cannot be recorded never ends.
                for _ in range(2):
                    if self._is_warm(call):
                        break
                    self.call(args, kwargs)
        finally:
            undo_bound(self._look(args, kwargs).changes_since(looked))
            before.restore()

    def _is_warm(self, call: Call) -> bool:
        with self.forest.device.lock:
            return self.families.find(call) is not None

    def _look(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Survey:
        arguments = self.parameters.bind(args, kwargs)
        return survey(self.target(), arguments, self.forest.adapter)

    def stats(self) -> Stats:
        """Return what has happened to the calls so far."""
        return Stats(**self.tally)

    def explain(self) -> str:
        """Return the recordings and the recent misses, as text."""
        with self.forest.device.lock:
            return explain_function(
                self.options.name,
                self.stats(),
                self.families.nodes,
                tuple(self.misses),
                self.families.refusals(),
            )
