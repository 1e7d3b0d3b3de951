"""What a call returns and rebinds: described once, made anew by every replay."""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from types import FunctionType, ModuleType
from typing import Any, Final

from sapwood.errors import CaptureError
from sapwood.memory.storage import Storage
from sapwood.tree.call.integration import Array, Integration, Layout
from sapwood.tree.call.signature import Arrays
from sapwood.tree.nests.containers import constant_key, flatten, unflatten
from sapwood.tree.node.objects import ARRAY, Told, tell
from sapwood.units import Addr, Size


@dataclass(frozen=True, slots=True)
class Bytes:
    """A storage that the function allocated and that outlives it."""

    address: Addr
    size: Size


@dataclass(frozen=True, slots=True)
class Fresh:
    """An array over the ``storage``-th of the new storages."""

    storage: int
    layout: Layout
    address: Addr


@dataclass(frozen=True, slots=True)
class Same:
    """The very object that an earlier output is."""

    output: int


@dataclass(frozen=True, slots=True)
class Alias:
    """The very object that was passed in, or that the function reads: an array."""

    array: int


@dataclass(frozen=True, slots=True)
class View:
    """A new array over the storage of an array that was passed in or is read."""

    array: int
    layout: Layout
    offset: int
    """From that array's address, in bytes."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A plain value."""

    value: Any


@dataclass(frozen=True, slots=True)
class Copied(Constant):
    """A plain value that may be changed: every replay gives another one like it."""


@dataclass(frozen=True, slots=True)
class Held:
    """An object that is passed to an eager region, held weakly where it can be."""

    target: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Carried:
    """A new array over the ``storage``-th of those that earlier parts made."""

    storage: int
    layout: Layout
    offset: int
    """From the storage's address, in bytes."""


Output = Fresh | Same | Alias | View | Constant | Held | Carried


@dataclass(frozen=True, slots=True)
class Outputs:
    """The result's nesting and leaves; behind them what is bound to slots."""

    structure: Hashable
    leaves: tuple[Output, ...]
    bound: tuple[Output, ...]
    storages: tuple[Bytes, ...]

    def make(
        self,
        integration: Integration,
        storages: Sequence[Storage],
        given: Sequence[Array],
        ambient: Sequence[Array],
        carried: Sequence[Storage] = (),
    ) -> tuple[Any, list[Any]]:
        """Return a fresh result, and the values to bind.

        ``storages`` stand for `storages`; ``given`` and ``ambient`` are this call's
        arrays, ``carried`` what earlier parts of it made.
        """
        made: list[Any] = []
        for output in (*self.leaves, *self.bound):
            match output:
                case Fresh(k, layout, at):
                    # Escaped storages lie elsewhere than where they were recorded.
                    storage, first = storages[k], self.storages[k].address
                    at = Addr(storage.address + at - first)
                    value = integration.make(layout, storage, at)
                case Same(k):
                    value = made[k]
                case Alias(k):
                    value = _nth(k, given, ambient)
                case View(k, layout, offset):
                    base = integration.look(_nth(k, given, ambient))
                    at = Addr(base.address + offset)
                    value = integration.make(layout, base.storage, at)
                case Constant(value):
                    value = copy(value) if isinstance(output, Copied) else value
                case Held(target):
                    value = target()
                case Carried(k, layout, offset):
                    at = Addr(carried[k].address + offset)
                    value = integration.make(layout, carried[k], at)
            made.append(value)
        count = len(self.leaves)
        if self.structure is None:
            return made[0], made[1:]
        return unflatten(self.structure, made[:count]), made[count:]

    def shown(
        self, given: Arrays, integration: Integration, *, result: bool = True
    ) -> frozenset[int]:
        """Return the places of a call that a slot still shows, or the ``result``.

        What eager regions returned may be an array of any place.
        """
        every, arrays = (*self.leaves, *self.bound), given.arrays
        some = every if result else self.bound
        first = [every[x.output] if isinstance(x, Same) else x for x in some]
        shown = {
            integration.look(arrays[each.array]).storage
            for each in first
            if isinstance(each, Alias | View) and each.array < len(arrays)
        }
        return frozenset(i for i, s in enumerate(given.storages) if s in shown)

    def only_given(self, count: int) -> bool:
        """Return whether there is nothing but the first ``count`` arrays and None.

        Nor a list or dict that holds them, which others may have changed since.
        """
        return _is_fixed(self.structure) and all(
            isinstance(each, Carried | Same)
            or (isinstance(each, Alias | View) and each.array < count)
            or (isinstance(each, Constant) and each.value is None)
            for each in (*self.leaves, *self.bound)
        )

    def carried(self) -> frozenset[int]:
        """Return which of the storages that earlier parts made are shown."""
        every = (*self.leaves, *self.bound)
        return frozenset(x.storage for x in every if isinstance(x, Carried))

    def told(self) -> Told:
        """Return the keys of all plain values in the result."""
        return tell(
            self.structure,
            (
                constant_key(leaf.value) if isinstance(leaf, Constant) else ARRAY
                for leaf in self.resolved()
            ),
        )

    def resolved(self) -> Iterator[Output]:
        """Yield the leaves, each `Same` one as the output that it is."""
        for leaf in self.leaves:
            yield self.leaves[leaf.output] if isinstance(leaf, Same) else leaf


