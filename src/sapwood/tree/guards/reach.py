"""What a function reaches: a walk from its code, its object and its arguments.

Names in reached code bound what is looked into, and what is found may be code with
more names: the walk is repeated until nothing is added.
"""

from __future__ import annotations

import builtins
import weakref
from collections import Counter, OrderedDict, defaultdict
from collections.abc import (
    Callable,
    Collection,
    Hashable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field
from functools import partial
from types import FunctionType, MethodType
from typing import Any, Final, Literal, NamedTuple

from sapwood.errors import CaptureError
from sapwood.tree.guards import views
from sapwood.tree.guards.accessors import accessors, is_only_named, is_structural, named
from sapwood.tree.guards.asking import Questions
from sapwood.tree.guards.code import FORMATTING, HASHING, fields_of, read_besides
from sapwood.tree.guards.constants import constant_of, is_tensor
from sapwood.tree.guards.frameworks import (
    Arrays,
    behind,
    borne_by,
    is_front,
    layout_of,
    view_of_borne,
)
from sapwood.tree.guards.owners import owner_of_class
from sapwood.tree.guards.scope import ATOMS, UNNAMED, Accessor, Reach
from sapwood.tree.guards.slots import Slot
from sapwood.tree.guards.standard import BUFFER, KEYED, bytes_of
from sapwood.tree.guards.views import View
from sapwood.tree.nests.containers import Identity, constant_key, container_of, weakly


def _roots(fn: Any, known: Reach) -> Iterator[tuple[str, Any]]:
    """Yield where the walk starts: the object that ``fn`` is bound to, and its code."""
    fn = _behind(fn, known)
    while isinstance(fn, MethodType):
        yield "self", fn.__self__
        fn = _behind(fn.__func__, known)
    call = next(
        (vars(cls)["__call__"] for cls in type(fn).__mro__ if "__call__" in vars(cls)),
        None,
    )
    if isinstance(call, FunctionType):
        yield "self", fn
        known.own.add(call.__code__)
        yield call.__qualname__, call
        return
    inner = fn
    while inner is not None:
        if isinstance(inner, FunctionType):
            known.own.add(inner.__code__)
        inner = getattr(inner, "__wrapped__", None) or (
            inner.func if isinstance(inner, partial) else None
        )
    yield getattr(fn, "__name__", type(fn).__name__), fn


def _behind(fn: Any, known: Reach) -> Any:
    if isinstance(fn, FunctionType) and is_front(fn):
        known.note(used=(UNNAMED,))
    return behind(fn)


LIMIT = 50_000
"""How many slots a function may reach."""


_AN_ADDRESS: Final = 1 << 20
"""Objects of a process lie above, wherever the interpreter was linked to."""
_NUMBERING: Final = frozenset({"__hash__", "hash", "id"})

_TALLIES: Final = frozenset({float, int, list})
_LOCKING: Final = frozenset({"_thread", "threading"})
_TABLES: Final = frozenset({Counter, OrderedDict, defaultdict, dict, list})

_BOOKS = frozenset({"__builtins__", "__loader__", "__spec__", "__warningregistry__"})
"""What the interpreter keeps in every module for itself."""


class Row(NamedTuple):
    """One slot as it was read.

    ``frozen`` is what its value is compared by: the layout of an array, the key of a
    constant, the class or identity of a node; ``node`` is that node's number. A tally
    is a number or a list to which the function only adds, by a ``name``: compared is
    its class, or what it answers; ``size`` is the length of a list. Where one is only
    compared with, it may be ``absent``. ``bearer`` is the array that bears it, if any.
    """

    key: Any
    value: Any
    role: Literal["absent", "array", "constant", "node", "tally"]
    frozen: Hashable
    node: int = -1
    size: int = 0
    name: str = ""
    bearer: Any = None


@dataclass(slots=True, eq=False)
class Node:
    """A value that is looked into, and how it was come by.

    ``covered``: it is an argument's container, whose leaves the signature compares;
    ``keyed``: or a tuple that is a key of one, or within such a key.
    ``given``: it is an argument itself, whose name is its path. ``added`` is its name,
    if the function only adds to what is in it.
    """

    value: Any
    path: str
    frozen: Hashable
    accessors: tuple[Accessor, ...]
    covered: bool = False
    parent: int = -1
    step: tuple[View, Any] | None = None
    given: bool = False
    keyed: bool = False
    added: str = ""


@dataclass(slots=True, eq=False)
class Inside:
    """What one view of a node held; ``lacks``: names that were not there, if asked."""

    node: int
    view: View
    rows: list[Row]
    lacks: frozenset[str] | None


@dataclass(slots=True, eq=False)
class Walk:
    """Everything reached: nodes, and what is inside them, in a fixed order.

    Arguments' containers come last. ``home`` are the globals whose names are written
    without their module's. ``borne`` are the insides of what arrays bear.
    """

    arrays: Arrays
    reach: Reach
    home: Mapping[str, Any] | None
    questions: Questions
    nodes: list[Node] = field(default_factory=list)
    insides: list[Inside] = field(default_factory=list)
    borne: list[Inside] = field(default_factory=list)
    _known: dict[tuple[int, bool], int] = field(default_factory=dict)
    _bearing: list[tuple[int, Node, View, list[Row]]] = field(default_factory=list)
    _slots: int = 0

    def start(self, path: str, value: Any, *, given: bool = False) -> None:
        """Walk on from a root, an argument if it is given, unless it was reached."""
        if self.arrays.is_array(value):
            return
        if issubclass(type(value), type):
            self.reach.note(built=(value,))
        self._check_added(value, "")
        covered = given and container_of(type(value)) is not None
        opened = tuple(accessors(value, self.reach))
        if not opened and bytes_of(value) is not None:
            # Bytes in a slot are compared with the slot. An argument is in none, and a
            # write to it would go unseen.
            opened = (Accessor(BUFFER),)
        if not opened or (id(value), covered) in self._known:
            return
        node = Node(value, path, self._frozen(value), opened, covered, given=given)
        self._walk_on(self._enter(node))

    def _walk_on(self, number: int) -> None:
        while number < len(self.nodes):
            node = self.nodes[number]
            for view, wanted in node.accessors:
                self._look(number, node, view, wanted)
            number += 1

    def path(self, inside: Inside, key: Any) -> str:
        """Return what a user would write for a slot."""
        return self._label(self.nodes[inside.node], inside.view, key)

    def slot(self, inside: Inside, key: Any, *, by_argument: bool = False) -> Slot:
        """Return a slot that starts from an object held weakly, or from an argument."""
        steps, number = [(inside.view, key)], inside.node
        while True:
            node = self.nodes[number]
            if node.step is None or (not by_argument and self._is_held(node)):
                break
            steps.append(node.step)
            number = node.parent
        named = by_argument and node.given
        root = node.path if named else self.hold(number)
        return Slot(self.path(inside, key), root, tuple(reversed(steps)), node.path)

    def held(self) -> list[int]:
        """Return the nodes that guards start from: roots, and objects in arguments."""
        return [n for n, node in enumerate(self.nodes) if self._is_held(node)]

    def hold(self, number: int) -> Callable[[], object]:
        """Return a reference to a node, weak where there can be weak ones.

        Nor is the function itself kept: whoever can call it has it.
        """
        return weakly(self.nodes[number].value)

    def rows(self) -> Iterator[tuple[Inside, Row]]:
        """Yield all slots that were read, and what each is in."""
        return ((inside, row) for inside in self.insides for row in inside.rows)

    def guarded(self) -> list[Inside]:
        """Return what guards look at: all but arguments and states that ever move."""
        return [
            inside
            for inside in self.insides
            if inside.view.guarded and not self.nodes[inside.node].covered
        ]

    def arrays_found(self) -> list[tuple[Inside, Row]]:
        """Return the guarded slots in which there are arrays."""
        return [
            (inside, row)
            for inside in self.guarded()
            for row in inside.rows
            if row.role == "array"
        ]

    def ids(self) -> list[int]:
        """Return kept numbers that could be those of objects, if code asks for any."""
        if _NUMBERING.isdisjoint(self.reach.builtins | self.reach.names):
            return []
        rows = (row for inside, row in self.rows() if inside.view.guarded)
        both = (each for row in rows for each in (row.key, row.value))
        return [each for each in both if type(each) is int and each >= _AN_ADDRESS]

    def number_of(self, value: object) -> int:
        """Return which node a value is that is reached by itself; -1 for none."""
        return self._known.get((id(value), False), -1)

    def array_keys(self) -> list[Any]:
        """Return the arrays that are keys, or in keys, in what guards look at.

        Those of arguments' dicts are the same ones in all calls of a signature.
        """
        found = [each.rows for each in self.insides if each.view.guarded]
        return [array for rows in found for array in self._keys(rows)]

    def _keys(self, rows: Sequence[Row]) -> Iterator[Any]:
        for row in rows:
            if type(row.key) is not str:
                yield from _arrays_in(row.key, self.arrays)

    def _is_asked(self, node: Node) -> bool:
        """Return whether it may be the user's code that asks for what is in there."""
        if node.parent < 0 or (node.step and node.step[1] in self.reach.names):
            return True
        return owner_of_class(type(self.nodes[node.parent].value)) != "installed"

    def _is_held(self, node: Node) -> bool:
        return not node.covered and (
            node.step is None or self.nodes[node.parent].covered
        )

    def _label(self, node: Node, view: View, key: Any) -> str:
        if view is views.GLOBALS and node.value.__globals__ is not self.home:
            return f"{node.value.__globals__.get('__name__')}.{key}"
        return view.label(node.path, node.value, key)

    def _enter(self, node: Node) -> int:
        number = len(self.nodes)
        self.nodes.append(node)
        self._known[id(node.value), node.covered] = number
        return number

    def _look(
        self, number: int, node: Node, view: View, wanted: frozenset[str] | None
    ) -> None:
        space, lacks = view.open(node.value), None
        if wanted is not None and isinstance(space, Mapping):
            names, whole = sorted(wanted), space
            space = {name: whole[name] for name in names if name in whole}
            lacks = wanted.difference(space)
        self._slots += len(space)
        if self._slots > LIMIT:
            raise self._too_much(node, len(space))
        rows = [
            self._row(number, node, view, key, value)
            for key, value in items_of(space)
            if view not in KEYED or not self.arrays.is_array(value)
        ]
        self.insides.append(Inside(number, view, rows, lacks))
        if view in views.PLAIN and not node.covered:
            arrays = [row for row in rows if row.role == "array"]
            self._bearing += [(number, node, view, arrays)] * bool(arrays)
        members = view is views.SET and any(row.role == "array" for row in rows)
        keys = view is views.DICT and next(self._keys(rows), None) is not None
        if (members or keys) and self._is_asked(node):
            # A look-up asks which of them the key is.
            self.reach.note(compares=True)

    def finish(self) -> None:
        """Look at what arrays bear, where no other view has that already."""
        covered: set[int] | None = None
        while self._bearing:
            number, node, view, rows = self._bearing.pop()
            found = [row for row in rows if borne_by(row.value, self.reach)]
            if not found:
                continue
            covered = self._covered() if covered is None else covered
            more = len(self.nodes)
            found = [row for row in found if id(row.value) not in covered]
            self._look_at_borne(number, node, view, found)
            self._walk_on(more)

    def _covered(self) -> set[int]:
        """Return the arrays of which modules and optimizers show what they bear."""
        shown = [
            (inside.view.bearers(self.nodes[inside.node].value), inside.rows)
            for inside in self.insides
            if inside.view.bearers is not None and inside.view.within is None
        ]
        return {id(bearers[row.key]) for bearers, rows in shown for row in rows}

    def _look_at_borne(
        self, number: int, node: Node, view: View, rows: Sequence[Row]
    ) -> None:
        """Look at what the arrays in a view bear."""
        found: dict[View, list[Row]] = {}
        for row in rows:
            for borne in borne_by(row.value, self.reach):
                value, within = borne.read(row.value), view_of_borne(view, borne)
                slot = self._row(number, node, within, row.key, value)
                slots = found.setdefault(within, [])
                slots.append(slot._replace(bearer=row.value))
        for within, slots in found.items():
            # What bears nothing has nothing put back.
            self.borne.append(Inside(number, within, slots, frozenset()))
            self.insides.append(self.borne[-1])

    def _row(self, number: int, node: Node, view: View, key: Any, value: Any) -> Row:
        if self.arrays.is_array(value):
            return Row(key, value, "array", layout_of(self.arrays, value))
        tally = self._tally(number, node, view, key, value)
        if tally is not None:
            return tally
        if is_book(view, key):
            return Row(key, value, "constant", constant_key(value))
        self._note_fields(value)
        if type(value) in ATOMS:
            return Row(key, value, "constant", constant_of(value))
        locks = type(value).__module__ in _LOCKING
        if locks and owner_of_class(type(node.value)) != "installed":
            # Others may add meanwhile, where the function holds a lock: replays do not.
            self.reach.note(used=(UNNAMED,))
        if issubclass(type(value), type):
            self._come_by(value, node, view, key)
        keyed, cls = node.keyed or view in KEYED, type(value)
        # Signatures compare arguments by their items: of keys, tuples.
        covered = node.covered and (
            cls is tuple if keyed else container_of(cls) is not None
        )
        name = named(node.value, view, key)
        table = cls in _TABLES and self.reach.adds_to_items(name)
        added = name if table and is_only_named(node.value, view, key) else ""
        self._check_added(value, added)
        known = self._known.get((id(value), covered))
        if known is None:
            opened = () if is_tensor(value) else tuple(accessors(value, self.reach))
            if not opened:
                return Row(key, value, "constant", constant_of(value))
            path, frozen = self._label(node, view, key), self._frozen(value)
            entered = Node(value, path, frozen, opened, covered, number, (view, key))
            entered.keyed, entered.added = covered and keyed, added
            known = self._enter(entered)
        return Row(key, value, "node", self.nodes[known].frozen, known)

    def _note_fields(self, value: Any) -> None:
        """Note what fields read of a text, or of one in a tuple, if it is a format."""
        if not FORMATTING.isdisjoint(self.reach.names):
            for text in value if type(value) is tuple else (value,):
                self.reach.note(fields_of(text) if type(text) is str else ())

    def _check_added(self, value: Any, added: str) -> None:
        """Note a use by another name of what the function adds to by one."""
        known = self._known.get((id(value), False))
        names = {added, "" if known is None else self.nodes[known].added}
        if known is not None and len(names) > 1:
            self.reach.note(used=names - {""})

    def _tally(
        self, number: int, node: Node, view: View, key: Any, value: Any
    ) -> Row | None:
        """Return the row of what the function only adds to; None where it does more."""
        kind: Any = type(value)
        if kind not in _TALLIES:
            return None
        name, asks = node.added, kind is int
        if name:
            added = self.reach.only_adds_to(name, key, asks=asks)
            name = f"{name}[{key!r}]"
        else:
            name = named(node.value, view, key)
            added = self.reach.only_adds(name, asks=asks)
            added = added and is_only_named(node.value, view, key)
        if not added or name in self.questions.exact:
            return None
        if kind is list:
            self._check_added(value, name)
            known = self._known.get((id(value), False))
            if known is None:
                path = self._label(node, view, key)
                step = view, key
                entered = Node(value, path, kind, (), parent=number, step=step)
                entered.added = name
                known = self._enter(entered)
            return Row(key, value, "tally", kind, known, len(value))
        answers = self.questions.ask(name, value) if asks else None
        return Row(key, value, "tally", answers or kind, name=name)

    def name(self, number: int, view: View, key: Any) -> str:
        """Return what code calls a slot of a node: ``calls``, or ``table['calls']``."""
        node = self.nodes[number]
        if view is views.DICT and type(key) in {int, str} and node.step is not None:
            return f"{named(self.nodes[node.parent].value, *node.step)}[{key!r}]"
        return named(node.value, view, key)

    def read_besides(self, name: str) -> str | None:
        """Return where code may read what it adds to by a name, and how."""
        if self.reach.added.isdisjoint((name, f"{name}[+]", f"{name}?")):
            return None
        functions = (node.value for node in self.nodes)
        told = (
            read_besides(each.__code__, name)
            for each in functions
            if type(each) is FunctionType and self.reach.reads(each)
        )
        unnamed = "it copies objects, or holds a lock" * (UNNAMED in self.reach.used)
        return next(filter(None, (*told, unnamed)), None)

    def _frozen(self, value: Any) -> Any:
        # Its bytes are in the signature: another one with the same is as good.
        if type(value) is bytearray or is_structural(value, self.reach):
            return type(value)
        return Identity(value)

    def _come_by(self, cls: type, node: Node, view: View, key: Any) -> None:
        """Note that code may call a class, where a name of its own leads there."""
        if view in {views.TYPE, views.BASES}:
            return
        # super() needs no constructor, but closes over the class.
        if view is views.CELLS and node.value.__code__.co_freevars[key] == "__class__":
            return
        # By its own name, the code says what it is there for.
        asks = cls in HASHING and node.value is not builtins
        self.reach.note(built=(cls,), compares=asks)

    def _too_much(self, node: Node, more: int) -> CaptureError:
        size, number = max(
            ((len(inside.rows), inside.node) for inside in self.insides), default=(0, 0)
        )
        largest = node if more >= size else self.nodes[number]
        return CaptureError(
            f"the function reaches more than {LIMIT:,} values, most of them in "
            f"{largest.path}",
            remedy=f"Pass what it needs of {largest.path} as an argument, or keep it "
            "where no name in the function leads",
        )


def reach(
    fn: Callable[..., Any],
    arguments: Mapping[str, object],
    arrays: Arrays,
    guess: Reach | None = None,
    questions: Questions | None = None,
    shown: Collection[str] = (),
) -> Walk:
    """Read everything that ``fn`` reaches by itself, then through its arguments.

    ``questions`` are those of numbers that it adds to, ``shown`` names by which others
    read what it returns. A ``guess`` of its reach saves walks: one is enough that comes
    to the very same. Raises `CaptureError` where that is more than `LIMIT` slots.
    """
    walked = partial(_walk, fn, arguments, arrays, questions or Questions())
    if guess is not None and guess.found is not None:
        guess.note(shown)
        size = guess.size()
        walk = walked(guess)
        # What only the guess leads to is in there, and is not found.
        if guess.found.size() == guess.size() == size:
            return walk
    known = Reach()
    known.note(shown)
    while True:
        size = known.size()
        walk = walked(known)
        if known.size() == size:
            return walk


def _walk(
    fn: Callable[..., Any],
    arguments: Mapping[str, object],
    arrays: Arrays,
    questions: Questions,
    known: Reach,
) -> Walk:
    roots = [*_roots(fn, known)]
    home = getattr(roots[-1][1], "__globals__", None)
    walk = Walk(arrays, known, home, questions)
    given: tuple[dict[str, Any], dict[str, Any]] = {}, {}
    for name, value in arguments.items():
        if type(value) not in ATOMS and not arrays.is_array(value):
            given[container_of(type(value)) is not None][name] = value
    others, containers = given
    for path, value in roots:
        walk.start(path, value)
    for name, value in others.items():
        walk.start(name, value, given=True)
    for path, value in (("builtins", builtins), *arrays.surroundings()):
        walk.start(path, value)
    walk.finish()
    for name, value in containers.items():
        walk.start(name, value, given=True)
    walk.finish()
    if containers and any(node.added for node in walk.nodes):
        # One of these may be what the function adds to.
        known.note(compares=True)
    return walk


def items_of(space: views.Space) -> list[tuple[Any, Any]]:
    """Return a copy of a space's slots: other threads may write while one reads."""
    return list(space.items() if isinstance(space, Mapping) else enumerate(space))


def _arrays_in(key: Any, arrays: Arrays) -> Iterator[Any]:
    if type(key) is weakref.ref:
        key = key()
    if type(key) in {tuple, frozenset}:
        for each in key:
            yield from _arrays_in(each, arrays)
    elif arrays.is_array(key):
        yield key


def is_book(view: View, key: Any) -> bool:
    """Return whether a slot is one that the interpreter keeps for itself."""
    return (view is views.GLOBALS or view is views.MODULE) and key in _BOOKS
