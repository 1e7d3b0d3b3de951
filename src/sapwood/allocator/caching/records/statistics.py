"""Counters under the names that dashboards know, and what those do not say.

`memory_stats` has PyTorch's keys. `insight` reads a picture beside them: what is
cached where, how scattered it is, and how often the cache served.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from sapwood.allocator.caching.picture import DEFAULT_POOL, Picture, PoolId, SizeClass
from sapwood.driver.api import StreamHandle
from sapwood.units import Size


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


Place = tuple[PoolId, SizeClass, StreamHandle]
"""Where a free block can serve from: its pool, its size class, its stream."""


def pool_name(pool: PoolId) -> str:
    """Return how statistics spell a pool: ``0_1``."""
    return f"{pool.capture}_{pool.user}"


def nested_memory_stats(
    counters: Counters, *, max_split_size: Size | None = None
) -> dict[str, Any]:
    """Return the counters as nested dicts under PyTorch's names.

    Leaves are ints, bytes where the name says so; ``max_split_size`` is -1 where it
    is unlimited. Private pools' reserved bytes come under ``a_b`` of their ids.
    """
    stats: dict[str, Any] = {
        family.name: _by_class(family.name, counters.total, counters.classes)
        for family in fields(Account)
    }
    stats["oversize_allocations"] = counters.oversize_allocations._asdict()
    stats["oversize_segments"] = counters.oversize_segments._asdict()
    for counter in fields(Counters):
        if counter.name.startswith("num_"):
            stats[counter.name] = getattr(counters, counter.name)
    stats["max_split_size"] = -1 if max_split_size is None else max_split_size
    private: dict[str, Any] = {}
    for pool, total in counters.pools.items():
        if pool != DEFAULT_POOL:
            classes = {c: a for (p, c), a in counters.pool_classes.items() if p == pool}
            private[pool_name(pool)] = _by_class("reserved_bytes", total, classes)
    return {**stats, "reserved_bytes_by_private_pools": private}


def memory_stats(
    counters: Counters, *, max_split_size: Size | None = None
) -> dict[str, int]:
    """Return `nested_memory_stats` flat and sorted: ``active_bytes.all.current``."""
    return flat(nested_memory_stats(counters, max_split_size=max_split_size))


def _by_class(
    family: str, total: Account, classes: Mapping[SizeClass, Account]
) -> dict[str, dict[str, int]]:
    nothing = Account()
    scopes = {
        "all": total,
        "small_pool": classes.get("small", nothing),
        "large_pool": classes.get("large", nothing),
    }
    return {name: getattr(scope, family)._asdict() for name, scope in scopes.items()}


def flat(nested: Mapping[str, Any]) -> dict[str, int]:
    """Return nested counters under dotted names, sorted."""
    found: dict[str, int] = {}
    for name, value in nested.items():
        if isinstance(value, Mapping):
            found |= {f"{name}.{key}": number for key, number in flat(value).items()}
        else:
            found[name] = value
    return dict(sorted(found.items()))


@dataclass(frozen=True, slots=True)
class Insight:
    """What a cache holds and how well it serves; sizes in bytes, parts in [0, 1].

    ``largest_free`` is the largest block that each place can hand out without
    growing. ``cached`` are all free mapped bytes, by stream; ``live`` are allocated
    bytes, by pool; ``rounding`` is what blocks have beyond their requests.
    ``fragmentation`` is the part of all free bytes outside the largest free block,
    ``hit_rate`` the part of allocations that were served without growing.
    """

    largest_free: Mapping[Place, Size]
    cached: Mapping[StreamHandle, Size]
    live: Mapping[PoolId, Size]
    rounding: Size
    fragmentation: float
    hit_rate: float


def largest_free(picture: Picture) -> dict[Place, Size]:
    """Return the size of the largest free block of every place that has one."""
    largest: dict[Place, Size] = {}
    for segment, block in picture.blocks("free"):
        place = (segment.pool, segment.size_class, segment.stream)
        largest[place] = max(largest.get(place, Size(0)), block.size)
    return largest


def insight(picture: Picture, counters: Counters) -> Insight:
    """Return what ``picture`` and ``counters`` say that `memory_stats` does not."""
    cached: Counter[StreamHandle] = Counter()
    live: Counter[PoolId] = Counter({pool.id: 0 for pool in picture.pools})
    rounding = 0
    for segment, block in picture.blocks("free"):
        cached[segment.stream] += block.size
    for segment, block in picture.blocks("allocated"):
        live[segment.pool] += block.size
        rounding += block.size - block.requested
    largest = largest_free(picture)
    free = sum(cached.values())
    served = counters.hits + counters.misses
    return Insight(
        largest_free=largest,
        cached={stream: Size(size) for stream, size in cached.items()},
        live={pool: Size(size) for pool, size in live.items()},
        rounding=Size(rounding),
        fragmentation=1 - max(largest.values()) / free if free else 0.0,
        hit_rate=counters.hits / served if served else 0.0,
    )
