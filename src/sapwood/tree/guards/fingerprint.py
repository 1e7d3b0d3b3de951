"""What a function is and reads, in a form that means the same in another process.

Two functions with one fingerprint are the same program under the same values: their
code, transitively, and whatever guards would compare, labelled for people to read.
"""

from __future__ import annotations

import abc
import copyreg
import dataclasses
import dis
import hashlib
import locale
import operator
import sys
import threading
import types
from collections import Counter
from collections.abc import Iterator
from contextvars import Context, ContextVar
from functools import cached_property, lru_cache, partial
from itertools import chain
from pathlib import Path, PurePath
from string import Formatter
from typing import Any, Final, Generic, NamedTuple
from weakref import ReferenceType

from sapwood.tree.guards import standard, views
from sapwood.tree.guards.accessors import NEVER_NAMED, OPERATORS, dunders, is_structural
from sapwood.tree.guards.code import loads, names_of, nested, only_looked_into
from sapwood.tree.guards.moving import is_iterator, is_random_source
from sapwood.tree.guards.owners import owner_of_class, owner_of_module
from sapwood.tree.guards.proof import is_users, proof
from sapwood.tree.guards.reach import Inside, Node, Row, Walk
from sapwood.tree.guards.scope import ATOMS
from sapwood.tree.nests.kinds import by_class

_SEEN: Final[frozenset[type]] = frozenset(
    {object, tuple, list, dict, set, frozenset, partial, ReferenceType, Generic}
    | {types.SimpleNamespace, threading.local, type(lru_cache(operator.neg))}
)
"""Classes of C that have nothing to be seen, or are opened wherever they are a base."""

_OF_C: Final = (
    types.ClassMethodDescriptorType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
)
_FOUND: Final = (types.FunctionType, types.BuiltinFunctionType, types.ModuleType, type)
_OF_EVERY_CLASS: Final = {"__dict__", "__weakref__"}


def is_hiding(cls: type) -> bool:
    """Return whether instances of a class may hold more than their views show."""
    if owner_of_class(cls) == "sapwood":
        return False
    return any(base not in _SEEN and _is_of_c(base) for base in cls.__mro__)


@by_class
def _is_of_c(cls: type) -> bool:
    return any(_defines(cls, name, member) for name, member in list(vars(cls).items()))


def _defines(cls: type, name: str, member: object) -> bool:
    """Return whether a member is one that only classes written in C have."""
    if isinstance(member, types.BuiltinFunctionType):
        return name == "__new__" and member.__self__ is cls
    if isinstance(member, types.GetSetDescriptorType):
        return name not in _OF_EVERY_CLASS
    return isinstance(member, _OF_C) and member.__objclass__ is cls


_TELLING: Final = frozenset({"getstate", "get_state", "_inst", "_rand"})
"""Names by which a module of random numbers tells its state without a draw."""


_NUMBERS: Final = frozenset({"hash", "id"})
_TOLD_BY_NUMPY: Final = ("get_printoptions", "getbufsize", "geterr", "geterrcall")
_PRINTING: Final[dict[str, object]] = {
    "edgeitems": 3,
    "floatmode": "maxprec",
    "formatter": None,
    "infstr": "inf",
    "legacy": False,
    "linewidth": 75,
    "nanstr": "nan",
    "override_repr": None,
    "precision": 8,
    "sign": "-",
    "suppress": False,
    "threshold": 1000,
}
"""What NumPy prints with, as usual: not all versions keep that in a context."""


_PATH: Final = type(Path())
_OF_FILES: Final = frozenset(dir(Path)).difference(dir(PurePath))
"""By these a path tells of files, and not only of itself."""

_dump: Any = vars(abc)["_get_dump"]
"""Tells what is registered with an abstract class: a set of references comes first."""
_FRAMES: Final = frozenset({"ag_frame", "cr_frame", "gi_frame"})
_HERE: Final = frozenset(
    {"astimezone", "fromtimestamp", "now", "strftime", "timestamp", "today", "utcnow"}
)
"""What dates ask the process for."""
_SPECIAL: Final = dunders(
    "annotations class dict doc func getnewargs getnewargs_ex globals module name "
    "qualname replace self wrapped"
)
"""Special names of what the walk looks at, where they are in code."""
_FORMATTING: Final = frozenset({"format", "format_map"})


