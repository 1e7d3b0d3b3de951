"""Programs in the style of real code bases give the bits of eager calls, replayed."""

from __future__ import annotations

import re

import pytest

import sapwood as sw
from tests.integrations.programs import (
    attention,
    functional,
    gradients,
    hosted,
    inference,
    science,
    state,
    training,
)

KINDS = attention, functional, gradients, hosted, inference, science, state, training
TRIALS = [trial for kind in KINDS for trial in kind.TRIALS]


@pytest.mark.gpu
@pytest.mark.parametrize("trial", TRIALS, ids=str)
def test_replayed(rt, trial, agrees, quietly):
    """All ten calls agree, old results kept; what can be replayed is."""
    quietly(trial, skips=bool(trial.skips or trial.late or trial.moves))
    world = agrees(rt, trial.program, "cuda", keeps=False)
    if trial.skips:
        assert world.count("replays") == 0
        assert re.search(trial.skips, "\n".join(world.reasons()))
    elif not trial.moves:
        assert world.count("replays") >= 3
        assert world.count("passed_through") <= bool(trial.late)
        assert all(re.search(trial.late or "$^", why) for why in world.reasons())


@pytest.mark.deep
@pytest.mark.usefixtures("capturable")
@pytest.mark.parametrize("trial", TRIALS, ids=str)
def test_on_the_host(trial, agrees, quietly):
    """Where nothing can be recorded, two runs of a program do the same."""
    quietly(trial, skips=True)
    with sw.Runtime("emulated") as rt:
        world = agrees(rt, trial.program, "cpu", keeps=False)
    assert world.functions
    assert world.count("replays") == 0


@pytest.mark.deep
@pytest.mark.usefixtures("capturable")
@pytest.mark.parametrize("trial", [each for each in TRIALS if not each.reads], ids=str)
def test_watched(trial, watched, quietly):
    """Without a GPU: what is to be recorded is, and what is not is refused by name."""
    quietly(trial)
    found = watched(trial.program)
    if trial.skips:
        assert re.search(trial.skips, str(found.refused))
        return
    assert found.refused is None
    assert re.search(trial.late or "^$", found.late)
    for seen in found.seen if not trial.moves else ():
        assert sum(each.key and each.result for each in seen.calls) >= 3
