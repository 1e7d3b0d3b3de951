"""``sapwood diff``: what has happened between two snapshots in files."""

from __future__ import annotations

import json
from textwrap import fill
from typing import Any

from sapwood.cli.report import read_snapshot
from sapwood.cli.tables import counted, print_table
from sapwood.units import size_text

_SHOWN = 12
"""How many names of recordings, and how many reasons, are printed."""


def diff(old_path: str, new_path: str, *, as_json: bool = False) -> int:
    """Print what the snapshot in ``new_path`` has otherwise than that in ``old_path``.

    Returns 0, also where nothing differs. Raises `MisuseError` where one cannot be
    read, or is no snapshot.
    """
    from sapwood.view import difference

    old, new = read_snapshot(old_path), read_snapshot(new_path)
    found = difference(old, new)
    if as_json:
        print(json.dumps(found, indent=1))
        return 0
    if old.get("made", "") > new.get("made", ""):
        print(
            "The first file was made after the second: they may be the wrong way round."
        )
    if not any(found.values()):
        print("Nothing differs: no call, no recording, no memory.")
        return 0
    _calls(found)
    _memory(found, new["device"]["page_bytes"])
    for names, what in ((found["made"], "made"), (found["gone"], "gone")):
        if names:
            shown = [*names[:_SHOWN], *(["…"] if len(names) > _SHOWN else [])]
            told = f"{counted(len(names), 'recording')} {what}: {', '.join(shown)}"
            print(fill(told, 80, break_long_words=False))
    return 0


def _calls(found: dict[str, Any]) -> None:
    if found["functions"]:
        rows = [
            (
                name,
                ", ".join(f"{each.replace('_', ' ')} {count:+,}" for each, count in c),
            )
            for name, c in (
                (n, counts.items()) for n, counts in found["functions"].items()
            )
        ]
        print_table("Calls", ("function", "since"), rows)
    if found["misses"]:
        shown = [
            (each["function"], f"{each['calls']:,}", each["reason"])
            for each in found["misses"][:_SHOWN]
        ]
        print_table("Misses", ("function", ">calls", "reason"), shown)


def _memory(found: dict[str, Any], page: int) -> None:
    def told(name: str, value: int) -> str:
        if name == "ranges":
            return f"{value:,}"
        return size_text(value * page if "pages" in name else value)

    rows = [
        (name, told(name, before), told(name, now))
        for name, (before, now) in found["memory"].items()
    ]
    if rows:
        print_table("Memory", ("of", ">before", ">now"), rows)
