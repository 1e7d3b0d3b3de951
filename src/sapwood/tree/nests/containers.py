"""Nests of containers, taken apart into leaves and put together again; constants.

A structure is hashable and says everything of a nest except its leaves: classes,
keys in their order, names of fields, and which containers are one. Putting together
always gives fresh containers.
"""

from __future__ import annotations

import struct
import sys
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from enum import Enum
from functools import partial
from itertools import chain
from types import BuiltinMethodType, MethodType, ModuleType
from typing import Any, TypeAlias

from sapwood.errors import MisuseError
from sapwood.tree.nests import kinds


def weakly(value: Any) -> Callable[[], Any]:
    """Return what gives an object while it is alive, else None.

    What cannot be referred to weakly is kept alive.
    """
    if _is_forgetful(type(value)):
        return lambda: value
    try:
        return weakref.ref(value)
    except TypeError:
        return lambda: value


def weakly_bound(method: MethodType) -> Callable[[], Any]:
    """Return what binds a method anew while its object is alive, else gives None."""
    function, owner = weakly(method.__func__), weakly(method.__self__)

    def bound() -> Any:
        now = function(), owner()
        return None if None in now else MethodType(*now)

    return bound


def _is_forgetful(cls: type) -> bool:
    """Return whether instances leave weak references to themselves as they are.

    Torch's streams and events of CUDA do when they go, and then those point anywhere
    (torch 2.11; https://github.com/pytorch/pytorch/pull/183403).
    """
    return any(
        base.__name__ in {"Stream", "Event"} and base.__module__ == "torch"
        for base in cls.__mro__
    )


Structure: TypeAlias = Hashable
"""A nest without its leaves; ``None`` is one leaf, a number a container once more:
of those but tuples, in the order in which they end."""

_DEPTH = 200


def flatten(value: Any, is_array: Callable[[Any], bool]) -> tuple[list[Any], Structure]:
    """Return the leaves of a nest, in order, and its structure.

    Tuples, lists, dicts, deques, what derives from these, dataclasses, namespaces and
    registered containers are taken apart, torch's registry included, except for values
    that ``is_array`` claims. Raises `MisuseError` for a nest that contains itself, and
    for subclasses of the built-in containers that are made in C.
    """
    return taken_apart(value, is_array)[:2]


def arrays_in(value: Any, is_array: Callable[[Any], bool]) -> list[Any]:
    """Return the leaves that are arrays; raises as `flatten` does."""
    return [*filter(is_array, flatten(value, is_array)[0])]


def taken_apart(
    value: Any, is_array: Callable[[Any], bool]
) -> tuple[list[Any], Structure, list[Any]]:
    """Return what `flatten` does, and the containers in the order of their numbers."""
    leaves: list[Any] = []
    seen: dict[int, tuple[int, Any]] = {}
    container = container_of(type(value))
    structure = _fold(value, container, is_array, leaves, seen, 0)
    return leaves, structure, [each for _, each in seen.values()]


def is_shared(cls: type) -> bool:
    """Return whether it matters which containers of a class are one."""
    return not issubclass(cls, tuple)


def _fold(
    value: Any,
    container: kinds.Container | None,
    is_array: Callable[[Any], bool],
    leaves: list[Any],
    seen: dict[int, tuple[int, Any]],
    depth: int,
) -> Structure:
    cls = type(value)
    if container is None or (cls not in _BUILT_IN and is_array(value)):
        leaves.append(value)
        return None
    if id(value) in seen:
        return seen[id(value)][0]
    if depth == _DEPTH:
        raise MisuseError(
            f"a {cls.__name__} is nested deeper than {_DEPTH} levels, or contains "
            "itself. Pass arrays and plain values in a nest that ends"
        )
    children, rest = container.flatten(value)
    folded: list[Structure] = []
    for child in children:
        inner = _firm.get(type(child), _UNSEEN)
        if inner is _UNSEEN:
            inner = container_of(type(child))
        if inner is None:
            leaves.append(child)
            folded.append(None)
        else:
            folded.append(_fold(child, inner, is_array, leaves, seen, depth + 1))
    if is_shared(cls):
        # Held meanwhile: what `flatten` makes must not lend its number to another.
        seen[id(value)] = len(seen), value
    return cls, rest, tuple(folded)


