"""A pool of torch's allocator over addresses of ours, and the graph that uses it.

Torch keeps bare pointers to the functions that serve a pool: whoever ends it, they go
last, when torch has given all segments back.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from functools import partial
from typing import Any

import torch

from sapwood import _fast
from sapwood.errors import CaptureError, MisuseError
from sapwood.memory.native import Segments, open_segments
from sapwood.units import Addr, Size

_C: Any = torch._C


class Pool:
    """Torch's pool ``id`` over ``segments`` of ours, and a ``graph``."""

    def __init__(self, base: Addr, size: Size, place: torch.device, page: Size) -> None:
        self.segments = _opened(base, size, place.index, page)
        self._turn = _turns.setdefault(place.index, threading.RLock())
        # Torch's class for these would load the library anew every time.
        self._functions: Any = _C._cuda_customAllocator(
            self.segments.serve, self.segments.take_back
        )
        # A pool is of the device that is current where it is made, and of no other.
        with torch.cuda.device(place):
            self._pool: Any = torch.cuda.MemPool(self._functions)
        self.id: tuple[int, int] = self._pool.id
        self.graph: Any = torch.cuda.CUDAGraph(keep_graph=True)

    def begin(self) -> None:
        """Serve what torch allocates in a capture from here, until `rest`.

        A pool that shares its functions waits for others of its kind on this GPU.
        """
        if not self.segments.shares:
            return
        self._turn.acquire()
        try:
            self.segments.begin()
        except BaseException:
            self._turn.release()
            raise

    def rest(self) -> None:
        """Let others capture; on the thread that began."""
        if self.segments.shares:
            self.segments.rest()
            self._turn.release()

    def end(self) -> None:
        """Let go of graph and pool; what serves them goes when torch is done with it.

        That is when all tensors are gone, and then the end of another pool sees to it.
        """
        # The graph goes first: the pool gives back what no graph can use.
        self.graph = None
        self._pool = None
        _ended.append((self.segments, self._functions))
        for each in [each for each in _ended if not each[0].counters().held]:
            _close(each)


def _opened(base: Addr, size: Size, device: int, page: Size) -> Segments:
    """Return a range with functions of its own, while there are any left.

    Raises `CaptureError` where what serves segments was not built.
    """
    opened = partial(open_segments, base, size, device=device, page=page)
    try:
        return opened()
    except MisuseError:
        with suppress(MisuseError):
            return opened(shares=True)
    said, _, remedy = (_fast.trouble() or "").partition(". ")
    raise CaptureError(said, remedy=remedy)


_turns: dict[int, Any] = {}
"""Of each GPU, the turns of pools that share their functions: one in a process."""

_ended: list[tuple[Segments, Any]] = []


def _close(ended: tuple[Segments, Any]) -> None:
    """Close what served a pool, once: a finaliser in here may have come before."""
    try:
        _ended.remove(ended)
    except ValueError:
        return
    ended[0].close()
