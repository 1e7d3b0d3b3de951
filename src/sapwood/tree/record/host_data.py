"""Host data in a recording: what is as constant as a plain number, and what is not."""

from __future__ import annotations

from typing import Any, Final
from weakref import ref

from sapwood.errors import CaptureError
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

    It is if it is made of plain numbers, as right as these are, if it views an array
    whose contents are guarded, or one that the function makes itself, of nothing but
    what is guarded, and that ends with the call. Outside of sessions nothing is.
    """
    watching = session.current()
    if watching is None:
        return False
    return _is_plain(value) or _is_guarded(value, watching) or _is_made(value, watching)


def lasting(watching: session.Session) -> CaptureError | None:
    """Return an error about host data that was taken for the function's own, and stays.

    Somebody has it who may change it.
    """
    where = next((line for made, line in watching.hosts if made() is not None), None)
    if where is None:
        return None
    return CaptureError(
        "host data enters the device that outlives the call, and replays would see "
        "what it was",
        where=where,
        remedy=MAKE_OUTSIDE,
    )


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
    return isinstance(value, (bool, int, float, complex)) or is_of(value, "generic")


def _is_guarded(value: Any, watching: session.Session) -> bool:
    """Return whether an array is one that guards compare, or the part of such a one."""
    while is_of(value, "ndarray"):
        if watching.holds(value):
            return bool(value.nbytes <= BYTES and not value.dtype.hasobject)
        value = value.base
    return False


def _is_made(value: Any, watching: session.Session) -> bool:
    """Return whether an array is new, as far as can be told before the call is over."""
    if not is_of(value, "ndarray") or value.nbytes > BYTES or value.dtype.hasobject:
        return False
    data = value.tobytes()
    while is_of(value.base, "ndarray"):
        value = value.base
    if value.base is not None or watching.holds(value) or not watching.guarded():
        return False
    watching.hosts.append((ref(value), session.user_line() or ""))
    watching.constant(data)
    return True


def is_of(value: object, name: str) -> bool:
    """Return whether a value is of a class of NumPy's, which nobody imports here."""
    return any(
        cls.__module__ == "numpy" and cls.__name__ == name
        for cls in type(value).__mro__
    )
