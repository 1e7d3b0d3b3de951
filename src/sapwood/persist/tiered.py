"""Two stores as one: a near one that is asked first, and a far one that is shared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import TypeVar

from sapwood.errors import StoreError
from sapwood.persist.api import Item, Store

R = TypeVar("R")


class Tiered:
    """Asks ``near``, then ``far``, and puts what only ``far`` had into ``near``.

    A put goes to both. As long as one of the two can do what is asked, nothing is
    raised; ``tally`` counts what each could not do, under "near" and "far", and
    "filled": how often ``near`` was given what ``far`` had.
    """

    def __init__(self, near: Store, far: Store) -> None:
        self.near, self.far = near, far
        self.tally: Counter[str] = Counter()

    def get(self, name: str) -> bytes | None:
        value, trouble = self._tried("near", lambda: self.near.get(name))
        if value is not None:
            return value
        value, further = self._tried("far", lambda: self.far.get(name))
        if value is None:
            if error := trouble or further:
                raise error
            return None
        _, refused = self._tried("near", lambda: self.near.put(name, value))
        self.tally["filled"] += refused is None
        return value

    def put(self, name: str, value: bytes) -> None:
        """Keep ``value`` in both; raises only where neither keeps it."""
        _, further = self._tried("far", lambda: self.far.put(name, value))
        _, trouble = self._tried("near", lambda: self.near.put(name, value))
        if trouble is not None and further is not None:
            raise trouble

    def delete(self, name: str) -> bool:
        """Forget ``name`` in both; raises where one of them may still have it."""
        near, trouble = self._tried("near", lambda: self.near.delete(name))
        far, further = self._tried("far", lambda: self.far.delete(name))
        if error := trouble or further:
            raise error
        return bool(near or far)

    def scan(self) -> Iterator[Item]:
        """Yield what is in either; raises only where neither can be read."""
        near, trouble = self._tried("near", lambda: list(self.near.scan()))
        far, further = self._tried("far", lambda: list(self.far.scan()))
        if trouble is not None and further is not None:
            raise trouble
        items = {item.name: item for item in far or ()}
        for item in near or ():
            other = items.get(item.name, item)
            items[item.name] = max(item, other, key=lambda item: item.used)
        yield from items.values()

    def _tried(
        self, who: str, act: Callable[[], R]
    ) -> tuple[R | None, StoreError | OSError | None]:
        try:
            return act(), None
        except (StoreError, OSError) as error:
            self.tally[who] += 1
            return None, error
