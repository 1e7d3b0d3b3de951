"""Host data in a recording: what is as constant as a plain number, and what is not."""

from __future__ import annotations

from typing import Any, Final

from sapwood.tree.guards.standard import BYTES
from sapwood.tree.watch import session

MAKE_OUTSIDE: Final = (
    "Make the array outside the graphed function and pass it in, or make it in a "
    "function marked with @sw.eager"
)
READ_OUTSIDE: Final = (
    "Return the array, or compute it outside the graphed function, or in a function "
    "marked with @sw.eager"
)


def is_constant(value: Any) -> bool:
    """Return whether host data is a constant of the session's next op.

    It is if it is made of plain numbers, as right as these are, or if it views an array
    whose contents are guarded. Outside of sessions nothing is.
    """
    watching = session.current()
    if watching is None:
        return False
    return _is_plain(value) or _is_guarded(value, watching)


def host_data(what: str) -> None:
    """Tell the session that host data enters the device, by doing ``what``.

    Raises `CaptureError` where the session refuses it.
    """
    watching = session.current()
    if watching is not None:
        watching.refuse(
            f"host data enters the device ({what}), and replays would see the old data",
            remedy=MAKE_OUTSIDE,
        )


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_plain, value))
    return isinstance(value, (bool, int, float, complex)) or _is_of(value, "generic")


def _is_guarded(value: Any, watching: session.Session) -> bool:
    """Return whether an array is one that guards compare, or the part of such a one."""
    while _is_of(value, "ndarray"):
        if watching.holds(value):
            return bool(value.nbytes <= BYTES and not value.dtype.hasobject)
        value = value.base
    return False


def _is_of(value: object, name: str) -> bool:
    """Return whether a value is of a class of NumPy's, which nobody imports here."""
    return any(
        cls.__module__ == "numpy" and cls.__name__ == name
        for cls in type(value).__mro__
    )
