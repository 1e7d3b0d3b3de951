"""What `functools.lru_cache` keeps, which nothing but its owner's referents shows.

A function that is cached gives the same for the same arguments: that is what its author
says of it. So what it has given is as good as a constant, while somebody holds it.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, Final

_LRU_CACHE: Final = type(lru_cache(int))


def is_cached(value: object) -> bool:
    """Return whether a value is a function that `functools.lru_cache` has made."""
    return type(value) is _LRU_CACHE


class Watched:
    """Cached functions, to find out whether they come to keep more than they do now."""

    def __init__(self, cached: Iterable[Any]) -> None:
        self._before = [(each, each.cache_info().misses) for each in cached]

    def fuller(self) -> list[Any]:
        """Return those that have computed something since."""
        return [f for f, misses in self._before if f.cache_info().misses != misses]

    def kept(self) -> Iterator[Any]:
        """Yield what they keep now, results among it."""
        for cached, _ in self._before:
            for each in gc.get_referents(cached):
                if type(each) is not dict:
                    yield each
                elif each is not vars(cached):
                    yield from each.values()

    def forget(self) -> None:
        """Have those forget all: what they keep of a capture was never computed."""
        for each in self.fuller():
            each.cache_clear()
