"""What the code that was reached so far may name, and so where the walk has to look."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import Final, NamedTuple, TypeAlias
from weakref import WeakSet

from sapwood.tree.guards.code import ANY_GLOBAL
from sapwood.tree.guards.owners import owner_of_code
from sapwood.tree.guards.views import View

ATOMS: Final[frozenset[type]] = frozenset(
    {bool, int, float, complex, str, bytes, type(None), type(...)}
    | {CodeType, range, slice}
)
"""Classes of values that have nothing inside."""


UNNAMED: Final = "<unnamed>"
"""Stands for all that code uses without naming it: what compilers and copies read."""

_UNNAMING: Final = (
    ANY_GLOBAL
    | {UNNAMED, "format", "format_map", "vformat"}
    | {"pformat", "pprint", "pp", "saferepr"}
    | {"__getstate__", "__getnewargs__", "__getnewargs_ex__"}
    | {"__reduce__", "__reduce_ex__"}
)


class Accessor(NamedTuple):
    """A view and the names wanted from it; None: all there are."""

    view: View
    wanted: frozenset[str] | None = None


Openings: TypeAlias = Iterator[Accessor]


@dataclass(slots=True)
class Reach:
    """What the code reached so far may name; it only grows.

    ``built`` are the classes that reached code can call, ``builtins`` the global names
    that it finds in no module of its own. ``own`` is the code of the function itself,
    which is read wherever it is from. ``advances``: it moves iterators by hand.
    ``compares``: it may ask which arrays are one. ``added`` are names by which it adds
    to what is there, ``used`` those that it uses in another way.

    A walk may begin with the reach of the walk before it, as a guess. What this walk
    has come by itself is then in ``found``; a guess that holds more is of no use.
    """

    names: set[str] = field(default_factory=set)
    builtins: set[str] = field(default_factory=set)
    dynamic: bool = False
    advances: bool = False
    compares: bool = False
    built: WeakSet[type] = field(default_factory=WeakSet)
    added: set[str] = field(default_factory=set)
    used: set[str] = field(default_factory=set)
    own: set[CodeType] = field(default_factory=set)
    found: Reach | None = None

    def guess(self) -> Reach:
        """Return a reach for another walk to begin with, of which nothing is found."""
        flags = self.dynamic, self.advances, self.compares
        sets = {*self.names}, {*self.builtins}
        both = {*self.added}, {*self.used}
        return Reach(*sets, *flags, WeakSet(self.built), *both, found=Reach())

    def size(self) -> tuple[int, ...]:
        """Return a measure that differs after every growth."""
        flags = self.dynamic, self.advances, self.compares
        sets = self.names, self.builtins, self.built, self.added, self.used
        return *(len(each) for each in sets), *flags

    def note(
        self,
        names: Collection[str] = (),
        builtins: Collection[str] = (),
        built: Collection[type] = (),
        *,
        dynamic: bool = False,
        advances: bool = False,
        compares: bool = False,
        added: Collection[str] = (),
        used: Collection[str] | None = None,
    ) -> None:
        """Note what reached code names, can call, or may do."""
        for each in (self,) if self.found is None else (self, self.found):
            each.names.update(names)
            each.builtins.update(builtins)
            each.built.update(built)
            each.dynamic |= dynamic
            each.advances |= advances
            each.compares |= compares
            each.added.update(added)
            each.used.update(names if used is None else used)

    def only_adds(self, name: str, *, asks: bool) -> bool:
        """Return whether reached code does no more with a name than add to it.

        If ``asks``, it may also ask questions of that.
        """
        refused = {f"{name}[+]", f"{name}[]?"} | (set() if asks else {f"{name}?"})
        known = name in self.added and not refused & self.added
        # ``log[0]`` reads what an append may have put there.
        items = any(each.startswith(f"{name}[") for each in self.used | self.added)
        return known and not items and self._has_no_other_use(name)

    def adds_to_items(self, name: str) -> bool:
        """Return whether code uses a name only for items, and adds to any of them."""
        refused = {name, f"{name}?"}
        known = f"{name}[+]" in self.added and not refused & self.added
        return known and self._has_no_other_use(name)

    def only_adds_to(self, name: str, key: object, *, asks: bool) -> bool:
        """Return whether code only adds to an item, where `adds_to_items`."""
        if type(key) is not str and type(key) is not int:
            return False
        item, every = f"{name}[{key!r}]", f"{name}[]"
        refused = set() if asks else {f"{item}?", f"{every}?"}
        known = not self.added.isdisjoint((item, every)) and item not in self.used
        return known and not refused & self.added

    def _has_no_other_use(self, name: str) -> bool:
        free = name not in self.used and self.used.isdisjoint(_UNNAMING)
        return free and not self.dynamic

    def reads(self, function: FunctionType) -> bool:
        """Return whether the code of ``function`` is read, not only its identity."""
        code = function.__code__
        return code in self.own or owner_of_code(code) == "user"

    def attributes(self, more: frozenset[str] = frozenset()) -> frozenset[str] | None:
        """Return the names by which attributes may be read; None: by any."""
        return None if self.dynamic else more.union(self.names)
