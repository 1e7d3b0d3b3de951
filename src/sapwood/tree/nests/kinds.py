"""How the instances of classes are taken apart that are no built-in containers.

What is kept for a class does not keep the class.
"""

from __future__ import annotations

import dataclasses
import sys
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial, wraps
from types import MemberDescriptorType, SimpleNamespace
from typing import Any, Final, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from sapwood.errors import MisuseError

HEAP: Final = 1 << 9
"""Of the flags of a class: it was made by a class statement, or could have been."""


R = TypeVar("R")

_Parts: TypeAlias = Callable[[Any], tuple[Sequence[Any], Any]]


@dataclass(frozen=True, slots=True)
class Container:
    """How the instances of one class are taken apart and put together.

    ``flatten(value)`` gives the children and a hashable rest, ``unflatten(cls, rest,
    children)`` a fresh value, ``labels(cls, rest, count)`` what a path adds per child.
    It is ``portable`` if the rest means the same in another process.
    """

    flatten: _Parts
    unflatten: Callable[[Any, Any, list[Any]], Any]
    labels: Callable[[Any, Any, int], Iterable[str]]
    portable: bool = True


@dataclass(frozen=True, slots=True)
class Of:
    """What an object was unpacked of: its class and the names of its attributes.

    ``identity`` stands for the object itself, and is not compared.
    """

    cls: type
    names: tuple[str, ...]
    identity: Hashable = field(compare=False)

    def made(self, children: list[Any]) -> Any:
        """Return a new object with these attributes, past its own ``__init__``."""
        value: Any = object.__new__(self.cls)
        _give(value, slots_of(self.cls.__mro__), self.names, children)
        return value


def _give(
    value: Any, slots: Sequence[str], names: Sequence[str], children: list[Any]
) -> None:
    for name, child in zip(names, children, strict=True):
        if name in slots:
            object.__setattr__(value, name, child)
        else:
            value.__dict__[name] = child


class Unpacked:
    """Stands in a result for an object that every replay makes anew."""

    __slots__ = ("children", "of")

    def __init__(self, of: Of, children: list[Any]) -> None:
        self.of, self.children = of, children


UNPACKED: Final = Container(
    lambda value: (value.children, value.of),
    lambda _, of, children: of.made(children),
    lambda _, of, __: [f".{name}" for name in of.names],
    portable=False,
)

_factory: Final[Any] = vars(defaultdict)["default_factory"].__get__
_maxlen: Final[Any] = vars(deque)["maxlen"].__get__


@dataclass(frozen=True, slots=True)
class Context:
    """What is kept of a value besides its children; compared as frozen."""

    frozen: Hashable
    context: Any = field(compare=False)


def indices(_: Any, __: Any, count: int) -> Iterable[str]:
    """Return what a path adds for each of so many items."""
    return [f"[{index}]" for index in range(count)]


def _pytree_parts(cls: type, frozen: Callable[[Any], Hashable]) -> Container | None:
    """Return how torch's registry of containers takes a class apart, if it knows it.

    Torch is asked where the program has loaded it; ``frozen`` gives what a context is
    compared by.
    """
    known: Any = getattr(sys.modules.get("torch.utils._pytree"), "SUPPORTED_NODES", {})
    node = known.get(cls)
    if node is None:
        return None
    take_apart, put_together = node.flatten_fn, node.unflatten_fn

    def parts(value: Any) -> tuple[Sequence[Any], Hashable]:
        children, context = take_apart(value)
        return tuple(children), Context(frozen(context), context)

    return Container(
        parts,
        lambda _, rest, children: put_together(children, rest.context),
        indices,
        portable=False,
    )


SEQUENCE: Final = Container(
    lambda value: (value, None), lambda cls, _, children: cls(children), indices
)
"""How lists are taken apart, and tuples whose class is made in C."""


def _field_labels(cls: Any, _: Any, count: int) -> Iterable[str]:
    if len(cls._fields) == count:
        return [f".{name}" for name in cls._fields]
    return indices(cls, None, count)


_NAMED_TUPLE: Final = Container(
    # Past whatever a class makes of iterating over it, or of making one.
    lambda value: (tuple.__getitem__(value, slice(None)), None),
    lambda cls, _, children: tuple.__new__(cls, children),
    _field_labels,
)


def _pairs_of(base: Any, value: Any) -> tuple[Sequence[Any], Any]:
    # The keys in their own order, which a subclass's methods are not asked for.
    found = dict(base.items(value))
    return tuple(found.values()), tuple(found)


def _fill(base: Any, made: Any, keys: Any, items: list[Any]) -> None:
    for key, item in zip(keys, items, strict=True):
        base.__setitem__(made, key, item)


def _default_parts(value: Any) -> tuple[Sequence[Any], Any]:
    items, keys = _pairs_of(dict, value)
    return items, (_factory(value), keys)


def _fill_default(made: Any, rest: Any, items: list[Any]) -> None:
    defaultdict.__init__(made, rest[0])
    _fill(dict, made, rest[1], items)


