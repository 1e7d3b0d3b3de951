"""What this library has set for a thread or task: put back where a call is broken off.

What Control-C meets while a ``with`` statement enters or leaves it, that does not leave
any more. Who begins a call that enters some puts back what was set before.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

_followed: list[ContextVar[Any]] = []


def follow(variable: ContextVar[Any]) -> None:
    """Have a variable, which has a default, be put back from now on."""
    _followed.append(variable)


class Surroundings:
    """What was set at one moment."""

    __slots__ = ("_before",)

    def __init__(self) -> None:
        self._before = [variable.get() for variable in _followed]

    def restore(self) -> None:
        """Set what is another by now."""
        for variable, value in zip(_followed, self._before, strict=False):
            if variable.get() is not value:
                variable.set(value)
