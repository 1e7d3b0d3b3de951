"""Many copies in one op: what separate copies do, whatever their order."""

from __future__ import annotations

import random

import pytest

from sapwood.driver.api import MOST_COPIES, Access, CopiesOp, CopyOp, EmptyOp, SetOp
from sapwood.units import Size

ROOM = 5 << 18
"""Bytes from which, and to which, copies are made: 1 MiB and some more."""


@pytest.fixture
def memory(lab):
    """Return three rooms: random bytes to copy from, and two of equal bytes."""
    stream, pages = lab.stream(), -(-ROOM // lab.page)
    source, ours, theirs = (lab.memory(pages) for _ in range(3))
    data = memoryview(random.Random(0).randbytes(ROOM))
    lab.driver.upload(source, data, stream)
    lab.driver.synchronize_stream(stream)
    return source, ours, theirs


def _random_op(rng, count, source, to):
    """Return copies of all sizes and alignments, the largest anywhere among them."""
    step, large = rng.choice([1, 16]), rng.choice([0, 1 << 20])
    most = (ROOM - large) // count // 16 * 16
    rows, at = [], to
    for i in range(count):
        room = most + large * (i == 0)
        size = min(room, rng.choice([0, 1, 4096, 4097, room // 2, room]))
        dst = at + rng.randrange(0, room - size + 1, step)
        src = source + rng.randrange(0, ROOM - size + 1, step)
        rows.append((dst, src, Size(size)))
        at += room
    rng.shuffle(rows)
    return CopiesOp(*zip(*rows, strict=True))


def _copied_singly(lab, op, ours, theirs, stream):
    for dst, src, size in zip(op.dsts, op.srcs, op.sizes, strict=True):
        lab.driver.copy(dst - ours + theirs, src, size, stream)
    return lab.driver.download(theirs, Size(ROOM), stream)


@pytest.mark.parametrize("count", [1, 2, 7, 8, 9, 32, 33, MOST_COPIES])
def test_many_copies_do_what_single_ones_do(lab, memory, count):
    """All bytes and no others, in one node, aimed anew at other sizes as well."""
    driver, stream, rng = lab.driver, lab.stream(), random.Random(count)
    source, ours, theirs = memory
    graph = driver.create_graph()
    op = _random_op(rng, count, source, ours)
    node = driver.add_node(graph, op)
    assert driver.nodes(graph) == (node,)
    assert driver.node_op(node) == op
    exec_ = lab.exec_(graph)
    for _ in range(5):
        driver.launch_graph(exec_, stream)
        singly = _copied_singly(lab, op, ours, theirs, stream)
        assert driver.download(ours, Size(ROOM), stream) == singly
        op = _random_op(rng, count, source, ours)
        driver.set_op(exec_, node, op)


def test_copies_aimed_anew_go_where_they_are_aimed(lab, memory):
    """Each end alone, many times, one or all; the rest stays as it was."""
    driver, stream, rng = lab.driver, lab.stream(), random.Random(1)
    source, ours, _ = memory
    srcs = [source + 64 * i for i in range(20)]
    dsts = [ours + 4096 * i for i in range(20)]
    sizes = (Size(48),) * 20
    graph = driver.create_graph()
    node = driver.add_node(graph, CopiesOp(tuple(dsts), tuple(srcs), sizes))
    exec_ = lab.exec_(graph)
    data = driver.download(source, Size(ROOM), stream)
    for turn in range(40):
        if turn % 2:
            srcs[rng.randrange(20)] = source + rng.randrange(ROOM - 48)
        elif turn % 5:
            rng.shuffle(dsts)
        else:
            srcs = [source + rng.randrange(ROOM - 48) for _ in srcs]
        driver.set_op(exec_, node, CopiesOp(tuple(dsts), tuple(srcs), sizes))
        driver.launch_graph(exec_, stream)
        held = driver.download(ours, Size(ROOM), stream)
        for dst, src in zip(dsts, srcs, strict=True):
            lo, at = dst - ours, src - source
            assert held[lo : lo + 48] == data[at : at + 48]
            assert set(held[lo + 48 : lo + 4096]) == {0xFF}


def test_more_or_fewer_copies_may_be_set(lab, memory):
    """The number is no part of a node's kind: tables of all sizes take turns."""
    driver, stream = lab.driver, lab.stream()
    source, ours, theirs = memory
    graph = driver.create_graph()
    node = driver.add_node(graph, CopiesOp((ours,), (source,), (Size(8),)))
    exec_ = lab.exec_(graph)
    for count in (2, 1, MOST_COPIES, 9, 1, 8, 33):
        op = _random_op(random.Random(count), count, source, ours)
        driver.set_op(exec_, node, op)
        driver.launch_graph(exec_, stream)
        singly = _copied_singly(lab, op, ours, theirs, stream)
        assert driver.download(ours, Size(ROOM), stream) == singly


def test_copies_run_where_the_graph_says(lab):
    """Behind what writes their sources, and before what writes them again."""
    driver, stream, address = lab.driver, lab.stream(), lab.memory()
    graph = driver.create_graph()
    first = driver.add_node(graph, SetOp(address, 1, 32))
    many = CopiesOp((address + 64, address + 128), (address, address), (32, 16))
    second = driver.add_node(graph, many, (first,))
    driver.add_node(graph, SetOp(address, 2, 32), (second,))
    driver.launch_graph(lab.exec_(graph), stream)
    assert driver.download(address, 160, stream) == b"".join(
        bytes([value]) * size
        for value, size in [(2, 32), (255, 32), (1, 32), (255, 32), (1, 16), (255, 16)]
    )


def test_copies_stand_around_a_graph(lab):
    """Added by `surround`, they run before its roots and after its ends."""
    driver, stream, address = lab.driver, lab.stream(), lab.memory()
    driver.set(address, 3, 32, stream)
    graph = driver.create_graph()
    inner, outer = address + 256, address + 512
    for at in (inner, inner + 64):
        driver.add_node(graph, lab.op("add", at, at, 1))
    into = CopiesOp((inner, inner + 64), (address, address), (32, 32))
    back = CopiesOp((outer, outer + 32), (inner, inner + 64), (32, 32))
    (head,), (tail,) = driver.surround(graph, (into,), (back,))
    assert (driver.node_op(head), driver.node_op(tail)) == (into, back)
    exec_ = lab.exec_(graph)
    driver.launch_graph(exec_, stream)
    expected = [value + 1 for value in lab.read(address, stream)]
    assert lab.read(outer, stream, 8) == expected * 2


def test_launched_copies_keep_their_ends(lab):
    """Launches made before `set_op` copy what they were launched with."""
    driver, stream, address = lab.driver, lab.stream(), lab.memory()
    lab.write(address, [1, 2, 3, 4], stream)
    graph = driver.create_graph()
    there = address + 64, address + 128
    node = driver.add_node(graph, CopiesOp(there, (address, address + 8), (8, 8)))
    exec_ = lab.exec_(graph)
    driver.launch_graph(exec_, stream)
    then = CopiesOp(there[::-1], (address + 16, address + 24), (8, 8))
    driver.set_op(exec_, node, then)
    assert lab.read(address + 64, stream, 1) == [1]
    assert lab.read(address + 128, stream, 1) == [2]
    driver.launch_graph(exec_, stream)
    assert lab.read(address + 64, stream, 1) == [4]
    assert lab.read(address + 128, stream, 1) == [3]


REFUSED = {
    "none": ((), (), ()),
    "too many": tuple((8 * i,) * (MOST_COPIES + 1) for i in range(3)),
    "no source": ((0, 8), (16,), (8, 8)),
    "no target": ((0,), (16, 24), (8, 8)),
    "negative": ((0, 8), (16, 24), (8, -1)),
    "onto itself": ((0, 64), (4, 80), (8, 8)),
    "same target": ((0, 0), (16, 24), (8, 8)),
    "targets that overlap": ((0, 7, 64), (16, 24, 80), (8, 8, 8)),
    "what another writes": ((0, 64), (16, 4), (8, 8)),
    "what one behind writes": ((64, 0, 128), (4, 16, 256), (8, 8, 8)),
    "between two targets": ((0, 64), (1000, 60), (8, 8)),
}


@pytest.mark.parametrize("why", REFUSED)
def test_copies_that_depend_on_an_order_are_refused(lab, refused, why):
    """Added or set; what there was stays, and runs."""
    driver, stream, address = lab.driver, lab.stream(), lab.memory()
    dsts, srcs, sizes = REFUSED[why]
    bad = CopiesOp(
        tuple(address + dst for dst in dsts),
        tuple(address + src for src in srcs),
        sizes,
    )
    graph = driver.create_graph()
    with refused("INVALID_VALUE"):
        driver.add_node(graph, bad)
    assert driver.nodes(graph) == ()
    good = CopiesOp((address + 512, address + 520), (address, address), (8, 4))
    node = driver.add_node(graph, good)
    exec_ = lab.exec_(graph)
    with refused("INVALID_VALUE"):
        driver.set_op(exec_, node, bad)
    lab.write(address, [1, 2, 3, 4], stream)
    driver.launch_graph(exec_, stream)
    assert lab.read(address + 512, stream, 1) == [1]


def test_copies_side_by_side_are_taken(lab):
    """Ends that touch share no byte, equal sources are only read, and none is empty."""
    driver, address = lab.driver, lab.memory()
    graph = driver.create_graph()
    for dsts, srcs, sizes in (
        ((0, 8, 16), (24, 24, 28), (8, 8, 8)),
        ((8, 24), (0, 16), (8, 8)),
        ((0, 0, 4), (64, 0, 4), (8, 0, 0)),
        ((0, 64), (16, 32), (0, 0)),
    ):
        ends = [tuple(address + at for at in column) for column in (dsts, srcs)]
        op = CopiesOp(*ends, sizes)
        assert driver.node_op(driver.add_node(graph, op)) == op
    driver.destroy_graph(graph)


def test_copies_are_of_a_kind_of_their_own(lab, refused):
    """A node of them takes no single copy, nor the other way round."""
    driver, address = lab.driver, lab.memory()
    one = CopyOp(address, address + 64, Size(8))
    many = CopiesOp((address,), (address + 64,), (Size(8),))
    graph = driver.create_graph()
    nodes = driver.add_node(graph, one), driver.add_node(graph, many)
    exec_ = lab.exec_(graph)
    for node, op in zip(nodes, (many, one), strict=True):
        for wrong in (op, EmptyOp()):
            with refused("INVALID_VALUE"):
                driver.set_op(exec_, node, wrong)


@pytest.mark.parametrize("broken", ["dsts", "srcs"])
def test_every_copy_is_checked(lab, refused, broken):
    """One that reads or writes where it may not fails its launch, and no other does."""
    driver, stream, address = lab.driver, lab.stream(), lab.memory()
    frozen = lab.memory()
    driver.set_access(
        frozen, lab.page, Access.READ if broken == "dsts" else Access.NONE
    )
    good = CopiesOp((address, address + 8), (address + 64, address + 72), (8, 8))
    if broken == "dsts":
        bad = CopiesOp((address, frozen), good.srcs, good.sizes)
    else:
        bad = CopiesOp(good.dsts, (frozen, address + 72), good.sizes)
    graph = driver.create_graph()
    node = driver.add_node(graph, good)
    exec_ = lab.exec_(graph)
    driver.launch_graph(exec_, stream)
    driver.synchronize_stream(stream)
    driver.set_op(exec_, node, bad)
    other = lab.stream()
    with refused("ILLEGAL_ADDRESS"):
        driver.launch_graph(exec_, other)
        driver.synchronize_stream(other)
