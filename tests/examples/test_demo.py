"""The demo keeps its promises, says what it misses, and has exit codes."""

from __future__ import annotations

import dataclasses
import json
import sys

import pytest

from examples.digits.__main__ import main
from examples.digits.demo import Figures


def test_the_demo_keeps_its_promise(capsys):
    """A short training replays, agrees to the bit, and says so for machines."""
    assert main(["--json", "--epochs", "12", "--seed", "1"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures.keys() == {field.name for field in dataclasses.fields(Figures)}
    assert figures["accuracy"] >= 0.95
    assert figures["identical_to_eager"] is True
    assert figures["identical_to_numpy"] is True
    assert figures["replays"] > 100
    assert figures["driver_calls_per_replay"] <= 3
    assert figures["pages_used"] <= figures["pages_in_ranges"]
    assert figures["second_restored"] >= 2
    assert figures["second_recordings"] == 0
    assert figures["second_identical"] is True
    assert figures["second_first_replay_s"] > 0.0


@pytest.mark.deep
def test_the_demo_shows_progress_and_a_table(capsys):
    """People see a bar for each training, the table, and a promise not kept."""
    assert main(["--epochs", "1"]) == 1
    told = capsys.readouterr()
    for line in ("held-out accuracy", "driver calls per replay", "pages used"):
        assert line in told.out
    for line in ("replayed", "eager", "plain NumPy", "Not kept: held-out accuracy"):
        assert line in told.err


def test_the_demo_says_what_it_misses(monkeypatch, capsys):
    """Without scikit-learn there are no digits: the message says how to get them."""
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    assert main([]) == 2
    assert "pip install scikit-learn" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("accuracy", 0.94),
        ("identical_to_eager", False),
        ("identical_to_numpy", False),
        ("replays", 0),
        ("second_restored", 1),
        ("second_recordings", 1),
        ("second_identical", False),
    ],
)
def test_each_promise_can_be_broken(field, value):
    """The demo fails where the bits differ, however good the accuracy; and so on."""
    values = {f.name: 1 for f in dataclasses.fields(Figures)}
    values |= {"replays": 9, "second_restored": 2, "second_recordings": 0}
    assert Figures(**values).broken() == []
    assert len(Figures(**values | {field: value}).broken()) == 1


@pytest.mark.parametrize("argv", [["fly"], ["--epochs", "0"], ["--seed", "x"]], ids=str)
def test_wrong_usage_exits_with_two(argv, capsys):
    """What cannot be understood is refused with the usage."""
    with pytest.raises(SystemExit) as refused:
        main(argv)
    assert refused.value.code == 2
    assert "usage: scripts/demo" in capsys.readouterr().err