class Fingerprint(NamedTuple):
    """Labels, and what has to be equal; ``unproved`` are paths of what is not known."""

    parts: tuple[tuple[str, bytes], ...]
    unproved: tuple[str, ...]


def fingerprint(walk: Walk) -> Fingerprint:
    """Return the fingerprint of everything that was walked."""
    return _Prints(walk).all()


def _process() -> Iterator[tuple[str, bytes]]:
    """Yield what the process is set to, as far as plain values are made with it."""
    yield from _decimal_context()
    yield "the digits of integers", str(sys.get_int_max_str_digits()).encode()
    yield "the locale of numbers", repr(sorted(locale.localeconv().items())).encode()
    numpy: Any = sys.modules.get("numpy")
    for name in () if numpy is None else _TOLD_BY_NUMPY:
        told, usual = getattr(numpy, name)(), Context().run(getattr(numpy, name))
        usual = _PRINTING if name == "get_printoptions" else usual
        if told != usual:
            yield f"what numpy.{name} gives", repr(told).encode()


def _decimal_context() -> Iterator[tuple[str, bytes]]:
    """Yield what numbers of `decimal` are reckoned with, if it is not as usual."""
    decimal = sys.modules.get("decimal")
    if decimal is None:
        return
    usual = decimal.Context(
        prec=28,
        rounding=decimal.ROUND_HALF_EVEN,
        Emin=-999999,
        Emax=999999,
        capitals=1,
        clamp=0,
        traps=[decimal.InvalidOperation, decimal.DivisionByZero, decimal.Overflow],
    )
    now, then = map(standard.DECIMAL.open, (decimal.getcontext(), usual))
    if now != then:
        yield "the context of decimal", repr(now).encode()


