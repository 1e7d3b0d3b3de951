"""Settings as text: ``key:value,key:[a:b,c:d]``, the spelling that PyTorch uses.

`pairs` reads only the structure; the readers below turn one value's text into a
value and raise ValueError for anything left over. Spaces around words are free.
"""

from __future__ import annotations

import re

from sapwood.errors import MisuseError
from sapwood.units import Size

MIB = 1 << 20

_EXAMPLE = "Write key:value pairs with commas between, such as expandable_segments:True"
_SCALES = {"": 1, "B": 1, "K": 1 << 10, "M": MIB, "G": 1 << 30, "T": 1 << 40}


def pairs(text: str) -> list[tuple[str, str]]:
    """Return the keys and values of ``text``, in its order; lists with brackets.

    Raises `MisuseError` that names the piece where a key, a colon, a value, a comma
    or a bracket is missing.
    """
    if not text.strip():
        return []
    return [_pair(piece, text) for piece in _pieces(text)]


def _pieces(text: str) -> list[str]:
    """Split at the commas that are outside brackets."""
    inside = False
    for bracket in re.finditer(r"[\[\]]", text):
        if inside == (bracket[0] == "["):
            raise MisuseError(
                f"{text!r}: unexpected {bracket[0]!r} at position {bracket.start()}. "
                "Write a list as [256:1,512:2,>:8]"
            )
        inside = not inside
    if inside:
        raise MisuseError(f"{text!r}: a list is not closed. Put ] at its end")
    return re.split(r",(?![^\[]*\])", text)


def _pair(piece: str, text: str) -> tuple[str, str]:
    match = re.fullmatch(r"\s*([^\s:\[\]]+)\s*:\s*(\[[^\[\]]*\]|[^\s:\[\]]+)\s*", piece)
    if match is None:
        shown = piece.strip()
        where = "" if shown == text.strip() else f"{text!r}: "
        raise MisuseError(f"{where}{shown!r} is not one key:value pair. {_EXAMPLE}")
    return match[1], match[2]


def switch(text: str) -> bool:
    """Return the truth of ``True`` or ``False``."""
    if text not in {"True", "False"}:
        raise ValueError(text)
    return text == "True"


def whole(text: str) -> int:
    """Return a whole number from its decimal digits."""
    if re.fullmatch(r"[0-9]{1,18}", text) is None:
        raise ValueError(text)
    return int(text)


def decimal(text: str) -> float:
    """Return a number from digits with at most one point, or an exponent."""
    if re.fullmatch(r"[0-9]+(\.[0-9]*)?(e-?[0-9]{1,3})?|\.[0-9]+", text) is None:
        raise ValueError(text)
    return float(text)


def size(text: str) -> Size:
    """Return bytes from a whole number with or without a unit: ``64M``, ``64MiB``."""
    match = re.fullmatch(r"([0-9]{1,18})(|B|[KMGT](?:I?B)?)", text.upper())
    if match is None:
        raise ValueError(text)
    return Size(int(match[1]) * _SCALES[match[2][:1]])


def listed(text: str) -> dict[object, object]:
    """Return the numbers of a list ``[256:1,>:8]``; the key of ``>`` stays text."""
    numbers: dict[object, object] = {}
    for piece in text[1:-1].split(","):
        match = re.fullmatch(r"\s*([0-9]{1,18}|>)\s*:\s*([0-9]{1,18})\s*", piece)
        if match is None:
            raise ValueError(text)
        interval = match[1] if match[1] == ">" else int(match[1])
        if interval in numbers or ">" in numbers:
            raise ValueError(text)
        numbers[interval] = int(match[2])
    return numbers
