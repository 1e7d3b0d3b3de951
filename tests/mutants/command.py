"""Plants faults in the library, one at a time, and says which test catches each.

It is `scripts/mutants`, or `scripts/test --mutants`.
"""

from __future__ import annotations

import argparse
import csv
import os
import random
import sys
import tempfile
from operator import itemgetter
from pathlib import Path

import pytest
from planted import Planter
from reached import CHECKOUT, KEPT, reached

import sapwood
from sapwood.errors import MisuseError
from tests.support.c_mutants import CMutant
from tests.support.faults import every_fault

COLUMNS = ("name", "caught by", "tier", "CPU s", "wall s")
TESTS = ("--tier", "fast", "--thawed")


def main():
    """Return 1 where a fault survives."""
    options = _options()
    if Path(sapwood.__file__).parents[2] != CHECKOUT:
        sys.exit(
            f"{sapwood.__file__} is not of this checkout. Set PYTHONPATH to its src"
        )
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    screen = os.fdopen(os.dup(1), "w", buffering=1)

    def say(text):
        screen.write(text + "\n")

    faults = _chosen(options)
    for fault in faults:
        _check(fault)
    arguments = [*TESTS, *options.pytest, f"--randomly-seed={options.seed}"]
    say(f"{len(faults)} faults, seed {options.seed}")
    if not faults:
        return 0
    known = reached(arguments, say, kept=options.known, anew=options.map)
    caught = {}

    def tell(fault, outcome):
        caught[fault.name] = outcome.test
        say(_line(fault, outcome, "not near" if options.near else "SURVIVED"))
        if options.table and (outcome.test or not options.near):
            _add(options.table, fault, outcome)

    planter = Planter(faults, known, tell, jobs=options.jobs, near=options.near)
    status, log = _performed(planter, arguments)
    for test in sorted(planter.broken):
        say(f"left out, as it fails where nothing is wrong: {test}")
    if len(caught) < len(faults):
        say(f"pytest ended with {status} before all faults were planted:\n{log}")
        return 2
    survivors = [name for name, test in caught.items() if test is None]
    say(f"{len(faults) - len(survivors)} of {len(faults)} caught")
    for name in survivors:
        say(f"{'not near' if options.near else 'SURVIVED'}: {name}")
    return 1 if survivors else 0


def _options():
    parser = argparse.ArgumentParser(prog="scripts/mutants", description=__doc__)
    parser.add_argument("what", nargs="*", help="how many (10), or parts of names")
    parser.add_argument("--seed", type=int, help="by which faults are drawn")
    parser.add_argument("--all", action="store_true", help="all faults that there are")
    parser.add_argument("--table", type=Path, help="a file of rows to add to")
    parser.add_argument("--resume", action="store_true", help="not what it has already")
    parser.add_argument("--near", action="store_true", help="who runs the line alone")
    parser.add_argument("--map", action="store_true", help="note anew who runs what")
    parser.add_argument("--known", type=Path, default=KEPT, help="where that is kept")
    parser.add_argument("--jobs", type=int, default=2, help="processes at once")
    parser.add_argument("--pytest", nargs="...", default=[], help="options of pytest")
    options = parser.parse_intermixed_args()
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(1 << 16)
    return options


def _chosen(options):
    """Return the faults that are asked for, or drawn."""
    faults = [fault for fault in every_fault() if fault.is_run_here]
    count, names = 10, options.what
    if names and names[0].isdigit():
        count, names = int(names[0]), names[1:]
    for name in names:
        if not any(name in fault.name for fault in faults):
            sys.exit(f"no fault is called {name!r}")
    if names:
        faults = [f for f in faults if any(name in f.name for name in names)]
    elif not options.all:
        draw = random.Random(options.seed)
        faults = draw.sample(faults, min(count, len(faults)))
    if options.all:
        faults = _in_turn(faults)
    if options.resume and options.table and options.table.exists():
        with options.table.open(newline="") as file:
            known = {row["name"] for row in csv.DictReader(file)}
        faults = [fault for fault in faults if fault.name not in known]
    return faults


def _check(fault):
    """End where a fault cannot be planted: its line is gone, or C says no."""
    try:
        fault.places()
        with fault.patch():
            pass
        if isinstance(fault.mutant, CMutant):
            fault.mutant.compile()
    except MisuseError as error:
        sys.exit(f"{fault.name} cannot be planted: {error}")


def _in_turn(faults):
    """Return one of every list first."""
    turns, seen = [], {}
    for fault in faults:
        seen[fault.room] = seen.get(fault.room, 0) + 1
        turns.append(seen[fault.room])
    return [
        fault for _, fault in sorted(zip(turns, faults, strict=True), key=itemgetter(0))
    ]


def _performed(planter, arguments):
    """Run pytest, which writes to a file; return its status and what that says."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = folder
        log = Path(folder, "log")
        with log.open("w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
            quiet = ["-q", "-p", "no:xdist", "-p", "no:cacheprovider", "--timeout=60"]
            status = pytest.main(
                [*quiet, "--capture=sys", *arguments], plugins=[planter]
            )
            sys.stdout.flush()
            sys.stderr.flush()
        return status, log.read_text()[-4000:]


def _line(fault, outcome, otherwise):
    spent = f"{outcome.cpu:5.1f} s of CPU, {outcome.wall:5.1f} s"
    if outcome.test is None:
        return f"{spent}  {fault.name}: {otherwise}"
    found = f"{outcome.tier}, {outcome.test}"
    return f"{spent}  {fault.name}: {found} ({outcome.why})"


def _add(table, fault, outcome):
    new = not table.exists()
    with table.open("a", newline="") as file:
        rows = csv.writer(file)
        if new:
            rows.writerow(COLUMNS)
        row = outcome.test or "", outcome.tier, f"{outcome.cpu:.1f}"
        rows.writerow((fault.name, *row, f"{outcome.wall:.1f}"))


if __name__ == "__main__":
    sys.exit(main())
