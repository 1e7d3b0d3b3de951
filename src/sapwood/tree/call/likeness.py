"""Whether arrays look as it is written, which is read once; then they are compared.

An array may be given another shape, at its address, while it stays the same object.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from sapwood.tree.call.integration import Array, Integration

__all__ = ["Likeness"]


class Likeness:
    """Says of arrays, again and again, whether they have the same layouts."""

    __slots__ = ("_steady",)

    def __init__(self) -> None:
        self._steady: Callable[[Sequence[Any]], bool] | None = _deny

    def holds(
        self,
        arrays: Sequence[Array],
        layouts: Sequence[Hashable],
        integration: Integration,
    ) -> bool:
        """Return whether arrays that had these layouts once, or their like, have them.

        Raises `StaleOutput`.
        """
        steady = self._steady
        if steady is None or steady(arrays):
            return True
        made = integration.steady(arrays)
        if made is not None:
            pairs = zip(arrays, layouts, strict=True)
            if any(integration.layout(array) != layout for array, layout in pairs):
                return False
            # What another thread changes meanwhile, nothing is to stand for.
            if not made(arrays):
                return True
        self._steady = made
        return True


def _deny(arrays: Sequence[Any]) -> bool:
    """Return False: nothing is known yet."""
    del arrays
    return False
