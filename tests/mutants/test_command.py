"""What `scripts/mutants` says of a fault is so."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import pytest

import sapwood

pytestmark = pytest.mark.deep

ROOT = Path(__file__).parents[2]
SEEN = "tests/memory/native/test_segments.py"
UNSEEN = "tests/store/test_key.py"


@pytest.fixture
def mutants(tmp_path):
    def run(*arguments):
        command = [sys.executable, str(Path(__file__).with_name("command.py"))]
        known = ["--known", str(tmp_path / "known.json"), "--jobs", "2"]
        paths = [str(Path(sapwood.__file__).parents[1]), str(ROOT)]
        return subprocess.run(
            [*command, *known, *arguments],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    return run


def test_who_catches_a_fault_is_named(mutants, tmp_path):
    """Who runs what is noted once; what is in the table is not done again."""
    table = tmp_path / "caught.csv"
    wanted = ["c: given back by another stream", "--table", str(table), "--resume"]
    done = mutants(*wanted, "--pytest", SEEN)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 of 1 caught" in done.stdout
    with table.open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert (row["name"], row["tier"]) == (wanted[0], "near")
    assert row["caught by"].startswith(f"{SEEN}::")
    assert "0 faults" in mutants(*wanted, "--pytest", SEEN).stdout


def test_a_fault_that_nobody_sees_survives(mutants):
    """Then the command fails."""
    done = mutants("c: given back by another stream", "--pytest", UNSEEN)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "SURVIVED: c: given back by another stream" in done.stdout
