"""What two snapshots of one program differ in, as plain data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from sapwood.view.schema import validate


def difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is otherwise in ``new``; what is alike in both is left out.

    ``functions`` are counts by name of what was added to them, ``memory`` pairs of
    before and now by name, ``made`` and ``gone`` the names of recordings, ``misses``
    how many calls of which functions missed, by reason, beyond those in ``old``. Both
    snapshots remember the last misses alone. Raises `MisuseError` for a snapshot that
    is not as docs/snapshot.md says.
    """
    before, now = validate(old), validate(new)
    had, have = before["memory"], now["memory"]
    known = {each["name"] for each in before["recordings"]}
    found = {each["name"] for each in now["recordings"]}
    more = _misses(now)
    more.subtract(_misses(before))
    return {
        "functions": _more(_counts(before), _counts(now)),
        "memory": {
            name: (had.get(name, 0), have.get(name, 0))
            for name in sorted({*had, *have})
            if had.get(name, 0) != have.get(name, 0)
        },
        "made": [x["name"] for x in now["recordings"] if x["name"] not in known],
        "gone": [x["name"] for x in before["recordings"] if x["name"] not in found],
        "misses": [
            {"function": function, "reason": reason, "calls": calls}
            for (function, reason), calls in more.most_common()
            if calls > 0
        ],
    }


def _counts(snapshot: Mapping[str, Any]) -> dict[str, Counter[str]]:
    """Return the counts of each function; of several with one name, the sums."""
    found: dict[str, Counter[str]] = {}
    for each in snapshot["functions"]:
        counts = {name: value for name, value in each.items() if type(value) is int}
        found.setdefault(each["name"], Counter()).update(counts)
    return found


def _more(
    before: Mapping[str, Counter[str]], now: Mapping[str, Counter[str]]
) -> dict[str, dict[str, int]]:
    """Return by how much counts are others; a function that is gone has lost its."""
    more: dict[str, dict[str, int]] = {}
    for name in dict.fromkeys([*now, *before]):
        old, new = before.get(name, Counter()), now.get(name, Counter())
        changed = {each: new[each] - old[each] for each in {**new, **old}}
        if any(changed.values()):
            more[name] = {each: count for each, count in changed.items() if count}
    return more


def _misses(snapshot: Mapping[str, Any]) -> Counter[tuple[str, str]]:
    return Counter(
        (miss["function"], reason["text"])
        for miss in snapshot["misses"]
        for reason in miss["reasons"]
    )
