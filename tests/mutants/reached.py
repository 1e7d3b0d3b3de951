"""Which tests run a line of the library: noted once, and a hint ever after.

What it leaves out is run all the same, only later: so one that is older than the
sources costs time, and never an answer.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
import zlib
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory

from touched import FOLDER, ROOT

from tests.support.rig import CUDA, IN_C, INEXACT, VARIANTS

CHECKOUT = ROOT.parent
KEPT = CHECKOUT / ".cache" / "touched.json"
MOST = 150
"""Tests kept of each block."""

IN_PYTHON = {
    "_fast/probe": "tree/call/signature.py",
    "_fast/replay": "tree/replay/compiled.py",
    "_fast/segments": "memory/native.py",
    "_fast/": "tree/guards/program.py",
}
"""Whose blocks are entered by those who call what is written in C."""

_KIND = re.compile("|".join(map(re.escape, (*VARIANTS, INEXACT, IN_C, CUDA))))


def base(test):
    """Return the name of a test on whichever kind of device."""
    return _KIND.sub("*", test)


class Reached:
    """Tests by the blocks that they enter, those that say the most first."""

    def __init__(self, kept):
        self.digests, self.seconds = kept["digests"], kept["seconds"]
        self._names = list(self.seconds)
        self._blocks = kept["blocks"]

    def tests_of(self, places):
        """Return the tests that run any of some lines, the likeliest to fail first."""
        lists = [self._tests_of(place) for place in places]
        return list(dict.fromkeys(test for each in lists for test in each))

    def _tests_of(self, place):
        for part, file in IN_PYTHON.items():
            if place.file.startswith(part) and not place.file.endswith(".py"):
                return self._of_file(file)
        around = [
            (last - first, tests)
            for first, last, tests in self._blocks.get(place.file, ())
            if first <= place.line <= last
        ]
        tests = min(around, default=(0, ()), key=lambda block: block[0])[1]
        return [self._names[n] for n in tests]

    def _of_file(self, file):
        """Return the tests that enter most of a file's blocks first."""
        counts = defaultdict(int)
        for _, _, tests in self._blocks.get(file, ()):
            for n in tests:
                counts[n] += 1
        most = sorted(counts, key=lambda n: -counts[n])
        return [self._names[n] for n in most]

    def stale(self):
        """Return how many files of the library are not those that it was made of."""
        now = _digests()
        files = {*now, *self.digests}
        return sum(now.get(file) != self.digests.get(file) for file in files)


def reached(arguments, say, *, kept=KEPT, anew=False):
    """Return the map that is kept, or make one; ``arguments`` are pytest's."""
    if anew or not kept.exists():
        say(
            "Noting which tests run which lines, once: this takes as long as the tests."
        )
        kept.parent.mkdir(exist_ok=True)
        kept.write_text(json.dumps(_made(arguments)))
    found = Reached(json.loads(kept.read_text()))
    if stale := found.stale():
        say(
            f"{stale} files of src have changed since it was noted which tests run "
            "which lines: faults may take longer to be caught. --map notes it anew."
        )
    return found


def _digests():
    files = sorted(ROOT.rglob("*.py"))
    return {
        str(file.relative_to(ROOT / "sapwood")): hashlib.sha256(
            file.read_bytes()
        ).hexdigest()[:16]
        for file in files
    }


def _made(arguments):
    digests = _digests()
    with TemporaryDirectory() as folder:
        paths = [str(ROOT), str(Path(__file__).parent)]
        environment = {
            **os.environ,
            FOLDER: folder,
            "PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")]),
        }
        command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "touched"]
        command += arguments
        subprocess.run(command, env=environment, cwd=CHECKOUT, check=False)
        rows, entered = {}, defaultdict(list)
        for part in sorted(Path(folder).iterdir()):
            _read(part, rows, entered)
    names = {test: number for number, test in enumerate(rows)}
    blocks = defaultdict(list)
    for (file, first, last), tests in sorted(entered.items()):
        best = _spread(sorted(tests, key=lambda test: _cost(*rows[test])))[:MOST]
        blocks[file].append([first, last, [names[test] for test in best]])
    seconds = {test: round(row[0], 3) for test, row in rows.items()}
    return {"digests": digests, "seconds": seconds, "blocks": blocks}


def _read(part, rows, entered):
    *tests, blocks = map(json.loads, part.read_text().splitlines())
    for test, seconds, packed in tests:
        touched = zlib.decompress(base64.b64decode(packed))
        numbers = [n for n, mark in enumerate(touched) if mark]
        if not numbers:  # skipped, or about other things
            continue
        rows[base(test)] = seconds, len(numbers)
        for n in numbers:
            entered[tuple(blocks[n])].append(base(test))


def _cost(seconds, blocks):
    """Return what goes first: what is quick, and does little else."""
    return (seconds + 0.02) * blocks


def _spread(tests):
    """Return tests in turn from each file that has any."""
    files = defaultdict(list)
    for test in dict.fromkeys(tests):
        files[test.partition("::")[0]].append(test)
    turns = [(n, test) for each in files.values() for n, test in enumerate(each)]
    return [test for _, test in sorted(turns, key=lambda turn: turn[0])]
