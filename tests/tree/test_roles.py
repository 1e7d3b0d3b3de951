"""The role of a place: every combination of what is known, against the rules."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sapwood.tree.call.roles import History, Role, assign

FACTS = ("steady", "varied", "moved", "inherited", "pinned", "anywhere")
EVERYTHING = [
    dict(zip(FACTS, values, strict=True)) for values in product([0, 1], repeat=6)
]


def _role(facts):
    names = ("steady", "varied", "moved")
    history = History(**{name: bool(facts[name]) for name in names})
    known = (facts[name] for name in ("inherited", "pinned"))
    return assign(history, *known, anywhere=facts["anywhere"])


def _free(facts):
    return facts["anywhere"] and (facts["varied"] or facts["inherited"])


def _chosen(condition):
    """Return the roles of all combinations that meet a condition."""
    roles = [_role(facts) for facts in EVERYTHING if condition(facts)]
    assert roles
    return set(roles)


def test_a_place_that_may_come_from_anywhere_fixes_no_address():
    """What ever moved, or is another's output, is then copied."""
    assert _chosen(_free) == {Role.COPIED}


def test_what_the_user_pinned_is_pinned():
    """Whatever its history; unless it must come from anywhere."""
    assert _chosen(lambda f: f["pinned"] and not _free(f)) == {Role.PINNED}


def test_what_moves_too_much_is_not_fixed():
    """An output of too many recordings is copied."""
    assert _chosen(lambda f: f["moved"] and not f["pinned"]) == {Role.COPIED}


@pytest.mark.parametrize(
    ("inherited", "steady", "roles"),
    [
        (1, 0, {Role.INHERITED}),
        (1, 1, {Role.INHERITED}),
        (0, 1, {Role.PINNED}),
        (0, 0, {Role.COPIED}),
    ],
)
def test_an_address_is_fixed_where_it_can_be_expected_again(inherited, steady, roles):
    """Another recording's output is inherited; what stayed where it was is pinned."""
    assert roles == _chosen(
        lambda f: (
            (f["inherited"], f["steady"]) == (inherited, steady)
            and not (_free(f) or f["moved"] or f["pinned"])
        )
    )


def test_fixed_roles_are_those_that_compare_addresses():
    """Pinned and inherited."""
    assert {role for role in Role if role.fixed} == {Role.PINNED, Role.INHERITED}


@given(
    calls=st.lists(st.tuples(st.sampled_from([512, 1024, 1536, 2048]), st.booleans())),
    max_variants=st.integers(1, 3),
)
def test_a_history_is_what_its_calls_were(calls, max_variants):
    """After every call the history says what all calls so far say."""
    history, seen = History(), []
    for address, inherited in calls:
        history.saw(address, inherited=inherited, max_variants=max_variants)
        seen.append((address, inherited))
        addresses = [a for a, _ in seen]
        assert history.last == address
        assert history.steady == (addresses[-2:] == [address, address])
        assert history.varied == (len(set(addresses)) > 1)
        assert history.inherited == {a for a, inherited in seen if inherited}
        assert history.moved == (len(history.inherited) > max_variants)
