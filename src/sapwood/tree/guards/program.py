"""All guards of a recording as one function, for the case that nothing has changed.

Every test by identity alone, in C: nearly always that is the answer, for a fraction of
the time. Where it is not, or there is no C, the tests have to say.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any, Final
from weakref import ref

from sapwood import _fast
from sapwood._fast.state import GuardState
from sapwood.tree.guards.aliasing import Apart
from sapwood.tree.guards.checks import ArrayTest
from sapwood.tree.guards.steps import Check, Op, Step, Steps, assembled

__all__ = ["GuardProgram", "compiled", "compiler"]

PATIENCE: Final = 8
"""Matches before the function is made: most recordings that are used, are used more.
So many, and twice as many each time, that it does not see make it anew."""

PATIENCE_AT_MOST: Final = 1024


class GuardProgram(GuardState):
    """``read()`` returns the used arrays, or None: the tests have to say.

    ``latest`` are references to the arrays that were seen last. Whoever binds another
    one where one of them was, and of the same looks, puts it in there. ``epoch``
    counts how often that was done for arrays that are used, or the function was made
    anew: it sees more than the tests, and what has changed may stay as it is now.
    """

    __slots__ = (
        "_apart",
        "_checks",
        "_left",
        "_patience",
        "_places",
        "_roots",
        "latest",
        "read",
    )

    def __init__(
        self,
        roots: Sequence[Callable[[], object]],
        checks: Sequence[Check],
        apart: Sequence[Apart] = (),
    ) -> None:
        self._roots, self._checks, self._apart = roots, checks, apart
        self._left = self._patience = PATIENCE
        self.latest: list[Callable[[], object]] = []
        self._places: list[tuple[ArrayTest, int]] = []
        self.epoch = 0
        self.read: Callable[[], list[Any] | None] = self._wait

    def _wait(self) -> None:
        self._left -= 1
        if self._left <= 0:
            self._left = self._patience
            self.write()

    def write(self) -> None:
        """Make the function now, unless it is."""
        if self.read != self._wait:
            return
        steps = assembled(self._roots, self._checks, self._apart)
        read = None if steps is None else compiled(steps)
        if steps is None or read is None:
            self.read = _nothing
            return
        self.latest, self._places = steps.latest, steps.places
        self.read = read

    def matched(self, used: Sequence[Any]) -> None:
        """Expect what the tests have just found to be as it was: the used arrays."""
        if used:
            self.renew(used)
        if self.read == self._wait or self.read is _nothing or self.read() is not None:
            return
        self._left -= 1
        if self._left <= 0:
            self._left = self._patience = min(2 * self._patience, PATIENCE_AT_MOST)
            self.epoch += 1
            self.read = self._wait
            self.write()

    def renew(self, used: Iterable[Any]) -> None:
        """Expect these arrays, which look as the used ones did."""
        self.epoch += 1
        if self.latest:
            places = (n for n, (test, _) in enumerate(self._places) if test.used)
            for place, array in zip(places, used, strict=True):
                self.latest[place] = ref(array)

    def places(self, path: str, array: Any) -> list[int]:
        """Return which of the `latest` are for this slot and arrays that look so."""
        return [
            place
            for place, (test, number) in enumerate(self._places)
            if test.guards[number].path == path and test.same(number, array, [])
        ]


def _nothing() -> None:
    return None


def compiled(steps: Steps) -> Callable[[], list[Any] | None] | None:
    """Return the steps as a function, or None where there is no C.

    It gives what the used arrays' slots hold, or None: it cannot be told so.
    """
    native = compiler()
    if native is None:
        return None
    rows, found = tuple(steps.steps), tuple(steps.found)
    read: Callable[[], list[Any] | None] = native.compile_guards(
        rows, found, steps.latest, steps.registers
    )
    return read


@functools.cache
def compiler() -> ModuleType | None:
    """Return what makes functions of steps, or None where there is no C."""
    native = _fast.native()
    if native is not None and not all(_is_told(native, write) for write in _WRITES):
        native.watch_nothing()
    return native


class _Probe:
    """Something with an attribute."""

    def __init__(self) -> None:
        self.read: object = None


def _set(probe: _Probe) -> None:
    for value in [0] * 100:  # as often as it takes to be done the quick way
        probe.read = value


_WRITES: Final = (
    _set,
    lambda probe: object.__setattr__(probe, "read", 0),
    lambda probe: delattr(probe, "read"),
    lambda probe: probe.__dict__.update(read=0),
)


def _is_told(native: ModuleType, write: Callable[[_Probe], object]) -> bool:
    """Return whether a look notices that an attribute was written.

    CPython 3.13 does not tell those who watch the dict of an object of its attributes.
    """
    probe = _Probe()
    steps = (
        Step(Op.ROOT, 0, 0, lambda: probe),
        Step(Op.ATTRIBUTE, 1, 0, "__dict__"),
        Step(Op.ITEM, 2, 1, "read"),
        Step(Op.IS, 2, 0, None),
    )
    look = native.compile_guards(steps, (), [], 3)
    seen = [look() is not None for _ in range(3)]
    write(probe)
    return all(seen) and look() is None
