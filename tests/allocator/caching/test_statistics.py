"""Counters under PyTorch's names, and what a picture says beyond them."""

from __future__ import annotations

from dataclasses import fields
from itertools import product

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sapwood.allocator.caching.picture import DEFAULT_POOL, PoolId
from sapwood.allocator.caching.records.statistics import (
    Account,
    Counters,
    Tally,
    insight,
    largest_free,
    memory_stats,
    nested_memory_stats,
)
from sapwood.allocator.caching.records.summary import summary
from sapwood.allocator.caching.shortage import reserved
from sapwood.units import Size, size_text
from tests.support.pictures import pictures

SLOW = settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])

FAMILIES = (
    "allocation",
    "segment",
    "active",
    "inactive_split",
    "allocated_bytes",
    "reserved_bytes",
    "active_bytes",
    "inactive_split_bytes",
    "requested_bytes",
)
POOLS = ("all", "small_pool", "large_pool")
FIGURES = ("current", "peak", "allocated", "freed")
SCALARS = (
    "num_alloc_retries",
    "num_ooms",
    "max_split_size",
    "num_sync_all_streams",
    "num_device_alloc",
    "num_device_free",
    "num_oom_rejections",
)
KEYS = {
    *(".".join(key) for key in product(FAMILIES, POOLS, FIGURES)),
    *(".".join(key) for key in product(("oversize_allocations",), FIGURES)),
    *(".".join(key) for key in product(("oversize_segments",), FIGURES)),
    *SCALARS,
}

numbers = st.integers(0, 1 << 45)
tallies = st.builds(Tally, numbers, numbers, numbers, numbers)
accounts = st.builds(Account, **{family.name: tallies for family in fields(Account)})
pools = st.sampled_from([DEFAULT_POOL, PoolId(0, 1), PoolId(2, 0)])
classes = st.sampled_from(["small", "large"])
counters = st.builds(
    Counters,
    total=accounts,
    classes=st.dictionaries(classes, accounts),
    pools=st.dictionaries(pools, accounts),
    pool_classes=st.dictionaries(st.tuples(pools, classes), accounts, max_size=2),
    streams=st.dictionaries(st.integers(0, 3), accounts, max_size=2),
    oversize_allocations=tallies,
    oversize_segments=tallies,
    num_ooms=numbers,
    hits=st.integers(0, 10**9 - 1),
    misses=numbers,
    driver_seconds=st.floats(0, 1e6),
)


def test_every_key_that_dashboards_read_is_there():
    """The flat form has PyTorch's 123 keys, sorted, and no other."""
    stats = memory_stats(Counters())
    assert list(stats) == sorted(KEYS)
    assert len(KEYS) == 108 + 8 + 7


@SLOW
@given(counters)
def test_every_key_has_its_counter(counted):
    """A name of a family, a class and a figure is that tally's field."""
    stats = memory_stats(counted, max_split_size=Size(7))
    scopes = {
        "all": counted.total,
        "small_pool": counted.classes.get("small", Account()),
        "large_pool": counted.classes.get("large", Account()),
    }
    for family, pool, figure in product(FAMILIES, POOLS, FIGURES):
        tally = getattr(scopes[pool], family)
        assert stats[f"{family}.{pool}.{figure}"] == getattr(tally, figure)
    for figure in FIGURES:
        oversize = getattr(counted.oversize_segments, figure)
        assert stats[f"oversize_segments.{figure}"] == oversize
    assert stats["max_split_size"] == 7
    assert stats["num_ooms"] == counted.num_ooms


@SLOW
@given(counters)
def test_private_pools_are_named_by_their_ids(counted):
    """Each private pool has its reserved bytes, by class; the default pool has none."""
    nested = nested_memory_stats(counted)["reserved_bytes_by_private_pools"]
    assert nested.keys() == {f"{p.capture}_{p.user}" for p in counted.pools} - {"0_0"}
    for pool in counted.pools.keys() - {DEFAULT_POOL}:
        held = nested[f"{pool.capture}_{pool.user}"]
        assert tuple(held["all"].values()) == counted.pools[pool].reserved_bytes
        small = counted.pool_classes.get((pool, "small"), Account())
        assert tuple(held["small_pool"].values()) == small.reserved_bytes


@SLOW
@given(counters)
def test_flat_and_nested_say_the_same(counted):
    """Walking the nested form by a flat key's parts finds the flat value."""
    nested, flat = nested_memory_stats(counted), memory_stats(counted)
    for key, value in flat.items():
        found = nested
        for part in key.split("."):
            found = found[part]
        assert found == value
    assert nested["max_split_size"] == -1


@SLOW
@given(pictures(), counters)
def test_insight_accounts_for_every_mapped_byte(picture, counted):
    """Cached, live and pending bytes are what is reserved; parts are parts."""
    seen = insight(picture, counted)
    pending = sum(
        block.size
        for segment in picture.segments
        for block in segment.blocks
        if block.state == "pending"
    )
    cached, live = sum(seen.cached.values()), sum(seen.live.values())
    assert cached + live + pending == reserved(picture)
    assert 0 <= seen.rounding <= live
    assert 0.0 <= seen.fragmentation < 1.0
    assert 0.0 <= seen.hit_rate <= 1.0
    for (pool, _, stream), size in seen.largest_free.items():
        assert 0 < size <= seen.cached[stream]
        assert pool in seen.live
    assert bool(seen.largest_free) == bool(cached)


@SLOW
@given(pictures())
def test_one_free_block_is_no_fragmentation(picture):
    """All free bytes in one piece are 0 fragmentation; several pieces are more."""
    free = [
        block.size
        for segment in picture.segments
        for block in segment.blocks
        if block.state == "free"
    ]
    assert (insight(picture, Counters()).fragmentation == 0.0) == (len(free) < 2)
    assert max(free, default=0) == max(largest_free(picture).values(), default=0)


@SLOW
@given(pictures(), counters, st.booleans())
def test_the_summary_is_narrow_and_says_the_totals(picture, counted, abbreviated):
    """No line is wider than 75 columns, and the first figures are the counters'."""
    text = summary(picture, counted, abbreviated=abbreviated)
    assert max(map(len, text.splitlines())) <= 75
    allocated = next(line for line in text.splitlines() if line.startswith("allocated"))
    figures = [size_text(figure) for figure in counted.total.allocated_bytes]
    assert allocated.split("  ")[-1].strip() == figures[-1]
    assert all(figure in allocated for figure in figures)
    assert f"{counted.hits} allocations from the cache" in text
