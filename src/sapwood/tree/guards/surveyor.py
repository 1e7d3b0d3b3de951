"""Surveys of one function, again and again: most reach what the last one reached."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any
from weakref import WeakValueDictionary

from sapwood.tree.guards.ambient import Ambient
from sapwood.tree.guards.arrays import Arrays
from sapwood.tree.guards.reach import reach
from sapwood.tree.guards.scope import Reach
from sapwood.tree.guards.survey import Survey

__all__ = ["Surveyor"]


class Surveyor:
    """Surveys the function that ``target`` gives, which may be gone by now.

    Of what it found it keeps the names and, while somebody has them, the guards.
    """

    def __init__(
        self, target: Callable[[], Callable[..., Any]], arrays: Arrays
    ) -> None:
        self._target, self._arrays = target, arrays
        self._latest: Reach | None = None
        self._ambients: WeakValueDictionary[Hashable, Ambient] = WeakValueDictionary()

    def survey(self, arguments: Mapping[str, object]) -> Survey:
        """Read all slots that the function may read in a call with these arguments.

        ``arguments`` are by parameter. Raises `CaptureError` where the function
        reaches too much.
        """
        guess = None if self._latest is None else self._latest.guess()
        walk = reach(self._target(), arguments, self._arrays, guess)
        self._latest = walk.reach
        return Survey(walk, arguments, self._ambients)
