"""Pools of pinned memory for captures: what a recording uses is kept for its replays.

A pool exists from its first use to the release of the last. Blocks that nothing
recorded uses go round in it as elsewhere.
"""

from __future__ import annotations

import threading

from sapwood.allocator.caching.picture import DEFAULT_POOL, PoolId
from sapwood.allocator.pinned.cache import Cache
from sapwood.errors import MisuseError

__all__ = ["UNROUTED", "Pool", "Pools"]

UNROUTED = PoolId(-1, 0)
"""What keeps blocks that were recorded while nothing was routed, until the end."""


class Pool:
    """One pool and its free blocks.

    ``uses`` counts the captures that it serves, ``routed`` the threads routed to it.
    """

    def __init__(self, id_: PoolId) -> None:
        self.id = id_
        self.uses = self.routed = 0
        self.cache = Cache()


class Pools:
    """All pools of an allocator, and which one each thread allocates from."""

    def __init__(self) -> None:
        self.default = Pool(DEFAULT_POOL)
        self._pools = {DEFAULT_POOL: self.default}
        self._thread = threading.local()

    def __getitem__(self, id_: PoolId) -> Pool:
        return self._pools[id_]

    def all(self) -> list[Pool]:
        """Return every pool, the default one first."""
        return list(self._pools.values())

    def route(self) -> Pool | None:
        """Return the pool that this thread is routed to, the last begun."""
        stack = self._stack()
        return stack[-1] if stack else None

    def begin(self, id_: PoolId) -> None:
        """Route this thread to a pool, which is thereby used once more.

        Raises `MisuseError` for the default pool and where it is already.
        """
        stack = self._stack()
        if id_ in {DEFAULT_POOL, UNROUTED}:
            raise MisuseError(f"pool {tuple(id_)} is nobody's own: begin another one")
        if any(each.id == id_ for each in stack):
            raise MisuseError(
                f"this thread is routed to pool {tuple(id_)} already: end it first"
            )
        pool = self._pools.setdefault(id_, Pool(id_))
        pool.uses += 1
        pool.routed += 1
        stack.append(pool)

    def end(self, id_: PoolId) -> None:
        """End this thread's last route; raises `MisuseError` where it is another."""
        stack = self._stack()
        if not stack or stack[-1].id != id_:
            last = tuple(stack[-1].id) if stack else "none"
            raise MisuseError(
                f"pool {tuple(id_)} is not the last that this thread began, which is "
                f"{last}: end pools in the reverse order of beginning them"
            )
        stack.pop().routed -= 1

    def is_last_use(self, id_: PoolId) -> bool:
        """Return whether releasing a pool now would end it.

        Raises `MisuseError` where there is none, or it is still routed to.
        """
        pool = self._pools.get(id_)
        if pool is None or pool is self.default:
            raise MisuseError(
                f"pool {tuple(id_)} is none of a capture: release one that was begun, "
                "once per begin"
            )
        if pool.uses == 1 and pool.routed:
            raise MisuseError(
                f"a thread is routed to pool {tuple(id_)}: end it before the release"
            )
        return pool.uses == 1

    def release(self, id_: PoolId) -> Pool | None:
        """End one use of a pool; return it where that was the last, and it is gone."""
        pool = self._pools[id_]
        pool.uses -= 1
        return None if pool.uses else self._pools.pop(id_)

    def _stack(self) -> list[Pool]:
        found: list[Pool] | None = getattr(self._thread, "stack", None)
        if found is None:
            found = self._thread.stack = []
        return found
