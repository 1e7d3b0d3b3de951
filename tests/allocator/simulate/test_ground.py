"""A device of addresses alone keeps the driver's rules, strictly."""

from __future__ import annotations

from itertools import pairwise

import pytest

from sapwood.allocator.simulate.ours import PAGE, Ground
from sapwood.driver.api import Access, Driver, ExtentHandle
from sapwood.errors import InternalError, MisuseError, OutOfMemory

TOTAL = 64 * PAGE
BASE = Ground(TOTAL).reserve(PAGE)
"""Where a device reserves first."""
EXTENT = ExtentHandle(1)
"""The first handle of a device."""


@pytest.fixture
def ground() -> Ground:
    return Ground(TOTAL)


def test_it_is_a_driver():
    """Every call of the Protocol is there: what it cannot do, it refuses by name."""
    calls = {name for name in dir(Driver) if not name.startswith("_")}
    assert {name for name in calls if not hasattr(Ground(TOTAL), name)} == set()
    with pytest.raises(MisuseError, match="launch needs bytes"):
        Ground(TOTAL).launch(None, 1)


def test_memory_is_counted_once(ground):
    """However often an extent is mapped, it is held once, until all of it is gone."""
    base = ground.reserve(8 * PAGE)
    extent = ground.create(2 * PAGE)
    ground.map(base, extent)
    ground.map(base + 4 * PAGE, extent)
    ground.set_access(base, 2 * PAGE, Access.READ_WRITE)
    assert ground.held == 2 * PAGE
    assert [at - base for at in sorted(ground.memory.mappings)] == [0, 4 * PAGE]
    ground.release(extent)
    ground.unmap(base, 2 * PAGE)
    assert ground.held == 2 * PAGE
    ground.unmap(base + 4 * PAGE, 2 * PAGE)
    assert (ground.held, ground.memory.mappings) == (0, {})
    assert ground.memory_info().free == TOTAL
    ground.unreserve(base, 8 * PAGE)
    assert ground.memory.reservations == {}
    ground.close()


def test_there_is_no_more_than_the_total(ground):
    """Memory that is not there is refused, and nothing has changed."""
    ground.create(TOTAL - PAGE)
    with pytest.raises(OutOfMemory) as refused:
        ground.create(2 * PAGE)
    assert (refused.value.asked, refused.value.free) == (2 * PAGE, PAGE)
    ground.create(PAGE)
    assert ground.memory_info().free == 0


FAULTS = {
    "overlapping map": ("map", BASE + PAGE, EXTENT),
    "map over the middle": ("map", BASE + 3 * PAGE, EXTENT),
    "map beyond the reservation": ("map", BASE + 7 * PAGE, EXTENT),
    "map where nothing is reserved": ("map", BASE - PAGE, EXTENT),
    "map of a part of a page": ("map", BASE + 1, EXTENT),
    "map of an unknown extent": ("map", BASE, ExtentHandle(99)),
    "partial unmap": ("unmap", BASE + 2 * PAGE, PAGE),
    "unmap from the middle": ("unmap", BASE + 3 * PAGE, PAGE),
    "unmap of too much": ("unmap", BASE + 2 * PAGE, 3 * PAGE),
    "access to unmapped": ("set_access", BASE, PAGE, Access.READ),
    "unreserve while mapped": ("unreserve", BASE, 8 * PAGE),
    "partial unreserve": ("unreserve", BASE, PAGE),
    "reserve of no page": ("reserve", PAGE - 1),
    "create of a part of a page": ("create", PAGE + 1),
    "unknown release": ("release", ExtentHandle(99)),
    "unknown stream": ("synchronize_stream", 99),
    "unknown event": ("query_event", 99),
    "leak": ("close",),
}


def _state(ground):
    memory = ground.memory
    return ground.held, repr(memory.reservations), repr(memory.mappings)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_the_caller_is_a_broken_law(name, ground):
    """Each broken rule raises `InternalError`, and changes nothing."""
    assert ground.reserve(8 * PAGE) == BASE
    assert ground.create(2 * PAGE) == EXTENT
    ground.map(BASE + 2 * PAGE, EXTENT)
    before = _state(ground)
    call, *arguments = FAULTS[name]
    with pytest.raises(InternalError):
        getattr(ground, call)(*arguments)
    assert _state(ground) == before
    ground.release(EXTENT)
    ground.unmap(BASE + 2 * PAGE, 2 * PAGE)
    ground.unreserve(BASE, 8 * PAGE)
    ground.close()


def test_handles_end_once(ground):
    """A second release, and a second end of a stream or an event, are faults."""
    extent, stream, event = (
        ground.create(PAGE),
        ground.create_stream(),
        ground.create_event(),
    )
    ground.record_event(event, stream)
    assert ground.query_event(event)
    assert ground.query_stream(stream)
    for end, handle in (
        (ground.release, extent),
        (ground.destroy_stream, stream),
        (ground.destroy_event, event),
    ):
        end(handle)
        with pytest.raises(InternalError):
            end(handle)


def test_streams_keep_their_numbers(ground):
    """A stream is adopted under its number; new ones get numbers of their own."""
    assert ground.adopt_stream(7) == ground.adopt_stream(7) == 7
    assert ground.raw_stream(ground.adopt_stream(7)) == 7
    made = {ground.create_stream() for _ in range(3)}
    assert len(made | {7}) == 4
    with pytest.raises(InternalError):
        ground.raw_stream(99)


def test_reservations_lie_apart(ground):
    """Addresses are aligned to pages, and no two reservations touch."""
    spans = sorted((ground.reserve(size * PAGE), size * PAGE) for size in (1, 600, 3))
    assert all(base % PAGE == 0 for base, _ in spans)
    for (base, size), (following, _) in pairwise(spans):
        assert base + size < following
