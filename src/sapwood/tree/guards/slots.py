"""Named places that hold values: read, bound and unbound wherever they are now."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sapwood.errors import MisuseError
from sapwood.tree.guards.views import EMPTY, View

__all__ = ["Slot"]


@dataclass(frozen=True, slots=True)
class Slot:
    """A place, by the way that leads to it; it keeps nothing alive.

    ``path`` is what a user would write. ``root`` is a parameter's name, or a weak
    reference to what the way starts from, whose path is ``start``.
    """

    path: str
    root: str | Callable[[], object]
    steps: tuple[tuple[View, Any], ...]
    start: str

    def read(self, arguments: Mapping[str, object] | None = None) -> Any:
        """Return what is bound here; raises `MisuseError` where nothing is."""
        view, key = self.steps[-1]
        try:
            value = view.open(self._owner(arguments or {}))[key]
        except LookupError:
            value = EMPTY
        if value is EMPTY:
            raise MisuseError(f"{self.path} is not there any more: bind it again")
        return value

    def write(
        self, value: object, arguments: Mapping[str, object] | None = None
    ) -> None:
        """Bind ``value`` here; slots in arguments need those of the call, by name.

        Raises `MisuseError` where the way is gone, or cannot be bound.
        """
        view, key = self.steps[-1]
        if view.store is None:
            raise MisuseError(f"{self.path} cannot be bound: keep it in a list or dict")
        view.store(self._owner(arguments or {}), key, value)

    def bearer(self) -> object | None:
        """Return the object whose attribute this is; None where it is no object's.

        Not for slots in arguments.
        """
        view, key = self.steps[-1]
        if view.bearer is None or isinstance(self.root, str):
            return None
        return view.bearer(self._owner({}), key)

    @property
    def attribute(self) -> str:
        """The name of the attribute that this is of its bearer."""
        return self.steps[-1][0].attribute

    def _owner(self, arguments: Mapping[str, object]) -> Any:
        root = self.root
        thing = arguments.get(root) if isinstance(root, str) else root()
        try:
            for view, key in self.steps[:-1]:
                thing = view.open(thing)[key]
        except (AttributeError, LookupError, TypeError):
            thing = None
        if thing is None:
            raise MisuseError(
                f"what holds {self.path} is gone: keep it alive, and where it was, "
                "while the function is called"
            )
        return thing
