"""The statistics as a table of text, at most 75 columns wide."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from sapwood.allocator.caching.picture import Picture
from sapwood.allocator.caching.records.statistics import (
    Account,
    Counters,
    Insight,
    insight,
    pool_name,
)
from sapwood.units import size_text

_Scopes = Sequence[tuple[str, Account]]
_LINE = "-" * 75
_BYTES = {
    "allocated_bytes": "allocated",
    "active_bytes": "... and pending",
    "requested_bytes": "requested",
    "reserved_bytes": "from the driver",
    "inactive_split_bytes": "free, not returnable",
}
_NUMBERS = {
    "allocation": "allocations",
    "active": "... and pending",
    "segment": "segments",
    "inactive_split": "free, not returnable",
}


def summary(picture: Picture, counters: Counters, *, abbreviated: bool = False) -> str:
    """Return what the allocator holds as a table; ``abbreviated``: without classes."""
    seen = insight(picture, counters)
    classes = () if abbreviated else counters.classes.items()
    scopes = [("", counters.total), *((f"  {name}", of) for name, of in classes)]
    lines = [
        *_head(picture, counters, seen),
        *_table("bytes", _BYTES, scopes, size_text),
        *_table("numbers", _NUMBERS, scopes, _number_text),
        *_places(seen),
        _LINE,
    ]
    return "\n".join(lines)


def _head(picture: Picture, counters: Counters, seen: Insight) -> Iterator[str]:
    yield _LINE
    total, limit = size_text(picture.total), size_text(picture.limit)
    yield f"device {picture.device}: {total}, of which {limit} may be taken"
    hits, misses = _number_text(counters.hits), _number_text(counters.misses)
    yield (
        f"{hits} allocations from the cache, {misses} with growth "
        f"({seen.hit_rate:.1%} hits)"
    )
    came = _number_text(counters.num_device_alloc)
    went = _number_text(counters.num_device_free)
    seconds = f"{counters.driver_seconds:.3f} s"
    yield f"{came} pieces from the driver, {went} given back, in {seconds}"
    ooms, retries = counters.num_ooms, counters.num_alloc_retries
    yield f"out of memory {_number_text(ooms)}, retried {_number_text(retries)}"


def _table(
    title: str, names: Mapping[str, str], scopes: _Scopes, text: Callable[[int], str]
) -> Iterator[str]:
    yield _LINE
    yield _row(title, "now", "peak", "came", "went")
    for family, name in names.items():
        for label, scope in scopes:
            yield _row(label or name, *(text(n) for n in getattr(scope, family)))


def _number_text(number: int) -> str:
    return str(number) if number < 10**9 else f"{number / 1e9:.1f}e9"


def _row(name: str, *cells: str) -> str:
    return f"{name:<23}" + "".join(f"{cell:>13}" for cell in cells)


def _places(seen: Insight) -> Iterator[str]:
    yield _LINE
    yield (
        f"rounding {size_text(seen.rounding)}, {seen.fragmentation:.1%} of the free "
        "bytes outside the largest free block"
    )
    for pool, live in sorted(seen.live.items()):
        yield f"pool {pool_name(pool)}: {size_text(live)} allocated"
    for stream, cached in sorted(seen.cached.items()):
        yield f"stream {stream}: {size_text(cached)} free"
    for (pool, size_class, stream), size in sorted(seen.largest_free.items()):
        place = f"pool {pool_name(pool)}, {size_class}, stream {stream}"
        yield f"largest free block of {place}: {size_text(size)}"
