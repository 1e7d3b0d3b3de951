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

    __slots__ = ("_witness",)

    def __init__(self) -> None:
        self._witness: Callable[[Sequence[Any]], bool] | None = None

    def holds(
        self,
        arrays: Sequence[Array],
        layouts: Sequence[Hashable],
        integration: Integration,
    ) -> bool:
        """Return whether arrays that had these layouts once, or their like, have them.

        Raises `StaleOutput`.
        """
        if integration.settled or (self._witness and self._witness(arrays)):
            return True
        made = integration.steady(arrays)
        pairs = zip(arrays, layouts, strict=True)
        if any(integration.layout(array) != layout for array, layout in pairs):
            return False
        # What another thread changes meanwhile, no witness is to stand for.
        if made is not None and made(arrays):
            self._witness = made
        return True
