"""What to wait for before the lock is taken, so that nobody waits for it, too."""

from __future__ import annotations

from dataclasses import dataclass

from sapwood.driver.api import Driver, EventHandle

__all__ = ["Waits"]


@dataclass(frozen=True, slots=True)
class Waits:
    """Events that are to be over: of pending blocks, and ``lent`` for streams.

    A stream may be gone while somebody waits, an event of one's own may not. More work
    may come meanwhile: who then unmaps waits again, but not for long.
    """

    events: tuple[EventHandle, ...] = ()
    lent: tuple[EventHandle, ...] = ()

    def wait(self, driver: Driver) -> None:
        """Wait for all of them."""
        for event in (*self.events, *self.lent):
            driver.synchronize_event(event)
