"""What a function, or an eager region, has written is put back, and there again."""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextvars import copy_context
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from sapwood.errors import MisuseError
from sapwood.tree.guards.constants import (
    Contents,
    constant_of,
    kept_bytes,
    put_contents,
)
from sapwood.tree.guards.moving import STATE, kept_state
from sapwood.tree.guards.reach import is_book, items_of
from sapwood.tree.guards.standard import (
    BUFFER,
    CONTEXT,
    DECIMAL,
    FACTORY,
    MEMBERS,
    TEXT,
    WEAK,
)
from sapwood.tree.guards.views import (
    DICT,
    EMPTY,
    FUNCTION,
    FUNCTION_PARTS,
    LIST,
    SET,
    View,
    bind,
)
from sapwood.tree.nests.contents import Items, are_same, contents_of, fill, mapped

if TYPE_CHECKING:
    from sapwood.tree.guards.survey import Survey

Own: TypeAlias = Callable[[Any], Any]
"""Gives what the function itself has for a value that a region has left."""

Edit: TypeAlias = Callable[[Own], object]
"""Does again what was undone, with other values in the place of some."""


def kept_states(survey: Survey) -> list[Callable[[], object]]:
    """Return what puts back to where they are now the states that no slot holds.

    Those are of random generators, of decimal's contexts and of context variables; and
    what is in host arrays and other bytes that the function reads.
    """
    kept: list[Callable[[], object]] = [_kept_variables()]
    for thing, inside in survey.insides():
        if inside.view in _KEPT:
            kept.append(_KEPT[inside.view](thing))
        kept += [
            partial(put_contents, row.value, row.frozen)
            for row in inside.rows
            if type(row.frozen) is Contents
        ]
    return kept


def _kept_variables() -> Callable[[], object]:
    # What the library itself sets, it ends in its own order: streams, for example.
    before = [
        (variable, value)
        for variable, value in copy_context().items()
        if not variable.name.startswith("sapwood_")
    ]

    def put_back() -> None:
        for variable, old in before:
            if variable.get() is not old:
                variable.set(old)

    return put_back


def _kept_decimal(context: Any) -> Callable[[], object]:
    old = context.copy()

    def put_back() -> None:
        for name in DECIMAL.open(context):
            setattr(context, name, getattr(old, name))

    return put_back


_KEPT = {STATE: kept_state, DECIMAL: _kept_decimal, BUFFER: kept_bytes}
"""Views of states that no slot holds, and what keeps one."""


def put_back(survey: Survey) -> None:
    """Have containers, attributes, globals and closures hold what was found then.

    What cannot be bound stays as it is, and shows in the next survey.
    """
    for thing, inside in survey.insides():
        for row in inside.rows:
            if row.role == "tally" and type(row.value) is list:
                del row.value[row.size :]
        held = [(row.key, row.value) for row in inside.rows]
        put_in(thing, inside.view, held, inside.lacks)


def lists_added_to(survey: Survey) -> list[list[Any]]:
    """Return the lists that the function appends to, and does not read."""
    rows = [row for _, inside in survey.insides() for row in inside.rows]
    found = [row.value for row in rows if row.role == "tally"]
    return [*{id(each): each for each in found if type(each) is list}.values()]


def put_in(
    thing: Any,
    view: View,
    held: Sequence[tuple[Any, Any]],
    lacks: Collection[str] | None,
) -> list[Edit]:
    """Have a thing hold what it held, as a view shows it; return what undoes that.

    Besides what it ``held`` it lacks some names; None: all others.
    """
    if lacks is None and view in _WHOLE:
        keys = [key for key, _ in held] if view is DICT else ()
        then, now = (keys, [value for _, value in held]), contents_of(thing)
        if are_same(now, then) or isinstance(thing, frozenset):
            return []
        fill(thing, then)
        return [partial(fill_again, thing, now)]
    store = view.store or _PUTS.get(view)
    if store is None:
        return []
    put = partial(_bind, store, thing)
    others = [*_others(view, dict(items_of(view.open(thing))), dict(held), lacks)]
    return [partial(put, key, now) for key, then, now in others if put(key, then)]


def put_bytes(value: Any, then: Contents) -> list[Edit]:
    """Have an object hold the bytes that it held; return what undoes that."""
    now = constant_of(value)
    if now == then or not isinstance(now, Contents):
        return []
    put_contents(value, then)
    return [lambda _: put_contents(value, now)]


def _others(
    view: View, now: dict[Any, Any], held: dict[Any, Any], lacks: Collection[str] | None
) -> Iterator[tuple[Any, Any, Any]]:
    """Yield the slots that hold something else by now, what they held, and hold."""
    for key in {**held, **now}:
        there, then = now.get(key, EMPTY), held.get(key, EMPTY)
        # A package that is loaded meanwhile shows in the package above it.
        new = key in held or not isinstance(there, ModuleType)
        known = new and (key in held or lacks is None or key in lacks)
        if known and there is not then and not is_book(view, key):
            yield key, then, there


def _bind(
    store: Callable[[Any, Any, Any], object],
    thing: Any,
    key: Any,
    value: Any,
    own: Own = lambda value: value,
) -> bool:
    """Bind a slot; return whether that is possible."""
    try:
        store(thing, key, own(value))
    except (AttributeError, LookupError, MisuseError, TypeError):
        return False
    return True


def fill_again(thing: Any, contents: Items, own: Own) -> None:
    """Have a container hold what it held, with other values in the place of some."""
    fill(thing, mapped(contents, own))


def _put_function(function: Any, key: int, value: Any) -> None:
    setattr(function, FUNCTION_PARTS[key], value)


def _put_variable(variable: Any, _: int, value: Any) -> None:
    if value is EMPTY:  # which nobody but the one who has set it can do again
        raise MisuseError
    variable.set(value)


def _put_text(stream: Any, key: int, value: Any) -> None:
    kind: Any = io.StringIO if isinstance(stream, io.StringIO) else io.BytesIO
    # Not written: a text stream would translate the ends of lines once more.
    state = [*kind.__getstate__(stream)]
    state[(0, -2)[key]], state[-1] = value, None
    kind.__setstate__(stream, tuple(state))


def _put_member(weak: Any, key: Any, value: Any) -> None:
    (weak.data.discard if value is EMPTY else weak.data.add)(key)


_PUTS: Final[Mapping[View, Callable[[Any, Any, Any], object]]] = {
    CONTEXT: _put_variable,
    FACTORY: lambda thing, _, value: setattr(thing, "default_factory", value),
    FUNCTION: _put_function,
    MEMBERS: _put_member,
    TEXT: _put_text,
    WEAK: lambda weak, key, value: bind(weak.data, key, value),
}
"""What binds slots that no replay binds."""

_WHOLE = {DICT, LIST, SET}
"""Views of containers, of which everything is read, in its order."""
