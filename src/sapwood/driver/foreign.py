"""Streams of other libraries: what they call themselves, by the common protocol."""

from __future__ import annotations

from sapwood.errors import MisuseError

_VERSION = 0


def raw_of(stream: object) -> int:
    """Return what a stream of any library is called, for `Driver.adopt_stream`.

    It is that number, or has ``__cuda_stream__``, which says ``(0, number)``. Raises
    `MisuseError` for anything else.
    """
    if isinstance(stream, int) and not isinstance(stream, bool):
        return stream
    told = getattr(stream, "__cuda_stream__", None)
    answer = told() if callable(told) else told
    match answer:
        case (int(version), int(raw)) if version == _VERSION:
            return raw
        case (int(version), int(_)):
            raise MisuseError(
                f"{stream!r} speaks version {version} of __cuda_stream__: use a "
                f"release of its library that speaks version {_VERSION}"
            )
    raise MisuseError(
        f"{stream!r} is no stream: pass a CUstream as a number, or an object whose "
        f"__cuda_stream__() returns ({_VERSION}, that number)"
    )
