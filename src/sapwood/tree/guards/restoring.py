"""What a function has written is put back, where an attempt at recording failed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from contextvars import copy_context
from types import ModuleType
from typing import Any

from sapwood.errors import MisuseError
from sapwood.tree.guards.constants import Contents, kept_contents
from sapwood.tree.guards.moving import STATE, kept_state
from sapwood.tree.guards.reach import Inside, is_book, items_of
from sapwood.tree.guards.standard import BUFFER, DECIMAL
from sapwood.tree.guards.survey import Survey
from sapwood.tree.guards.views import DICT, EMPTY, LIST, SET
from sapwood.tree.nests.contents import are_same, contents_of, fill


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
            kept_contents(row.value)
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


_KEPT = {STATE: kept_state, DECIMAL: _kept_decimal, BUFFER: kept_contents}
"""Views of states that no slot holds, and what keeps one."""


def put_back(survey: Survey) -> None:
    """Have containers, attributes, globals and closures hold what was found then.

    What cannot be bound stays as it is, and shows in the next survey.
    """
    for thing, inside in survey.insides():
        for row in inside.rows:
            if row.role == "tally" and type(row.value) is list:
                del row.value[row.size :]
        if inside.lacks is None and inside.view in _WHOLE:
            _WHOLE[inside.view](thing, inside)
        elif inside.view.store is not None:
            for key, value in _others(thing, inside):
                with suppress(AttributeError, LookupError, MisuseError, TypeError):
                    inside.view.store(thing, key, value)


def _others(thing: Any, inside: Inside) -> Iterator[tuple[Any, Any]]:
    """Yield the slots that hold something else by now, and what they held."""
    now = dict(items_of(inside.view.open(thing)))
    for row in inside.rows:
        known = is_book(inside.view, row.key) or now.get(row.key, EMPTY) is row.value
        if not known:
            yield row.key, row.value
    for name in inside.lacks or ():
        # A package that is loaded meanwhile shows in the package above it.
        new = now.get(name, EMPTY)
        if not (new is EMPTY or isinstance(new, ModuleType)):
            yield name, EMPTY


def _fill_again(thing: Any, inside: Inside) -> None:
    keys = [row.key for row in inside.rows] if inside.view is DICT else ()
    old = keys, [row.value for row in inside.rows]
    if not are_same(contents_of(thing), old):
        fill(thing, old)


def _put_set_back(thing: Any, inside: Inside) -> None:
    old = [row.value for row in inside.rows]
    if isinstance(thing, set) and {*map(id, old)} != {*map(id, set.__iter__(thing))}:
        set.clear(thing)
        set.update(thing, old)


_WHOLE = {DICT: _fill_again, LIST: _fill_again, SET: _put_set_back}
"""Views of containers, of which everything is read, in its order."""
