"""A state machine of calls: everything a program may do to outputs, in any order.

`Calls` makes a runtime on any driver and a few graphed functions: a pure one, one
that writes an argument in place, one that takes others' outputs. Beside it the same
program runs on plain NumPy arrays, and both must agree bit for bit. Whatever a
wrong decision of the tree overwrites, reads too early or unmaps shows here.
Needs Hypothesis.
"""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import (
    initialize,
    invariant,
    precondition,
    rule,
)

from sapwood.driver.api import Driver
from sapwood.driver.emulated import Emulated
from sapwood.driver.layers import Checked, Recorded
from sapwood.errors import InternalError, OutOfMemory, StaleOutput
from sapwood.memory.pages import page_numbers
from sapwood.runtime.core import Runtime
from sapwood.units import Mask, Size
from tests.support.machine import Machine
from tests.support.rig import fast_replays_at_once, poison_idle

__all__ = ["Calls", "Program", "emulated"]

_PAGE: Final = Size(1 << 16)
_VARIANTS: Final = 2
_RECORDINGS: Final = 4
_KEPT: Final = 8
_LENGTHS: Final = (4, 9_000)
"""Arrays of a block, and arrays of more than a page."""


def emulated(schedule: str, pages: int) -> Driver:
    """Return an emulated device of so many small pages."""
    return Recorded(Emulated(Size(pages * _PAGE), _PAGE, schedule))


class Program:
    """The functions and their ambient values, on arrays of one world.

    ``array`` makes an array of a host array, ``graph`` a graphed function of a
    function; on the host both change nothing.
    """

    def __init__(
        self,
        array: Callable[[Any], Any],
        graph: Callable[[Callable[..., Any]], Callable[..., Any]],
    ) -> None:
        factor, shift = 2.0, array(np.arange(1.0, 5.0))

        def scaled(x: Any) -> Any:
            bent = np.where(x > 1.0, 0.5 * x, x + 1.0)
            return bent * factor + shift[1]

        def advanced(state: Any, x: Any) -> Any:
            state *= 0.5
            state += x
            return state + 1.0

        def joined(a: Any, b: Any) -> Any:
            both = a * 0.25 + b[::-1]
            return {"whole": both, "tail": both[1:], "other": both - a, "same": a}

        def tune(value: float) -> None:
            nonlocal factor
            factor = value

        def replace(values: Any) -> None:
            nonlocal shift
            shift = array(values)

        def write(value: float) -> None:
            shift[:] = value

        self.scaled, self.advanced, self.joined = (
            graph(scaled),
            graph(advanced),
            graph(joined),
        )
        self.tune, self.replace, self.write = tune, replace, write


@dataclass(frozen=True, slots=True, eq=False)
class Twin:
    """An array on the device, and what it must be."""

    device: Any
    host: Any

    def check(self, what: str) -> None:
        """Raise `InternalError` where the two differ by a bit."""
        found = np.asarray(self.device)
        if found.dtype != self.host.dtype or found.tobytes() != self.host.tobytes():
            raise InternalError(
                f"{what} equals plain NumPy", {"found": found, "expected": self.host}
            )


_place = st.integers(0, 2 * _KEPT)
"""Picks one of however many there are."""


