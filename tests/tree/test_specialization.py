"""What is known of one signature: its recordings in order, its places, its misses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.tree.call.roles import History, Role
from sapwood.tree.choose.specialization import Specialization, least_recent
from sapwood.tree.guards import AmbientKey


@given(
    clocks=st.lists(st.integers(0, 20), unique=True).map(sorted), since=st.integers(0)
)
def test_two_misses_are_remembered(clocks, since):
    """The count of misses since a moment is exact up to two, and never more."""
    specialization = Specialization(AmbientKey(None, ()), 2)
    for clock in clocks:
        specialization.missed(clock)
    after = sum(clock > since for clock in clocks)
    assert specialization.missed_since(since) == min(after, 2)


def test_what_copies_less_is_tried_first(make_node, make_use):
    """Recordings stand by escaping, then by the bytes they copy, then by age."""
    specialization = Specialization(AmbientKey(None, ()), 4)
    copying = make_use(Role.COPIED)
    nodes = {
        "escapes": make_node(escapes=True),
        "copies in and back": make_node(make_use(Role.COPIED, written=True)),
        "copies": make_node(copying),
        "escapes too": make_node(escapes=True),
        "copies what is donated": make_node(
            make_use(Role.COPIED, written=True, donated=True)
        ),
        "is unused": make_node(make_use(Role.COPIED, used=False)),
        "is fixed": make_node(make_use()),
    }
    for node in nodes.values():
        specialization.add(node)
    names = {node: name for name, node in nodes.items()}
    assert [names[node] for node in specialization.nodes] == [
        "is unused",
        "is fixed",
        "copies",
        "copies what is donated",
        "copies in and back",
        "escapes",
        "escapes too",
    ]


@pytest.mark.parametrize("where", ["argument", "ambient"])
@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("role", Role)
def test_fixing_what_moves_too_much_is_outdated(
    make_node, make_use, where, moved, role
):
    """Only a recording that inherits a place which comes from too many addresses."""
    specialization = Specialization(AmbientKey(None, ()), 2)
    places = make_use(), make_use(role, name="h"), make_use(name="table")
    if where == "argument":
        node = make_node(*places, arguments=2, lows=[0x3000])
        specialization.places = [History(), History(moved=moved)]
        specialization.ambient = {"table": History(moved=True)}
    else:
        node = make_node(*places, arguments=1, lows=[0x2000, 0x3000])
        specialization.places = [History()]
        specialization.ambient = {
            "h": History(moved=moved),
            "table": History(moved=True),
        }
    specialization.add(node)
    assert specialization.outdated() == [node] * (moved and role is Role.INHERITED)


def test_the_least_recent_is_the_one_longest_unused(make_node):
    """And nothing where there is none."""
    nodes = [make_node(last_used=clock) for clock in (5, 3, 8)]
    assert least_recent(nodes) is nodes[1]
    assert least_recent([]) is None
