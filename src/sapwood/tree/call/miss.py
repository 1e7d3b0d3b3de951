"""Why a recording does not fit a call: a value, made text at the edge."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Why(enum.Enum):
    """The condition of admission that failed, or why there was nothing to admit."""

    LIVE = "a page that the replay would overwrite holds an output that is still held"
    MOVED = "an array is not where it was when this was recorded"
    OVERLAP = "arrays share memory differently than when this was recorded"
    WHICH = "which arrays are one object is not as it was when this was recorded"
    AMBIENT = "something the function reads besides its arguments has changed"
    UNSEEN = "no call with these shapes, dtypes and values was seen before"
    WARMED = "the call before was the warm-up, this one made the recording"
    STORED = "a recording of another process was taken up"
    EAGER = "calls like it run eagerly"
    ABSENT = "no recording was found in the store"


@dataclass(frozen=True, slots=True)
class Miss:
    """One failed condition, and what it was about: a leaf's or slot's name."""

    why: Why
    about: str = ""

    def __str__(self) -> str:
        return f"{self.why.value}{': ' + self.about if self.about else ''}"
