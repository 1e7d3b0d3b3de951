"""A captured graph as a recording: every address is accounted for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.driver.api import CopiesOp, EmptyOp, SetOp
from sapwood.driver.layers import Layer
from sapwood.errors import CaptureError
from sapwood.graphs.capture import (
    Foreign,
    Region,
    describe_foreign,
    ops_of,
)
from sapwood.graphs.exec import link
from sapwood.graphs.recording import Kind, Relocation, Touch

PAGE = 1 << 16


class Blind(Layer):
    """A device that does not know the addresses in parameters."""

    def pointers(self, *_):
        return None


@pytest.fixture
def x(bench):
    """Return the address of a page of threes."""
    return bench.memory(3)


@pytest.fixture
def y(bench):
    """Return the address of a page of fives."""
    return bench.memory(5)


def test_a_graph_is_read_as_it_was_captured(bench, x, y):
    """Ops with their kernels, relocations by symbol, bytes touched, and the order."""

    def program():
        bench.launch(x + 64, y, 7)
        bench.driver.copy(y + 32, x + 64, 32, bench.stream)
        bench.driver.set(x, 1, 8, bench.stream)

    graph = bench.captured(program)
    found = ops_of(bench.driver, graph, bench.named).recording(bench.regions(x, y))
    spans = ops_of(bench.driver, graph, bench.named).touched()
    bench.driver.destroy_graph(graph)

    assert [op.kind for op in found.ops] == [Kind.KERNEL, Kind.COPY, Kind.SET]
    assert (found.ops[0].image, found.ops[0].name) == bench.named(bench.mix)
    assert found.edges == ((0, 1), (1, 2))
    assert found.relocations == (
        Relocation(0, 0, 0, 64),
        Relocation(0, 8, 1, 0),
        Relocation(1, 0, 1, 32),
        Relocation(1, 8, 0, 64),
        Relocation(2, 0, 0, 0),
    )
    assert found.touches == (
        Touch(0, 64, 96, writes=True),
        Touch(1, 0, 32, writes=False),
        Touch(1, 32, 64, writes=True),
        Touch(0, 64, 96, writes=False),
        Touch(0, 0, 8, writes=True),
    )
    assert spans == [
        (x + 64, x + 96),
        (y, y + 32),
        (y + 32, y + 64),
        (x + 64, x + 96),
        (x, x + 8),
    ]


def test_forks_are_kept(bench, x, y):
    """Work on a second stream that comes back leaves the edges of a fork."""
    driver, side = bench.driver, bench.driver.create_stream()
    events = [driver.create_event() for _ in range(2)]

    def program():
        bench.launch(x, y)
        driver.record_event(events[0], bench.stream)
        driver.wait_event(side, events[0])
        driver.set(y + 64, 1, 8, side)
        bench.launch(x, y)
        driver.record_event(events[1], side)
        driver.wait_event(bench.stream, events[1])
        bench.launch(x, y + 64)

    graph = bench.captured(program)
    found = ops_of(driver, graph, bench.named).recording(bench.regions(x, y))
    driver.destroy_graph(graph)
    for event in events:
        driver.destroy_event(event)
    driver.destroy_stream(side)

    assert len(found.ops) == 4
    assert all(a < b for a, b in found.edges)
    befores = [{a for a, b in found.edges if b == i} for i in range(len(found.ops))]
    assert befores[0] == set()
    assert sum(0 in before for before in befores) == 2
    assert any(len(before) == 2 for before in befores)


@pytest.mark.parametrize("reach", [-16, PAGE - 16, PAGE])
def test_foreign_addresses_are_found(bench, x, y, reach):
    """Those that begin before a known region, run out of it, or lie behind it."""
    at = y + reach
    graph = bench.captured(lambda: bench.launch(x, at))
    found = ops_of(bench.driver, graph, bench.named).recording(bench.regions(x, y))
    bench.driver.destroy_graph(graph)
    assert isinstance(found, Foreign)
    assert (found.op, found.pointer.lo, found.pointer.writes) == (0, at, False)
    assert describe_foreign(found) == f"op 0 (mix) reads 32 B at {at:#_x}"


def test_a_foreign_write_says_so(bench, x, y):
    """What is written to is worse than what is read."""
    graph = bench.captured(lambda: bench.driver.set(x, 0, 2048, bench.stream))
    found = ops_of(bench.driver, graph, bench.named).recording(bench.regions(y))
    bench.driver.destroy_graph(graph)
    assert describe_foreign(found) == f"op 0 writes 2 KiB at {x:#_x}"


def test_joins_are_ops_of_their_own(bench, x):
    """A node that does nothing is recorded, with what comes before and after it."""
    driver = bench.driver
    graph = driver.create_graph()
    first = driver.add_node(graph, SetOp(x, 1, 8))
    join = driver.add_node(graph, EmptyOp(), (first,))
    driver.add_node(graph, SetOp(x, 2, 8), (join,))
    found = ops_of(driver, graph, bench.named).recording(bench.regions(x))
    spans = ops_of(driver, graph, bench.named).touched()
    driver.destroy_graph(graph)
    assert [op.kind for op in found.ops] == [Kind.SET, Kind.EMPTY, Kind.SET]
    assert found.edges == ((0, 1), (1, 2))
    assert spans == [(x, x + 8)] * 2


@given(
    spans=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9)), max_size=6),
    lo=st.integers(0, 50),
    size=st.integers(1, 9),
)
def test_an_address_belongs_to_the_region_that_holds_its_bytes(
    make_bench, spans, lo, size
):
    """All of its bytes, in one region, wherever the others are."""
    taken, regions = set(), []
    for i, (start, length) in enumerate(spans):
        cells = set(range(start, start + length))
        if not cells & taken:
            taken |= cells
            regions.append((start, start + length, i))
    bench = make_bench()
    base = bench.memory(0)
    made = [Region(base + 8 * a, base + 8 * b, i, base) for a, b, i in regions]
    at = base + 8 * lo
    graph = bench.captured(lambda: bench.driver.set(at, 0, 8 * size, bench.stream))
    found = ops_of(bench.driver, graph, bench.named).recording(made)
    bench.driver.destroy_graph(graph)
    owner = [i for a, b, i in regions if a <= lo and lo + size <= b]
    if owner:
        assert found.relocations == (Relocation(0, 0, owner[0], 8 * lo),)
    else:
        assert isinstance(found, Foreign)
    assert bench.close() == {}


def test_host_calls_are_not_recorded(bench):
    """A replay would run them unseen."""
    graph = bench.captured(lambda: bench.driver.call_host(list, bench.stream))
    with pytest.raises(CaptureError, match="host call was captured"):
        ops_of(bench.driver, graph, bench.named)
    bench.driver.destroy_graph(graph)


def test_copies_of_linking_are_not_recorded(bench, x, y):
    """They are no part of what was captured, and no recording could say them."""
    graph = bench.driver.create_graph()
    bench.driver.add_node(graph, CopiesOp((x,), (y,), (8,)))
    with pytest.raises(CaptureError, match="before it is linked"):
        ops_of(bench.driver, graph, bench.named).recording(bench.regions(x, y))
    bench.driver.destroy_graph(graph)


def test_unknown_parameters_are_not_recorded(bench, x, y):
    """Where the device cannot say which addresses a kernel gets, nobody may guess."""
    graph = bench.captured(lambda: bench.launch(x, y))
    with pytest.raises(CaptureError, match=r"mix.s parameters"):
        ops_of(Blind(bench.driver), graph, bench.named)
    bench.driver.destroy_graph(graph)


def test_a_recording_of_a_replay_is_the_recording(bench, x, y):
    """Capturing, linking elsewhere and capturing that again loses nothing."""

    def program():
        bench.launch(x, y, 2)
        bench.launch(y, x, 3)

    graph = bench.captured(program)
    first = ops_of(bench.driver, graph, bench.named).recording(bench.regions(x, y))
    bench.driver.destroy_graph(graph)
    x2, y2 = bench.memory(0), bench.memory(0)
    exec_ = link(bench.driver, first, [x2, y2], (), bench.function)
    exec_.close()

    def again():
        bench.launch(x2, y2, 2)
        bench.launch(y2, x2, 3)

    graph = bench.captured(again)
    second = ops_of(bench.driver, graph, bench.named).recording(bench.regions(x2, y2))
    bench.driver.destroy_graph(graph)
    assert [op.kind for op in second.ops] == [op.kind for op in first.ops]
    assert second.edges == first.edges
    assert second.relocations == first.relocations
    assert second.touches == first.touches
