"""Whose arrays a function computes with, where a program has imported several."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from sapwood.tree.call.parameters import Parameters
from sapwood.tree.guards import survey
from sapwood.tree.guards.frameworks import Arrays
from sapwood.tree.guards.owners import package_of
from sapwood.tree.nests.containers import taken_apart

_PACKAGES: Final = {"torch": "torch", "cupy": "cupy", "cupyx": "cupy"}


def frameworks_of(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    arrays: Arrays,
) -> set[str] | None:
    """Return the frameworks of what a call is passed and a function names.

    None where nobody can tell before it runs: then the call says why.
    """
    try:
        arguments = Parameters(fn, "").bind(args, kwargs)
        leaves, *_ = taken_apart((args, dict(kwargs)), arrays.is_array)
        found = [*leaves, *survey(fn, arguments, arrays).values()]
    except Exception:  # noqa: BLE001 - code of objects' own may run, and raises again
        return None
    return {_PACKAGES[each] for each in map(package_of, found) if each in _PACKAGES}
