"""When what torch's allocator gave during a capture was in use.

Its own history of events says it, which is on for that time. Where somebody else has
it on, it is left alone; where it is not complete, nothing of it is believed.
"""

from __future__ import annotations

import ctypes
from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from sys import getrefcount
from typing import Any, Final

import torch

from sapwood.memory.fold import Life
from sapwood.units import Addr

_COUNTING: Final = ctypes.PYFUNCTYPE(None, ctypes.py_object)
_take: Final = _COUNTING(("Py_IncRef", ctypes.pythonapi))
_drop: Final = _COUNTING(("Py_DecRef", ctypes.pythonapi))

_SHARED: Final = 256
"""The largest number of which CPython has one object for all."""


@contextmanager
def unharmed(pool: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """Yield a pool's ``id``, to be told to one snapshot of torch's.

    Each part has a reference more meanwhile, which is torch's to give up. Where torch
    leaves it, it is taken back, but from numbers that all share: how many others have
    come to have those cannot be told, and one reference more does no harm.
    """
    parts = (*pool, False)  # whether traces are included is told beside the number
    before = [getrefcount(parts[at]) for at in range(len(parts))]
    for part in parts:
        _take(part)
    try:
        yield pool
    finally:
        after = [getrefcount(parts[at]) for at in range(len(parts))]
        for part, old, new in zip(parts, before, after, strict=True):
            if part > _SHARED and new > old:
                _drop(part)


_C: Any = torch._C

MOST: Final = 1 << 18
"""How many events are kept; where there are more, the first ones are missing."""

UNREAD: Final = ("free_requested", "snapshot", "oom")
"""Events that say nothing here, and would take time to read."""

Event = Mapping[str, Any]


class History:
    """What torch's allocator did on one device from `begin` to `end`."""

    def __init__(self, device: int) -> None:
        self._device = device
        self._ours = False
        self._events: Sequence[Event] = ()

    def begin(self) -> None:
        """Have torch note what it allocates, unless it does so for somebody else."""
        self._ours = not _C._cuda_isHistoryEnabled()
        if self._ours:
            torch.cuda.memory._record_memory_history(
                "all",
                context=None,
                stacks="python",
                max_entries=MOST,
                skip_actions=list(UNREAD),
            )

    def end(self, pool: tuple[int, int]) -> None:
        """Keep what was noted, and have torch note no more; ``pool`` is the capture's.

        Without `begin`, or a second time, it does nothing.
        """
        if not self._ours:
            return
        self._ours = False
        try:
            # A snapshot without a pool would tell of everything there is.
            with unharmed(pool) as number:
                traces = _C._cuda_memorySnapshot(number)["device_traces"]
            self._events = traces[self._device]
        finally:
            torch.cuda.memory._record_memory_history(None)

    def taken(self) -> Sequence[Event]:
        """Return what was noted, which is then forgotten."""
        events, self._events = self._events, ()
        return events


def lives_of(
    events: Iterable[Event], spans: Iterable[tuple[Addr, Addr]], stream: int
) -> list[Life] | None:
    """Return when the allocations in ``spans`` were in use, by the order of events.

    ``spans`` are all segments that were served, ``stream`` the one that was captured.
    None where not every event is there, or another stream has used memory of its own:
    then the order of events is not that of the work.
    """
    segments = list(spans)
    lowest = min((lo for lo, _ in segments), default=0)
    highest = max((hi for _, hi in segments), default=0)
    blocks = _Blocks({int(lo) for lo, _ in segments}, stream)
    for moment, event in enumerate(events):
        if lowest <= event.get("addr", -1) < highest and not blocks.add(event, moment):
            return None
    return None if blocks.untold else blocks.lives()


class _Blocks:
    """What the events told so far come to; ``untold`` are segments not heard of yet."""

    def __init__(self, untold: set[int], stream: int) -> None:
        self.untold, self._stream = untold, stream
        self._starts: list[int] = []
        self._open: dict[int, tuple[int, int]] = {}
        self._over: list[Life] = []

    def add(self, event: Event, moment: int) -> bool:
        """Note an event; return whether it can have happened after those before."""
        address = event["addr"]
        match event["action"]:
            case "alloc" if event["stream"] == self._stream:
                return self._begin(address, address + event["size"], moment)
            case "free_completed" if address in self._open:
                self._end(address, moment)
                return True
            case "segment_alloc" if address in self.untold:
                self.untold.remove(address)
                return True
            case action:
                return bool(action == "free_requested")

    def _begin(self, address: int, stop: int, moment: int) -> bool:
        at = bisect(self._starts, address)
        if at and self._open[self._starts[at - 1]][0] > address:
            return False
        if at < len(self._starts) and self._starts[at] < stop:
            return False
        self._starts.insert(at, address)
        self._open[address] = (stop, moment)
        return True

    def _end(self, address: int, moment: int) -> None:
        stop, born = self._open.pop(address)
        del self._starts[bisect(self._starts, address) - 1]
        self._over.append(Life(Addr(address), Addr(stop), born, moment))

    def lives(self) -> list[Life]:
        """Return when each block was in use; those that are have no end."""
        return self._over + [
            Life(Addr(address), Addr(stop), born, None)
            for address, (stop, born) in self._open.items()
        ]
