"""When the stages of inputs were used last, in torch's own order.

Torch's history of its allocator has no place for operations. But what torch is told
meanwhile, it notes with everything that it allocates from then on: here that is a
number, a higher one after every operation that uses such a stage.

Torch notes what each thread was told last, autograd's in a capture before. So no number
comes twice, and older ones tell of nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from typing import Any, Final

import torch

from sapwood.memory.fold import Life
from sapwood.memory.storage import Storage
from sapwood.units import Addr

__all__ = ["Moments"]

_C: Any = torch._C
_NOTE: Final = "user_metadata"
_SAYS: Final = "sapwood "
_FIRST: Final = -1
"""The moment before all events: inputs are copied before all else."""

_numbers: Final = count(1)
Event = Mapping[str, Any]


class Moments:
    """The last uses of stages, from `begin` to `end`, by operations on one stream.

    Of a stage that is written, or used on another stream, nothing is known.
    """

    def __init__(self, stages: Iterable[Storage], stream: int, device: int) -> None:
        self._last: dict[Storage, int | None] = dict.fromkeys(stages, 0)
        self._stream, self._device = stream, device
        self._before: str | None = None

    def begin(self) -> None:
        """Have torch note numbers; where it cannot, no last use is known."""
        if self._last and hasattr(_C, "_cuda_setMemoryMetadata"):
            self._before = _C._cuda_getMemoryMetadata()
            _note()
        else:
            self._last = {}

    def end(self) -> None:
        """Have torch note what it did before; without `begin`, it does nothing."""
        if self._before is not None:
            _C._cuda_setMemoryMetadata(self._before)

    def passed(self, uses: Iterable[tuple[Storage, bool]]) -> None:
        """Take note of an operation that is over: what it used, and if it wrote it."""
        known = [(each, writes) for each, writes in uses if each in self._last]
        if not known:
            return
        number = _note()
        ordered = _C._cuda_getCurrentRawStream(self._device) == self._stream
        for stage, writes in known:
            lasts = writes or not ordered or self._last[stage] is None
            self._last[stage] = None if lasts else number

    def lives(self, stages: Sequence[Storage], events: Sequence[Event]) -> list[Life]:
        """Return when stages were in use; nothing, where all may be to the end.

        Moments are places in ``events``, all that torch has noted, in their order.
        """
        ends = [self._end(self._last.get(stage), events) for stage in stages]
        if all(end is None for end in ends):
            return []
        return [
            Life(stage.address, Addr(stage.address + stage.size), _FIRST, end)
            for stage, end in zip(stages, ends, strict=True)
        ]

    def _end(self, last: int | None, events: Sequence[Event]) -> int | None:
        """Return at which event torch notes a number for the first time."""
        numbers = [_number(event) for event in events]
        if last is None or None in numbers:
            return None
        later = (i for i, n in enumerate(numbers) if n is not None and n >= last)
        return next(later, len(events))


def _note() -> int:
    """Have torch note, on this thread, a number higher than all before."""
    number = next(_numbers)
    _C._cuda_setMemoryMetadata(f"{_SAYS}{number}")
    return number


def _number(event: Event) -> int | None:
    others, says, number = event.get(_NOTE, "").partition(_SAYS)
    return int(number) if says and not others and number.isdecimal() else None
