"""Whatever is recorded of real models gives the bits of eager calls, in every call."""

from __future__ import annotations

import pytest

from tests.integrations.models import families, language, plain, vision

TRIALS = [
    *(*plain.TRIALS, *language.TRIALS, *vision.TRIALS),
    *families.TRIALS,
]


@pytest.mark.gpu
@pytest.mark.parametrize("keeps", [True, False], ids=["kept", "dropped"])
@pytest.mark.parametrize("trial", TRIALS, ids=str)
def test_replayed(trial, keeps, replays):
    """Results, and what is written, are the same; what can be replayed is."""
    replays(trial, least=2, keeps=keeps)


@pytest.mark.deep
@pytest.mark.parametrize("trial", plain.TRIALS, ids=str)
def test_on_the_host(trial, passes_on_the_host):
    """Where nothing can be recorded, graphed models do what plain ones do."""
    passes_on_the_host(trial, keeps=True)


@pytest.mark.deep
@pytest.mark.parametrize("trial", [each for each in TRIALS if not each.reads], ids=str)
def test_watched(trial, surveyed):
    """Without a GPU: what is to be recorded is surveyed, told and keyed alike."""
    for seen in surveyed(trial):
        assert len(seen.calls) >= 5
        assert all(each.key and each.result for each in seen.calls[4:])
        started = seen.calls[1 + seen.fills :]
        assert [each.look for each in started] == [each.key for each in started]
