"""Named places that hold values: read, bound and unbound wherever they are now."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from threading import get_ident
from typing import Any, TypeAlias

from sapwood.errors import MisuseError
from sapwood.tree.guards.views import (
    CELLS,
    EMPTY,
    FIELDS,
    TUPLE,
    View,
    attribute_alone,
)
from sapwood.tree.nests.containers import Structure, unflatten

Arguments: TypeAlias = Mapping[str, object] | None
"""Those of a call, by parameter: slots in them need them."""


@dataclass(slots=True, eq=False)
class Item:
    """A nest that is made, for a slot or a list, once all of its leaves are there.

    ``numbers`` are the identities of the containers in that which was.
    """

    structure: Structure
    leaves: int
    numbers: tuple[int, ...]
    _found: dict[int, list[Any]] = field(default_factory=dict)

    def put(self, number: int, leaf: object) -> list[Any]:
        """Take the next leaf; return the whole nest alone behind the last one.

        Threads take turns in the midst of one: each has leaves of its own.
        """
        thread = get_ident()
        found = self._found.setdefault(thread, [])
        if number == 0:
            found.clear()  # an exception may have left some
        found.append(leaf)
        if len(found) < self.leaves:
            return []
        del self._found[thread]
        return [unflatten(self.structure, found)]


@dataclass(frozen=True, slots=True)
class Slot:
    """A place, by the way that leads to it; it keeps nothing alive.

    ``path`` is what a user would write. ``root`` is a parameter's name, or a weak
    reference to what the way starts from, whose path is ``start``. Where replays bind
    it to a new nest, an ``item``, this is one ``leaf`` of that: ``path`` is the leaf's.
    ``adds``: replays add to the number or list that is here.
    """

    path: str
    root: str | Callable[[], object]
    steps: tuple[tuple[View, Any], ...]
    start: str
    item: Item | None = None
    leaf: int = 0
    adds: bool = False

    def read(self, arguments: Arguments = None) -> Any:
        """Return what is bound here; raises `MisuseError` where nothing is."""
        value = self.held(arguments)
        if value is EMPTY:
            raise MisuseError(f"{self.path} is not there any more: bind it again")
        return value

    def held(self, arguments: Arguments = None) -> Any:
        """Return what is bound here, or `EMPTY`.

        Raises `MisuseError` where the way is gone.
        """
        view, key = self.steps[-1]
        try:
            return view.open(self.owner(arguments or {}))[key]
        except (AttributeError, LookupError, TypeError):
            return EMPTY  # or something of another class is there by now

    def write(self, value: object, arguments: Arguments = None) -> None:
        """Bind or add what a replay gives; of a nest, behind its last leaf.

        Raises as `bind`, and as `read` where it adds.
        """
        held: Any = self.read(arguments) if self.adds else None
        given = [value] if self.item is None else self.item.put(self.leaf, value)
        if type(held) is list:
            held.extend(given)
            return
        for each in given:
            self.bind(held + each if self.adds else each, arguments)

    def bind(self, value: object, arguments: Arguments = None) -> None:
        """Bind ``value`` here; slots in arguments need those of the call, by name.

        Where that is in a tuple, another tuple is bound in its place. Raises
        `MisuseError` where the way is gone, or cannot be bound.
        """
        view, key = self.steps[-1]
        if not self.can_be_bound:
            raise MisuseError(f"{self.path} cannot be bound: keep it in a list or dict")
        owner = self.owner(arguments or {})
        if view is TUPLE:
            self._around().bind(_replaced(owner, key, value), arguments)
        elif view.store is not None:
            view.store(owner, key, value)

    @property
    def can_be_bound(self) -> bool:
        """Whether `write` can bind it, while the way is there."""
        inner = len(self.steps) > 1 and self.steps[-1][0] is TUPLE
        return self._around().can_be_bound if inner else bool(self.steps[-1][0].store)

    def where_it_is(self, arguments: Mapping[str, object]) -> Slot:
        """Return the slot as one of what holds it now, whatever leads there later.

        It keeps that alive. Raises `MisuseError` where the way is gone.
        """
        view, key = self.steps[-1]
        if view.bearers is not None:
            bearer = view.bearers(self.owner(arguments))[key]
            step = attribute_alone(view.attribute), view.attribute
            return Slot(self.path, lambda: bearer, (step,), self.start)
        # A tuple is replaced where it is: what holds it is what can be written.
        bound = self.outermost()
        owner, first = bound.owner(arguments), len(bound.steps) - 1
        return Slot(self.path, lambda: owner, self.steps[first:], self.start)

    def outermost(self) -> Slot:
        """Return the slot of the tuple, or the tuples in tuples, that this is in.

        That is itself where it is in none.
        """
        bound = [k for k, (view, _) in enumerate(self.steps) if view is not TUPLE]
        return replace(self, steps=self.steps[: bound[-1] + 1 if bound else 1])

    def inside(self, key: int) -> Slot:
        """Return the slot of what is in the tuple here."""
        path = TUPLE.label(self.path, None, key)
        return replace(self, path=path, steps=(*self.steps, (TUPLE, key)))

    def _around(self) -> Slot:
        return replace(self, steps=self.steps[:-1])

    def bearer(self) -> object | None:
        """Return the object whose attribute this is; None where it is no object's.

        Not for slots in arguments, nor for leaves: these alone are bound to nothing.
        Nor for what is added to, which is not just bound.
        """
        view, key = self.steps[-1]
        whole = self.item is None and not self.adds
        if view.bearers is None or isinstance(self.root, str) or not whole:
            return None
        found: object = view.bearers(self.owner({}))[key]
        return found

    def place(self, arguments: Mapping[str, object]) -> Hashable:
        """Return what tells where this is, whichever way leads there."""
        (view, key), owner = self.steps[-1], self.owner(arguments)
        if view is CELLS:
            return (id(owner.__closure__[key]),)
        return id(owner if view is FIELDS else view.open(owner)), key

    @property
    def attribute(self) -> str:
        """The name of the attribute that this is of its bearer."""
        return self.steps[-1][0].attribute

    def owner(self, arguments: Mapping[str, object]) -> Any:
        """Return what holds this slot; raises `MisuseError` where the way is gone."""
        root = self.root
        thing = arguments.get(root) if isinstance(root, str) else root()
        try:
            for view, key in self.steps[:-1]:
                thing = view.open(thing)[key]
        except (AttributeError, LookupError, TypeError):
            thing = None
        if thing is None:
            raise MisuseError(
                f"what holds {self.path} is gone: keep it alive, and where it was, "
                "while the function is called"
            )
        return thing


def _replaced(old: tuple[Any, ...], key: int, value: object) -> tuple[Any, ...]:
    """Return a tuple of the same class, with another value in one place."""
    items = [*tuple.__iter__(old)]
    items[key] = value
    new = tuple.__new__(type(old), items)
    if hasattr(old, "__dict__"):
        vars(new).update(vars(old))
    return new
