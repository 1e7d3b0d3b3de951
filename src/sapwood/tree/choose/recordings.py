"""All recordings of one runtime: who may run, who goes first when memory is short."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final, Literal, Protocol

from sapwood._fast.state import RecordingsState
from sapwood.driver.release import Release
from sapwood.driver.streams import Stream
from sapwood.memory.device import Device
from sapwood.memory.pages import (
    EAGER,
    LIVE,
    RECORDED,
    UNFINISHED,
    Holders,
    page_numbers,
)
from sapwood.memory.range import Range
from sapwood.memory.snapshot import snapshot
from sapwood.memory.storage import Storage
from sapwood.tree.call.integration import Integration
from sapwood.tree.choose.specialization import least_recent
from sapwood.tree.choose.timeline import Timeline
from sapwood.tree.node.leases import Lease, Leases
from sapwood.tree.node.node import Node
from sapwood.tree.watch.capturer import GraphCapturer
from sapwood.units import Mask, Size

Forget = Callable[[Node, str | None], None]


_SHARE: Final = 16
"""Kept outputs may hold one part in so many of the memory limit beyond their bytes."""

_forests: weakref.WeakSet[Recordings] = weakref.WeakSet()
"""Those of all runtimes: addresses are the process's, so any may be asked for some."""


class Keeper(Protocol):
    """One that keeps storages of outputs between replays, as a fast replay does.

    ``own`` are their pages, which are not held while it rests.
    """

    own: Mask

    def let_go(self) -> None: ...

    def rest(self) -> None: ...


class Quiet(Protocol):
    """One that C calls, and counts that only when it is asked to `tell`."""

    def let_go(self) -> None: ...

    def tell(self) -> None: ...


