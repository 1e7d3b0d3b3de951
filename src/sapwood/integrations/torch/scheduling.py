"""Schedulers that are stepped inside a function: another rate in each call.

What one counts, and sets its optimizer to, is nothing that a replay would repeat. So
its step is an eager region, and that of the optimizer, which reads its settings live.
"""

from __future__ import annotations

import dis
from collections.abc import Callable
from functools import cache, partial, wraps
from types import BuiltinFunctionType, CodeType
from typing import Any, Final
from weakref import WeakSet

import torch
from torch.optim import lr_scheduler

from sapwood.integrations.torch.stepping import can_step_live, scheduled, settings_of
from sapwood.tree.guards.accessors import instance
from sapwood.tree.guards.scope import Openings, Reach
from sapwood.tree.nests.containers import weakly
from sapwood.tree.watch import session

_TOLD: Final = frozenset(
    {"get_last_lr", "get_lr", "load_state_dict", "print_lr", "state_dict"}
)
"""Methods that tell of a scheduler, besides its attributes."""
_HELD: Final = frozenset({"optimizer"})
"""What a function may name of a scheduler: what that is, is looked into elsewhere."""

_unseen: Final[WeakSet[Any]] = WeakSet()
"""Schedulers that the function, which has come by them last, only steps."""


def look_into(scheduler: Any, reach: Reach) -> Openings:
    """Return the ways to look into a scheduler: none where code can only step it."""
    said = _TOLD | vars(scheduler).keys() - _HELD
    if reach.dynamic or not said.isdisjoint(reach.names) or not _is_apart(scheduler):
        _unseen.discard(scheduler)
        return instance(scheduler, reach)
    _unseen.add(scheduler)
    return iter(())


def _is_apart(scheduler: Any) -> bool:
    """Return whether a step writes nothing but what the scheduler counts, and rates."""
    if type(scheduler).__module__ != lr_scheduler.__name__:
        return False  # of a user's class nothing is known, not even an optimizer
    inner = getattr(scheduler, "_schedulers", ())
    settings = settings_of(scheduler.optimizer)
    return (
        can_step_live(scheduler.optimizer)
        and not any(isinstance(value, torch.Tensor) for _, value in settings)
        and all(map(_only_reads, getattr(scheduler, "lr_lambdas", ())))
        and all(map(_is_apart, inner))
    )


def _only_reads(rate: Any) -> bool:
    """Return whether a function of a step's number binds nothing that others read."""
    rate = getattr(rate, "func", rate)
    if isinstance(rate, BuiltinFunctionType):
        return True
    code = getattr(rate, "__code__", getattr(type(rate).__call__, "__code__", None))
    return isinstance(code, CodeType) and not any(
        op.opname.startswith("STORE_") and not op.opname.startswith("STORE_FAST")
        for op in dis.get_instructions(code)
    )


class _Turn:
    """The step of a scheduler, as an eager region."""

    # A call that strays is not to do it again; what it sets nobody looks at.
    writes, sees, shown = True, False, None
    runs: Callable[..., Any] = bytes

    def __init__(self, scheduler: Any) -> None:
        self.name = f"{type(scheduler).__name__}.step"
        self._scheduler = scheduler

    def __call__(self) -> None:
        self._scheduler.step()
        scheduled(self._scheduler.optimizer)

    def held(self) -> Callable[[], Callable[..., Any] | None]:
        """Return what gives the step while there is the scheduler."""
        return partial(_turn_of, weakly(self._scheduler))


def _turn_of(held: Callable[[], Any]) -> _Turn | None:
    scheduler = held()
    return None if scheduler is None else _Turn(scheduler)


def _noticing(step: Callable[..., None]) -> Callable[..., None]:
    @wraps(step)
    def stepped(self: Any, *args: Any, **kwargs: Any) -> None:
        watching = session.current()
        told = bool(args or kwargs) or watching is None or self not in _unseen
        if watching is None or told or not watching.may_read(0):
            step(self, *args, **kwargs)
            return
        watching.live(_Turn(self), (), {})

    return stepped


@cache
def notice_schedulers() -> None:
    """Have steps of torch's schedulers come by here first, from now on."""
    found: set[Any] = {x for x in vars(lr_scheduler).values() if isinstance(x, type)}
    for cls in found:
        if cls.__module__ == lr_scheduler.__name__ and "step" in vars(cls):
            cls.step = _noticing(cls.step)
