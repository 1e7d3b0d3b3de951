"""Faulty variants of the tree's decisions, which `Calls` and `repeats` must catch.

A test that has not been seen to fail is no evidence. Each mutant is one line of the
library written wrongly, and is a context manager: inside it the fault is real.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from types import FunctionType
from typing import Any, Final

from sapwood.errors import MisuseError
from sapwood.memory.range import Range
from sapwood.tree.call.integration import Kept
from sapwood.tree.choose.admit import rejects
from sapwood.tree.guards import Ambient, Survey, acting
from sapwood.tree.guards.checks import Check
from sapwood.tree.guards.reach import reach
from sapwood.tree.node.leases import Leases
from sapwood.tree.record.build import build
from sapwood.tree.regions.rehearsed import Rehearsed
from sapwood.tree.replay.fast_replay import FastReplay
from sapwood.tree.replay.replay import copy_out

__all__ = [
    "ACTING_MUTANTS",
    "FAST_REPLAY_MUTANTS",
    "SURVEY_MUTANTS",
    "TREE_MUTANTS",
    "WHICH_MUTANTS",
    "Mutant",
    "miswritten",
    "mutant",
]


@dataclass(frozen=True, slots=True)
class Mutant:
    """A fault with a name; ``with mutant.patch():`` makes it real."""

    name: str
    patch: Callable[[], AbstractContextManager[None]]


@contextmanager
def miswritten(function: Callable[..., Any], right: str, wrong: str) -> Iterator[None]:
    """Run a function with ``right``, once in its source, written as ``wrong``.

    Whoever holds the function runs the fault. Raises `MisuseError` where the source
    does not hold ``right`` exactly once.
    """
    source = textwrap.dedent(inspect.getsource(function))
    if not isinstance(function, FunctionType) or source.count(right) != 1:
        raise MisuseError(
            f"{function.__qualname__} does not say {right!r} once. Write the mutant "
            "anew for what it says now"
        )
    # With the file and lines of the right code: the function's source can still be had.
    right_code, names = function.__code__, dict(function.__globals__)
    lines = "\n" * (right_code.co_firstlineno - 1) + source.replace(right, wrong)
    exec(compile(lines, right_code.co_filename, "exec"), names)
    wrong_one = names[function.__name__]
    function.__code__ = getattr(wrong_one, "__func__", wrong_one).__code__
    try:
        yield
    finally:
        function.__code__ = right_code


def mutant(name: str, function: Callable[..., Any], right: str, wrong: str) -> Mutant:
    """Return a mutant that `miswritten` puts there: ``wrong`` for ``right``."""
    return Mutant(name, partial(miswritten, function, right, wrong))


TREE_MUTANTS: Final = (
    mutant("mask ignored", rejects, "node.clobbers & live", "node.clobbers & 0"),
    mutant("escape skipped", copy_out, "if size:", "if False:"),
    mutant(
        "read hazard dropped",
        Leases._leave,
        "self.pages.used(streams, lease.mask)",
        "self.pages.used((), lease.mask)",
    ),
    mutant(
        "ambient guard dropped",
        Check._slot,
        "if not guard.holds(value, things, looks):",
        "if not (guard.holds(value, things, looks) or True):",
    ),
    mutant(
        "eviction of a live node",
        Range.close,
        "if not e.mask & live",
        "if not e.mask & 0",
    ),
    mutant(
        "scratch shared with outputs",
        build,
        "range_.page_indices([*lasting, *held])",
        "set()",
    ),
    mutant("lease released twice", Leases.end, "del self._held[lease]", "pass"),
    mutant(
        "unmap without wait",
        Range.close,
        "release(self.pages.settle, self.mask)",
        "pass",
    ),
)

FAST_REPLAY_MUTANTS: Final = (
    mutant(
        "kept outputs taken from their holders",
        Kept.is_idle,
        "return uses == self.uses",
        "return True",
    ),
    mutant(
        "what rests is not woken",
        FastReplay.wake,
        "recordings.leases.wake(self.kept.storages)",
        "pass",
    ),
    mutant(
        "changes of order unseen",
        FastReplay._order,
        "changes == self.stream_epoch",
        "self.stream_epoch >= 0",
    ),
)

SURVEY_MUTANTS: Final = (
    mutant(
        "what only a guess leads to is read",
        reach,
        "guess.found.size() == guess.size() ==",
        "guess.size() ==",
    ),
    mutant(
        "what is found late is not read",
        reach,
        "guess.found.size() == guess.size() == size",
        "guess.found.size() == guess.size()",
    ),
)

ACTING_MUTANTS: Final = (
    mutant(
        "what is held leads nowhere", acting.may_act, "any(map(_leads", "all(map(_leads"
    ),
    mutant(
        "built-in names lead nowhere",
        acting.may_act,
        "not _NAMED.isdisjoint(names) or",
        "",
    ),
    mutant("what packages do is the user's", acting._user_of, '== "user"', '!= ""'),
    mutant(
        "regions are heard", Rehearsed._refuse_act, "current() is self._session", "True"
    ),
)
"""Faults in what warm-ups hear of what is done outside."""

WHICH_MUTANTS: Final = (
    mutant("asked of no recording", Ambient.are_those, "not (which or nests)", "True"),
    mutant("keys left out", Survey.which, "*walk.array_keys()", "*()"),
    mutant("slots left out", Survey.which, "*self.arrays(), *", "*(), *"),
    mutant("asked for never", Survey.which, "not walk.reach.compares", "True"),
)