class Recordings(RecordingsState):
    """What the runners of one runtime share; used under the device's lock.

    ``emit`` takes event records; ``last`` is the recording that was replayed last;
    ``kept`` are the fast replays that keep storages of outputs for their next replay. A
    recording gets a fast replay after ``fast_from`` replays. ``single_stream`` refers
    to the stream that all replays ran on; it is None before the first replay, and for
    good once they ran on several. ``quiet`` are those that count in C. ``capturer`` is
    set if the framework captures by itself. Once there was a step (``stepped``), the
    outputs of eager calls are remembered, too, so that a later step ends them.
    """

    __slots__ = ("__dict__", "__weakref__")

    single_stream: weakref.ref[Stream] | None

    def __init__(
        self,
        device: Device,
        integration: Integration,
        emit: Callable[[Any], None],
        *,
        timeline: int,
        held_beyond: int = 1 << 30,
    ) -> None:
        self.device, self.integration, self.emit = device, integration, emit
        self.held_beyond = held_beyond
        self.leases = Leases(device.pages)
        self.nodes: dict[Node, weakref.WeakMethod[Forget]] = {}
        self.last: Node | None = None
        self.single_stream = None
        self._on_several = False
        self.quiet: weakref.WeakSet[Quiet] = weakref.WeakSet()
        self.timeline = Timeline(timeline)
        self.clock = 0
        self._numbers: Counter[str] = Counter()
        self.busy: set[Node] = set()
        self.before_call: Callable[[], None] | None = None
        self.stepped = False
        self.recorder: Callable[[Any, Recordings], Any] | None = None
        self.capturer: GraphCapturer | None = None
        self._capture_stream: Stream | None = None
        self.kept: dict[Keeper, None] = {}
        self.fast_from = 4
        device.returns.rest = partial(self.rest, Mask(-1))
        device.pages.reclaim, device.pages.evict = self._reclaim, self._evict_anywhere
        _forests.add(self)
        device.pages.holders = self._holders

    @property
    def tells(self) -> bool:
        """Whether sessions are told of all that is launched."""
        exact = self.device.driver.abilities.exact_addresses
        return exact or self.capturer is not None

    def capture_stream(self) -> Stream:
        """Return the stream that all captures are made on."""
        if self._capture_stream is None:
            self._capture_stream = self.device.own_stream("capture")
        return self._capture_stream

    def renew_capture_stream(self) -> None:
        """Forget a capture stream whose capture went wrong."""
        self._capture_stream = None

    def plant(self, node: Node, forget: Forget) -> None:
        """Add a recording; ``forget``, a method, takes it from whoever looks for it."""
        self.nodes[node] = weakref.WeakMethod(forget)

    def fell(self, node: Node, reason: str | None) -> None:
        """Remove a recording: nobody finds it any more, its memory returns.

        With a ``reason`` it counts as evicted. Pages with a live lease stay until
        that ends.
        """
        self._let_go()
        self.settle()
        forget = self.nodes.pop(node)()
        if forget is not None:
            forget(node, reason)
        if self.last is node:
            self.last = None
        if not node.running:
            self.discard(node)

    def discard(self, node: Node) -> None:
        """Give back what a recording has; what it made lives on."""
        with Release() as release:
            for part in node.parts():
                release(part.exec.close)
                release(part.range.close)
        # The chain of a node begins with the node itself: without this, only the
        # collector of cycles would free it.
        node.chain = ()

    def enter(self, node: Node, mask: Mask) -> None:
        """Keep a recording, and the pages in ``mask``, for a call on its way."""
        node.running += 1
        self.device.pages.hold(mask)

    def leave(self, node: Node, mask: Mask) -> None:
        """Undo one `enter`."""
        node.running -= 1
        with Release() as release:
            release(self.device.pages.drop, mask)
            if not node.running and node not in self.nodes:
                release(self.discard, node)

    def fell_all(self, nodes: Iterable[Node]) -> None:
        """Remove the recordings of a function that is gone."""
        with Release() as release:
            for node in nodes:
                if node in self.nodes:
                    release(self.fell, node, None)

    def inherits(self, storage: Storage) -> bool:
        """Return whether these bytes are the output of a recording."""
        return isinstance(storage.token, Lease)

    def number(self, kind: Literal["function", "miss", "recording"]) -> int:
        """Return the next number, from 1, to tell things of one kind apart."""
        self._numbers[kind] += 1
        return self._numbers[kind]

    def tick(self, count: int = 1) -> int:
        """Advance the clock that uses and misses are read off."""
        self.clock += count
        return self.clock

    def ran_on(self, stream: Stream) -> None:
        """Note the stream of a replay."""
        if self.single_stream is not None and self.single_stream() is not stream:
            self.single_stream, self._on_several = None, True
        elif self.single_stream is None and not self._on_several:
            self.single_stream = weakref.ref(stream)

    def is_crowded(self) -> bool:
        """Return whether kept outputs hold too much beyond their own bytes."""
        pages, limit = self.device.pages, self.held_beyond
        if pages.limit is not None:
            limit = min(limit, pages.limit // _SHARE)
        if pages.live.bit_count() * pages.page <= limit:
            return False
        self._let_go()
        self.device.returns.drain()
        beyond = pages.live.bit_count() * pages.page - self.leases.size()
        return beyond > limit

    def held_of(self, nodes: Iterable[Node]) -> dict[Node, frozenset[int]]:
        """Return which outputs of some recordings somebody holds, by their numbers."""
        self._let_go()
        self.device.returns.drain()
        held = self.leases.addresses()
        found: dict[Node, frozenset[int]] = {}
        for node in nodes:
            storages = enumerate(node.made())
            found[node] = frozenset(k for k, each in storages if each.address in held)
        return found

    def steps_end(self) -> bool:
        """Return whether steps end what eager calls make, so that these are watched."""
        return self.stepped and self.capturer is None

    def begin_steps(self) -> None:
        """Remember outputs from now on, for steps to end them.

        Copies of outputs are then made by this library: a step could not end those that
        the framework makes.
        """
        if not self.stepped:
            self.stepped = True
            for each in list(self.quiet):
                each.let_go()

    def settle(self) -> None:
        """Have all calls counted that C has run."""
        for each in list(self.quiet):
            each.tell()

    def ranges(self) -> list[Range]:
        """Return the ranges of all recordings."""
        return [part.range for node in self.nodes for part in node.parts()]

    def snapshot(self) -> dict[str, Any]:
        """Return the state of the memory and of the tree, as plain data."""
        self.settle()
        parts = [part for node in self.nodes for part in node.parts()]
        picture = snapshot(self.device, {part.label: part.range for part in parts})
        picture["recordings"] = [
            {
                "name": node.label,
                "parent": node.parent,
                "ops": len(node.recording.ops),
                "hits": node.hits,
                "clobbers": list(page_numbers(node.clobbers)),
                "roles": {place.name: place.role.value for place in node.places},
            }
            for node in self.nodes
        ]
        return picture

    def close(self) -> None:
        """Evict everything."""
        with Release() as release:
            for node in list(self.nodes):
                release(self.fell, node, None)
            for each in list(self.quiet):
                release(each.let_go)
            self._capture_stream = None

    def rest(self, clobbers: Mask) -> None:
        """Have what fast replays keep hold none of these pages, while nobody has it."""
        for each in tuple(self.kept):
            if each.own & clobbers:
                each.rest()

    def sleep(self) -> Size:
        """Give back the memory of recordings that nobody has; return how many bytes."""
        self.rest(Mask(-1))
        return self.device.pages.sleep(self.ranges())

    def wake(self, node: Node) -> None:
        """Have what sleeps again before a recording runs, which is not evicted for it.

        Raises `OutOfMemory`.
        """
        if self.device.pages.asleep:
            self.busy.add(node)
            try:
                self.device.pages.wake()
            finally:
                self.busy.discard(node)

    def _let_go(self) -> None:
        """Have all fast replays let go of the storages that they keep."""
        while self.kept:
            keeper, _ = self.kept.popitem()
            keeper.let_go()

    def _reclaim(self) -> bool:
        """Free some memory; return whether any was found.

        First what fast replays keep, then idle memory of the heap and the framework,
        and last the recording whose last use is longest ago, if it does not sleep.
        """
        if self.kept:
            self._let_go()
            self.device.returns.drain()
            return True
        if self.device.heap.trim() or self.device.framework.trim():
            return True
        return self.evict(lambda n: any(not p.range.is_asleep() for p in n.parts()))

    def evict(self, helps: Callable[[Node], bool] | None = None) -> bool:
        """Give up the recording whose last use is longest ago, if one is idle.

        Only one that ``helps``, if that is asked.
        """
        self.settle()
        idle = (
            node
            for node in self.nodes
            if not (node in self.busy or node.running)
            and (helps is None or helps(node))
        )
        node = least_recent(idle)
        if node is None:
            return False
        self.fell(node, "memory is short")
        return True

    def _evict_anywhere(self) -> bool:
        """Give up a recording for its addresses: another runtime's, if need be."""
        if self.evict():
            return True
        kind = self.device.driver.abilities.kind
        for other in list(_forests):
            device = other.device
            if other is self or device.driver.abilities.kind != kind:
                continue
            # Never wait for it: its thread may be waiting for our lock.
            if device.lock.acquire(blocking=False):
                try:
                    if not device.closed and other.evict():
                        return True
                finally:
                    device.lock.release()
        return False

    def _holders(self) -> Holders:
        pages, known = self.device.pages, Mask(0)
        held, awake = [(EAGER, pages.heap)], pages.awake()
        for part in (part for node in self.nodes for part in node.parts()):
            count = (part.range.mask & awake).bit_count()
            held.append((f"{RECORDED} {part.label}", count))
            known = Mask(known | part.range.mask)
        held.append((LIVE, pages.live.bit_count()))
        held.append((UNFINISHED, pages.unheld(known)))
        return tuple((who, count * pages.page) for who, count in held if count)
