"""No garbage is collected while anything is captured, nor inside an emulated device.

Whatever a finaliser gives back to the device, be it somebody else's, may spoil a
capture that this thread is in. Explicit calls of ``gc.collect`` do what they do.
Whether collecting is enabled stays the program's own: a threshold that is never
reached halts it, and a program that sets thresholds meanwhile has what it has set.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_NEVER: Final = (2**31 - 2,) * 3
# Of all generations: CPython 3.12 compares each with its own once it is scheduled.


class _Halt:
    """Who has nothing collected, and the thresholds without them.

    Other threads, finalisers, signal handlers and interrupts come in where something
    is called or returns, and nowhere else. So there is no lock, which an interrupt
    could leave taken: each change is one call into C, and may be made again.
    """

    def __init__(self) -> None:
        self.by: set[object] = set()
        self._usual = gc.get_threshold()

    def begin(self, who: object) -> None:
        self.by.add(who)
        self.settle()

    def end(self, who: object) -> None:
        self.by.discard(who)
        self.settle()

    def settle(self) -> None:
        found = gc.get_threshold()
        if found[0] != _NEVER[0]:
            self._usual = found
        # Nothing may be called between the look and the change: another could begin.
        gc.set_threshold(*(_NEVER if self.by else self._usual))


_halt = _Halt()


def uncollecting() -> tuple[object, ...]:
    """Return who has nothing collected now."""
    return tuple(_halt.by)


def forget() -> None:
    """Have Python collect again, whoever halted that: they are gone."""
    _halt.by.clear()
    _halt.settle()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=forget)


def uncollected(
    who: object, call: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
) -> R:
    """Call with nothing collected, on any thread, but for what is `collected` inside.

    ``who`` is in no other such call.
    """
    # No context manager: an interrupt may come where its exit begins.
    try:
        try:
            _halt.begin(who)
            return call(*args, **kwargs)
        finally:
            _halt.end(who)
    except BaseException:
        # An interrupt may have kept the first end from its work.
        _halt.end(who)
        raise


class collected:
    """A context, inside of `uncollected`, as if ``who`` had not halted collecting.

    An interrupt that keeps it from its end is on its way to the end of that call.
    """

    def __init__(self, who: object) -> None:
        self._who = who

    def __enter__(self) -> None:
        # In a forked child, nobody is to halt again.
        self._had = self._who in _halt.by
        _halt.end(self._who)

    def __exit__(self, *_: object) -> None:
        if self._had:
            _halt.begin(self._who)
