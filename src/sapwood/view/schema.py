"""The schema of a snapshot, version 1: what `rt.snapshot()` makes and `view` draws.

The meaning of every field is in docs/snapshot.md. Beyond shapes: ids and page numbers
are unique, no recording is its own ancestor, and the call of a miss and the miss of a
call exist. A reference to a recording may name one that was evicted since.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from sapwood.errors import MisuseError
from sapwood.view.shapes import (
    FLAG,
    NUMBER,
    TEXT,
    WHOLE,
    Each,
    Maybe,
    Shape,
    Table,
    check,
    one_of,
)

__all__ = ["KINDS", "SNAPSHOT", "USES", "VERSION", "validate"]

VERSION: Final = 1
"""The version of the schema."""

KINDS: Final = ("warm-up", "record", "replay", "pass-through", "restore")
"""How a call can have been run."""

USES: Final = ("scratch", "output", "live", "free", "heap")
"""What a page can be used for."""

_ID = Maybe(WHOLE)

_DEVICE = {
    "kind": TEXT,
    "name": TEXT,
    "page_bytes": WHOLE,
    "total_bytes": WHOLE,
    "limit_bytes": Maybe(WHOLE),
}

_FUNCTION = {
    "name": TEXT,
    "warmups": WHOLE,
    "recordings": WHOLE,
    "replays": WHOLE,
    "passed_through": WHOLE,
    "restored": WHOLE,
    "evicted": WHOLE,
    "copied_bytes": WHOLE,
    "escaped": WHOLE,
    "skipped": Each({"reason": TEXT, "calls": WHOLE}),
}

_ARGUMENT = {
    "name": TEXT,
    "role": TEXT,
    "bytes": WHOLE,
    "written": FLAG,
    "donated": FLAG,
}

_RECORDING = {
    "id": WHOLE,
    "name": TEXT,
    "function": TEXT,
    "signature": TEXT,
    "parent": _ID,
    "hits": WHOLE,
    "ops": WHOLE,
    "pages": WHOLE,
    "clobbers": Each(WHOLE),
    "output_pages": Each(WHOLE),
    "live": FLAG,
    "escapes": FLAG,
    "restored": FLAG,
    "host_us": Each(Maybe(NUMBER), of_two=True),
    "arguments": Each(_ARGUMENT),
    "outputs": Each({"bytes": WHOLE, "live": FLAG}),
    "range": {"address": TEXT, "pages": WHOLE},
}

_MISS = {
    "call": _ID,
    "function": TEXT,
    "signature": TEXT,
    "reasons": Each({"recording": _ID, "text": TEXT}),
}

_PAGE = {
    "number": WHOLE,
    "use": one_of(*USES),
    "recordings": Each(WHOLE),
    "holds": Each(TEXT),
}

_CALL = {
    "at_us": NUMBER,
    "host_us": NUMBER,
    "function": TEXT,
    "kind": one_of(*KINDS),
    "recording": _ID,
    "miss": _ID,
}

_STORE = {
    "path": TEXT,
    "hits": WHOLE,
    "misses": WHOLE,
    "puts": WHOLE,
    "errors": WHOLE,
    "damaged": WHOLE,
    "entries": WHOLE,
    "bytes": WHOLE,
}

SNAPSHOT: Final[Shape] = {
    "schema": one_of(VERSION),
    "made": TEXT,
    "sapwood": TEXT,
    "device": _DEVICE,
    "memory": Table(WHOLE),
    "functions": Each(_FUNCTION),
    "recordings": Each(_RECORDING),
    "misses": Each(_MISS),
    "pages": Each(_PAGE),
    "calls": Each(_CALL),
    "store": Maybe(_STORE),
    "events": Each({"kind": TEXT, "text": TEXT}),
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
    parents = {r["id"]: r["parent"] for r in recordings}
    rooted: set[int] = set()
    for index, start in enumerate(parents):
        path: set[int] = set()
        here: int | None = start
        while here is not None and here in parents and here not in rooted:
            if here in path:
                raise MisuseError(
                    f"recordings[{index}].parent leads in a circle, by way of {here}. "
                    "A parent is a recording made earlier, or null"
                )
            path.add(here)
            here = parents[here]
        rooted |= path
