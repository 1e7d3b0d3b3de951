"""What a function reads on the host: an eager region, and what follows goes by it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

TELL: Final = (
    "Print it outside the graphed function, or in one that is marked with @sw.eager"
)


class Reading:
    """Reads on the host, as an eager region that is called as the user asked.

    What ``read`` returns of the arrays is plain values, or arrays beside some.
    """

    runs: Callable[..., Any] = bytes  # it names no array
    writes = False

    def __init__(self, name: str, read: Callable[..., Any]) -> None:
        self.name, self._read = name, read

    def __call__(self, *arrays: Any) -> Any:
        return self._read(*arrays)

    def held(self) -> Callable[[], Reading]:
        """Return what gives this."""
        return lambda: self


def bits_of(host: Any) -> Any:
    """Return the only element of a host array, or the bytes of all, in C order.

    The element is NumPy's: Python's number would lose bits of a NaN.
    """
    return host.reshape(())[()] if host.size == 1 else host.tobytes()
