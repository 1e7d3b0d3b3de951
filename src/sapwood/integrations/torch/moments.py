"""When the stages of inputs were used last, in torch's own order.

Torch's history of its allocator has no place for operations. But what torch is told
meanwhile, it notes with everything that it allocates from then on: here that is a
number, a higher one after every operation that uses such a stage.

Torch notes what each thread was told last, autograd's in a capture before. So no number
comes twice, and older ones tell of nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any, Final, TypeAlias

import torch

from sapwood.integrations.torch.history import Event
from sapwood.integrations.torch.layout import is_lazy
from sapwood.integrations.torch.storages import Storages
from sapwood.memory.fold import Life
from sapwood.memory.storage import Storage
from sapwood.units import Addr

_C: Any = torch._C
_NOTE: Final = "user_metadata"
_SAYS: Final = "sapwood "
_FIRST: Final = -1
"""The moment before all events: inputs are copied before all else."""

_numbers: Final = count(1)

Uses: TypeAlias = list[tuple[Storage, bool]]
"""What an operation uses, and whether it writes it."""


class Moments:
    """The last uses of stages, from `begin` to `end`, by operations on one stream.

    Of a stage that is written, or used on another stream, nothing is known.
    """

    def __init__(self, stages: Iterable[Storage], stream: int, device: int) -> None:
        self._last: dict[Storage, int | None] = dict.fromkeys(stages, 0)
        self._stream, self._device = stream, device
        self._before: str | None = None
        self._lent = Counter[Storage]()

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
            self._before = None

    def passed(self, uses: Uses) -> None:
        """Take note of an operation that is over."""
        known = [(each, writes) for each, writes in uses if each in self._last]
        if not known or self._before is None:
            return
        number = _note()
        ordered = _C._cuda_getCurrentRawStream(self._device) == self._stream
        for stage, writes in known:
            lasts = writes or not ordered or self._last[stage] is None
            self._last[stage] = None if lasts else number

    def lend(self, storages: Storages, tensor: Any) -> Any:
        """Return a tensor to use in the place of one; what freed it is its last use.

        That is the tensor itself, where its storage is no stage that is followed.
        """
        stage = storages.of(tensor)
        if stage not in self._last or is_lazy(tensor):
            return tensor
        self._lent[stage] += 1

        def freed() -> None:
            self._lent[stage] -= 1
            if self._before is None:
                self._last[stage] = None  # it may have been used to the end
            self.passed([(stage, False)])

        return storages.alias(tensor, freed)

    def lives(self, stages: Sequence[Storage], events: Sequence[Event]) -> list[Life]:
        """Return when stages were in use; nothing, where all may be to the end.

        Moments are places in ``events``, all that torch has noted, in their order.
        """
        last = [None if self._lent[each] else self._last.get(each) for each in stages]
        ends = [self._end(each, events) for each in last]
        if all(end is None for end in ends):
            return []
        return [
            Life(stage.address, Addr(stage.address + stage.size), _FIRST, end)
            for stage, end in zip(stages, ends, strict=True)
        ]

    def _end(self, last: int | None, events: Sequence[Event]) -> int | None:
        """Return the first event that is known to come after a number was noted."""
        if last is None:
            return None
        later = (i for i, event in enumerate(events) if _number(event) >= last)
        return next(later, len(events))


def _note() -> int:
    """Have torch note, on this thread, a number higher than all before."""
    number = next(_numbers)
    _C._cuda_setMemoryMetadata(f"{_SAYS}{number}")
    return number


def _number(event: Event) -> int:
    """Return the number that torch noted with an event; 0, where it tells of nothing.

    Threads that were told none are not in step with the capture.
    """
    others, says, number = event.get(_NOTE, "").partition(_SAYS)
    return int(number) if says and not others and number.isdecimal() else 0