def unflatten(structure: Structure, leaves: Iterable[Any]) -> Any:
    """Return a fresh nest of this structure; the inverse of `flatten`.

    Raises `MisuseError` where the number of leaves is not the structure's.
    """
    rest = iter(leaves)
    try:
        value = _unfold(structure, rest, [])
    except StopIteration:
        raise MisuseError(
            "there are fewer leaves than the structure has places: pass them all"
        ) from None
    if next(rest, _UNSEEN) is not _UNSEEN:
        raise MisuseError(
            "there are more leaves than the structure has places: pass only its own"
        )
    return value


def _unfold(structure: Any, leaves: Iterator[Any], made: list[Any]) -> Any:
    if structure is None:
        return next(leaves)
    if type(structure) is int:
        return made[structure]
    cls, rest, folded = structure
    children = [
        next(leaves) if child is None else _unfold(child, leaves, made)
        for child in folded
    ]
    value = put_together(cls, rest, children)
    if is_shared(cls):
        made.append(value)
    return value


def put_together(cls: type, rest: Any, children: list[Any]) -> Any:
    """Return a fresh container of what another one was taken apart into."""
    container = container_of(cls)
    if container is None:
        raise MisuseError(
            f"{cls.__name__} is not a container any more. Register it again with "
            "register_container"
        )
    return container.unflatten(cls, rest, children)


def paths(structure: Structure, root: str = "args") -> tuple[str, ...]:
    """Return the name of each leaf as a user would write it: ``args[0]['w'].bias``."""
    return tuple(_name(structure, root))


def _name(structure: Any, path: str) -> Iterator[str]:
    if structure is None:
        yield path
    if structure is None or type(structure) is int:
        return
    cls, rest, folded = structure
    container = container_of(cls)
    label = kinds.indices if container is None else container.labels
    for more, child in zip(label(cls, rest, len(folded)), folded, strict=True):
        yield from _name(child, path + more)


def register_container(
    cls: type,
    flatten: Callable[[Any], tuple[Iterable[Any], Hashable]],
    unflatten: Callable[[Any, list[Any]], Any],
) -> None:
    """Let instances of exactly ``cls`` be taken apart wherever arrays are passed.

    ``flatten(value)`` returns the children and a hashable rest, ``unflatten(rest,
    children)`` a fresh value from them. Raises `MisuseError` where ``cls`` is not a
    class or is a built-in container.
    """
    if not isinstance(cls, type):
        raise MisuseError(f"{cls!r} is not a class: register_container takes a class")
    for name, each in (("flatten", flatten), ("unflatten", unflatten)):
        if not callable(each):
            raise MisuseError(f"{name}={each!r} of {cls!r} is no function: pass one")
    if cls in _BUILT_IN:
        raise MisuseError(
            f"{cls.__name__} is taken apart already: register a class of your own"
        )

    def parts(value: Any) -> tuple[Sequence[Any], Hashable]:
        children, rest = flatten(value)
        try:
            hash(rest)
        except TypeError:
            raise MisuseError(
                f"the rest that flatten gives for {cls.__name__} is not hashable. "
                "Return arrays as children and everything else as hashable values"
            ) from None
        return tuple(children), rest

    _registered[cls] = _firm[cls] = kinds.Container(
        parts, lambda _, rest, children: unflatten(rest, children), kinds.indices
    )


def registered(cls: type) -> kinds.Container | None:
    """Return how a class that was given to `register_container` is taken apart."""
    return _registered.get(cls)


def container_of(cls: type) -> kinds.Container | None:
    """Return how the instances of ``cls`` are taken apart; None: they are leaves.

    Raises `MisuseError` for a class that looks like a container but may be more.
    """
    container = _firm.get(cls, _UNSEEN)
    if container is _UNSEEN:
        container = _known.get(id(cls), _UNSEEN)
    return _learnt(cls) if container is _UNSEEN else container


def _learnt(cls: type) -> kinds.Container | None:
    container = kinds.kind_of(cls, _frozen)
    if _is_firm(cls):
        return _firm.setdefault(cls, container)
    # No Python runs when a class goes: no interrupt then leaves it known.
    gone = weakref.ref(cls, partial(_known.pop, id(cls)))
    _watched[id(gone)] = gone
    if len(_watched) > 2 * len(_known) + 64:
        for key, each in list(_watched.items()):
            if each() is None:
                _watched.pop(key, None)
    return _known.setdefault(id(cls), container)


