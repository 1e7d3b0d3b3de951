"""What pinned memory is made of: counters, touching, and ways to get memory."""

from __future__ import annotations

import ctypes
import errno
import mmap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.allocator.pinned import sources
from sapwood.allocator.pinned.sources import shares, touch
from sapwood.allocator.pinned.statistics import Statistics
from sapwood.errors import OutOfMemory

PAGE = mmap.PAGESIZE
KEYS = {
    *(
        f"{family}.{key}"
        for family in (
            *("allocations", "allocated_bytes"),
            *("active_requests", "active_bytes", "requested_bytes"),
        )
        for key in ("current", "peak", "allocated", "freed")
    ),
    *(
        f"{family}.{key}"
        for family in ("host_alloc_time", "host_free_time")
        for key in ("total", "max", "min", "count", "avg")
    ),
    *("num_host_alloc", "num_host_free"),
}


def test_statistics_have_the_names_of_pytorch(rig):
    """All of those of pinned memory, and one family more, flat and nested."""
    allocator = rig.allocator()
    stats = allocator.memory_stats()
    assert set(stats) == KEYS
    assert list(stats) == sorted(stats)
    assert set(stats.values()) == {0}
    nested = allocator.nested_memory_stats()
    assert nested["active_bytes"] == {
        "current": 0,
        "peak": 0,
        "allocated": 0,
        "freed": 0,
    }


@given(st.lists(st.integers(-5, 20), max_size=30))
def test_peaks_are_exact(amounts):
    """The peak is the most that there was at once, and sums are of what went by."""
    statistics, held, seen = Statistics(), [], [0]
    for amount in amounts:
        if amount > 0:
            held.append(amount)
            statistics.count_block(1, amount, amount)
        elif held:
            gone = held.pop(0)
            statistics.count_block(-1, gone, gone)
        seen.append(sum(held))
    told = statistics.nested()["active_bytes"]
    assert told["peak"] == max(seen)
    assert told["current"] == sum(held) == told["allocated"] - told["freed"]


@given(st.lists(st.floats(0, 1), min_size=1))
def test_times_are_of_the_calls(seconds):
    """In whole microseconds: least, most, sum, number and mean."""
    statistics = Statistics()
    for each in seconds:
        statistics.count_segment(1, 1, each)
    spent = [round(1e6 * each) for each in seconds]
    told = statistics.nested()["host_alloc_time"]
    assert (told["min"], told["max"]) == (min(spent), max(spent))
    assert (told["total"], told["count"]) == (sum(spent), len(spent))
    assert told["avg"] == sum(spent) // len(spent)


def test_resets_forget_what_they_say(rig):
    """Peaks begin anew at what is now; accumulations and times at nought."""
    allocator = rig.allocator()
    held = allocator.malloc(1000)
    allocator.free(allocator.malloc(5000))
    allocator.reset_peaks()
    stats = allocator.memory_stats()
    assert stats["active_bytes.peak"] == stats["active_bytes.current"] == 1024
    assert stats["active_bytes.allocated"] == 1024 + 8192
    allocator.reset_accumulated()
    stats = allocator.memory_stats()
    assert stats["active_bytes.current"] == 1024
    for name in ("active_bytes.allocated", "active_bytes.freed", "num_host_alloc"):
        assert stats[name] == 0
    assert stats["host_alloc_time.total"] == stats["host_alloc_time.count"] == 0
    allocator.free(held)


@given(
    st.integers(1, 1 << 16).map(lambda n: n * PAGE),
    st.sampled_from([1, 2, 4, 8, 16, 32, 64, 128]),
)
def test_shares_tile_the_memory(size, threads):
    """In page-aligned parts, no more of them than threads, none of them tiny."""
    parts = shares(0, size, threads)
    assert len(parts) <= threads
    assert [start for start, _ in parts] == [
        sum(length for _, length in parts[:index]) for index in range(len(parts))
    ]
    assert sum(length for _, length in parts) == size
    assert all(start % PAGE == 0 for start, _ in parts)
    assert all(length >= 4 << 20 for _, length in parts[:-1])


@pytest.fixture
def fresh():
    """Return fresh memory of 16 MiB, and how to ask which pages are there."""
    size = 16 << 20
    block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    address = ctypes.addressof(ctypes.c_char.from_buffer(block))

    def there():
        pages = (ctypes.c_ubyte * (size // PAGE))()
        libc = ctypes.CDLL(None)
        libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
        assert libc.mincore(address, size, pages) == 0
        return sum(each & 1 for each in pages)

    yield address, size, there
    block.close()


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("kernel", ["new", "old"])
def test_touched_pages_are_there(fresh, monkeypatch, threads, kernel):
    """All of them, zero as before, also where the system cannot be asked to."""
    address, size, there = fresh
    if kernel == "old":
        monkeypatch.setattr(sources, "_libc", _Failing(errno.EINVAL))
    assert there() == 0
    touch(address, size, threads)
    assert there() == size // PAGE
    assert ctypes.string_at(address, size).count(0) == size


class _Failing:
    """A C library whose madvise fails."""

    def __init__(self, number):
        self._number = number

    def madvise(self, *_):
        ctypes.set_errno(self._number)
        return -1


@pytest.mark.parametrize("threads", [1, 4])
def test_a_system_without_memory_says_so(fresh, monkeypatch, threads):
    """The reason is the system's own."""
    address, size, _ = fresh
    monkeypatch.setattr(sources, "_libc", _Failing(errno.ENOMEM))
    with pytest.raises(OutOfMemory) as caught:
        touch(address, size, threads)
    assert caught.value.__cause__.errno == errno.ENOMEM
