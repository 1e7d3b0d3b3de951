"""The machine of each room catches every faulty variant of it, and only those."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support import folded, repeats
from tests.support.caching import Caching, small_caching_device
from tests.support.caching_mutants import CACHING_MUTANTS
from tests.support.file_checks import checks_until_caught
from tests.support.file_mutants import FILE_MUTANTS
from tests.support.memory import Allocations, small_device
from tests.support.mutants import FOLD_MUTANTS, MEMORY_MUTANTS
from tests.support.pinned import PinnedBlocks
from tests.support.pinned_mutants import PINNED_MUTANTS
from tests.support.rig import CUDA, IN_C, VARIANTS
from tests.support.seeded import steps_under, steps_until_caught
from tests.support.store import Puts
from tests.support.store_mutants import STORE_MUTANTS
from tests.support.tree import Calls
from tests.support.tree_mutants import FAST_REPLAY_MUTANTS, TREE_MUTANTS, Mutant

pytestmark = pytest.mark.deep

SHM = "/dev/shm" if Path("/dev/shm").is_dir() else None
FIVE = (1, 2, 3, 4, 5)


def _latest(device):
    """Open the device on which a missing wait shows the most."""
    return staticmethod(lambda _schedule, *sizes: device("latest", *sizes))


def _caching(seed, examples=200):
    driver = _latest(small_caching_device)
    return steps_until_caught(Caching, seed, examples=examples, driver=driver)


def _memory(seed):
    driver = _latest(small_device)
    return steps_until_caught(Allocations, seed, examples=200, driver=driver)


def _pinned(seed):
    expected = (ArithmeticError, LookupError, ValueError)
    return steps_until_caught(PinnedBlocks, seed, examples=120, expected=expected)


def _store(seed, examples=240):
    return steps_until_caught(Puts, seed, examples=examples, where=SHM)


def _tree(seed):
    return steps_until_caught(Calls, seed, examples=80)


def _alike(run):
    return {"control": run}


class Room(NamedTuple):
    """What finds the faults of a list: steps until one was caught, or None.

    ``controls`` run where nothing is wrong: where that takes long, for fewer steps.
    """

    mutants: Sequence[Mutant]
    run: Callable[[int], int | None]
    controls: Mapping[str, Callable[[int], int | None]]
    seeds: Sequence[int] = FIVE


ON_ALL_DEVICES = {
    device: partial(repeats.steps_until_wrong, variant=device)
    for device in (*VARIANTS, IN_C, CUDA)
}
IN_C_LONG = partial(repeats.steps_until_wrong, variant=IN_C, turns=1500)
ROOMS = {
    "caching": Room(
        CACHING_MUTANTS, _caching, _alike(partial(_caching, examples=40)), (1, 2, 3)
    ),
    "fast_replay": Room(FAST_REPLAY_MUTANTS, IN_C_LONG, ON_ALL_DEVICES),
    "file": Room(FILE_MUTANTS, checks_until_caught, _alike(checks_until_caught)),
    "fold": Room(
        FOLD_MUTANTS, folded.steps_until_wrong, _alike(folded.steps_until_wrong)
    ),
    "memory": Room(MEMORY_MUTANTS, _memory, _alike(_memory)),
    "pinned": Room(PINNED_MUTANTS, _pinned, _alike(_pinned)),
    "store": Room(STORE_MUTANTS, _store, _alike(partial(_store, examples=25))),
    "tree": Room(TREE_MUTANTS, _tree, _alike(_tree)),
}


@pytest.mark.parametrize(
    ("control", "seed"),
    [
        pytest.param(
            control,
            seed,
            id=f"{name}-{kind}-{seed}",
            marks=[pytest.mark.gpu] if kind == CUDA else [],
        )
        for name, room in ROOMS.items()
        for kind, control in room.controls.items()
        for seed in room.seeds
    ],
)
def test_nothing_is_caught_where_nothing_is_wrong(control, seed):
    """The machine passes on the library as it is, under the same seeds."""
    assert control(seed) is None


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("room", "mutant"),
    [
        pytest.param(room, mutant, id=f"{name}-{mutant.name}")
        for name, room in ROOMS.items()
        for mutant in room.mutants
    ],
)
def test_every_mutant_is_caught(room, mutant, capsys):
    """Under every seed; the steps to detection are printed."""
    steps = steps_under(mutant.name, mutant.patch, room.seeds, room.run)
    with capsys.disabled():
        sys.stdout.write(f"\n{mutant.name}: caught after {steps} steps")
