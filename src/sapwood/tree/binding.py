"""Binding what a replay made to the slots that the function bound it to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sapwood.tree.ambient import Slot
from sapwood.tree.parameters import Parameters

__all__ = ["arguments_of", "bind"]

_NONE: Final[Mapping[str, object]] = {}


def arguments_of(
    slots: Sequence[Slot],
    parameters: Parameters,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Mapping[str, object]:
    """Return the arguments by parameter; none where no slot is found through one."""
    if any(type(slot.root) is str for slot in slots):
        return parameters.bind(args, kwargs)
    return _NONE


def bind(
    slots: Sequence[Slot], values: Sequence[Any], arguments: Mapping[str, object]
) -> None:
    """Bind each slot to its value; raises `MisuseError` where the way is gone."""
    for slot, value in zip(slots, values, strict=True):
        slot.write(value, arguments)
