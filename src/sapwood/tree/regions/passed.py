"""What an eager region, or the call around it, is passed, and may not be done to it.

What follows was recorded on containers and arrays as they were before.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Final

from sapwood.errors import CaptureError, StaleOutput
from sapwood.tree.call.integration import Array, Integration
from sapwood.tree.nests.containers import constant_key, flatten

__all__ = ["RAN", "Passed", "changed_by", "told_later"]

RAN: Final = "the first part has run, and is not undone"


class Passed:
    """The arguments of one call of an eager region.

    Those that are ``flat``, none of them a container, are quickly gone through.
    """

    def __init__(
        self,
        args: tuple[Any, ...],
        kwargs: Any,
        integration: Integration,
        *,
        flat: bool = False,
    ) -> None:
        self._nest, self._integration = (args, kwargs), integration
        self.leaves: Sequence[Any]
        if flat:
            self.flat, self.leaves = True, (*args, *kwargs.values())
        else:
            self.leaves, self._structure = flatten(self._nest, integration.is_array)
            ones = [*args, *kwargs.values()]
            pairs = zip(ones, self.leaves, strict=False)
            same = all(one is leaf for one, leaf in pairs)
            self.flat = same and len(ones) == len(self.leaves)
        self._looks = self._look()

    def arrays(self) -> list[Array]:
        """Return the arrays among them."""
        return [leaf for leaf in self.leaves if self._integration.is_array(leaf)]

    def _look(self) -> list[Hashable]:
        return [_seen(array, self._integration) for array in self.arrays()]

    def reshaped(self) -> bool:
        """Return whether an array among them was given other looks, or other memory."""
        pairs = zip(self._look(), self._looks, strict=True)
        return any(now is not None and now != then for now, then in pairs)

    def text(self) -> str:
        """Return what tells these arguments from others, storages left out."""
        texts = [
            self._integration.layout(leaf)
            if self._integration.is_array(leaf)
            else constant_key(leaf)
            for leaf in self.leaves
        ]
        return f"{self._structure!r} of {texts!r}"

    def changed(self) -> bool:
        """Return whether a container in them is not what it was.

        Arrays may be written; a list or dict would be changed for one call only.
        """
        if self.flat:
            return False
        leaves, structure = flatten(self._nest, self._integration.is_array)
        return (
            structure != self._structure
            or len(leaves) != len(self.leaves)
            or any(new is not old for new, old in zip(leaves, self.leaves, strict=True))
        )


def _seen(array: Array, integration: Integration) -> Hashable:
    try:
        return integration.layout(array), integration.address(array)
    except StaleOutput:
        return None  # whoever uses it is told so


def changed_by(given: Passed, name: str) -> CaptureError | None:
    """Return an error where an eager region changed what the call itself was passed.

    What follows takes its leaves for those that the call began with, as they were.
    """
    if given.reshaped():
        return CaptureError(
            f"the region {name} gave an array that the graphed function was passed "
            f"another shape or dtype in place, or other memory; {RAN}",
            remedy="Make a view of it, or do so before or after the call",
        )
    if given.changed():
        return CaptureError(
            f"the region {name} changed a list, dict or dataclass that the graphed "
            f"function was passed, and that it may go on with; {RAN}",
            remedy="Write into the arrays in it, with x[...] = value, or change it "
            "before or after the call",
        )
    return None


def told_later(error: CaptureError) -> CaptureError:
    """Return an error for calls of which nothing has run."""
    what = error.what.removesuffix(f"; {RAN}")
    return CaptureError(what, where=error.where, remedy=error.remedy)
