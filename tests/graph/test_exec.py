"""Linking, aiming and launching: the same results wherever the bytes are."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.errors import DriverError
from sapwood.graphs.capture import read_graph
from sapwood.graphs.exec import Staged, link

PAGE = 1 << 16
SIZE = 32
START = (3, 5, 7)


def _record(bench, program, *addresses):
    """Return the recording of a program on these pages."""
    graph = bench.captured(lambda: program(*addresses))
    found = read_graph(bench.driver, graph, bench.regions(*addresses), bench.named)
    bench.driver.destroy_graph(graph)
    return found


@pytest.fixture
def program(bench):
    """Return a program over three places: kernels, a copy and a set."""

    def program(a, b, c):
        bench.launch(a, b, 1)
        bench.driver.copy(c, a, SIZE, bench.stream)
        bench.launch(b, c, 2)
        bench.driver.set(a, 1, 8, bench.stream)

    return program


@pytest.fixture
def places(bench):
    """Return three pages with the values that every test starts from."""
    return [bench.memory(value) for value in START]


@pytest.fixture
def expected(bench, program):
    """Return what the program makes of its start, run eagerly elsewhere."""
    addresses = [bench.memory(value) for value in START]
    program(*addresses)
    return [bench.read(address) for address in addresses]


def _run(bench, exec_, addresses):
    exec_.launch(bench.stream)
    return [bench.read(address) for address in addresses]


def test_a_relinked_recording_does_the_same_elsewhere(bench, program, places, expected):
    """The relocation law: at any addresses, at any offsets, again and again."""
    recording = _record(bench, program, *places)
    for offset in (0, 512, 4096):
        moved = [bench.memory() + offset for _ in places]
        exec_ = link(bench.driver, recording, moved, (), bench.function)
        for _ in range(2):
            for address, value in zip(moved, START, strict=True):
                bench.write(address, value)
            assert _run(bench, exec_, moved) == expected
        exec_.close()
    assert [bench.read(p) for p in places] == [[v] * 4 for v in START]


@pytest.mark.parametrize("back", [True, False])
def test_a_staged_place_is_copied_in_and_back(bench, program, places, expected, back):
    """The ops work on the copy; what was passed changes where it is copied back."""
    recording = _record(bench, program, *places)
    rooms = [bench.memory(9), bench.memory(9)]
    staged = [
        Staged(i, room, SIZE, back) for i, room in zip((0, 1), rooms, strict=True)
    ]
    exec_ = link(bench.driver, recording, places, staged, bench.function)
    assert _run(bench, exec_, [*rooms, places[2]]) == expected
    passed = [bench.read(place) for place in places[:2]]
    assert passed == (expected[:2] if back else [[3] * 4, [5] * 4])
    exec_.close()


@pytest.mark.parametrize("back", [True, False])
def test_a_staged_place_is_aimed_at_each_calls_bytes(
    bench, program, places, expected, back
):
    """Other bytes are copied in, and back; those passed before stay as they are."""
    recording = _record(bench, program, *places)
    room = bench.memory(9)
    staged = [Staged(0, room, SIZE, back)]
    exec_ = link(bench.driver, recording, places, staged, bench.function)
    other = bench.memory(START[0])
    exec_.aim(0, other)
    assert _run(bench, exec_, [room, *places[1:]]) == expected
    assert bench.read(other) == (expected[0] if back else [START[0]] * 4)
    assert bench.read(places[0]) == [START[0]] * 4
    exec_.close()


def test_a_patched_place_is_found_where_it_is_aimed(bench, program, places, expected):
    """Every op that uses it finds it there, launch after launch."""
    recording = _record(bench, program, *places)
    exec_ = link(bench.driver, recording, places, (), bench.function)
    for symbol in (2, 0):
        moved = list(places)
        moved[symbol] = bench.memory()
        exec_.aim(symbol, moved[symbol])
        for _ in range(2):
            for address, value in zip(moved, START, strict=True):
                bench.write(address, value)
            assert _run(bench, exec_, moved) == expected
        exec_.aim(symbol, places[symbol])
    exec_.close()


def test_aiming_where_it_is_aimed_is_no_driver_call(bench, program, places):
    """A hit with unmoved arguments costs nothing here."""
    recording = _record(bench, program, *places)
    staged = [Staged(0, bench.memory(9), SIZE, back=True)]
    exec_ = link(bench.driver, recording, places, staged, bench.function)
    targets = {0: bench.memory(1), 1: bench.memory(2)}
    for symbol, address in targets.items():
        exec_.aim(symbol, address)
    before = bench.driver.position
    for symbol, address in targets.items():
        exec_.aim(symbol, address)
    assert bench.driver.position == before
    exec_.close()


def test_an_aim_that_failed_half_way_is_made_again(bench, program, places, expected):
    """Whatever call of it failed, the next aim sets everything anew."""
    recording = _record(bench, program, *places)
    staged = [Staged(0, bench.memory(9), SIZE, back=True)]
    exec_ = link(bench.driver, recording, places, staged, bench.function)
    moved = [bench.memory(), bench.memory(), places[2]]
    failures = 0
    for symbol in (0, 1):
        for skip in count():
            exec_.aim(symbol, places[symbol])
            bench.driver.plan = {bench.driver.position + skip}
            try:
                exec_.aim(symbol, moved[symbol])
            except DriverError:
                failures += 1
                bench.driver.plan = ()
                exec_.aim(symbol, moved[symbol])
            else:
                bench.driver.plan = ()
                break
            for address, value in zip(moved, START, strict=True):
                bench.write(address, value)
            there = [*moved[: symbol + 1], *places[symbol + 1 :]]
            for address, value in zip(there, START, strict=True):
                bench.write(address, value)
            assert _run(bench, exec_, there) == expected
        exec_.aim(symbol, moved[symbol])
    assert failures >= 4
    exec_.close()


def test_a_link_that_fails_leaves_nothing(bench, program, places, expected):
    """Whichever driver call fails, nothing leaks, and the next link is whole."""
    recording = _record(bench, program, *places)
    staged = [Staged(1, bench.memory(9), SIZE, back=True)]
    before = bench.checked.leaks()
    failures = 0
    for skip in count():
        bench.driver.plan = {bench.driver.position + skip}
        try:
            exec_ = link(bench.driver, recording, places, staged, bench.function)
        except DriverError:
            failures += 1
            assert bench.checked.leaks() == before
        else:
            break
    bench.driver.plan = ()
    assert failures > len(recording.ops)
    assert _run(bench, exec_, places) == expected
    exec_.close()


def test_a_recording_of_no_ops_links(bench, places):
    """It still copies in, and back after that."""
    recording = _record(bench, lambda *_: None, *places)
    assert recording.ops == ()
    room = bench.memory(9)
    staged = [Staged(0, room, SIZE, back=True)]
    exec_ = link(bench.driver, recording, places, staged, bench.function)
    assert _run(bench, exec_, [room, places[0]]) == [[3] * 4, [3] * 4]
    exec_.close()


@given(
    ops=st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 9)), max_size=6
    ),
    staged=st.sets(st.integers(0, 2)),
    aimed=st.sets(st.integers(0, 2)),
)
def test_any_program_is_relocated(make_bench, ops, staged, aimed):
    """Staged, aimed or fixed, in any mixture: results equal the program's own."""
    bench = make_bench()

    def program(*addresses):
        for dst, src, amount in ops:
            bench.launch(addresses[dst], addresses[src] + 64, amount)

    places = [bench.memory(value) for value in START]
    for place, value in zip(places, START, strict=True):
        bench.write(place + 64, value + 10)
    recording = _record(bench, program, *places)
    moved = list(places)
    for i in sorted(aimed):
        moved[i] = bench.memory(START[i])
        bench.write(moved[i] + 64, START[i] + 10)
    rooms = [Staged(i, bench.memory(0), 96, back=True) for i in sorted(staged)]
    exec_ = link(bench.driver, recording, places, rooms, bench.function)
    for i in sorted(aimed):
        exec_.aim(i, moved[i])
    exec_.launch(bench.stream)
    found = [bench.read(m + at) for m in moved for at in (0, 64)]
    exec_.close()

    other = [bench.memory(value) for value in START]
    for place, value in zip(other, START, strict=True):
        bench.write(place + 64, value + 10)
    program(*other)
    assert found == [bench.read(o + at) for o in other for at in (0, 64)]
    assert bench.close() == {}
