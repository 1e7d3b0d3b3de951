"""Giving several things back to a driver, whatever it reports in between.

A call that gives something back has done its work even when it raises. So all of
them are made, and the first error is raised at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ParamSpec, Self, TypeVar

from sapwood.errors import DriverError

P = ParamSpec("P")
H = TypeVar("H")


class Release:
    """Makes calls that give something back, and raises the first error at its end.

    ``with Release() as release: release(driver.unmap, address, size)``.
    """

    def __init__(self) -> None:
        self._first: DriverError | None = None

    def __call__(
        self, call: Callable[P, object], *args: P.args, **kwargs: P.kwargs
    ) -> None:
        """Make one call that gives something back."""
        try:
            call(*args, **kwargs)
        except DriverError as error:
            self._first = self._first or error

    def each(self, call: Callable[[H], object], things: Iterable[H]) -> None:
        """Make one call for each of the things that there are now."""
        for each in list(things):
            self(call, each)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        first, self._first = self._first, None
        # An error on its way out matters more than what its clean-up met.
        try:
            if error is None and first is not None:
                raise first
        finally:
            # An error that its own frames name outlives its handlers.
            del first
