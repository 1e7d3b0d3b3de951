"""An errand: the device calls that a decision leaves to be made without the lock.

It is decided under the lock, and what it is about is out of everybody's sight from
then on; performed without the lock; and committed under it again, whatever came out.
"""

from __future__ import annotations

from typing import Protocol

from sapwood.allocator.caching.state import State
from sapwood.driver.api import Driver

__all__ = ["Errand"]


class Errand(Protocol):
    """Something that the device is asked for, or to do, without the lock.

    Errands are short: nobody waits for work in one, but what is unmapped waits for
    its stream.
    """

    def perform(self, driver: Driver) -> None:
        """Make the calls; may raise, having made some of them."""

    def commit(self, state: State) -> Errand | None:
        """Bring the books up to what was done; return what is left to do, if any."""
        ...
