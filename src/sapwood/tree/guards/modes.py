"""A framework's modes and settings, which decide what its operations do.

They are guarded like any value that a function reads, but read by every call: so
their values are put together without much ado, and named only where one differs.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import call
from typing import Any, Final

from sapwood.tree.guards.frameworks import declare_opening
from sapwood.tree.guards.scope import Accessor, Openings, Reach
from sapwood.tree.guards.views import View, Way

__all__ = ["Modes"]


def _itself(value: Any) -> Any:
    return value


class Modes:
    """The values of all modes; for the same values it gives the same mapping.

    The ``way`` has a getter for each, by what one would write. A value that could not
    be got, with `RuntimeError`, is ``asked`` for in another way.
    """

    LIMIT: Final = 1024

    def __init__(
        self,
        framework: str,
        way: Way,
        asked: Callable[[Callable[[], Any]], Any] = call,
    ) -> None:
        self._getters = way.getters or {}
        self._shown, self._asked = way.shown or _itself, asked
        self._known: dict[tuple[Any, ...], dict[str, Any]] = {}
        self.view = View(
            f"{framework} modes",
            Modes.now,
            lambda path, _, key: f"{path}.{key}",
            portable=False,
            way=way,
        )

    def now(self) -> dict[str, Any]:
        """Return the modes that this thread is in, by what one would write."""
        try:
            values = tuple(map(call, self._getters.values()))
        except RuntimeError:
            values = tuple(map(self._asked, self._getters.values()))
        found = self._known.get(values)
        if found is None:
            if len(self._known) >= self.LIMIT:
                self._known.clear()
            shown = map(self._shown, values)
            found = self._known[values] = dict(zip(self._getters, shown, strict=True))
        return found

    def open(self, _: Reach) -> Openings:
        """Yield the one view of them."""
        yield Accessor(self.view, frozenset(self._getters))


declare_opening(Modes, Modes.open)
