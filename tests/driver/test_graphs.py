"""Graphs built by hand, executable graphs, and changes of their parameters."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.driver.api import Access, CopyOp, EmptyOp, HostOp, SetOp


def test_nodes_run_after_what_they_depend_on(lab):
    """A diamond made by hand runs in one of its two orders."""
    driver, stream, ran = lab.driver, lab.stream(), []
    graph = driver.create_graph()
    top = driver.add_node(graph, HostOp(lambda: ran.append("top")))
    left = driver.add_node(graph, HostOp(lambda: ran.append("left")), (top,))
    right = driver.add_node(graph, HostOp(lambda: ran.append("right")), (top, top))
    driver.add_node(graph, EmptyOp(), (left, right))
    assert driver.nodes(graph)[:3] == (top, left, right)
    assert len(driver.edges(graph)) == 4
    driver.launch_graph(lab.exec_(graph), stream)
    driver.synchronize_stream(stream)
    assert ran[0] == "top"
    assert sorted(ran[1:]) == ["left", "right"]


@given(st.lists(st.sets(st.integers(0, 11)), min_size=1, max_size=12))
def test_every_order_of_a_graph_keeps_its_edges(make_device_lab, before):
    """Under every schedule each node runs once, after all it depends on."""
    for schedule in ("earliest", "latest", "random:3"):
        lab, ran = make_device_lab(schedule), []
        driver, stream = lab.driver, lab.stream()
        graph, nodes = driver.create_graph(), []
        for number, earlier in enumerate(before):
            op = HostOp(partial(ran.append, number))
            after = tuple([nodes[each] for each in earlier if each < number])
            nodes.append(driver.add_node(graph, op, after))
        exec_ = lab.exec_(graph)
        for _ in range(2):
            ran.clear()
            driver.launch_graph(exec_, stream)
            driver.synchronize()
            assert sorted(ran) == list(range(len(before)))
            for number, earlier in enumerate(before):
                assert all(
                    ran.index(each) < ran.index(number)
                    for each in earlier
                    if each < number
                )
        lab.give_back()
        driver.close()


def test_a_missing_edge_shows(make_lab):
    """Under the latest schedule unordered nodes run in the other order."""
    lab, ran = make_lab("latest"), []
    driver, stream = lab.driver, lab.stream()
    graph = driver.create_graph()
    for number in range(3):
        driver.add_node(graph, HostOp(partial(ran.append, number)))
    driver.launch_graph(lab.exec_(graph), stream)
    driver.synchronize()
    assert ran == [2, 1, 0]


def test_a_changed_parameter_affects_later_launches_only(lab):
    """Launches made before `set_op` run what they were launched with."""
    driver, stream, address = lab.driver, lab.stream(), lab.memory()
    lab.write(address, [0] * 4, stream)
    graph = driver.create_graph()
    node = driver.add_node(graph, lab.op("add", address, address, 1))
    exec_ = lab.exec_(graph)
    driver.launch_graph(exec_, stream)
    driver.set_op(exec_, node, lab.op("add", address + 64, address, 10))
    driver.launch_graph(exec_, stream)
    assert lab.read(address + 64, stream) == [11] * 4
    assert lab.read(address, stream) == [1] * 4


def test_a_destroyed_exec_finishes_its_launches(lab, refused):
    """Launches already made run; further ones are refused."""
    driver, stream, ran = lab.driver, lab.stream(), []
    graph = driver.create_graph()
    driver.add_node(graph, HostOp(lambda: ran.append(1)))
    exec_ = driver.instantiate(graph)
    driver.destroy_graph(graph)
    driver.launch_graph(exec_, stream)
    driver.destroy_exec(exec_)
    with refused("INVALID_HANDLE"):
        driver.launch_graph(exec_, stream)
    with refused("INVALID_HANDLE"):
        driver.destroy_exec(exec_)
    driver.synchronize()
    assert ran == [1]


def test_an_exec_keeps_its_nodes_and_kinds(lab, refused):
    """Other kinds of op, and nodes of other graphs, are refused."""
    driver, address = lab.driver, lab.memory()
    graph, other = driver.create_graph(), driver.create_graph()
    node = driver.add_node(graph, SetOp(address, 1, 8))
    stranger = driver.add_node(other, SetOp(address, 1, 8))
    with refused("INVALID_VALUE"):
        driver.add_node(graph, EmptyOp(), (stranger,))
    exec_ = lab.exec_(graph)
    with refused("INVALID_VALUE"):
        driver.set_op(exec_, node, CopyOp(address, address + 8, 8))
    with refused("INVALID_VALUE"):
        driver.set_op(exec_, stranger, SetOp(address, 1, 8))
    driver.destroy_graph(other)
    with refused("INVALID_HANDLE"):
        driver.node_op(stranger)


def test_a_launch_checks_memory_again_when_the_map_changed(lab, refused):
    """An exec that ran well fails once its memory is gone, and runs well again."""
    driver, page, address = lab.driver, lab.page, lab.memory()
    stream = lab.stream()
    graph = driver.create_graph()
    driver.add_node(graph, SetOp(address, 0, 8))
    exec_ = lab.exec_(graph)
    driver.launch_graph(exec_, stream)
    driver.synchronize()
    driver.unmap(address, page)
    unlucky = lab.stream()
    driver.launch_graph(exec_, unlucky)
    with refused("ILLEGAL_ADDRESS"):
        driver.synchronize_stream(unlucky)
    extent = driver.create(page)
    driver.map(address, extent)
    driver.release(extent)
    driver.set_access(address, page, Access.READ_WRITE)
    driver.launch_graph(exec_, stream)
    assert lab.read(address, stream) == [0, -1, -1, -1]


def test_a_bad_change_shows_at_the_launch(lab, refused):
    """A parameter outside memory is found when it is launched."""
    driver, stream, address = lab.driver, lab.stream(), lab.memory()
    graph = driver.create_graph()
    node = driver.add_node(graph, SetOp(address, 0, 8))
    exec_ = lab.exec_(graph)
    driver.launch_graph(exec_, stream)
    driver.synchronize()
    driver.set_op(exec_, node, SetOp(address + lab.page, 0, 8))
    driver.launch_graph(exec_, stream)
    with refused("ILLEGAL_ADDRESS"):
        driver.synchronize_stream(stream)


@pytest.mark.parametrize(
    "op", [SetOp(0, 256, 1), SetOp(0, 0, -1), CopyOp(8, 0, 9), CopyOp(0, 8, 9)]
)
def test_ops_that_can_never_run_are_refused(lab, refused, op):
    """Bytes above 255, negative sizes and overlapping copies make no node."""
    graph = lab.driver.create_graph()
    with refused("INVALID_VALUE"):
        lab.driver.add_node(graph, op)
    lab.driver.destroy_graph(graph)


def test_parameters_that_a_kernel_does_not_take_are_refused(lab, refused):
    """The kernel and the number of bytes are named."""
    op = lab.op("add")
    with refused("INVALID_VALUE") as refusal:
        lab.driver.launch(type(op)(op.function, b"short"), lab.stream())
    assert refusal.name == "INVALID_VALUE"


def test_modules_and_functions_are_found_by_name(lab, refused):
    """Unknown images, names and unloaded modules are refused."""
    driver, stream, address = lab.driver, lab.stream(), lab.memory()
    with refused("INVALID_IMAGE"):
        driver.load_module(b"nobody's image")
    with refused("NOT_FOUND"):
        driver.find_function(lab.module, "missing")
    module = driver.load_module(b"kernels of the driver's tests")
    op = lab.op("add", address, address)
    op = type(op)(driver.find_function(module, "add"), op.params)
    graph = driver.create_graph()
    driver.add_node(graph, op)
    exec_ = lab.exec_(graph)
    driver.launch_graph(exec_, stream)
    driver.synchronize()
    driver.unload_module(module)
    with refused("INVALID_HANDLE"):
        driver.launch(op, stream)
    with refused("INVALID_HANDLE"):
        driver.unload_module(module)
    driver.launch_graph(exec_, stream)
    with refused("INVALID_HANDLE"):
        driver.synchronize_stream(stream)


def test_pointers_are_all_addresses_in_parameters(lab):
    """Each names its offset, and the bytes that the kernel touches and how."""
    op = lab.op("add", 1 << 20, 1 << 21, count=3)
    write, read = lab.driver.pointers(op.function, op.params)
    assert lab.driver.abilities.exact_addresses
    for pointer, address in ((write, 1 << 20), (read, 1 << 21)):
        found = np.frombuffer(op.params, np.uint64, 1, pointer.offset)[0]
        assert found == pointer.lo == address
        assert pointer.hi == address + 24
    assert (write.writes, read.writes) == (True, False)
