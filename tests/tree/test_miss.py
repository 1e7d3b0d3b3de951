"""A miss is a value, and text at the edge."""

from __future__ import annotations

import pytest

from sapwood.tree.call.miss import Miss, Why


@pytest.mark.parametrize("why", Why)
def test_a_miss_says_why_and_about_what(why):
    """The text names the condition, and behind it the leaf or slot, if one is known."""
    assert str(Miss(why)) == why.value
    assert str(Miss(why, "params['w']")) == f"{why.value}: params['w']"


def test_misses_are_values():
    """Equal misses are one, so that repeated ones are told once."""
    assert len({Miss(Why.LIVE), Miss(Why.LIVE), Miss(Why.LIVE, "x")}) == 2
