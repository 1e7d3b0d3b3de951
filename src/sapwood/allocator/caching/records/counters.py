"""An allocator's counters as plain values, at one moment.

Read from `Allocator.counters`; the names are those of PyTorch's statistics. An
`Account` belongs to a scope: everything, a size class, a pool, a stream.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from sapwood.allocator.caching.picture import PoolId, SizeClass
from sapwood.driver.api import StreamHandle

__all__ = ["NOTHING", "Account", "Counters", "Tally"]


class Tally(NamedTuple):
    """One counter: ``current == allocated - freed``, less what resets forgot."""

    current: int = 0
    peak: int = 0
    allocated: int = 0
    freed: int = 0


NOTHING = Tally()


@dataclass(frozen=True, slots=True)
class Account:
    """The counters of one scope: how many, and how many bytes.

    *active*: allocated, or freed and waiting for other streams. *inactive_split*: free,
    in a classic segment a part of which is in use. *reserved*: held from the driver.
    ``segment`` counts classic segments; expandable ones are in ``reserved_bytes``.
    """

    allocation: Tally = NOTHING
    segment: Tally = NOTHING
    active: Tally = NOTHING
    inactive_split: Tally = NOTHING
    allocated_bytes: Tally = NOTHING
    reserved_bytes: Tally = NOTHING
    active_bytes: Tally = NOTHING
    inactive_split_bytes: Tally = NOTHING
    requested_bytes: Tally = NOTHING


@dataclass(frozen=True, slots=True)
class Counters:
    """All counters of an allocator.

    ``hits`` are allocations served without growing, ``misses`` the others;
    ``driver_seconds`` the time spent growing and giving back.
    """

    total: Account = field(default_factory=Account)
    classes: Mapping[SizeClass, Account] = field(default_factory=dict)
    pools: Mapping[PoolId, Account] = field(default_factory=dict)
    pool_classes: Mapping[tuple[PoolId, SizeClass], Account] = field(
        default_factory=dict
    )
    streams: Mapping[StreamHandle, Account] = field(default_factory=dict)
    oversize_allocations: Tally = NOTHING
    oversize_segments: Tally = NOTHING
    num_alloc_retries: int = 0
    num_ooms: int = 0
    num_oom_rejections: int = 0
    num_sync_all_streams: int = 0
    num_device_alloc: int = 0
    num_device_free: int = 0
    hits: int = 0
    misses: int = 0
    driver_seconds: float = 0.0
