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
    Each,
    Fields,
    Flag,
    Maybe,
    Number,
    OneOf,
    Pair,
    Table,
    Text,
    Whole,
)

__all__ = ["KINDS", "SNAPSHOT", "USES", "VERSION", "validate"]

VERSION: Final = 1
"""The version of the schema."""

KINDS: Final = ("warm-up", "record", "replay", "pass-through", "restore")
"""How a call can have been run."""

USES: Final = ("scratch", "output", "live", "free", "heap")
"""What a page can be used for."""

_TEXT, _FLAG, _WHOLE, _NUMBER = Text(), Flag(), Whole(), Number()
_ID = Maybe(_WHOLE)

_DEVICE = Fields(
    {
        "kind": _TEXT,
        "name": _TEXT,
        "page_bytes": _WHOLE,
        "total_bytes": _WHOLE,
        "limit_bytes": Maybe(_WHOLE),
    }
)

_FUNCTION = Fields(
    {
        "name": _TEXT,
        "warmups": _WHOLE,
        "recordings": _WHOLE,
        "replays": _WHOLE,
        "passed_through": _WHOLE,
        "restored": _WHOLE,
        "evicted": _WHOLE,
        "copied_bytes": _WHOLE,
        "escaped": _WHOLE,
        "skipped": Each(Fields({"reason": _TEXT, "calls": _WHOLE})),
    }
)

_ARGUMENT = Fields(
    {
        "name": _TEXT,
        "role": _TEXT,
        "bytes": _WHOLE,
        "written": _FLAG,
        "donated": _FLAG,
    }
)

_RECORDING = Fields(
    {
        "id": _WHOLE,
        "name": _TEXT,
        "function": _TEXT,
        "signature": _TEXT,
        "parent": _ID,
        "hits": _WHOLE,
        "ops": _WHOLE,
        "pages": _WHOLE,
        "clobbers": Each(_WHOLE),
        "output_pages": Each(_WHOLE),
        "live": _FLAG,
        "escapes": _FLAG,
        "restored": _FLAG,
        "host_us": Pair(Maybe(_NUMBER)),
        "arguments": Each(_ARGUMENT),
        "outputs": Each(Fields({"bytes": _WHOLE, "live": _FLAG})),
        "range": Fields({"address": _TEXT, "pages": _WHOLE}),
    }
)

_MISS = Fields(
    {
        "call": _ID,
        "function": _TEXT,
        "signature": _TEXT,
        "reasons": Each(Fields({"recording": _ID, "text": _TEXT})),
    }
)

_PAGE = Fields(
    {
        "number": _WHOLE,
        "use": OneOf(USES),
        "recordings": Each(_WHOLE),
        "holds": Each(_TEXT),
    }
)

_CALL = Fields(
    {
        "at_us": _NUMBER,
        "host_us": _NUMBER,
        "function": _TEXT,
        "kind": OneOf(KINDS),
        "recording": _ID,
        "miss": _ID,
    }
)

_STORE = Fields(
    {
        "path": _TEXT,
        "hits": _WHOLE,
        "misses": _WHOLE,
        "puts": _WHOLE,
        "errors": _WHOLE,
        "damaged": _WHOLE,
        "entries": _WHOLE,
        "bytes": _WHOLE,
    }
)

SNAPSHOT: Final = Fields(
    {
        "schema": OneOf((VERSION,)),
        "made": _TEXT,
        "sapwood": _TEXT,
        "device": _DEVICE,
        "memory": Table(_WHOLE),
        "functions": Each(_FUNCTION),
        "recordings": Each(_RECORDING),
        "misses": Each(_MISS),
        "pages": Each(_PAGE),
        "calls": Each(_CALL),
        "store": Maybe(_STORE),
        "events": Each(Fields({"kind": _TEXT, "text": _TEXT})),
    }
)
"""The shape of a whole snapshot."""


def validate(snapshot: Any) -> dict[str, Any]:
    """Return ``snapshot`` as a dict, or raise.

    Raises `MisuseError` that names the path of the first thing that is wrong.
    """
    given: Any = dict(snapshot) if isinstance(snapshot, Mapping) else snapshot
    SNAPSHOT.check(given, "")
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
