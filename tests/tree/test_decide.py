"""What to do with a call that no recording fits, and the bounds that hold after it."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sapwood.errors import CaptureError
from sapwood.tree.call.miss import Why
from sapwood.tree.call.roles import History, Role
from sapwood.tree.choose.decide import Action, Step, next_step
from sapwood.tree.choose.specialization import Specialization
from sapwood.tree.guards import AmbientKey
from sapwood.tree.watch.session import Warm

WARM = Warm((), frozenset(), ())


@pytest.fixture(scope="session")
def make_group():
    """Return a maker of groups that were warmed up, with such recordings."""

    def make(*nodes, max_variants=2, misses=()):
        specialization = Specialization(AmbientKey(None, ()), max_variants)
        specialization.warm = WARM
        for node in nodes:
            specialization.add(node)
        specialization.misses = misses
        return specialization

    return make


def test_the_first_call_warms_up():
    """Nothing is recorded that has not been seen to run."""
    assert next_step(Specialization(AmbientKey(None, ()), 2), [], {}, 8) == Step(
        Action.WARM_UP
    )


def test_what_cannot_be_recorded_passes_through():
    """For the reason that was found then, however often it is called."""
    specialization = Specialization(AmbientKey(None, ()), 2)
    specialization.unrecordable = CaptureError("it reads a value", remedy="Return it")
    step = next_step(specialization, [], {}, 8)
    assert step.action is Action.PASS_THROUGH
    assert step.reason == "it reads a value. Return it"


def test_a_variant_is_recorded_where_there_is_room(make_node, make_group):
    """Beside those there are, at fixed addresses, and nothing is evicted."""
    specialization = make_group(make_node())
    assert next_step(specialization, specialization.nodes, {}, 8) == Step(Action.RECORD)


def test_a_variant_that_waits_for_an_address_gives_way(make_node, make_group):
    """The one unused longest, to one that takes any address and need not escape."""
    nodes = [make_node(last_used=clock) for clock in (9, 4, 2)]
    specialization = make_group(*nodes, max_variants=3)
    reasons = {nodes[0]: Why.MOVED, nodes[1]: Why.MOVED, nodes[2]: Why.LIVE}
    step = next_step(specialization, specialization.nodes, reasons, 8)
    assert step == Step(Action.RECORD, (nodes[1],), anywhere=True)


def test_where_all_variants_are_held_one_escapes(make_node, make_group):
    """It takes any address, and replaces one that escaped before it."""
    held = [make_node(), make_node()]
    specialization = make_group(*held)
    reasons = dict.fromkeys(held, Why.LIVE)
    step = next_step(specialization, specialization.nodes, reasons, 8)
    assert step == Step(Action.RECORD, anywhere=True, escapes=True)
    before = make_node(escapes=True)
    specialization.add(before)
    step = next_step(
        specialization, specialization.nodes, {**reasons, before: Why.MOVED}, 8
    )
    assert step == Step(Action.RECORD, (before,), anywhere=True, escapes=True)


@pytest.mark.parametrize("escapes", [False, True])
def test_an_outdated_variant_goes_first(make_node, make_group, make_use, escapes):
    """One that inherits a place which comes from too many addresses; evicted once."""
    old = make_node(make_use(Role.INHERITED), escapes=escapes)
    specialization = make_group(old, make_node(make_use()), make_node(make_use()))
    specialization.places = [History(moved=True)]
    step = next_step(specialization, specialization.nodes, {}, 8)
    assert step == Step(Action.RECORD, (old,), anywhere=True, escapes=True)


@pytest.mark.parametrize(
    ("misses", "evicts"), [((), 0), ((5,), 0), ((4, 5), 0), ((5, 6), 1)]
)
def test_a_newcomer_evicts_what_it_was_missed_twice_since(
    make_node, make_group, misses, evicts
):
    """At `max_recordings` only, and only the recording whose last use is oldest."""
    others = [make_node(last_used=clock) for clock in (7, 4)]
    specialization = make_group(misses=misses)
    step = next_step(specialization, others, {}, 2)
    if evicts:
        assert step == Step(Action.RECORD, (others[1],))
    else:
        assert step.action is Action.PASS_THROUGH
        assert not step.evict
        assert step.reason.startswith("max_recordings=2, ")


def test_evicting_for_room_leaves_the_rest_alone(make_node, make_group):
    """Where a variant gives way, no other recording has to."""
    mine, other = make_node(last_used=5), make_node(last_used=1)
    specialization = make_group(mine, max_variants=1)
    step = next_step(specialization, [mine, other], {mine: Why.MOVED}, 2)
    assert step.evict == (mine,)


def test_nothing_is_evicted_that_is_not_there(make_group):
    """A function that may have no recording passes through."""
    step = next_step(make_group(misses=(1, 2)), [], {}, 0)
    assert step.action is Action.PASS_THROUGH


@given(data=st.data())
def test_recordings_stay_bounded(make_node, make_group, make_use, data):
    """After any step a group has its variants and one that escapes, and not more."""
    max_variants = data.draw(st.integers(1, 3))
    max_recordings = data.draw(st.integers(1, 5))
    kinds = data.draw(st.lists(st.booleans(), max_size=max_variants))
    assume(sum(kinds) <= 1)
    mine = [
        make_node(
            make_use(data.draw(st.sampled_from(Role))),
            escapes=escapes,
            last_used=data.draw(st.integers(0, 9)),
        )
        for escapes in kinds
    ]
    others = [
        make_node(last_used=data.draw(st.integers(0, 9)))
        for _ in range(data.draw(st.integers(0, 3)))
    ]
    assume(len(mine) + len(others) <= max_recordings)
    misses = tuple(data.draw(st.lists(st.integers(0, 9), max_size=2)))
    specialization = make_group(*mine, max_variants=max_variants, misses=misses)
    specialization.places = [History(moved=data.draw(st.booleans()))]
    reasons = {node: data.draw(st.sampled_from([Why.LIVE, Why.MOVED])) for node in mine}

    step = next_step(specialization, [*mine, *others], reasons, max_recordings)

    assert len(set(step.evict)) == len(step.evict)
    assert set(step.evict) <= {*mine, *others}
    if step.action is Action.PASS_THROUGH:
        assert not step.evict
        return
    left = [node for node in mine if node not in step.evict]
    assert sum(not n.escapes for n in left) + (not step.escapes) <= max_variants
    assert sum(n.escapes for n in left) + step.escapes <= 1
    rest = [node for node in others if node not in step.evict]
    assert len(left) + len(rest) + 1 <= max_recordings
    assert len(others) - len(rest) <= 1
    assert step.anywhere or not step.escapes
