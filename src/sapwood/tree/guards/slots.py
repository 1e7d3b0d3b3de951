"""Named places that hold values: read, bound and unbound wherever they are now."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from threading import get_ident
from typing import Any, ClassVar, Self

from sapwood.errors import MisuseError
from sapwood.tree.guards.views import CELLS, EMPTY, FIELDS, TUPLE, View
from sapwood.tree.nests.containers import Structure, unflatten


@dataclass(frozen=True, slots=True)
class Slot:
    """A place, by the way that leads to it; it keeps nothing alive.

    ``path`` is what a user would write. ``root`` is a parameter's name, or a weak
    reference to what the way starts from, whose path is ``start``.
    """

    path: str
    root: str | Callable[[], object]
    steps: tuple[tuple[View, Any], ...]
    start: str

    def read(self, arguments: Mapping[str, object] | None = None) -> Any:
        """Return what is bound here; raises `MisuseError` where nothing is."""
        value = self.held(arguments)
        if value is EMPTY:
            raise MisuseError(f"{self.path} is not there any more: bind it again")
        return value

    def held(self, arguments: Mapping[str, object] | None = None) -> Any:
        """Return what is bound here, or `EMPTY`.

        Raises `MisuseError` where the way is gone.
        """
        view, key = self.steps[-1]
        try:
            return view.open(self.owner(arguments or {}))[key]
        except LookupError:
            return EMPTY

    def write(
        self, value: object, arguments: Mapping[str, object] | None = None
    ) -> None:
        """Bind ``value`` here; slots in arguments need those of the call, by name.

        Where that is in a tuple, another tuple is bound in its place. Raises
        `MisuseError` where the way is gone, or cannot be bound.
        """
        view, key = self.steps[-1]
        if not self.can_be_bound:
            raise MisuseError(f"{self.path} cannot be bound: keep it in a list or dict")
        owner = self.owner(arguments or {})
        if view is TUPLE:
            Slot.write(self._around(), _replaced(owner, key, value), arguments)
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

        Not for slots in arguments.
        """
        view, key = self.steps[-1]
        if view.bearer is None or isinstance(self.root, str):
            return None
        return view.bearer(self.owner({}), key)

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
class NestSlot(Slot):
    """A slot that replays bind to a new nest, an ``item``; this is one ``leaf`` of it.

    ``path`` is the leaf's.
    """

    item: Item | None = None
    leaf: int = 0

    @classmethod
    def of(cls, slot: Slot, item: Item | None = None, leaf: int = 0) -> Self:
        """Return a slot as one of a nest."""
        return cls(slot.path, slot.root, slot.steps, slot.start, item, leaf)

    def write(
        self, value: object, arguments: Mapping[str, object] | None = None
    ) -> None:
        """Take one leaf, and bind the nest behind the last; as `Slot.write` then."""
        for nest in () if self.item is None else self.item.put(self.leaf, value):
            Slot.write(self, nest, arguments)

    def bearer(self) -> None:
        """Return None: a leaf alone is bound to nothing."""

    def place(self, arguments: Mapping[str, object]) -> Hashable:
        """Return what tells where this is, whichever way leads there."""
        (view, key), owner = self.steps[-1], self.owner(arguments)
        if view is CELLS:
            return (id(owner.__closure__[key]),)
        return id(owner if view is FIELDS else view.open(owner)), key


@dataclass(frozen=True, slots=True)
class TallySlot(NestSlot):
    """A slot of a number, or of a list, to which replays add.

    What is added is a ``leaf`` of an ``item``, if that is a nest.
    """

    def write(
        self, value: object, arguments: Mapping[str, object] | None = None
    ) -> None:
        """Add ``value`` to what is bound here; as `Slot.write` otherwise."""
        held = self.read(arguments)
        if type(held) is list:
            item = self.item
            held.extend([value] if item is None else item.put(self.leaf, value))
        else:
            Slot.write(self, held + value, arguments)


@dataclass(frozen=True, slots=True)
class Change:
    """Something that the function wrote, and that no replay would repeat.

    ``path`` names it, ``text`` says what became of it, ``remedy`` what to do instead.
    """

    path: str
    text: str
    remedy: ClassVar[str] = (
        "Return the value, keep it in a device array, or write it outside the graphed "
        "function"
    )

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Draw(Change):
    """Random numbers that were drawn on the host, or a seed that was set there."""

    remedy: ClassVar[str] = (
        "Draw from rt.generator(seed), whose state is on the device, or draw outside "
        "the graphed function and pass the number as an array"
    )


@dataclass(frozen=True, slots=True)
class Filled(Change):
    """Something where nothing or None was: what later calls may find ready."""


@dataclass(frozen=True, slots=True, eq=False)
class Repeated(Change):
    """A write that every replay makes again: ``new`` to ``slot``, which held ``old``.

    Only ``slot`` is worth keeping: the rest keeps arrays alive.
    """

    slot: Slot
    old: Any
    new: Any
    _arguments: Mapping[str, object] = field(repr=False)

    def undo(self) -> None:
        """Have the slot hold what it held before."""
        Slot.write(self.slot, self.old, self._arguments)

    @property
    def item(self) -> Item | None:
        """The nest that it is a leaf of, if it is of any."""
        return None


@dataclass(frozen=True, slots=True, eq=False)
class BoundArray(Repeated):
    """An array bound to a slot.

    ``old`` is `EMPTY` if there was nothing, ``new`` is None where the function took an
    array away.
    """


@dataclass(frozen=True, slots=True, eq=False)
class Assigned(Repeated):
    """A plain value in the place of another, as by ``self.turn = not self.turn``.

    The new value follows from what is guarded, and the old one is guarded, too: calls
    that find it there assign the same.
    """


@dataclass(frozen=True, slots=True, eq=False)
class Rebound(Repeated):
    """A leaf of a new container in the place of ``old``, which is as it was.

    Nobody had the new one before. The leaf is ``alike`` where ``old`` had the same form
    and it is an array, or the plain value that was there.
    """

    slot: NestSlot
    alike: bool

    def undo(self) -> None:
        """Have the slot hold what it held before: once for all leaves."""
        if self.slot.leaf == 0:
            Repeated.undo(self)

    @property
    def item(self) -> Item | None:
        """The nest that it is a leaf of."""
        return self.slot.item

    def place(self) -> Hashable:
        """Return what tells which leaf of what it is, whichever way leads there."""
        return self.slot.place(self._arguments), self.slot.leaf


@dataclass(frozen=True, slots=True, eq=False)
class Added(Repeated):
    """What was added to a number, or appended to a list.

    ``number`` is which item of the list it is.
    """

    slot: TallySlot
    number: int = -1

    def undo(self) -> None:
        """Have the slot hold what it held before."""
        if self.number < 0:
            Repeated.undo(self)
        else:
            del self.slot.read(self._arguments)[self.number :]

    @property
    def item(self) -> Item | None:
        """The nest that it is a leaf of, if it is of any."""
        return self.slot.item

    def is_shared(self, items: dict[int, Item]) -> bool:
        """Note its nest among others; return whether that is appended twice."""
        item = self.item
        if item is None:
            return False
        return any(items.setdefault(n, item) is not item for n in item.numbers)

    def place(self) -> Hashable:
        """Return what tells where that is, whichever way leads there."""
        if self.number >= 0:
            held = self.slot.read(self._arguments)
            return id(held), self.number, self.slot.leaf
        return self.slot.place(self._arguments)


def undo_bound(changes: Sequence[Change]) -> None:
    """Undo, the last first, every change that replays make again."""
    for change in reversed(changes):
        if isinstance(change, Repeated):
            change.undo()
