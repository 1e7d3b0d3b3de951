"""Whatever is recorded of real models gives the bits of eager calls, in every call."""

from __future__ import annotations

import re

import pytest

import sapwood as sw
from tests.integrations.models import language, plain, vision

TRIALS = [*plain.TRIALS, *language.TRIALS, *vision.TRIALS]


@pytest.mark.gpu
@pytest.mark.parametrize("keeps", [True, False], ids=["kept", "dropped"])
@pytest.mark.parametrize("trial", TRIALS, ids=str)
def test_replayed(rt, trial, keeps, agrees, quietly):
    """Results, and what is written, are the same; what can be replayed is."""
    quietly(trial, skips=bool(trial.skips or trial.late or trial.moves))
    world = agrees(rt, trial.program, "cuda", keeps=keeps)
    if trial.skips:
        assert world.count("replays") == 0
        assert re.search(trial.skips, "\n".join(world.reasons()))
    elif not trial.moves:
        assert world.count("replays") >= 2
        assert world.count("passed_through") <= bool(trial.late)
        assert all(re.search(trial.late or "$^", why) for why in world.reasons())


@pytest.mark.deep
@pytest.mark.usefixtures("capturable")
@pytest.mark.parametrize("trial", plain.TRIALS, ids=str)
def test_on_the_host(trial, agrees, quietly):
    """Where nothing can be recorded, graphed models do what plain ones do."""
    quietly(trial, skips=True)
    with sw.Runtime("emulated") as rt:
        world = agrees(rt, trial.program, "cpu")
    assert world.count("replays") == 0


@pytest.mark.deep
@pytest.mark.usefixtures("capturable")
@pytest.mark.parametrize("trial", [each for each in TRIALS if not each.reads], ids=str)
def test_watched(trial, watched, quietly):
    """Without a GPU: what is to be recorded is surveyed, told and keyed alike."""
    quietly(trial)
    found = watched(trial.program)
    if trial.skips:
        assert re.search(trial.skips, str(found.refused))
        return
    assert found.refused is None
    assert re.search(trial.late or "^$", found.late)
    for seen in found.seen if not trial.moves else ():
        assert len(seen.calls) >= 5
        assert all(each.key and each.result for each in seen.calls[4:])
        started = seen.calls[1 + bool(trial.late) :]
        assert [each.look for each in started] == [each.key for each in started]
