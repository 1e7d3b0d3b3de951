"""The schema of a snapshot, version 1: what `rt.snapshot()` makes and `view` draws.

The meaning of every field is in docs/snapshot.md. Beyond shapes: ids and page numbers
are unique, no recording is its own ancestor, and the call of a miss and the miss of a
call exist. A reference to a recording may name one that was evicted since.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final, NoReturn, TypeAlias

from sapwood.errors import MisuseError, shown

_LARGEST_WHOLE = 2**53
"""Beyond it, whole numbers are no longer exact in a browser."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """What ``fits``; messages say what was ``expected``."""

    expected: str
    fits: Callable[[Any], bool]


@dataclass(frozen=True, slots=True)
class Maybe:
    """Null, or what ``shape`` says."""

    shape: Shape


@dataclass(frozen=True, slots=True)
class Later:
    """What ``shape`` says, or nothing: snapshots of older versions lack the field."""

    shape: Shape


Shape: TypeAlias = Leaf | Maybe | Later | list[Any] | tuple[Any, Any] | dict[Any, Any]
"""``[shape]`` is a list of any length, ``(shape, shape)`` one of two; ``{name: shape}``
a table of these names at least, and ``{str: shape}`` one of any names.
"""


def _is_whole(value: Any) -> bool:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return whole and 0 <= value <= _LARGEST_WHOLE


def _is_number(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and 0 <= value < math.inf


TEXT: Final = Leaf("text", lambda value: isinstance(value, str))
FLAG: Final = Leaf("true or false", lambda value: isinstance(value, bool))
WHOLE: Final = Leaf("a whole number from 0", _is_whole)
NUMBER: Final = Leaf("a finite number from 0", _is_number)


def one_of(*values: str | int) -> Leaf:
    """Return the shape of one of a few values, each of its own type."""
    expected = "one of " + ", ".join(map(repr, values))
    return Leaf(expected, lambda v: any(type(v) is type(w) and v == w for w in values))


def check(shape: Shape, value: Any, path: str) -> None:
    """Raise `MisuseError` with the path unless ``value`` is what ``shape`` says."""
    match shape:
        case Leaf(expected, fits) if not fits(value):
            _refuse(path, expected, value)
        case Maybe(inner) if value is not None:
            check(inner, value, path)
        case list() | tuple():
            of_two = isinstance(shape, tuple)
            if not isinstance(value, list | tuple) or (of_two and len(value) != 2):
                _refuse(path, "a list of two" if of_two else "a list", value)
            for index, element in enumerate(value):
                check(shape[0], element, f"{path}[{index}]")
        case dict():
            _check_table(shape, value, path)


def _check_table(shape: dict[Any, Any], value: Any, path: str) -> None:
    if not isinstance(value, dict):
        _refuse(path, "a table", value)
    if str in shape:
        for name in value:
            check(TEXT, name, f"a key of {path}")
        shape = dict.fromkeys(value, shape[str])
    for name, inner in shape.items():
        here = f"{path}.{name}" if path else name
        if isinstance(inner, Later):
            check(inner.shape, value.get(name, []), here)
            continue
        if name not in value:
            raise MisuseError(f"the snapshot lacks {here}. {_REMEDY}")
        check(inner, value[name], here)


_REMEDY = "Take it from rt.snapshot()"


def _refuse(path: str, expected: str, value: Any) -> NoReturn:
    what = f"{path or 'the snapshot'} is {shown(value)}"
    raise MisuseError(f"{what}, not {expected}. {_REMEDY}")


VERSION: Final = 1
"""The version of the schema."""

KINDS: Final = ("warm-up", "record", "replay", "pass-through", "restore")
"""How a call can have been run."""

USES: Final = ("scratch", "output", "live", "free", "heap")
"""What a page can be used for."""

_ID = Maybe(WHOLE)


def _all(shape: Shape, *names: str) -> dict[str, Shape]:
    """Return the part of a table whose fields are of one shape."""
    return dict.fromkeys(names, shape)


_DEVICE = {
    **_all(TEXT, "kind", "name"),
    **_all(WHOLE, "page_bytes", "total_bytes"),
    "limit_bytes": Maybe(WHOLE),
}

_FUNCTION = {
    "name": TEXT,
    **_all(WHOLE, "warmups", "recordings", "replays", "passed_through", "restored"),
    **_all(WHOLE, "evicted", "copied_bytes", "escaped"),
    "skipped": [{"reason": TEXT, "calls": WHOLE}],
}

_ARGUMENT = {
    **_all(TEXT, "name", "role"),
    "bytes": WHOLE,
    **_all(FLAG, "written", "donated"),
}

_RECORDING = {
    **_all(WHOLE, "id", "hits", "ops", "pages"),
    **_all(TEXT, "name", "function", "signature"),
    "parent": _ID,
    **_all([WHOLE], "clobbers", "output_pages"),
    **_all(FLAG, "live", "escapes", "restored"),
    "host_us": (Maybe(NUMBER), Maybe(NUMBER)),
    "arguments": [_ARGUMENT],
    "outputs": [{"bytes": WHOLE, "live": FLAG}],
    "range": {"address": TEXT, "pages": WHOLE},
}

_MISS = {
    "call": _ID,
    **_all(TEXT, "function", "signature"),
    "reasons": [{"recording": _ID, "text": TEXT}],
}

_PAGE = {"number": WHOLE, "use": one_of(*USES), "recordings": [WHOLE], "holds": [TEXT]}

_CALL = {
    **_all(NUMBER, "at_us", "host_us"),
    "function": TEXT,
    "kind": one_of(*KINDS),
    **_all(_ID, "recording", "miss"),
}

_USE = {"at_us": NUMBER, **_all(WHOLE, "recordings", "outputs", "eager")}

_STORE = {
    "path": TEXT,
    **_all(WHOLE, "hits", "misses", "puts", "errors", "damaged", "entries", "bytes"),
}

SNAPSHOT: Final[Shape] = {
    "schema": one_of(VERSION),
    "made": TEXT,
    "sapwood": TEXT,
    "device": _DEVICE,
    "memory": {str: WHOLE},
    "functions": [_FUNCTION],
    "recordings": [_RECORDING],
    "misses": [_MISS],
    "pages": [_PAGE],
    "calls": [_CALL],
    "memory_over_time": Later([_USE]),
    "store": Maybe(_STORE),
    "events": [{"kind": TEXT, "text": TEXT}],
}
"""The shape of a whole snapshot."""


def validate(snapshot: Any) -> dict[str, Any]:
    """Return ``snapshot`` as a dict, or raise.

    Raises `MisuseError` that names the path of the first thing that is wrong.
    """
    given: Any = dict(snapshot) if isinstance(snapshot, Mapping) else snapshot
    check(SNAPSHOT, given, "")
    whole: dict[str, Any] = given
    _refuse_doubles("recordings", "id", (r["id"] for r in whole["recordings"]))
    _refuse_doubles("pages", "number", (p["number"] for p in whole["pages"]))
    _refuse_circles(whole["recordings"])
    _refuse_beyond(whole, "calls", "miss", "misses")
    _refuse_beyond(whole, "misses", "call", "calls")
    return whole


def _refuse_doubles(where: str, field: str, numbers: Iterable[int]) -> None:
    seen: set[int] = set()
    for index, number in enumerate(numbers):
        if number in seen:
            raise MisuseError(
                f"{where}[{index}].{field} is {number}, as in an earlier one. "
                f"Give each of {where} its own"
            )
        seen.add(number)


def _refuse_beyond(
    whole: Mapping[str, Any], where: str, field: str, target: str
) -> None:
    known = len(whole[target])
    for index, element in enumerate(whole[where]):
        if element[field] is not None and element[field] >= known:
            raise MisuseError(
                f"{where}[{index}].{field} is {element[field]}, but there are {known} "
                f"{target}. Number them from 0, or give null"
            )


def _refuse_circles(recordings: Iterable[Mapping[str, Any]]) -> None:
    parents = {r["id"]: {r["parent"]} - {None} for r in recordings}
    try:
        TopologicalSorter(parents).prepare()
    except CycleError as error:
        child = error.args[1][-1]
        raise MisuseError(
            f"recordings[{[*parents].index(child)}].parent leads in a circle, by way "
            f"of {error.args[1][-2]}. A parent is a recording made earlier, or null"
        ) from None
