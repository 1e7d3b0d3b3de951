"""What is no size, no address and no stream, said by name before it does harm."""

from __future__ import annotations


def check_size(size: object) -> None:
    """Raise TypeError for what is no size."""
    if not _is_whole(size):
        raise TypeError(
            f"a size is a whole number of bytes, not {type(size).__name__} {size!r}: "
            "round it, as with int() or math.ceil()"
        )


def check_address(address: object) -> None:
    """Raise TypeError for what is no address."""
    if not _is_whole(address):
        raise TypeError(
            f"an address is an int, not {type(address).__name__} {address!r}: pass "
            "what malloc returned"
        )


def check_stream(stream: object) -> None:
    """Raise TypeError for what is no handle of a stream."""
    if not _is_whole(stream):
        raise TypeError(
            f"a stream is the int that names it, not {type(stream).__name__} "
            f"{stream!r}: pass what create_stream or adopt_stream of the driver "
            "returned"
        )


def _is_whole(number: object) -> bool:
    # To ask whether it is a SupportsIndex takes longer than to allocate.
    return hasattr(number, "__index__")
