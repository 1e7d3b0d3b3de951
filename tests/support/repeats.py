"""Calls like the ones before, by the hundred, and who holds what they gave.

Replays that repeat are where least is looked at: so here the same functions are called
again and again, on one stream mostly, while outputs are kept, viewed, read elsewhere
and dropped, and what functions read is written and replaced.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Final

import numpy as np

from sapwood.errors import InternalError
from tests.support.rig import Rig

__all__ = ["steps_until_wrong"]

_TURNS: Final = 600
_LENGTHS: Final = 5, 700
_KEPT: Final = 6
_CARRIED: Final = 20


def steps_until_wrong(
    seed: int, variant: str = "latest", turns: int = _TURNS
) -> int | None:
    """Return after how many turns a result was not NumPy's; None where all were.

    Raises `InternalError` where hardly any call was a fast replay: it shows nothing.
    """
    rig = Rig(variant)
    try:
        world = _World(rig, random.Random(seed))
        for turn in range(turns):
            if not world.turn():
                rig.abandon()
                return turn
        if not world.carried():
            rig.abandon()
            return turns
        world.finish()
    except InternalError:
        rig.abandon()
        return turns
    hits = world.hits()
    if hits < turns:
        raise InternalError(f"most calls are fast replays, but {hits} were replayed")
    return None


class _World:
    """The functions on the device and beside it, and the results that are kept."""

    def __init__(self, rig: Rig, chance: random.Random) -> None:
        self.rig, self.chance = rig, chance
        self.runtime = rt = rig.runtime
        self.side = rt.stream()
        names = "shift", "carried"
        self.host: dict[str, Any] = {name: np.full(1, 0.5) for name in names}
        self.device: dict[str, Any] = {
            name: rt.array(value) for name, value in self.host.items()
        }
        self.inputs = [np.linspace(-1.0, 2.0, n) + k for n in _LENGTHS for k in (0, 1)]
        self.given = [rt.array(each) for each in self.inputs]
        self.kept: list[tuple[Any, Any]] = []
        here, there = self.device, self.host
        self.functions: list[tuple[Any, Any]] = [
            (
                rt.graph(lambda x: x * 2.0 + here["shift"]),
                lambda x: x * 2 + there["shift"],
            ),
            (
                rt.graph(lambda x: x[::-1] - here["shift"]),
                lambda x: x[::-1] - there["shift"],
            ),
        ]
        self.carrying = rt.graph(_carrying(here)), _carrying(there)
        self.last = 0, 0

    def turn(self) -> bool:
        """Call once, and do something beside it; false where a result was wrong."""
        chance = self.chance
        if chance.random() < 0.05:
            self.last = chance.randrange(2), chance.randrange(len(self.inputs))
        if chance.random() < 0.2:
            self._change()
        which, number = self.last
        graphed, plain = self.functions[which]
        asides = [chance.random() < 0.2 for _ in range(chance.randint(1, 3))]
        if chance.random() < 0.15:
            # On one stream again and again, and then another result on the other.
            asides, self.kept = [False, False, False, True], []
        for turn, aside in enumerate(asides):
            if turn == 3:
                self._write()
            with self.side if aside else nullcontext():
                result = graphed(self.given[number])
            expected = plain(self.inputs[number])
            if aside and not _is_right(result, expected):
                return False
            self._keep(result, expected)
            del result
        right = chance.random() < 0.5 or self.rightly()
        if chance.random() < 0.7:
            self.kept = self.kept[2:]
        return right

    def carried(self) -> bool:
        """Carry a state on, with an argument that is another one every time."""
        graphed, plain = self.carrying
        for each in self.inputs[:2] * _CARRIED:
            for _ in range(3):
                result, expected = graphed(self.runtime.array(each)), plain(each)
            # One state stays till the next: so recordings take turns.
            self.kept = [(self.device["carried"], self.host["carried"])]
            if not _is_right(result, expected):
                return False
        return self.rightly()

    def _keep(self, result: Any, expected: Any) -> None:
        match self.chance.randrange(9):
            case 0:
                self.kept.append((result, expected))
            case 1:
                self.kept.append((result[1:], expected[1:]))
            case 2 if self.chance.random() < 0.3:
                with self.side:
                    self.kept.append((result * 3.0, expected * 3.0))
            case _:
                return
        self.kept = self.kept[-_KEPT:]

    def _change(self) -> None:
        match self.chance.randrange(8):
            case 0:
                self.host["shift"] = np.full(1, self.chance.random())
                self.device["shift"] = self.runtime.array(self.host["shift"])
            case 1 | 2 | 3:
                self._write()
            case _:
                with self.side:
                    self._write()

    def _write(self) -> None:
        self.host["shift"] = np.full(1, self.chance.random())
        self.device["shift"][:] = float(self.host["shift"][0])

    def rightly(self) -> bool:
        """Return whether all that is kept is as it was made."""
        return all(_is_right(mine, theirs) for mine, theirs in self.kept)

    def finish(self) -> None:
        """Compare what is kept and let go of all; raises for a law that is broken."""
        if not self.rightly():
            raise InternalError("what is kept is as it was made")
        for each in self.kept, self.given, self.device:
            each.clear()
        del self.side
        self.rig.finish()

    def hits(self) -> int:
        """Return how many calls were replayed."""
        return sum(graphed.stats().replays for graphed, _ in self.functions)


def _carrying(slots: dict[str, Any]) -> Callable[[Any], Any]:
    """Return what leaves a state for its next call."""

    def step(x: Any) -> Any:
        slots["carried"] = slots["carried"] * 0.5 + x
        return x + slots["carried"]

    return step


def _is_right(mine: Any, theirs: Any) -> bool:
    return bool(np.asarray(mine).tobytes() == theirs.tobytes())