class _Prints:
    def __init__(self, walk: Walk) -> None:
        self._walk = walk
        self._unproved: list[str] = []
        self._seen: Counter[str] = Counter()
        self._arrays: dict[int, str] = {}

    def all(self) -> Fingerprint:
        parts = [
            (f"what {node.path} is", self._kind(node))
            for node in map(self._walk.nodes.__getitem__, self._walk.held())
        ]
        if self._walk.reach.dynamic:
            self._unproved.append("names that the function computes")
        if self._asks_for_numbers():
            self._unproved.append("what hash() or id() gives")
        if any(map(is_users, copyreg.dispatch_table.values())):
            self._unproved.append("what copyreg is told")
        for inside in self._walk.guarded():
            parts += self._inside(inside)
        self._unproved += _doubts(self._walk)
        parts += self._named()
        parts += _process()
        # A label may come twice, and a key wants each once.
        labelled = tuple((self._once(label), value) for label, value in parts)
        return Fingerprint(labelled, tuple(self._unproved))

    def _named(self) -> Iterator[tuple[str, bytes]]:
        """Yield what code finds in modules that are not walked: it may be replaced."""
        for path, value in _named_in_modules(self._walk):
            if is_users(value):
                self._unproved.append(path)
            else:
                yield f"what {path} is", self._proof(path, value)

    def _asks_for_numbers(self) -> bool:
        """Return whether code asks for numbers that every process gives anew."""
        reads = self._walk.reach.reads
        return "__hash__" in self._walk.reach.names or any(
            type(each.value) is types.FunctionType
            and reads(each.value)
            # What that gives, only dicts and sets ask for.
            and each.value.__name__ != "__hash__"
            and not _NUMBERS.isdisjoint(names_of(each.value.__code__).globals)
            for each in self._walk.nodes
        )

    def _once(self, label: str) -> str:
        self._seen[label] += 1
        count = self._seen[label]
        return label if count == 1 else f"{label} ({count})"

    def _inside(self, inside: Inside) -> Iterator[tuple[str, bytes]]:
        node, view = self._walk.nodes[inside.node], inside.view
        if not view.portable:
            self._unproved.append(node.path)
            return
        rows = inside.rows
        shape = hashlib.sha256(repr(sorted(inside.lacks or ())).encode())
        if view is views.SET:
            # Another process may have them in another order.
            proofs = [self._row(inside, row) for row in rows]
            if not self._may_show_order(inside.node):
                proofs.sort()
            rows, shape = [], hashlib.sha256(repr(proofs).encode())
            if any(row.role == "node" for row in inside.rows):
                self._unproved.append(node.path)
        for row in rows:
            key = proof(row.key) or b""
            shape.update(len(key).to_bytes(4, "little") + key)
            if row.role != "node":
                yield self._label(inside, row), self._row(inside, row)
            else:
                shape.update(row.node.to_bytes(4, "little"))
                shape.update(self._row(inside, row))
        yield f"the {view.name} of {node.path}", shape.hexdigest().encode()

    def _may_show_order(self, number: int) -> bool:
        """Return whether code may do more with a set than look into it."""
        rows = (row for inside in self._walk.guarded() for row in inside.rows)
        names = {row.key for row in rows if row.role == "node" and row.node == number}
        return not names or not names <= self._looked_into

    @cached_property
    def _looked_into(self) -> frozenset[object]:
        """The names by which code asks what is in something, and does nothing else."""
        return only_looked_into(chain(*map(loads, _codes(self._walk))))

    def _label(self, inside: Inside, row: Row) -> str:
        text = self._walk.path(inside, row.key)
        return text if text.isprintable() else repr(text)

    def _row(self, inside: Inside, row: Row) -> bytes:
        if row.role == "array":
            # Whether two slots hold one array decides what binding does to them.
            path = self._walk.path(inside, row.key)
            first = self._arrays.setdefault(id(row.value), path)
            known = "" if first == path else f", that of {first}"
            return f"array {row.frozen}{known}".encode()
        if row.role == "node":
            return self._kind(self._walk.nodes[row.node])
        if row.role == "tally":
            return f"what is added to, {row.frozen!r}, {row.node}".encode()
        value = row.value
        if type(value) is frozenset and row.key in self._looked_into:
            value = sorted(value, key=repr)
        return self._proof(self._walk.path(inside, row.key), value)

    def _proof(self, path: str, value: Any) -> bytes:
        proved = proof(value)
        if type(value) is _PATH and self._walk.reach.names.isdisjoint(_OF_FILES):
            proved = proof(PurePath(value))
        if proved is None:
            self._unproved.append(path)
        return proved or b"?"

    def _kind(self, node: Node) -> bytes:
        """Say what a node is, as far as what is inside it does not."""
        value: Any = node.value
        cls = type(value)
        if cls is types.FunctionType and self._walk.reach.reads(value):
            return b"function"
        named = f"{cls.__module__}:{cls.__qualname__}".encode()
        inherits = dataclasses.is_dataclass(cls) and is_hiding(cls)
        if cls is ContextVar:
            return named + f" {value.name}".encode()
        if is_structural(value, self._walk.reach) and not inherits:
            return named
        if issubclass(cls, _FOUND):
            return self._found(node)
        owner = owner_of_class(cls)
        foreign = owner == "installed" or (owner == "standard" and not proof(cls))
        if foreign or is_iterator(value) or is_hiding(cls):
            proved = proof(value)
            if proved is not None:
                return proved
            # What is kept where Python does not see it is not known.
            self._unproved.append(node.path)
        return named

    def _found(self, node: Node) -> bytes:
        """Say what a module, a class or a function that is not read is."""
        value, proved = node.value, proof(node.value)
        # What is looked into need not be found under its name.
        known = isinstance(value, type) and owner_of_class(value) == "user"
        if isinstance(value, types.ModuleType) and is_random_source(value):
            proved = proved if _TELLING.isdisjoint(self._walk.reach.names) else None
        if proved is None and not known:
            self._unproved.append(node.path)
        return proved or b"class"


