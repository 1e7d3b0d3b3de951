"""Graphs with ops around them, and graphs that are somebody else's."""

from __future__ import annotations

from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from sapwood.driver.api import CopyOp, EmptyOp, HostOp, SetOp


@given(
    st.lists(st.sets(st.integers(0, 7)), max_size=8),
    st.integers(0, 3),
    st.integers(0, 3),
)
def test_what_surrounds_a_graph_runs_before_and_after_it(
    make_device_lab, before, first, last
):
    """Under every schedule, first ops come before all others, last ones after all."""
    for schedule in ("earliest", "latest", "random:3"):
        lab, ran = make_device_lab(schedule), []
        driver, stream = lab.driver, lab.stream()
        graph, nodes = driver.create_graph(), []

        def note(what, ran=ran):
            return HostOp(partial(ran.append, what))

        for number, earlier in enumerate(before):
            after = tuple([nodes[each] for each in earlier if each < number])
            nodes.append(driver.add_node(graph, note("inside"), after))
        heads, tails = driver.surround(
            graph, (note("first"),) * first, (note("last"),) * last
        )
        assert (len(heads), len(tails)) == (first, last)
        exec_ = lab.exec_(graph)
        driver.launch_graph(exec_, stream)
        driver.synchronize()
        inside = ["inside"] * len(before)
        assert ran == ["first"] * first + inside + ["last"] * last
        lab.give_back()
        driver.close()


def test_what_surrounds_a_graph_can_be_changed(lab):
    """The nodes that are returned are those of the ops, and can be set anew."""
    driver, stream, ran = lab.driver, lab.stream(), []
    graph = driver.create_graph()
    driver.add_node(graph, HostOp(lambda: ran.append("inside")))
    (head,), (tail,) = driver.surround(
        graph, (HostOp(partial(ran.append, 1)),), (HostOp(partial(ran.append, 2)),)
    )
    exec_ = lab.exec_(graph)
    driver.set_op(exec_, head, HostOp(partial(ran.append, 3)))
    driver.set_op(exec_, tail, HostOp(partial(ran.append, 4)))
    driver.launch_graph(exec_, stream)
    driver.synchronize_stream(stream)
    assert ran == [3, "inside", 4]


def test_nobody_elses_graph_is_made_up(lab, refused):
    """What its owner makes of a graph belongs to a graph that was adopted."""
    driver = lab.driver
    graph = driver.create_graph()
    with refused("INVALID_HANDLE"):
        driver.adopt_exec(graph, 4096)
    driver.destroy_graph(graph)


def test_where_everything_begins_is_among_the_words(lab):
    """Whatever kind of op a node is of; what is no address may be there, too."""
    driver, address = lab.driver, lab.memory()
    graph = driver.create_graph()
    assert driver.words(graph) == frozenset()
    driver.add_node(graph, EmptyOp())
    driver.add_node(graph, HostOp(print))
    assert driver.words(graph) == frozenset()
    driver.add_node(graph, lab.op("add", address, address + 64, 1))
    assert {address, address + 64} <= driver.words(graph)
    driver.add_node(graph, CopyOp(address + 128, address + 256, 32))
    driver.add_node(graph, SetOp(address + 512, 0, 16))
    ends = {address + each for each in (0, 64, 128, 256, 512)}
    assert ends <= driver.words(graph)
    assert driver.words(graph).isdisjoint({address + 8, address + 1024})
    driver.destroy_graph(graph)