def _is_firm(cls: type) -> bool:
    """Return whether a class lives as long as the process, or as its package."""
    if not cls.__flags__ & kinds.HEAP:
        return True
    name = str(cls.__module__)
    if name.partition(".")[0] not in {"cupy", "sapwood", "torch"}:
        return False
    module = sys.modules.get(name)
    return module is not None and vars(module).get(cls.__name__) is cls


def _frozen(value: Any) -> Hashable:
    """Return what plain nests are compared by."""
    if type(value) in {list, tuple}:
        return (type(value), *map(_frozen, value))
    if isinstance(value, dict):
        pairs = ((constant_key(key), _frozen(each)) for key, each in value.items())
        return (type(value), *pairs)
    return constant_key(value)


def keys_of(value: dict[Any, Any]) -> Any:
    """Return the keys of a dict, as a structure holds them.

    Those that are not all strings are compared by type and bits.
    """
    keys = tuple(value)
    for key in keys:
        if type(key) is not str:
            return kinds.Context(tuple(map(constant_key, keys)), keys)
    return keys


def kept_besides(structure: Any) -> list[Any]:
    """Return what a structure holds besides its leaves: keys of dicts, above all.

    Each nest that is put together of it has these very objects.
    """
    if structure is None or type(structure) is int:
        return []
    _, rest, folded = structure
    parts = rest if type(rest) is tuple else (rest,)
    found = [each.context for each in parts if type(each) is kinds.Context]
    return [*found, *chain.from_iterable(map(kept_besides, folded))]


def plain_keys(keys: Any) -> tuple[Any, ...]:
    """Return the keys that `keys_of` made a structure of."""
    found: tuple[Any, ...] = keys.context if type(keys) is kinds.Context else keys
    return found


def _subscripts(_: Any, keys: Any, __: int) -> Iterable[str]:
    # The text of any other key could run anybody's code.
    return [
        f"[{key!r}]"
        if type(key) in {str, int, bool, float, bytes}
        else f"[{type(key).__name__}]"
        for key in plain_keys(keys)
    ]


_UNSEEN: Any = object()
_DICT = kinds.Container(
    lambda value: (tuple(value.values()), keys_of(value)),
    lambda cls, keys, children: cls(zip(plain_keys(keys), children, strict=True)),
    _subscripts,
)
_BUILT_IN: dict[type, kinds.Container] = {
    tuple: kinds.SEQUENCE,
    list: kinds.SEQUENCE,
    deque: kinds.Container(
        lambda value: (value, value.maxlen),
        lambda _, n, children: deque(children, n),
        kinds.indices,
    ),
    dict: _DICT,
    OrderedDict: _DICT,
    defaultdict: kinds.Container(
        lambda value: (tuple(value.values()), (value.default_factory, keys_of(value))),
        lambda _, rest, children: defaultdict(
            rest[0], zip(plain_keys(rest[1]), children, strict=True)
        ),
        lambda cls, rest, count: _subscripts(cls, rest[1], count),
    ),
    kinds.Unpacked: kinds.UNPACKED,
}
_registered: dict[type, kinds.Container] = {}
_firm: dict[type, kinds.Container | None] = dict(_BUILT_IN)
"""How classes are taken apart that stay; looked up for everything that is passed."""
_known: dict[int, kinds.Container | None] = {}
"""The same of classes of users, by identity: these are not kept, and leave it."""
_watched: dict[int, weakref.ref[type]] = {}


class Identity:
    """Stands for one object: equal only to itself, and only while it lives.

    The object is held weakly where it can be.
    """

    __slots__ = ("_hash", "target")

    def __init__(self, value: object) -> None:
        self._hash = id(value)
        self.target: Callable[[], object] = weakly(value)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Identity):
            return NotImplemented
        mine = self.target()
        return mine is not None and mine is other.target()

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"<Identity of {type(self.target()).__name__}>"


def constant_key(value: Any) -> Hashable:
    """Return what a constant is compared by: its type and bits, else its identity.

    1, True and 1.0 differ, +0.0 and -0.0 differ, NaN equals itself. Tuples and sets
    compare by their items, in order; bound methods by object and function; objects
    that are not plain values by `Identity`.
    """
    key = _constants.get(type(value))
    return _other_key(value) if key is None else key(value)


