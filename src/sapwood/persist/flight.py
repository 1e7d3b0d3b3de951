"""Single flight: of many who would make the same, one makes it, and the others wait.

A *lease* on a name says who makes it. It ends with its process: in a folder at once, as
its lock does, in Redis when nobody renews it. Nobody waits longer than they say; who
has waited in vain goes on alone. So a lease saves work, and nothing is wrong without.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Thread
from typing import Final, Protocol

from sapwood.errors import StoreError
from sapwood.persist.api import Store

RENEWED: Final = 3.0
"""Seconds after which a lease is renewed; one that needs it lasts three times that."""

_FIRST_LOOK: Final = 0.02
_LAST_LOOK: Final = 0.5
"""Seconds from one look for what another makes to the next, at first and in the end."""


class Lease(Protocol):
    """The right to make something; its methods raise `OSError`."""

    def renew(self) -> None:
        """Have it last for three times `RENEWED` from now, if it can end by itself."""

    def release(self) -> None:
        """End it: the next who asks has it."""


def flight(store: Store, name: str, wait: float) -> tuple[bool, Callable[[], None]]:
    """Return whether ``name`` is in ``store``, and what ends the lease on it.

    If not, the caller is to make it: with a lease, which lasts for ``wait`` seconds, or
    alone, where the one who has it took longer than that, or the store grants none.
    """
    until, pause = time.monotonic() + wait, _FIRST_LOOK
    landed, grant = Event(), getattr(store, "lease", None)
    with suppress(StoreError, OSError):
        while grant is not None:
            lease: Lease | None = grant(name)
            if lease is not None:
                Thread(target=_hold, args=(lease, landed, until), daemon=True).start()
            # Asked after the lease: who had it before may have put it meanwhile.
            if store.get(name) is not None:
                landed.set()
                return True, landed.set
            if lease is not None or time.monotonic() > until:
                break
            time.sleep(pause)
            pause = min(1.5 * pause, _LAST_LOOK)
    return False, landed.set


def _hold(lease: Lease, landed: Event, until: float) -> None:
    """Renew a lease until what it is for has landed, or time is up; then end it."""
    with suppress(OSError):
        while time.monotonic() < until and not landed.wait(RENEWED):
            lease.renew()
    with suppress(OSError):
        lease.release()
