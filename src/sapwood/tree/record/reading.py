"""What a function reads on the host: an eager region, and what follows goes by it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from sapwood.tree.nests.containers import flatten, unflatten

TELL: Final = (
    "Print it outside the graphed function, or in a function marked with @sw.eager"
)


class Reading:
    """Reads on the host, as an eager region that is called as the user asked.

    What ``read`` returns of the arrays is plain values, or arrays beside some, and
    ``shown`` makes of that what the framework gives to the function.
    """

    runs: Callable[..., Any] = bytes  # it names no array
    writes = sees = False

    def __init__(
        self,
        name: str,
        read: Callable[..., Any],
        shown: Callable[[Any], Any] | None = None,
    ) -> None:
        self.name, self._read, self.shown = name, read, shown

    def __call__(self, *arrays: Any) -> Any:
        return self._read(*arrays)

    def held(self) -> Callable[[], Reading]:
        """Return what gives this."""
        return lambda: self


def reading_of(
    name: str,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    is_array: Callable[[Any], bool],
    shown: Callable[[Any], Any] | None = None,
) -> tuple[Reading, tuple[Any, ...]]:
    """Return a call as an eager region, and the arrays that it is passed.

    The region holds all other arguments, and none of the arrays.
    """
    if not kwargs and all(map(is_array, args)):
        return Reading(name, fn, shown), args  # as most are: nothing is taken apart
    leaves, structure = flatten((args, dict(kwargs)), is_array)
    others = [None if is_array(leaf) else (leaf,) for leaf in leaves]

    def read(*arrays: Any) -> Any:
        left = iter(arrays)
        given = [next(left) if other is None else other[0] for other in others]
        own, named = unflatten(structure, given)
        return fn(*own, **named)

    return Reading(name, read, shown), tuple(filter(is_array, leaves))
