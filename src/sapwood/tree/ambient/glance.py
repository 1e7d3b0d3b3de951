"""All guards of a recording as one function, for the case that nothing has changed.

Every test by identity alone, written out as code: nearly always that is the answer,
for a third of the time. Where it is not, the tests themselves have to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import is_
from typing import Any, Final, Protocol

from sapwood.tree.ambient.checks import (
    CHANGING,
    ArrayTest,
    ConstantTest,
    KeysTest,
    LacksTest,
    LengthTest,
    NodeTest,
    OpaqueTest,
    SeenTest,
    Test,
)

__all__ = ["Glance"]

PATIENCE: Final = 8
"""Matches before the code is written: most recordings that are used, are used more."""
LINES: Final = 20_000
"""More than these are not worth compiling."""


_NAMES: Final = {"all": all, "is_": is_, "len": len, "map": map, "type": type}


class Checks(Protocol):
    """The tests inside one thing: see `Check`."""

    @property
    def thing(self) -> int: ...
    @property
    def cls(self) -> type | None: ...
    @property
    def open(self) -> Callable[[Any], Any]: ...
    @property
    def tests(self) -> tuple[Test, ...]: ...


class Glance:
    """``look()`` returns the used arrays, or None: it cannot be told at a glance.

    ``latest`` are references to the idle arrays that were seen last. Whoever binds
    another one where one of them was, and of the same looks, puts it in there.
    """

    __slots__ = ("_checks", "_left", "_places", "_roots", "latest", "look")

    def __init__(
        self, roots: Sequence[Callable[[], object]], checks: Sequence[Checks]
    ) -> None:
        self._roots, self._checks = roots, checks
        self._left = PATIENCE
        self.latest: list[Callable[[], object]] = []
        self._places: list[tuple[ArrayTest, int]] = []
        self.look: Callable[[], list[Any] | None] = self._wait

    def _wait(self) -> None:
        self._left -= 1
        if self._left <= 0:
            self.write()

    def write(self) -> None:
        """Write the code now, unless it is."""
        if self.look == self._wait:
            writer = _Writer(self.latest, self._places)
            self.look = writer.written(self._roots, self._checks) or _nothing

    def places(self, path: str, array: Any) -> list[int]:
        """Return which of the `latest` are for this slot and arrays that look so."""
        return [
            place
            for place, (test, number) in enumerate(self._places)
            if test.guards[number].path == path and test.same(number, array, [])
        ]


def _nothing() -> None:
    return None


class _Writer:
    """Writes the code; whatever it is about has a name, and none of it is text."""

    def __init__(
        self,
        latest: list[Callable[[], object]],
        places: list[tuple[ArrayTest, int]],
    ) -> None:
        self.latest, self.places = latest, places
        self.names: dict[str, Any] = {**_NAMES, "latest": latest}
        self.lines: list[str] = []
        self.found: list[str] = []
        self.things = 0

    def written(
        self, roots: Iterable[Callable[[], object]], checks: Iterable[Checks]
    ) -> Callable[[], list[Any] | None] | None:
        """Return the function; None where a value may change and be the same object."""
        for root in roots:
            thing = self._thing(f"{self._name(root)}()")
            self._unless(f"{thing} is not None")
        for check in checks:
            if check.cls is not None:
                self._unless(f"type(t{check.thing}) is {self._name(check.cls)}")
            if check.tests:
                self.lines.append(f"s = {self._name(check.open)}(t{check.thing})")
            if not all(map(self._test, check.tests)):
                return None
        if len(self.lines) > LINES:
            return None
        body = "\n  ".join([*self.lines, f"return [{', '.join(self.found)}]"])
        code = (
            f"def look():\n try:\n  {body}\n"
            " except (AttributeError, LookupError, RuntimeError):\n  return None\n"
        )
        exec(compile(code, "<guards>", "exec"), self.names)  # noqa: S102 - only names
        look: Callable[[], list[Any] | None] = self.names["look"]
        return look

    def _name(self, value: Any) -> str:
        name = f"n{len(self.names)}"
        self.names[name] = value
        return name

    def _thing(self, expression: str) -> str:
        name = f"t{self.things}"
        self.things += 1
        self.lines.append(f"{name} = {expression}")
        return name

    def _unless(self, condition: str) -> None:
        self.lines.append(f"if not ({condition}): return None")

    def _test(self, test: Test) -> bool:
        match test:
            case LengthTest(_, length):
                self._unless(f"len(s) == {length:d}")
            case LacksTest(names, _):
                self._unless(f"s.keys().isdisjoint({self._name(names)})")
            case KeysTest():
                keys = self._name(test.keys)
                self._unless(f"len(s) == len({keys}) and all(map(is_, s, {keys}))")
            case OpaqueTest() | ArrayTest():
                self._objects(test)
            case ConstantTest() | SeenTest() | NodeTest():
                return self._slots(test)
            case _:
                return False
        return True

    def _slots(self, test: ConstantTest | SeenTest | NodeTest) -> bool:
        for guard, first in zip(test.guards, test.first, strict=True):
            slot = f"s[{self._name(guard.key)}]"
            if isinstance(test, NodeTest):
                self._target(self._thing(slot), first)
            elif isinstance(test, SeenTest):
                self._unless(f"{slot} is t{first:d}")
            elif first is CHANGING:
                return False
            else:
                self._unless(f"{slot} is {self._name(first)}")
        return True

    def _target(self, thing: str, target: Any) -> None:
        if isinstance(target, type):
            self._unless(f"type({thing}) is {self._name(target)}")
        else:
            self._same(thing, target)

    def _same(self, value: str, reference: Callable[[], object]) -> None:
        self._refers(value, self._name(reference))

    def _refers(self, value: str, reference: str) -> None:
        # What is gone is None, which may be just what is there now.
        self._unless(f"{value} is not None and {reference}() is {value}")

    def _objects(self, test: OpaqueTest | ArrayTest) -> None:
        used = isinstance(test, ArrayTest) and test.used
        for number, guard in enumerate(test.guards):
            value = f"f{len(self.found)}" if used else "v"
            self.lines.append(f"{value} = s[{self._name(guard.key)}]")
            if used:
                self.found.append(value)
            if isinstance(test, OpaqueTest) or used:
                self._same(value, test.first[number])
            else:
                self._refers(value, f"latest[{len(self.latest)}]")
                self.latest.append(test.first[number])
                self.places.append((test, number))