_double = struct.Struct("<d").pack
_doubles = struct.Struct("<2d").pack


def _item_keys(value: Iterable[Any]) -> Hashable:
    return (type(value), *map(constant_key, value))


_constants: dict[type, Callable[[Any], Hashable]] = {
    **dict.fromkeys((int, str, type(None), type(...)), lambda value: value),
    bool: lambda value: (bool, value),
    float: lambda value: (float, _double(value)),
    complex: lambda value: (complex, _doubles(value.real, value.imag)),
    bytes: lambda value: (bytes, value),
    bytearray: lambda value: (bytearray, bytes(value)),
    range: lambda value: (range, value.start, value.stop, value.step),
    slice: lambda x: (slice, *map(constant_key, (x.start, x.stop, x.step))),
    **dict.fromkeys((tuple, frozenset, set), _item_keys),
    MethodType: lambda value: (
        MethodType,
        constant_key(value.__func__),
        Identity(value.__self__),
    ),
}

_BY_TEXT = {
    "datetime": ("date", "datetime", "time", "timedelta"),
    "decimal": ("Decimal",),
    "fractions": ("Fraction",),
    "pathlib": ("PosixPath", "PurePosixPath", "WindowsPath"),
    "pathlib._local": ("PosixPath", "PurePosixPath"),
    "torch": ("device",),
    "uuid": ("UUID",),
}
"""Immutable values whose text says all there is."""


def _other_key(value: Any) -> Hashable:
    cls = type(value)
    if cls.__name__ in _BY_TEXT.get(cls.__module__, ()):
        return (cls, repr(value))
    # What belongs to no object, as torch's functions, is itself all there is.
    if cls is BuiltinMethodType and not isinstance(value.__self__, ModuleType | None):
        return (cls, value.__name__, Identity(value.__self__))
    for base in () if isinstance(value, Enum) else cls.__mro__:
        key = _key_by_base(base, value)
        if key is not None:
            return key
    return Identity(value)


def _key_by_base(base: type, value: Any) -> Hashable:
    if base is Alike:
        return (type(value),)
    if base.__module__ == "numpy" and base.__name__ == "generic":
        return (type(value), value.dtype.str, value.tobytes())
    if base.__module__ == "numpy" and base.__name__ == "dtype":
        return (type(value), value)
    if base in _exact and not getattr(value, "__dict__", None):
        return (type(value), constant_key(_exact[base](value)))
    return None


class Alike:
    """An object that is as good as any other of its class, to who compares results.

    A replay gives the very one that its recording has given. Nothing may refer to it
    weakly: objects to which that can be are taken for what is in them.
    """

    __slots__ = ()


_exact: dict[type, Callable[[Any], Any]] = {
    # What a subclass makes of the conversion is not asked.
    int: int.__int__,
    float: float.__float__,
    complex: complex.__complex__,
    str: str.__str__,
    bytes: bytes.__bytes__,
}


def refilled(
    structure: Structure,
    leaves: Sequence[Any],
    before: Sequence[Any],
    containers: Sequence[Any],
) -> Any:
    """Return a nest with other leaves than it had ``before``.

    ``containers`` are its own, by number; without any, all are made anew.
    """
    return _refilled(structure, zip(leaves, before, strict=True), containers, [])[0]


def _refilled(
    structure: Any,
    leaves: Iterator[tuple[Any, Any]],
    containers: Sequence[Any],
    made: list[tuple[Any, bool]],
) -> tuple[Any, bool]:
    """Return what a structure stands for, and whether nothing in it is another.

    What was ``made`` of shared containers stands there by number.
    """
    if structure is None:
        leaf, before = next(leaves)
        return leaf, leaf is before
    if type(structure) is int:
        return made[structure]
    cls, rest, folded = structure
    children = [_refilled(child, leaves, containers, made) for child in folded]
    same, shared = all(is_same for _, is_same in children), is_shared(cls)
    if shared and same and len(made) < len(containers):
        value = containers[len(made)]
    else:
        value = put_together(cls, rest, [child for child, _ in children])
        same = same and not shared
    if shared:
        made.append((value, same))
    return value, same