def each_anew(
    outputs: Outputs, leaves: Sequence[Any], is_reached: Callable[[object], bool]
) -> Outputs:
    """Return outputs of which every replay makes sets and bytearrays anew.

    ``leaves`` are those of the call. What the function reaches, it gives itself.
    Raises `CaptureError` where it gives what it was passed: that, replays do not know.
    """
    passed = {id(leaf) for leaf in leaves}
    first: dict[int, int] = {}

    def anew(number: int, output: Output) -> Output:
        if not isinstance(output, Constant) or type(output.value) not in _COPIED:
            return output
        if id(output.value) in passed:
            raise CaptureError(
                f"the function returns a {type(output.value).__name__} that it was "
                "passed, and a replay would return that of another call",
                remedy="Return a copy of it, or let the caller keep its own",
            )
        if is_reached(output.value):
            return output
        before = first.setdefault(id(output.value), number)
        return Copied(copy(output.value)) if before == number else Same(before)

    made = tuple(anew(number, each) for number, each in enumerate(outputs.leaves))
    return replace(outputs, leaves=made)


_COPIED = {bytearray, set}


def _is_fixed(structure: Any) -> bool:
    if structure is None:
        return True
    if type(structure) is int:
        return False
    cls, _, folded = structure
    return issubclass(cls, tuple) and all(map(_is_fixed, folded))


def _nth(k: int, given: Sequence[Array], ambient: Sequence[Array]) -> Array:
    return given[k] if k < len(given) else ambient[k - len(given)]


def analyse(
    result: Any,
    bound: Sequence[Array],
    known: Sequence[Array],
    integration: Integration,
    carried: Sequence[Storage | Bytes] = (),
) -> Outputs:
    """Describe what a captured function returned and bound to slots.

    ``known`` are the arrays that it was passed or reads, ``carried`` the storages that
    earlier parts of it made; any other storage is new.
    """
    leaves, structure = flatten(result, integration.is_array)
    looks = [*map(integration.look, known)]
    # The first of several counts.
    numbers = {id(array): k for k, array in reversed([*enumerate(known)])}
    owners = {look.storage: k for k, look in reversed([*enumerate(looks)])}
    # All of them are alive: by its address, each is the only one.
    made_before = {storage.address: k for k, storage in enumerate(carried)}

    def of_known(value: Array) -> Output | None:
        """Return how replays come by an array; None for one over a new storage."""
        number = numbers.get(id(value))
        if number is not None:
            return Alias(number)
        layout, storage, address = integration.look(value)
        owner = owners.get(storage)
        if owner is not None:
            return View(owner, layout, address - looks[owner].address)
        owner = made_before.get(storage.address)
        if owner is not None:
            return Carried(owner, layout, address - storage.address)
        return None

    seen: dict[int, int] = {}
    storages: dict[int, int] = {}
    new: list[Bytes] = []
    outputs: list[Output] = []
    for i, value in enumerate((*leaves, *bound)):
        if not integration.is_array(value):
            outputs.append(Constant(value))
            continue
        if id(value) in seen:
            outputs.append(Same(seen[id(value)]))
            continue
        seen[id(value)] = i
        output = of_known(value)
        if output is None:
            layout, storage, address = integration.look(value)
            if id(storage) not in storages:
                storages[id(storage)] = len(new)
                new.append(Bytes(storage.address, storage.size))
            output = Fresh(storages[id(storage)], layout, address)
        outputs.append(output)
    count = len(leaves)
    return Outputs(
        structure, tuple(outputs[:count]), tuple(outputs[count:]), tuple(new)
    )


_FAR: Final = 1000
"""So many things are looked at for an array: who holds one is near it."""

_PLAIN: Final = {"builtins", "types"}


def made_anew(value: object) -> CaptureError:
    """Return an error of an object in a result that was another one before."""
    name = type(value).__name__
    return CaptureError(
        f"the result holds {_a(name)}, which each call makes anew, and no replay can",
        remedy=f"Return arrays and plain values, and make the {name} of them "
        f"outside the graphed function{_taught(value)}",
    )


def keeping(
    outputs: Outputs,
    lost: Collection[Addr],
    integration: Integration,
    where: str | None,
) -> CaptureError | None:
    """Return an error of what in a result holds arrays that nothing accounts for."""
    leaves = outputs.resolved()
    for value in (leaf.value for leaf in leaves if isinstance(leaf, Constant)):
        if any(
            integration.is_array(each)
            and integration.look(each).storage.address in lost
            for each in _near(value)
        ):
            name = type(value).__name__
            return CaptureError(
                f"the result holds {_a(name)}, which is not taken apart, and an array "
                "is in it",
                where=where,
                remedy=f"Return a dataclass, tuple or dict{_taught(value)}",
            )
    return None


def _near(value: Any) -> Iterator[Any]:
    """Yield an object, and what it holds, the nearest first."""
    found, seen = [value], {id(value)}
    for each in found:
        yield each
        for one in _held(each) if len(found) < _FAR else ():
            if id(one) not in seen and not isinstance(one, type | ModuleType):
                seen.add(id(one))
                found.append(one)


def _held(value: Any) -> Sequence[Any]:
    if isinstance(value, FunctionType):  # and not all that its globals name
        return value.__closure__, value.__defaults__, value.__kwdefaults__
    return gc.get_referents(value)


def _a(name: str) -> str:
    return f"{'an' if name[:1] in 'aeiouAEIO' else 'a'} {name}"


def _taught(value: Any) -> str:
    cls = type(value)
    if cls.__module__ in _PLAIN:
        return ""
    return f", or call sapwood.register_container({cls.__name__}, flatten, unflatten)"