def _doubts(walk: Walk) -> Iterator[str]:
    """Yield what reached code may read, and nobody can tell what is there."""
    names = walk.reach.names
    for name in sorted(names):
        if name in _FRAMES | _HERE or _is_special(name):
            yield f"what {name} gives"
    if not names.isdisjoint(_FORMATTING) or any(map(_is_format, walk.nodes)):
        sites = [site for code in _codes(walk) for site in _formats(code)]
        if any(site is None or _reads(site) for site in sites or [None]):
            yield "what the fields of a format name"
    if "print" in walk.reach.builtins and any(map(_prints_elsewhere, _codes(walk))):
        yield "what print writes to"
    asks = not walk.reach.builtins.isdisjoint({"isinstance", "issubclass"})
    for path, value in _found(walk):
        if asks and isinstance(value, abc.ABCMeta) and _registers(value):
            yield f"what {path} has registered"
        if value is print and path != "builtins.print":
            yield f"what {path} writes to"


def _found(walk: Walk) -> Iterator[tuple[str, Any]]:
    """Yield all that code may have by a name: bases and classes of values are not."""
    for inside in walk.guarded():
        if inside.view not in {views.BASES, views.TYPE}:
            for row in inside.rows:
                yield walk.path(inside, row.key), row.value
    yield from _named_in_modules(walk)


def _registers(cls: type) -> bool:
    """Return whether others' classes pass for instances of an abstract one.

    Or for those of a class below it.
    """
    known = [each() for each in _dump(cls)[0]]
    if any(each is not None and owner_of_class(each) == "user" for each in known):
        return True
    lower: list[type] = type.__subclasses__(cls)
    return any(isinstance(each, abc.ABCMeta) and _registers(each) for each in lower)


def _named_in_modules(walk: Walk) -> Iterator[tuple[str, Any]]:
    """Yield what reached code may find in modules that are not walked, by its path."""
    seen: set[str] = set()
    rows = (row.value for inside in walk.guarded() for row in inside.rows)
    waiting = [
        value
        for value in (*(node.value for node in walk.nodes), *rows)
        if isinstance(value, types.ModuleType)
        and owner_of_module(value.__name__, value) in {"standard", "installed"}
    ]
    while waiting:
        module = waiting.pop()
        name = module.__name__
        if name in seen or is_random_source(module):
            continue
        seen.add(name)
        space = vars(module)
        for each in sorted(walk.reach.names & space.keys()):
            value = space[each]
            if isinstance(value, types.ModuleType):
                waiting.append(value)
            elif type(value) not in ATOMS:
                yield f"{name}.{each}", value


def _is_special(name: str) -> bool:
    known = OPERATORS, NEVER_NAMED, _SPECIAL
    dunder = name.startswith("__") and name.endswith("__")
    return dunder and not any(name in each for each in known)


def _codes(walk: Walk) -> Iterator[types.CodeType]:
    for node in walk.nodes:
        if type(node.value) is types.FunctionType and walk.reach.reads(node.value):
            yield from nested(node.value.__code__)


def _is_format(node: Node) -> bool:
    value = node.value
    return type(value) is types.BuiltinMethodType and value.__name__ in _FORMATTING


def _formats(code: types.CodeType) -> Iterator[str | None]:
    """Yield texts whose method ``format`` code names; None for an unknown one."""
    ops = [op for op in dis.get_instructions(code) if op.opname != "EXTENDED_ARG"]
    for at, op in enumerate(ops):
        if op.argval in _FORMATTING and op.opname in {"LOAD_ATTR", "LOAD_METHOD"}:
            before = ops[at - 1]
            text = before.argval if before.opname == "LOAD_CONST" else None
            yield text if isinstance(text, str) else None


def _prints_elsewhere(code: types.CodeType) -> bool:
    """Return whether code may pass ``file=`` on."""
    named = any(type(each) is tuple and "file" in each for each in code.co_consts)
    spread = any(op.opname == "CALL_FUNCTION_EX" for op in dis.get_instructions(code))
    return named or spread


def _reads(text: str) -> bool:
    """Return whether a format reads attributes or items of what it is given."""
    try:
        fields = [*Formatter().parse(text)]
    except ValueError:
        return False
    return any(
        "." in (name or "") or "[" in (name or "") or _reads(spec or "")
        for _, name, spec, _ in fields
    )
