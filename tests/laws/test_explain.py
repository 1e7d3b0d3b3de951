"""What `explain()` says is what `stats()` counts, in words that fit the numbers."""

from __future__ import annotations

import re

import numpy as np
import pytest

from sapwood.units import count_text

COUNT = re.compile(r"(\d+) (replay|recording|warm-up|op|page)(s?)\b")
LAUNCHED = re.compile(r"launched (?:(once)|(\d+) times)")


@pytest.mark.parametrize("calls", range(1, 8))
def test_counts_are_those_of_stats(rt, calls):
    """Every recording was launched by the call that recorded it, and by replays."""
    f = rt.graph(lambda x: x * 2 + 1)
    x, y = rt.array(np.ones(4)), rt.array(np.ones(5))
    for n in range(calls):
        f(y if n % 3 == 2 else x)
    text, stats = f.explain(), f.stats()
    told = {what: int(n) for n, what, _ in COUNT.findall(text.partition("\n")[0])}
    assert told == {
        "replay": stats.replays,
        "recording": stats.recordings,
        "warm-up": stats.warmups,
    }
    launches = [1 if once else int(n) for once, n in LAUNCHED.findall(text)]
    assert len(launches) == stats.recordings
    assert sum(launches) == stats.replays + stats.recordings


def test_one_is_not_said_as_many(rt):
    """A number and its noun agree, everywhere on the page."""
    f = rt.graph(lambda x: x * 2)
    x = rt.array(np.ones(4))
    for _ in range(3):
        f(x)
        assert all((n == "1") == (s == "") for n, _, s in COUNT.findall(f.explain()))
    assert COUNT.search(f.explain())


def test_number_and_noun():
    """None are many, as people say it."""
    told = [count_text(n, "page") for n in range(3)]
    assert told == ["0 pages", "1 page", "2 pages"]