class Calls(Machine):
    """Calls of three graphed functions, and all that comes between calls.

    Subclass it and set ``driver``: given a schedule and a number of pages, it opens a
    device; one that is not emulated heeds what it can of them. Under ``"poisoned"``
    every page that no lease holds is overwritten before each call, and all kept
    outputs are compared after each step; else reading is a step of its own, so that
    work stays unfinished. Raises `InternalError` for a broken law.
    """

    driver: Callable[[str, int], Driver] = staticmethod(emulated)

    @initialize(
        variant=st.sampled_from(["poisoned", "latest", "random:3"]),
        pages=st.sampled_from([48, 256]),
    )
    def begin(self, variant: str, pages: int) -> None:
        """Open a device and make the two worlds."""
        self.eager_check = variant == "poisoned"
        schedule = "earliest" if self.eager_check else variant
        self.checked = Checked(type(self).driver(schedule, pages))
        self.begun()
        self.runtime = Runtime(device=self.checked)
        if variant != "random:3":
            fast_replays_at_once(self.runtime)
        if self.eager_check:
            poison_idle(self.runtime, self.checked)
        self.recordings = self.runtime._recordings
        self.device = self.recordings.device
        self.functions: list[Any] = []
        self.here = Program(self.runtime.array, self._graph)
        self.there = Program(np.array, lambda fn: fn)
        self.side = self.runtime.stream()
        self.inputs = [
            self._input(np.linspace(-1.0, 3.0, length) + offset)
            for length in _LENGTHS
            for offset in (0.0, 0.25)
        ]
        self.kept: list[Twin] = []

    def _graph(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        graphed = self.runtime.graph(
            fn, max_variants=_VARIANTS, max_recordings=_RECORDINGS
        )
        self.functions.append(graphed)
        return graphed  # type: ignore[no-any-return]

    def _input(self, values: Any) -> Twin:
        return Twin(self.runtime.array(values), np.array(values))

    # Calls.

    def _any(self, place: int) -> Twin:
        twins = [*self.kept, *self.inputs]
        return twins[place % len(twins)]

    def _like(self, twin: Twin, place: int) -> Twin:
        shape = twin.host.shape
        twins = [t for t in (*self.kept, *self.inputs) if t.host.shape == shape]
        return twins[place % len(twins)]

    def _call(self, name: str, *twins: Twin) -> Any:
        """Call in both worlds; None where the device has no memory left."""
        try:
            device = getattr(self.here, name)(*(twin.device for twin in twins))
        except OutOfMemory:
            self.kept.clear()
            return None
        host = getattr(self.there, name)(*(twin.host for twin in twins))
        if isinstance(device, dict):
            return {key: Twin(device[key], host[key]) for key in device}
        return Twin(device, host)

    def _keep(self, *twins: Twin) -> None:
        self.kept = [*self.kept, *twins][-_KEPT:]

    @rule(source=_place, keep=st.booleans(), times=st.integers(1, 3))
    def feed_back(self, source: int, keep: bool, times: int) -> None:
        """``x = scaled(x)``, each time with the old ``x`` still bound."""
        twin: Twin | None = self._any(source)
        while twin is not None and times:
            twin, times = self._call("scaled", twin), times - 1
        if twin is not None and keep:
            self._keep(twin)

    @rule(source=_place)
    def keep_calling(self, source: int) -> None:
        """Call with the same argument, and keep every result."""
        twin = self._any(source)
        for _ in range(_VARIANTS + 2):
            result = self._call("scaled", twin)
            if result is not None:
                self._keep(result)

    @rule(state=_place, source=_place)
    def advance(self, state: int, source: int) -> None:
        """Write an argument in place; the result is kept."""
        twin = self._any(state)
        result = self._call("advanced", twin, self._like(twin, source))
        if result is not None:
            self._keep(result)

    @rule(a=_place, b=_place, names=st.sets(st.sampled_from(["whole", "tail", "same"])))
    def join(self, a: int, b: int, names: set[str]) -> None:
        """Take two arrays of one shape; keep some results, perhaps only a view."""
        twin = self._any(a)
        results = self._call("joined", twin, self._like(twin, b))
        if results is not None:
            self._keep(*(results[name] for name in sorted(names)))

    @rule(source=_place, graphed=st.booleans(), forget=st.booleans())
    def aside(self, source: int, graphed: bool, forget: bool) -> None:
        """Read an array on the second stream, and perhaps drop it at once."""
        twin = self._any(source)
        with self.side:
            if graphed:
                result = self._call("scaled", twin)
            else:
                result = Twin(twin.device * 3.0, twin.host * 3.0)
        if forget and twin in self.kept:
            self.kept.remove(twin)
        if result is not None:
            self._keep(result)

    @rule(source=_place)
    def overtake(self, source: int) -> None:
        """Call, read the result on the second stream, drop it, and call again."""
        twin = self._any(source)
        for value in range(_VARIANTS + 2):
            self.write(value)
            result = self._call("scaled", twin)
            if result is None:
                return
            with self.side:
                self._keep(Twin(result.device * 3.0, result.host * 3.0))
            del result  # so that the next call may overwrite it

    @rule(
        source=_place,
        name=st.sampled_from(["scaled", "joined"]),
        turns=st.lists(
            st.sets(st.sampled_from(["keep", "view", "read", "aside", "write"])),
            min_size=3,
            max_size=8,
        ),
    )
    def call_again(self, source: int, name: str, turns: list[set[str]]) -> None:
        """Call with the same arguments again and again; keep and read some results."""
        twin = self._any(source)
        other = self._like(twin, source + 1)
        arguments = (twin, other) if name == "joined" else (twin,)
        for number, turn in enumerate(turns):
            if "write" in turn:
                self.write(number)
            with self.side if "aside" in turn else nullcontext():
                result = self._call(name, *arguments)
            if result is None:
                return
            if name == "joined":
                result = result["whole"]
            if "read" in turn:
                with self.side:
                    self._keep(Twin(result.device * 3.0, result.host * 3.0))
            if "view" in turn:
                self._keep(Twin(result.device[1:], result.host[1:]))
            if "keep" in turn:
                self._keep(result)
            del result  # so that the next call may overwrite it

    # Between calls.

    @precondition(lambda self: self.kept)
    @rule(place=_place)
    def drop_one(self, place: int) -> None:
        """Let go of an output."""
        del self.kept[place % len(self.kept)]

    @rule()
    def drop_all(self) -> None:
        """Let go of all outputs."""
        self.kept.clear()

    @rule(values=st.lists(st.sampled_from([2.0, -0.0, 3.0]), max_size=3), source=_place)
    def tune(self, values: list[float], source: int) -> None:
        """Change the plain value that a function reads, and call it."""
        for value in values:
            self.here.tune(value)
            self.there.tune(value)
            self.feed_back(source, keep=True, times=2)

    @rule(value=st.sampled_from([0.5, 7.0]))
    def replace(self, value: float) -> None:
        """Bind another array where a function reads one."""
        values = np.full(4, value)
        self.here.replace(values)
        self.there.replace(values)

    @rule(value=st.sampled_from([0.25, 9.0]))
    def write(self, value: float) -> None:
        """Write the array that a function reads."""
        self.here.write(value)
        self.there.write(value)

    @rule(places=st.sets(_place, max_size=3))
    def step(self, places: set[int]) -> None:
        """Begin an iteration; outputs that are not kept may not be used any more."""
        kept = [twin for i, twin in enumerate(self.kept) if i in places]
        with self.runtime.step(keep=[twin.device for twin in kept]):
            pass
        storages = {id(twin.device.storage) for twin in (*kept, *self.inputs)}
        for twin in self.kept:
            if id(twin.device.storage) in storages:
                continue
            if twin.device.storage.stale is None:
                kept.append(twin)  # made by eager code: no output
                continue
            with suppress(StaleOutput):
                np.asarray(twin.device)
                raise InternalError("an output that has ended cannot be used")
        self.kept = [twin for twin in self.kept if twin.device.storage.stale is None]

    @precondition(lambda self: self.recordings.nodes)
    @rule(place=_place)
    def evict(self, place: int) -> None:
        """Remove a recording, its outputs held or not."""
        with self.device.lock:
            nodes = list(self.recordings.nodes)
            self.recordings.fell(nodes[place % len(nodes)], "the test says so")

    @rule()
    def synchronize(self) -> None:
        """Wait for everything."""
        self.runtime.synchronize()

    @rule(place=_place)
    def read(self, place: int) -> None:
        """Compare one array, which waits for no more than it needs."""
        self._any(place).check("an array")

    # Laws.

    @invariant()
    def bounded(self) -> None:
        """There are no more recordings than were allowed."""
        self.stepped()
        for function in self.functions:
            cache = function.runner().cache
            groups = [g for groups in cache.groups.values() for g in groups]
            if len(cache.nodes) > _RECORDINGS or any(
                len(group.nodes) > _VARIANTS + 1 for group in groups
            ):
                raise InternalError("recordings are bounded", function.explain())

    @invariant()
    def live_pages_are_leased(self) -> None:
        """A page is live while a lease holds it, and then it is no scratch."""
        pages = self.device.pages
        with self.device.lock:
            self.device.returns.drain()
            leased = Mask(0)
            for lease in self.recordings.leases._held:
                leased = Mask(leased | lease.mask)
            scratch = Mask(0)
            for extent in pages.extents:
                if extent.scratch:
                    scratch = Mask(scratch | extent.mask)
        if leased != pages.live or leased & scratch:
            raise InternalError(
                "live pages are those of leases, and no scratch",
                {
                    name: list(page_numbers(mask))
                    for name, mask in (
                        ("leased", leased),
                        ("live", pages.live),
                        ("scratch", scratch),
                    )
                },
            )

    @invariant()
    def kept_outputs_last(self) -> None:
        """A kept output is never changed."""
        if self.eager_check:
            self._check_all()

    def _check_all(self) -> None:
        for i, twin in enumerate([*reversed(self.kept), *self.inputs]):
            twin.check(f"array {i}")

    def abandon(self) -> None:
        """The traceback holds arrays, whose device is gone when they go."""
        self.device.returns.append = deque[Any](maxlen=0).append
        self.device.closed = True  # so that no finaliser closes what is broken

    def leave(self) -> None:
        """Close the device."""
        self.checked.close()

    def end(self) -> None:
        """Compare everything, close with outputs held, and look for what is left."""
        self._check_all()
        self.runtime.synchronize()
        self.kept.clear()
        self.inputs.clear()
        self.runtime.close()
        for name in ("runtime", "here", "there", "side", "recordings", "functions"):
            delattr(self, name)
        if self.checked.leaks():
            gc.collect()
        if self.checked.leaks():
            raise InternalError("closing leaks nothing", self.checked.leaks())
