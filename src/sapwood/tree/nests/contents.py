"""What is in a container that can be filled anew: compared, kept and put back."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import is_dataclass
from operator import is_
from types import SimpleNamespace
from typing import Any, TypeAlias

from sapwood.errors import MisuseError
from sapwood.tree.nests.containers import container_of, registered

Items: TypeAlias = tuple[Sequence[Any], Sequence[Any]]
"""The keys of what is in a container, and the values."""


def contents_of(thing: Any) -> Items:
    """Return what is in a container now; no method of a subclass is asked."""
    cls: Any
    if isinstance(thing, dict):
        cls = OrderedDict if isinstance(thing, OrderedDict) else dict
        keys = [*cls.__iter__(thing)]
        return keys, [dict.__getitem__(thing, key) for key in keys]
    for cls in (list, deque, set, frozenset):
        if isinstance(thing, cls):
            return (), [*cls.__iter__(thing)]
    container = container_of(type(thing))
    values, names = ((), ()) if container is None else container.flatten(thing)
    return names if has_attributes(thing) else (), [*values]


def are_same(contents: Items, others: Items) -> bool:
    """Return whether these are the same objects, in the same order."""
    (keys, values), (other_keys, other_values) = contents, others
    ours, theirs = [*keys, *values], [*other_keys, *other_values]
    return len(ours) == len(theirs) and all(map(is_, ours, theirs))


def has_attributes(thing: Any) -> bool:
    """Return whether a container is all that its attributes are."""
    known = is_dataclass(type(thing)) or type(thing) is SimpleNamespace
    return known and registered(type(thing)) is None


def fill(thing: Any, contents: Items) -> None:
    """Have a list, dict, deque or set, or an object's attributes, be as they were.

    Raises `MisuseError` for what cannot be filled.
    """
    keys, values = contents
    if isinstance(thing, dict):
        cls: Any = OrderedDict if isinstance(thing, OrderedDict) else dict
        cls.clear(thing)
        for key, value in zip(keys, values, strict=True):
            cls.__setitem__(thing, key, value)
    elif isinstance(thing, deque):
        deque.clear(thing)
        deque.extend(thing, values)
    elif isinstance(thing, list):
        list.__setitem__(thing, slice(None), values)
    elif isinstance(thing, set):
        _fill_set(thing, values)
    elif has_attributes(thing):
        for name in {*contents_of(thing)[0]}.difference(keys):
            object.__delattr__(thing, name)
        for name, value in zip(keys, values, strict=True):
            object.__setattr__(thing, name, value)
    elif not are_same(contents_of(thing), contents):
        raise MisuseError(f"a {type(thing).__qualname__} cannot be filled anew")


def _fill_set(thing: set[Any], values: Sequence[Any]) -> None:
    # Where the others stay, so does their order, as a rule.
    then = {*map(id, values)}
    set.difference_update(thing, [x for x in set.__iter__(thing) if id(x) not in then])
    set.update(thing, values)
    if not are_same(contents_of(thing), ((), values)):
        set.clear(thing)
        set.update(thing, values)


def mapped(contents: Items, own: Callable[[Any], Any]) -> Items:
    """Return contents with what ``own`` gives for each value."""
    keys, values = contents
    return keys, [own(value) for value in values]
