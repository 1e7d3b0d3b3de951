"""May a recording be replayed? Each condition alone, and what a miss is about."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sapwood.tree.call.miss import Miss, Why
from sapwood.tree.call.roles import Role
from sapwood.tree.call.signature import Arrays, look
from sapwood.tree.choose.admit import explain, rejects

NOTHING = Arrays([], [], [], None)


@dataclass
class Changed:
    """Guards that name what changed."""

    about: str | None

    def miss(self):
        return self.about


@given(clobbers=st.integers(0, 255), live=st.integers(0, 255))
def test_no_clobbered_page_is_live(make_node, clobbers, live):
    """The mask decides, whatever else fits; the miss counts the pages."""
    node = make_node(clobbers=clobbers)
    why = rejects(node, live, NOTHING, NOTHING)
    both = [n for n in range(8) if clobbers >> n & 1 and live >> n & 1]
    assert why == (Why.LIVE if both else None)
    if why:
        miss = explain(node, why, live, NOTHING, NOTHING)
        assert miss == Miss(why, f"{len(both)} page(s)")


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("there", [True, False])
def test_fixed_arguments_are_where_they_were(
    make_node, make_use, make_array, integration, role, there
):
    """Those that are copied may be anywhere."""
    node = make_node(make_use(address=0x1000), make_use(role, 0x2000))
    arrays = [make_array(0x1000), make_array(0x2000 if there else 0x8000)]
    why = rejects(node, 0, look(arrays, integration), NOTHING)
    assert why == (Why.MOVED if role.fixed and not there else None)


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("there", [True, False])
def test_fixed_ambient_arrays_are_where_they_were(
    make_node, make_use, make_array, integration, role, there
):
    """The same holds for what the function reads by itself."""
    node = make_node(
        make_use(address=0x1000),
        make_use(role, 0x2000, name="table"),
        arguments=1,
        lows=[0x2000],
    )
    argument = look([make_array(0x1000)], integration)
    ambient = look([make_array(0x2000 if there else 0x8000)], integration)
    why = rejects(node, 0, argument, ambient)
    assert why == (Why.MOVED if role.fixed and not there else None)


@pytest.mark.parametrize("moved", [True, False])
def test_ambient_arrays_share_what_they_shared(
    make_node, make_use, make_array, make_storage, integration, moved
):
    """Two arrays over one storage are not two arrays, wherever they are."""
    storage = make_storage(0x2000)
    ambient = look([make_array(0x2000, storage=storage) for _ in range(2)], integration)
    lows = [0x8000] if moved else [0x2000]
    node = make_node(make_use(address=lows[0]), arguments=0, lows=lows)
    assert rejects(node, 0, NOTHING, ambient) is Why.OVERLAP
    node.ambient_sharing = ambient.sharing
    why = rejects(node, 0, NOTHING, ambient)
    assert why is (Why.MOVED if moved else None)


@example(spans=[(0, 2), (1, 2)], facts=[(False, True)] * 4)
@example(spans=[(0, 2), (1, 2)], facts=[(True, True)] * 4)
@example(spans=[(0, 2), (2, 2)], facts=[(False, True)] * 4)
@given(
    spans=st.lists(
        st.tuples(st.integers(0, 6), st.integers(1, 4)), min_size=2, max_size=4
    ),
    facts=st.lists(st.tuples(st.booleans(), st.booleans()), min_size=4, max_size=4),
)
def test_what_is_found_by_itself_overlaps_nothing(
    make_node, make_use, make_array, integration, spans, facts
):
    """Bytes that are copied meet no others that are used; pinned ones may.

    The last place is ambient, the others are arguments.
    """
    arrays = [make_array(0x1000 + lo, size) for lo, size in spans]
    uses = [
        make_use(
            Role.PINNED if fixed else Role.COPIED,
            array.address,
            size=array.layout[0],
            used=used,
        )
        for array, (fixed, used) in zip(arrays, facts, strict=False)
    ]
    *given_arrays, last = arrays
    ambient = look([last], integration)
    node = make_node(*uses, arguments=len(given_arrays), lows=ambient.lows)
    meet = any(
        i != j
        and uses[i].used
        and uses[j].used
        and not uses[i].role.fixed
        and _bytes(arrays[i]) & _bytes(arrays[j])
        for i in range(len(arrays))
        for j in range(len(arrays))
    )
    why = rejects(node, 0, look(given_arrays, integration), ambient)
    assert why == (Why.OVERLAP if meet else None)


def _bytes(array):
    return set(range(array.address, array.address + array.layout[0]))


VERBS = {Role.PINNED: "was at", Role.INHERITED: "came from"}


@pytest.mark.parametrize("role", VERBS)
@pytest.mark.parametrize("where", ["argument", "ambient"])
def test_a_miss_names_what_moved(
    make_node, make_use, make_array, integration, where, role
):
    """By its name, with where it was and where it is."""
    uses = make_use(Role.COPIED, name="x"), make_use(role, 0x2000, name="h")
    arrays = [make_array(0x9000), make_array(0x8000)]
    if where == "argument":
        node, given_arrays, ambient = make_node(*uses), look(arrays, integration), None
    else:
        node = make_node(*uses, arguments=1, lows=[0x2000])
        given_arrays, ambient = (look([array], integration) for array in arrays)
    miss = explain(node, Why.MOVED, 0, given_arrays, ambient)
    assert str(miss).endswith(f": h {VERBS[role]} 0x2000, is at 0x8000")
    assert miss.why is Why.MOVED


def test_a_miss_is_about_nothing_where_all_is_back(
    make_node, make_use, make_array, integration
):
    """What moved may have moved back by the time somebody asks."""
    node = make_node(make_use(address=0x1000))
    here = look([make_array(0x1000)], integration)
    assert explain(node, Why.MOVED, 0, here, None) == Miss(Why.MOVED)
    assert explain(node, Why.MOVED, 0, here, NOTHING) == Miss(Why.MOVED)


@pytest.mark.parametrize("about", ["LR was 0.1, is 0.05", None])
def test_a_miss_names_the_guard(make_node, about):
    """Guards say themselves what changed, if it has not changed back."""
    node = make_node(ambient=Changed(about))
    miss = explain(node, Why.AMBIENT, 0, NOTHING, None)
    assert miss == Miss(Why.AMBIENT, about or "")


def test_other_misses_say_why(make_node):
    """An overlap is about the call as a whole."""
    miss = explain(make_node(), Why.OVERLAP, 0, NOTHING, NOTHING)
    assert miss == Miss(Why.OVERLAP)