_BASES: Final[dict[type, tuple[_Parts, Callable[[Any, Any, list[Any]], None]]]] = {
    defaultdict: (_default_parts, _fill_default),
    OrderedDict: (partial(_pairs_of, OrderedDict), partial(_fill, OrderedDict)),
    dict: (partial(_pairs_of, dict), partial(_fill, dict)),
    list: (
        lambda value: (list.copy(value), None),
        lambda made, _, items: list.extend(made, items),
    ),
    deque: (
        lambda value: ([*deque.__iter__(value)], _maxlen(value)),
        lambda made, maxlen, items: deque.__init__(made, items, maxlen),
    ),
    tuple: (
        lambda value: (tuple.__getitem__(value, slice(None)), None),
        lambda *_: None,  # the items are passed to what makes it
    ),
}
"""How what derives from a built-in container is taken apart and filled, past init.

The first gives the items and a hashable rest of its own, the second fills with these.
"""


def by_class(read: Callable[[type], R]) -> Callable[[type], R]:
    """Have a function of a class remember what it gave, while there is that class."""
    known: WeakKeyDictionary[type, R] = WeakKeyDictionary()

    @wraps(read)
    def found(cls: type) -> R:
        if cls not in known:
            known[cls] = read(cls)
        return known[cls]

    return found


def slots_of(classes: Iterable[type]) -> tuple[str, ...]:
    """Return the attributes of instances that classes keep in slots."""
    return tuple(
        name
        for each in classes
        for name, member in vars(each).items()
        if isinstance(member, MemberDescriptorType)
    )


def _subclass_parts(cls: type, frozen: Callable[[Any], Hashable]) -> Container | None:
    """Return how what derives from a built-in container is taken apart, if it can be.

    By its items and its attributes; it is put together past its own ``__init__``.
    None where it is made in C, and may keep anything.
    """
    built_in = next(base for base in _BASES if issubclass(cls, base))
    between = cls.__mro__[: cls.__mro__.index(built_in)]
    if not all(each.__flags__ & HEAP for each in between):
        return None
    slots, (parts_of, fill) = slots_of(between), _BASES[built_in]

    def parts(value: Any) -> tuple[Sequence[Any], Hashable]:
        items, rest = parts_of(value)
        more = getattr(value, "__dict__", {})
        names = [*more, *(name for name in slots if hasattr(value, name))]
        held = [getattr(value, n) if n in slots else more[n] for n in names]
        told = rest, len(items), tuple(names)
        return (*items, *held), Context(frozen(told), told)

    def put_together(cls: Any, rest: Any, children: list[Any]) -> Any:
        own, count, names = rest.context
        items = (children[:count],) if built_in is tuple else ()
        made: Any = built_in.__new__(cls, *items)
        fill(made, own, children[:count])
        _give(made, slots, names, children[count:])
        return made

    def labels(cls: Any, rest: Any, count: int) -> Iterable[str]:
        items, names = rest.context[1:]
        label = _field_labels if hasattr(cls, "_fields") else indices
        first = label(cls, None, items)
        return [*first, *(f".{name}" for name in names)][:count]

    return Container(parts, put_together, labels, portable=False)


def _is_struct(cls: type) -> bool:
    """Return whether a class of tuples is made in C: nothing else is in there.

    Torch's registry makes plain tuples of its sizes.
    """
    return hasattr(cls, "n_sequence_fields") or not cls.__flags__ & HEAP


def kind_of(cls: type, frozen: Callable[[Any], Hashable]) -> Container | None:
    """Return how the instances of a class are taken apart; None: they are leaves.

    Raises `MisuseError` for what derives from a container, and may keep more.
    """
    if issubclass(cls, Enum):
        return None
    built_in = issubclass(cls, (tuple, list, dict, deque))
    if issubclass(cls, tuple) and _is_struct(cls):
        return SEQUENCE
    known = _pytree_parts(cls, frozen)
    if known is not None:
        return known
    if cls is SimpleNamespace or (dataclasses.is_dataclass(cls) and not built_in):
        return _dataclass_parts(cls)
    if not built_in:
        return None
    named = issubclass(cls, tuple) and hasattr(cls, "_make") and hasattr(cls, "_fields")
    if named and not (cls.__dictoffset__ or slots_of(cls.__mro__)):
        return _NAMED_TUPLE
    known = _subclass_parts(cls, frozen)
    if known is None:
        raise MisuseError(
            f"{cls.__qualname__} is a container that is made in C, and cannot be "
            "rebuilt. Teach it with "
            f"sapwood.register_container({cls.__name__}, flatten, unflatten)"
        )
    return known


def _dataclass_parts(cls: type) -> Container:
    """Return how dataclasses and namespaces are taken apart, by their attributes."""
    fields: tuple[str, ...] = ()
    if dataclasses.is_dataclass(cls):
        fields = tuple(each.name for each in dataclasses.fields(cls))
    slots = slots_of(cls.__mro__)

    def parts(value: Any) -> tuple[Sequence[Any], Hashable]:
        more = getattr(value, "__dict__", {})
        # The default of a field that no instance has set is the class's.
        names = [
            name
            for name in fields
            if name in more or (name in slots and hasattr(value, name))
        ]
        names += [name for name in more if name not in fields]
        return [getattr(value, name) for name in names], tuple(names)

    def filled(cls: Any, names: tuple[str, ...], children: list[Any]) -> Any:
        base: Any = SimpleNamespace if cls is SimpleNamespace else object
        value = base.__new__(cls)
        # As slots, all of them: frozen dataclasses forbid their own setattr.
        _give(value, names, names, children)
        return value

    return Container(parts, filled, lambda _, names, __: [f".{name}" for name in names])
