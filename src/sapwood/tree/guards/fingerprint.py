"""What a function is and reads, in a form that means the same in another process.

Two functions with one fingerprint are the same program under the same values: their
code, transitively, and whatever guards would compare, labelled for people to read.
"""

from __future__ import annotations

import dataclasses
import hashlib
import locale
import operator
import sys
import threading
import types
from collections import Counter
from collections.abc import Iterator
from contextvars import Context, ContextVar
from functools import lru_cache, partial
from pathlib import Path, PurePath
from typing import Any, Final, Generic, NamedTuple
from weakref import ReferenceType

from sapwood.tree.guards import standard, views
from sapwood.tree.guards.accessors import is_structural
from sapwood.tree.guards.code import names_of
from sapwood.tree.guards.owners import owner_of_class
from sapwood.tree.guards.progress import is_iterator
from sapwood.tree.guards.proof import proof
from sapwood.tree.guards.reach import Inside, Node, Row, Walk
from sapwood.tree.guards.sources import is_random_source
from sapwood.tree.guards.trust import doubts, is_users, named_in_modules
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
        for inside in self._walk.guarded():
            parts += self._inside(inside)
        self._unproved += doubts(self._walk)
        parts += self._named()
        parts += _process()
        # A label may come twice, and a key wants each once.
        labelled = tuple((self._once(label), value) for label, value in parts)
        return Fingerprint(labelled, tuple(self._unproved))

    def _named(self) -> Iterator[tuple[str, bytes]]:
        """Yield what code finds in modules that are not walked: it may be replaced."""
        for path, value in named_in_modules(self._walk):
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
            # Sets have no order that another process would share.
            proofs = [self._row(inside, row) for row in rows]
            rows, shape = [], hashlib.sha256(b"".join(sorted(proofs)))
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
        return self._proof(self._walk.path(inside, row.key), row.value)

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
