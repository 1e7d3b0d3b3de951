"""Programs in the style of real code bases give the bits of eager calls, replayed."""

from __future__ import annotations

import pytest

from tests.integrations.programs import (
    attention,
    functional,
    gradients,
    hosted,
    inference,
    latecomers,
    science,
    state,
    training,
)

KINDS = (
    *(attention, functional, gradients, hosted, inference, latecomers, science),
    *(state, training),
)
TRIALS = [trial for kind in KINDS for trial in kind.TRIALS]


@pytest.mark.gpu
@pytest.mark.parametrize("trial", TRIALS, ids=str)
def test_replayed(trial, replays):
    """All ten calls agree, old results kept; what can be replayed is."""
    replays(trial, least=3, keeps=False)


@pytest.mark.deep
@pytest.mark.parametrize("trial", TRIALS, ids=str)
def test_on_the_host(trial, passes_on_the_host):
    """Where nothing can be recorded, two runs of a program do the same."""
    passes_on_the_host(trial, keeps=False)


@pytest.mark.deep
@pytest.mark.parametrize("trial", [each for each in TRIALS if not each.reads], ids=str)
def test_watched(trial, surveyed):
    """Without a GPU: what is to be recorded is, and what is not is refused by name."""
    for seen in surveyed(trial):
        assert sum(each.key and each.result for each in seen.calls) >= 3
