"""Surveys of one function, again and again: most find what the one before found."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, Final

from sapwood.tree.guards.arrays import Arrays
from sapwood.tree.guards.reach import Walk, reach
from sapwood.tree.guards.survey import Survey
from sapwood.tree.guards.trail import Trail

__all__ = ["Surveyor"]

PATIENCE: Final = 64
"""After so many walks at most, a trail is made again for a function that moves on."""


class Surveyor:
    """Surveys the function that ``target`` gives, which may be gone by now.

    A trail is made where two walks in a row found the same; each that did not serve
    makes the next one wait longer.
    """

    def __init__(
        self, target: Callable[[], Callable[..., Any]], arrays: Arrays
    ) -> None:
        self._target, self._arrays = target, arrays
        self._trail: Trail | None = None
        self._key: Hashable = None
        self._wait, self._left = 1, 1

    def survey(self, arguments: Mapping[str, object]) -> Survey:
        """Read all slots that the function may read in a call with these arguments.

        ``arguments`` are by parameter. Raises `CaptureError` where the function
        reaches too much.
        """
        fn, trail = self._target(), self._trail
        again = None if trail is None else trail.again(fn, arguments, self._arrays)
        if again is not None:
            self._wait = self._left = 1
            return Survey(again.walk, arguments, again)
        walk = reach(fn, arguments, self._arrays)
        survey = Survey(lambda: walk, arguments)
        self._mark(survey, walk, fn, arguments)
        return survey

    def _mark(
        self,
        survey: Survey,
        walk: Walk,
        fn: Callable[..., Any],
        arguments: Mapping[str, object],
    ) -> None:
        """Make a trail of a walk, if one may be of use."""
        same = survey.key == self._key
        self._key = survey.key
        self._left -= 1
        if same and self._left <= 0:
            self._trail = Trail.of(walk, survey.key, fn, arguments)
            self._wait = self._left = min(2 * self._wait, PATIENCE)
