"""All faulty variants of the library that there are, and where each of them lies."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import textwrap
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any, Final

import sapwood
from sapwood.errors import MisuseError
from tests.support.c_mutants import CMutant
from tests.support.tree_mutants import Mutant, miswritten

__all__ = ["Fault", "Place", "every_fault"]

_ROOT: Final = Path(sapwood.__file__).parent


@dataclass(frozen=True, slots=True)
class Place:
    """A line of a file of the package that a fault writes wrongly."""

    file: str
    line: int


@dataclass(frozen=True, slots=True)
class Fault:
    """A mutant, and the room whose list has it."""

    room: str
    mutant: Mutant | CMutant

    @property
    def name(self) -> str:
        """Its list and its name: no other fault's."""
        return f"{self.room}: {self.mutant.name}"

    @property
    def is_run_here(self) -> bool:
        """Whether this interpreter ever runs the line that is wrong."""
        return not isinstance(self.mutant, CMutant) or self.mutant.is_run_here

    def patch(self) -> AbstractContextManager[None]:
        """Return what makes it real within its block."""
        return self.mutant.patch()

    def places(self) -> list[Place]:
        """Return the lines that are wrong; none where only its patch knows.

        Raises `MisuseError` that names the fault where a line is gone.
        """
        if isinstance(self.mutant, CMutant):
            return [Place(self.mutant.file, self.mutant.line)]
        try:
            return [_place(*each) for each in _miswritings(self.mutant.patch)]
        except (OSError, ValueError) as error:
            raise MisuseError(f"the line of {self.name!r} is gone ({error})") from error


def every_fault() -> list[Fault]:
    """Return the faults of all lists.

    Raises `MisuseError` where two of a list have one name.
    """
    found: dict[str, Fault] = {}
    for name, mutant in _listed():
        fault = Fault(name, mutant)
        if fault.name in found:
            raise MisuseError(f"two mutants are called {fault.name!r}. Rename one")
        found[fault.name] = fault
    return list(found.values())


def _listed() -> Iterator[tuple[str, Mutant | CMutant]]:
    here = [str(Path(__file__).parent)]
    for room in pkgutil.iter_modules(here, "tests.support."):
        if not room.name.endswith("mutants"):
            continue
        module = importlib.import_module(room.name)
        for name in module.__all__:
            if name.endswith("_MUTANTS"):
                for mutant in getattr(module, name):
                    # Those of C may be no more than what they are made of.
                    made = CMutant(*mutant) if isinstance(mutant, tuple) else mutant
                    yield name.removesuffix("_MUTANTS").lower(), made


def _miswritings(patch: Any) -> list[tuple[Callable[..., Any], str]]:
    """Return the functions and what is wrong in them, as far as a patch says."""
    if not isinstance(patch, partial):
        return []
    if patch.func is miswritten:
        return [(patch.args[0], patch.args[1])]
    lines = [line for each in patch.args if isinstance(each, tuple) for line in each]
    return [(line[0], line[1]) for line in lines if isinstance(line[0], FunctionType)]


def _place(function: Callable[..., Any], right: str) -> Place:
    lines, first = inspect.getsourcelines(function)
    source = textwrap.dedent("".join(lines))
    at = source.index(right)
    file = Path(inspect.getfile(function)).relative_to(_ROOT)
    return Place(str(file), first + source[:at].count("\n"))
