"""Law 3: whatever is done to files and entries, they are read as written or refused.

Ten thousand of them, half with every digest as it should be, in processes whose end
tells of a crash. What a spoiled recording computes may be wrong: then it was spoiled
where only its digest could tell. It still touches nothing but its range and the
arrays of the call.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.deep

EACH, SEEDS = 5_000, (1, 2)


@pytest.fixture(scope="module")
def outcomes(programs, tmp_path_factory):
    """Return what became of them, by process; two at once."""
    folders = [tmp_path_factory.mktemp("hostile") for _ in SEEDS]
    program = sys.executable, "-W", "error", programs / "hostile.py"
    running = [
        subprocess.Popen(
            [*program, folder, str(EACH), str(seed)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        for folder, seed in zip(folders, SEEDS, strict=True)
    ]
    found = []
    for process, folder in zip(running, folders, strict=True):
        out, told = process.communicate()
        last = (folder / "last").read_text()
        assert process.returncode == 0, f"seed and number {last}: {told[-3000:]}"
        assert not told, told[-3000:]
        found.append(json.loads(out)["outcomes"])
    return found


@pytest.mark.timeout(240)
def test_spoiled_files_and_entries_are_refused_or_run_within_bounds(outcomes):
    """Only `StoreError`, `MisuseError`, a miss, or a call that stays in its bounds."""
    for found in outcomes:
        # A kernel may meet an index that it itself refuses: indices are data.
        stopped = found.pop("stopped at an index", 0)
        assert stopped <= EACH / 500
        assert sum(found.values()) + stopped == EACH
        assert found.keys() == {
            "file refused",
            "file has no recording",
            "file called",
            "entry missed",
            "entry called",
        }
        assert min(found.values()) > 40
        # A wrong digest is always seen: what was called had right ones.
        assert found["file refused"] >= EACH / 4
        assert found["entry missed"] >= EACH / 4
