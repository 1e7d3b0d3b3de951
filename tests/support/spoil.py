"""JSON with one place of it spoiled: for whoever reads what others may have written."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any, TypeAlias

__all__ = ["Path", "places", "replaced"]

Path: TypeAlias = tuple[Any, ...]
"""Keys and indices that lead to a place."""


def places(found: Any, path: Path = ()) -> Iterator[Path]:
    """Yield the path of everything in a nest of lists and dicts, itself first."""
    yield path
    if isinstance(found, dict | list):
        items = found.items() if isinstance(found, dict) else enumerate(found)
        for key, value in items:
            yield from places(value, (*path, key))


def replaced(found: Any, path: Path, value: Any) -> Any:
    """Return a copy with another value at ``path``."""
    if not path:
        return value
    changed = copy.deepcopy(found)
    at = changed
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return changed
