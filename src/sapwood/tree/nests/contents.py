"""What is in a container that can be filled anew: compared, kept and put back."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from operator import is_
from typing import Any, TypeAlias

from sapwood.errors import MisuseError
from sapwood.tree.nests.containers import container_of

Items: TypeAlias = tuple[Sequence[Any], Sequence[Any]]
"""The keys of what is in a container, and the values."""


def contents_of(thing: Any) -> Items:
    """Return what is in a container now; no method of a subclass is asked."""
    if isinstance(thing, dict):
        return [*dict.keys(thing)], [*dict.values(thing)]
    if isinstance(thing, list | deque):
        cls: Any = list if isinstance(thing, list) else deque
        return (), [*cls.__iter__(thing)]
    container = container_of(type(thing))
    return (), () if container is None else [*container.flatten(thing)[0]]


def are_same(contents: Items, others: Items) -> bool:
    """Return whether these are the same objects, in the same order."""
    (keys, values), (other_keys, other_values) = contents, others
    ours, theirs = [*keys, *values], [*other_keys, *other_values]
    return len(ours) == len(theirs) and all(map(is_, ours, theirs))


def fill(thing: Any, contents: Items) -> None:
    """Have a list, dict or deque, or an object's attributes, be as they were.

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
    elif not are_same(contents_of(thing), contents):
        raise MisuseError(f"a {type(thing).__qualname__} cannot be filled anew")


def mapped(contents: Items, own: Callable[[Any], Any]) -> Items:
    """Return contents with what ``own`` gives for each value."""
    keys, values = contents
    return keys, [own(value) for value in values]
