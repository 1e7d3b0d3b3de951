"""The command's verbs keep their promises and their exit codes."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys

import pytest

import sapwood as sw
from sapwood.cli import main
from sapwood.cli.demo import Figures


def test_the_demo_keeps_its_promise(capsys):
    """A short training replays, agrees to the bit, and says so for machines."""
    assert main(["demo", "--json", "--epochs", "12", "--seed", "1"]) == 0
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
    assert main(["demo", "--epochs", "1"]) == 1
    told = capsys.readouterr()
    for line in ("held-out accuracy", "driver calls per replay", "pages used"):
        assert line in told.out
    for line in ("replayed", "eager", "plain NumPy", "Not kept: held-out accuracy"):
        assert line in told.err


def test_the_demo_says_what_it_misses(monkeypatch, capsys):
    """Without scikit-learn there are no digits: the message says how to get them."""
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    assert main(["demo"]) == 2
    assert "pip install 'sapwood[demo]'" in capsys.readouterr().err


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


def test_doctor_says_what_is_here(capsys, monkeypatch):
    """The emulated device works anywhere; changed settings are named."""
    monkeypatch.setenv("SAPWOOD_MAX_VARIANTS", "3")
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["devices"][0] | {"note": ""} == {
        "name": "emulated",
        "works": True,
        "note": "",
    }
    assert found["frameworks"].keys() == found["runs"].keys()
    assert found["settings"] == {"SAPWOOD_MAX_VARIANTS": "3"}
    assert found["guards"] in {"C", "Python"}
    assert "self-check passed" in found["devices"][0]["note"]
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert "SAPWOOD_MAX_VARIANTS is set: 3" in said
    assert f"guards are looked at in {found['guards']}" in said
    assert f"_fast, which is in C: {found['fast']}" in said


def test_the_package_is_the_command():
    """``python -m sapwood`` does what ``sapwood`` does, with its exit codes."""
    told = subprocess.run(
        [sys.executable, "-m", "sapwood", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout == f"sapwood {sw.__version__}\n"
    wrong = subprocess.run(
        [sys.executable, "-m", "sapwood", "fly"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("usage: sapwood ")


def test_doctor_fails_where_nothing_works(capsys, monkeypatch):
    """A device that cannot be opened is reported with its reason."""

    def broken(device):
        raise sw.NoDevice("open", 100, "NO_DEVICE", f"no {device} here. Try another")

    monkeypatch.setattr(sw, "Runtime", broken)
    assert main(["doctor"]) == 1
    assert "no emulated here" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    "argv", [[], ["fly"], ["demo", "--epochs", "0"], ["demo", "--seed", "x"]], ids=str
)
def test_wrong_usage_exits_with_two(argv, capsys):
    """What cannot be understood is refused with the usage."""
    with pytest.raises(SystemExit) as refused:
        main(argv)
    assert refused.value.code == 2
    assert "usage: sapwood" in capsys.readouterr().err


def test_a_wrong_setting_exits_with_two(monkeypatch, capsys):
    """A wrong setting is the user's to mend: no traceback."""
    monkeypatch.setenv("SAPWOOD_EVENTS", "many")
    assert main(["doctor"]) == 2
    assert "SAPWOOD_EVENTS='many' is not allowed" in capsys.readouterr().err


@pytest.mark.parametrize("argv", [["doctor", "--json"], ["doctor"]])
def test_a_reader_that_has_gone_is_no_trouble(argv):
    """What is left is not printed: there is no traceback."""
    ours, theirs = os.pipe()
    os.close(ours)
    ran = subprocess.run(
        [sys.executable, "-c", _MAIN, *argv],
        stdout=theirs,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(theirs)
    assert (ran.returncode, ran.stderr) == (1, b"")


_MAIN = "import sys; from sapwood.cli import main; sys.exit(main())"
