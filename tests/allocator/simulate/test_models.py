"""The models keep their promises on every trace, and give the figures known of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.allocator.caching.settings import DEFAULT
from sapwood.allocator.caching.sizes import rounded
from sapwood.allocator.simulate import Buffer, Trace, read_trace
from sapwood.allocator.simulate.models.classic import Classic
from sapwood.allocator.simulate.models.expandable import Expandable
from sapwood.allocator.simulate.models.model import Model
from sapwood.allocator.simulate.models.ranges import BestFit, FirstFit, Stitched
from sapwood.errors import OutOfMemory
from sapwood.testing.traces import FAMILIES, make_trace

MIB = 1 << 20
AMPLE = 1 << 45
MODELS = [BestFit, Classic, Expandable, FirstFit, Stitched]


def _traces() -> st.SearchStrategy[Trace]:
    sizes = st.one_of(
        st.integers(1, 4096), st.integers(1, 40 * MIB), st.integers(0, 25).map(_power)
    )
    buffers = st.tuples(
        st.integers(0, 60), st.integers(1, 40), sizes, st.integers(0, 2)
    )
    return st.lists(buffers, min_size=1, max_size=60).map(
        lambda rows: Trace.of(
            "drawn",
            [
                Buffer(str(number), lower, lower + length, size, stream)
                for number, (lower, length, size, stream) in enumerate(rows)
            ],
        )
    )


def _power(exponent: int) -> int:
    return 1 << exponent


def _replay(trace: Trace, model: Model) -> Iterator[tuple[dict[int, int], int]]:
    """Yield what is live where, and what is reserved, after every request."""
    live: dict[int, int] = {}
    for step in trace.steps:
        if step < 0:
            model.free(live.pop(~step))
        else:
            buffer = trace.buffers[step]
            live[step] = model.allocate(buffer.size, buffer.stream)
            yield live, model.reserved


def _overlaps(trace: Trace, live: dict[int, int]) -> bool:
    spans = sorted((at, at + trace.buffers[n].size) for n, at in live.items())
    return any(a[1] > b[0] for a, b in pairwise(spans))


@pytest.mark.parametrize("model", MODELS)
@given(trace=_traces())
def test_live_blocks_lie_apart_in_reserved_memory(model, trace):
    """No two live blocks overlap, and what is live is never more than is reserved."""
    for live, reserved in _replay(trace, model(DEFAULT, AMPLE)):
        assert not _overlaps(trace, live)
        assert sum(trace.buffers[number].size for number in live) <= reserved


@pytest.mark.parametrize("model", MODELS)
@given(trace=_traces(), total=st.integers(1, 64))
def test_a_small_device_is_never_exceeded(model, trace, total):
    """What is reserved fits on the device, or the request is refused as a whole."""
    with suppress(OutOfMemory):
        for live, reserved in _replay(trace, model(DEFAULT, total * 2 * MIB)):
            assert reserved <= total * 2 * MIB
            assert not _overlaps(trace, live)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("family", FAMILIES)
def test_programs_of_every_kind_are_served(model, family):
    """Longer programs keep the same laws, at the moment of their peak."""
    trace = make_trace(family, 1, 600)
    served = list(_replay(trace, model(DEFAULT, AMPLE)))
    assert max(reserved for _, reserved in served) >= trace.peak


@pytest.mark.parametrize(
    ("name", "model", "ratio"),
    [
        ("resnet50", Classic, 1.114),
        ("resnet50", Expandable, 1.021),
        ("resnet50", Stitched, 1.121),
        ("resnet50", BestFit, 1.003),
        ("G_1", Classic, 1.023),
        ("G_1", Expandable, 1.005),
        ("G_1", Stitched, 1.023),
        ("G_1", BestFit, 1.003),
    ],
)
def test_known_figures_come_out(name, model, ratio):
    """Public traces give what other models of the same allocators were measured at."""
    trace = read_trace(Path(__file__).parent / "traces" / f"{name}.csv")
    most = max(reserved for _, reserved in _replay(trace, model(DEFAULT, AMPLE)))
    assert round(most / trace.peak, 3) == ratio


@pytest.mark.parametrize("model", [Classic, Expandable])
def test_streams_share_nothing(model):
    """What one stream freed is not given to another."""
    held = model(DEFAULT, AMPLE)
    address = held.allocate(MIB, 1)
    held.free(address)
    assert held.allocate(MIB, 2) != address
    assert held.allocate(MIB, 1) == address


def test_short_of_memory_cached_segments_go_first():
    """The classic model returns whole free segments before it fails."""
    held = Classic(DEFAULT, 40 * MIB)
    held.free(held.allocate(22 * MIB, 0))
    held.allocate(30 * MIB, 0)
    assert held.calls == {"malloc": 2, "free": 1}
    with pytest.raises(OutOfMemory):
        held.allocate(22 * MIB, 0)


def test_holes_are_unmapped_and_mapped_again():
    """The expandable model unmaps free granules where memory is short."""
    held = Expandable(DEFAULT, 60 * MIB)
    first = held.allocate(20 * MIB, 0)
    last = held.allocate(20 * MIB, 0)
    held.free(first)
    grown = held.allocate(40 * MIB, 0)
    assert grown == last + 20 * MIB
    assert held.reserved == 60 * MIB
    assert held.calls["unmap"] == 1
    held.free(grown)
    assert held.allocate(60 * MIB - 20 * MIB, 0) == grown


@given(size=st.integers(1, 1 << 40), power=st.integers(0, 5))
def test_sizes_round_up_a_little(size, power):
    """With divisions, a size rounds up by at most one of its steps, or to 512."""
    settings = DEFAULT.replace(roundup_power2_divisions=1 << power)
    block = rounded(size, settings.divisions(size))
    assert block >= max(size, 512)
    assert block - size < max(512, (1 << size.bit_length() - 1) >> power)


def test_divisions_are_steps_between_powers_of_two():
    """Sizes round up to the next step; those below 512 times the steps to 512."""
    settings = DEFAULT.replace(roundup_power2_divisions=4)
    sizes = (1, 1200, 2100, 4096, 4097, 7000)
    assert [rounded(size, DEFAULT.divisions(size)) for size in sizes] == [
        512, 1536, 2560, 4096, 4608, 7168,
    ]  # fmt: skip
    assert [rounded(size, settings.divisions(size)) for size in sizes] == [
        512, 1536, 2560, 4096, 5120, 7168,
    ]  # fmt: skip


@given(
    st.lists(st.tuples(st.integers(1, 40), st.booleans()), min_size=1, max_size=60),
)
def test_the_first_fit_is_the_lowest(moves):
    """The lowest free bytes that suffice are taken, and no byte is given twice."""
    step, end = 512, 0
    model, free, held = FirstFit(DEFAULT, AMPLE), set(), []
    for count, gives_back in moves:
        if gives_back and held:
            start, steps = held.pop(0)
            model.free(start * step)
            free |= set(range(start, start + steps))
            continue
        fitting = [a for a in free if set(range(a, a + count)) <= free]
        at_end = next(a for a in range(end + 1) if set(range(a, end)) <= free)
        start = model.allocate(count * step, 0) // step
        assert start == min(fitting, default=at_end)
        held.append((start, count))
        end = max(end, start + count)
        free -= set(range(start, start + count))
        assert model.reserved == end * step
