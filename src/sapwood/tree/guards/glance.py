"""All guards of a recording as one function, for the case that nothing has changed.

Every test by identity alone, in C or as code that is written out: nearly always that is
the answer, for a fraction of the time. Where it is not, the tests have to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final
from weakref import ref

from sapwood.tree.guards.aliasing import Apart
from sapwood.tree.guards.checks import ArrayTest
from sapwood.tree.guards.steps import Check, assembled
from sapwood.tree.guards.steps_in_c import in_c
from sapwood.tree.guards.steps_in_python import in_python

__all__ = ["Glance"]

PATIENCE: Final = 8
"""Matches before the function is made: most recordings that are used, are used more.
So many, and twice as many each time, that it does not see make it anew."""

PATIENCE_AT_MOST: Final = 1024


class Glance:
    """``look()`` returns the used arrays, or None: it cannot be told at a glance.

    ``latest`` are references to the arrays that were seen last. Whoever binds another
    one where one of them was, and of the same looks, puts it in there. ``renewals``
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
        "look",
        "renewals",
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
        self.renewals = 0
        self.look: Callable[[], list[Any] | None] = self._wait

    def _wait(self) -> None:
        self._left -= 1
        if self._left <= 0:
            self._left = self._patience
            self.write()

    def write(self) -> None:
        """Make the function now, unless it is."""
        if self.look != self._wait:
            return
        program = assembled(self._roots, self._checks, self._apart)
        if program is None:
            self.look = _nothing
            return
        look = in_c(program) or in_python(program) or _nothing
        self.latest, self._places = program.latest, program.places
        self.look = look

    def matched(self, used: Sequence[Any]) -> None:
        """Expect what the tests have just found to be as it was: the used arrays."""
        if used:
            self.renew(used)
        if self.look == self._wait or self.look is _nothing or self.look() is not None:
            return
        self._left -= 1
        if self._left <= 0:
            self._left = self._patience = min(2 * self._patience, PATIENCE_AT_MOST)
            self.renewals += 1
            self.look = self._wait
            self.write()

    def renew(self, used: Iterable[Any]) -> None:
        """Expect these arrays, which look as the used ones did."""
        self.renewals += 1
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
