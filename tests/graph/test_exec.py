"""Linking, aiming and launching: the same results wherever the bytes are."""

from __future__ import annotations

import ctypes
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.driver.api import MOST_COPIES, CopiesOp
from sapwood.driver.layers import Layer
from sapwood.driver.native import Native, NativeCopies
from sapwood.errors import DriverError
from sapwood.graphs.capture import ops_of
from sapwood.graphs.exec import Staged, link
from sapwood.graphs.recording import Recording

PAGE = 1 << 16
SIZE = 32
START = (3, 5, 7)


def _record(bench, program, *addresses):
    """Return the recording of a program on these pages."""
    graph = bench.captured(lambda: program(*addresses))
    found = ops_of(bench.driver, graph, bench.named).recording(
        bench.regions(*addresses)
    )
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


def test_aiming_where_it_is_aimed_is_no_driver_call(bench, program, places):
    """A hit with unmoved arguments costs nothing here, the first one neither."""
    recording = _record(bench, program, *places)
    staged = [Staged(i, bench.memory(9), SIZE, back=True) for i in (0, 1)]
    exec_ = link(bench.driver, recording, places, staged, bench.function)
    for targets in (places, [bench.memory(1), bench.memory(2), places[2]]):
        for _ in range(2):
            for symbol, address in enumerate(targets):
                exec_.aim(symbol, address)
            before = bench.driver.position
            exec_.launch(bench.stream)
        assert bench.driver.position == before + 1
    exec_.close()


@pytest.mark.parametrize("number", [1, 2, 64, MOST_COPIES, MOST_COPIES + 72])
def test_places_that_moved_cost_a_driver_call_together(bench, number):
    """However many are staged: one to copy them in, one to copy some of them back."""
    rooms, first, second = (bench.memory() for _ in range(3))
    staged = [Staged(i, rooms + 32 * i, SIZE, back=not i) for i in range(number)]
    places = [first + 32 * i for i in range(number)]
    for i in range(number):
        bench.write(first + 32 * i, i)
        bench.write(second + 32 * i, 1000 + i)
    recording = Recording((), (), (), ())
    exec_ = link(bench.driver, recording, places, staged, bench.function)
    nodes = -(-number // MOST_COPIES)
    for moving, calls in (((), 0), (range(number), nodes + 1), ((number - 1,), 1)):
        for i in moving:
            places[i] ^= first ^ second
            exec_.aim(i, places[i])
        before = bench.driver.position
        exec_.launch(bench.stream)
        assert bench.driver.position - before <= calls + 1 + (number == 1)
        held = [bench.read(rooms + 32 * i)[0] for i in range(number)]
        assert held == [
            i + 1000 * (places[i] == second + 32 * i) for i in range(number)
        ]
    exec_.close()


def test_an_aim_that_failed_half_way_is_made_again(bench, program, places, expected):
    """Whatever call of it failed, the next launch sets everything anew."""
    recording = _record(bench, program, *places)
    staged = [Staged(i, bench.memory(9), SIZE, back=True) for i in (0, 1)]
    exec_ = link(bench.driver, recording, places, staged, bench.function)
    moved = [bench.memory(), bench.memory(), places[2]]
    failed = []
    for there in (moved, places, [moved[0], *places[1:]], [places[0], *moved[1:]]):
        for skip in count():
            for symbol in (0, 1):  # away, and back where it may be by half
                exec_.aim(symbol, there[symbol])
            bench.driver.plan = {bench.driver.position + skip}
            try:
                exec_.launch(bench.stream)
            except DriverError as error:
                failed.append(error.call)
            else:
                break
            finally:
                bench.driver.plan = ()
            for address, value in zip(there, START, strict=True):
                bench.write(address, value)
            assert _run(bench, exec_, there) == expected
            for symbol in (0, 1):
                exec_.aim(symbol, places[symbol] ^ moved[symbol] ^ there[symbol])
            exec_.launch(bench.stream)
    assert failed.count("set_op") >= 8
    assert failed.count("launch_graph") == 4
    exec_.close()


def test_a_failed_aim_is_not_taken_back_by_aiming_back(bench, program, places):
    """What a failure has left behind is set, though all is where it was before."""
    recording = _record(bench, program, *places)
    staged = [Staged(0, bench.memory(9), SIZE, back=True)]
    exec_ = link(bench.driver, recording, places, staged, bench.function)
    moved = bench.memory(7)
    exec_.aim(0, moved)
    bench.driver.plan = {bench.driver.position + 1}  # copied in from there, not back
    with pytest.raises(DriverError):
        exec_.launch(bench.stream)
    bench.driver.plan = ()
    exec_.aim(0, places[0])
    _run(bench, exec_, places)
    assert bench.read(moved) == [7] * 4
    assert bench.read(places[0]) != [START[0]] * 4
    exec_.close()


class Lending(Layer):
    """A device whose execs C may launch: its words are here, and `told` is C's call."""

    def native(self, exec_, nodes):
        self.exec_, self.nodes = exec_, nodes
        self.words = [(ctypes.c_uint64 * 2)() for _ in nodes]
        starts = map(ctypes.addressof, self.words)
        copies = [
            NativeCopies(node, 0, start, start, 2)
            for node, start in zip(nodes, starts, strict=True)
        ]
        return Native(0, 0, 0, exec_, 0, tuple(copies), self.words)


def test_what_c_has_aimed_is_aimed_anew(bench, program, places, expected):
    """A launch made here is on the places that were named here, all of them."""
    recording = _record(bench, program, *places)
    rooms = [bench.memory(9), bench.memory(9)]
    staged = [Staged(i, room, SIZE, back=not i) for i, room in enumerate(rooms)]
    driver = Lending(bench.driver)
    exec_ = link(driver, recording, places, staged, bench.function)
    _run(bench, exec_, places)
    lent = exec_.lend()
    assert lent is exec_.lend()
    into, back = map(ctypes.addressof, driver.words)
    assert lent.words == {0: [(0, into), (1, back)], 1: [(0, into + 8)]}
    moved = [bench.memory(value) for value in START[:2]]
    ends = tuple(moved), tuple(rooms), (SIZE, SIZE)
    driver.set_op(driver.exec_, driver.nodes[0], CopiesOp(ends[1], ends[0], ends[2]))
    driver.set_op(driver.exec_, driver.nodes[1], CopiesOp(*(each[:1] for each in ends)))
    driver.launch_graph(driver.exec_, bench.stream)
    assert bench.read(moved[0]) != [START[0]] * 4
    for address, value in zip((*moved, *places), START[:2] + START, strict=True):
        bench.write(address, value)
    assert _run(bench, exec_, [*rooms, places[2]]) == expected
    assert bench.read(places[0]) == expected[0]
    assert bench.read(moved[0]) == [START[0]] * 4
    exec_.close()


def test_layers_lend_nothing(bench, program, places):
    """What C does they would not see."""
    recording = _record(bench, program, *places)
    exec_ = link(bench.driver, recording, places, (), bench.function)
    assert exec_.lend() is None
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
    aims=st.sets(st.integers(0, 2)),
)
def test_any_program_is_relocated(make_bench, ops, staged, aims):
    """Staged, aimed or fixed, in any mixture: results equal the program's own."""
    bench, aimed = make_bench(), aims & staged

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
