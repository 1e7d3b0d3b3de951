"""Places that move at random, and calls that fail: what is launched is what was aimed.

One walk through aims, launches and failures, held against plain integers; faulty
variants of `Exec` show that it notices.
"""

from __future__ import annotations

import random

import pytest

from sapwood.errors import DriverError
from sapwood.graphs.capture import ops_of
from sapwood.graphs.exec import Copies, Exec, Staged, link
from tests.support.tree_mutants import miswritten

SIZE = 32
COUNT = 5
"""How many places there are, of which two are copied back."""
BACK = (0, 2)
SEEDS = (1, 2, 3, 4, 5)
MUTANTS = {
    "a place that moved is not told": (Exec.aim, "self._moved.add(symbol)", "pass"),
    "half aimed is aimed": (
        Exec._settle,
        "moved, lent = self._moved,",
        "moved, self._moved, lent = self._moved, set(),",
    ),
    "only one op is told": (
        Exec._settle,
        "self.driver.set_op(self.handle, node, copies.op(self._places))",
        "return self.driver.set_op(self.handle, node, copies.op(self._places))",
    ),
    "copied back where it was copied in": (
        Copies.op,
        "CopiesOp(theirs, self.addresses, self.sizes)",
        "CopiesOp(self.addresses, theirs, self.sizes)",
    ),
}


def _wrapped(value):
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def _program(bench, addresses):
    for i, address in enumerate(addresses):
        bench.launch(address, addresses[i - 1], i)


def _run_on(values, aimed):
    """Do to the integers at each address what a launch does."""
    held = [values[address] for address in aimed]
    for i in range(COUNT):
        held[i] = _wrapped(held[i] * 31 + held[i - 1] + i)
    for i in BACK:
        values[aimed[i]] = held[i]


def _first_wrong(bench, seed):
    """Return the step of a walk after which memory is not as it has to be, or None."""
    rng = random.Random(seed)
    values = {bench.memory(i): i for i in range(3 * COUNT)}
    addresses = [*values]
    aimed = addresses[:COUNT]
    rooms = [Staged(i, bench.memory(0), SIZE, i in BACK) for i in range(COUNT)]
    graph = bench.captured(lambda: _program(bench, aimed))
    recording = ops_of(bench.driver, graph, bench.named).recording(
        bench.regions(*aimed)
    )
    bench.driver.destroy_graph(graph)
    exec_ = link(bench.driver, recording, aimed, rooms, bench.function)
    try:
        for step in range(60):
            for symbol in rng.sample(range(COUNT), rng.choice([0, 1, 1, 2, COUNT])):
                free = [a for a in addresses if a not in aimed]
                aimed[symbol] = rng.choice(free)
                exec_.aim(symbol, aimed[symbol])
            skip = rng.choice([0, 1, 2, 3, 9, 9, 9])
            bench.driver.plan = {bench.driver.position + skip}
            try:
                exec_.launch(bench.stream)
            except DriverError:
                continue
            finally:
                bench.driver.plan = ()
            _run_on(values, aimed)
            if any(bench.read(each)[0] != value for each, value in values.items()):
                return step
        return None
    finally:
        exec_.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_launched_is_what_was_aimed(bench, seed):
    """Whatever has moved, and whichever calls have failed before."""
    assert _first_wrong(bench, seed) is None


@pytest.mark.parametrize("mutant", MUTANTS)
def test_every_mutant_is_noticed(make_bench, mutant):
    """Under every seed."""
    with miswritten(*MUTANTS[mutant]):
        for seed in SEEDS:
            bench = make_bench()
            try:
                assert _first_wrong(bench, seed) is not None
            finally:
                bench.close()
