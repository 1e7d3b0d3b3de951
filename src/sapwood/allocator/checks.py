"""What is no size, no address and no stream, said by name before it does harm."""

from __future__ import annotations


def check_size(size: object) -> None:
    """Raise TypeError for what is no size."""
    remedy = "round it, as with int() or math.ceil()"
    _check_whole(size, "a size is a whole number of bytes", remedy)


def check_address(address: object) -> None:
    """Raise TypeError for what is no address."""
    _check_whole(address, "an address is an int", "pass what malloc returned")


def check_stream(stream: object) -> None:
    """Raise TypeError for what is no handle of a stream."""
    remedy = "pass what create_stream or adopt_stream of the driver returned"
    _check_whole(stream, "a stream is the int that names it", remedy)


def _check_whole(number: object, wanted: str, remedy: str) -> None:
    # To ask whether it is a SupportsIndex takes longer than to allocate.
    if not hasattr(number, "__index__"):
        kind = type(number).__name__
        raise TypeError(f"{wanted}, not {kind} {number!r}: {remedy}")
