"""Optimizers that no recording can step, and those whose settings always change.

Adam and its like count their steps on the host, unless they are ``capturable``. A
schedule gives an optimizer another rate in each call. Their steps are eager regions:
what is in front of one and behind it is recorded, and the step runs on every call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import islice
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakSet

import torch

from sapwood.tree.nests.containers import constant_key, weakly
from sapwood.tree.watch import session

_OPTIMIZERS: Final = "torch.optim."
_COUNTLESS: Final = frozenset({"SGD", "Muon"})
"""Optimizers of torch's that count no steps: their code is the same in each."""
_SCALING: Final = ("grad_scale", "found_inf")
"""What a `GradScaler` sets while an optimizer steps that is ``fused``."""
_SEVERAL: Final = 4
"""With so many settings a step may be recorded for each; with more it runs live."""

_scheduled: Final[WeakSet[Any]] = WeakSet()
"""Optimizers whose settings a function sets by a scheduler, which is a region, too."""
_settings: Final[WeakKeyDictionary[Any, set[Any]]] = WeakKeyDictionary()
"""With what settings optimizers were seen, up to one more than several."""
_begun_with: Final[WeakKeyDictionary[Any, Any]] = WeakKeyDictionary()
"""What settings optimizers had when a function was about to be called."""


def parameters_of(optimizer: Any) -> list[Any]:
    """Return the parameters of all groups, in their order."""
    return [each for group in optimizer.param_groups for each in group["params"]]


def settings_of(optimizer: Any) -> Iterator[tuple[tuple[int, str], Any]]:
    """Yield what groups say besides their parameters, by the group and the name."""
    for i, group in enumerate(optimizer.param_groups):
        for name, value in group.items():
            if name != "params":
                yield (i, name), value


def steps_live(optimizer: Any) -> bool:
    """Return whether the steps of an optimizer are eager regions.

    Those are that no capture takes, and those with settings that often change.
    """
    if not can_step_live(optimizer):
        return False
    counts = _step_of_torch(optimizer) not in _COUNTLESS
    if counts and not all(group.get("capturable") for group in optimizer.param_groups):
        return True
    return optimizer in _scheduled or _often_changes(optimizer)


def is_scheduled(optimizer: Any) -> bool:
    """Return whether a scheduler sets an optimizer up where functions call it."""
    return optimizer in _scheduled


def can_step_live(optimizer: Any) -> bool:
    """Return whether the steps of an optimizer could be eager regions.

    Only those can that torch's own code does, and that nothing is hooked to.
    """
    if optimizer._optimizer_step_pre_hooks:
        return False
    differs = any(group.get("differentiable") for group in optimizer.param_groups)
    return _step_of_torch(optimizer) not in {"", "LBFGS"} and not differs


def _step_of_torch(optimizer: Any) -> str:
    """Return which class of torch's an optimizer has its step of; "" if of no such."""
    step: Any = getattr(type(optimizer).step, "__wrapped__", type(optimizer).step)
    of_torch = str(getattr(step, "__module__", "")).startswith(_OPTIMIZERS)
    return step.__qualname__.partition(".")[0] if of_torch else ""


def _often_changes(optimizer: Any) -> bool:
    known = _settings.setdefault(optimizer, set())
    if len(known) <= _SEVERAL:
        known.add(_plain(optimizer))
    return len(known) > _SEVERAL


def _plain(optimizer: Any) -> tuple[Any, ...]:
    """Return what tells the settings that are plain values."""
    return tuple(
        (key, constant_key(value))
        for key, value in settings_of(optimizer)
        if not isinstance(value, torch.Tensor)
    )


def looked_at(optimizer: Any) -> Any:
    """Return an optimizer, whose settings are noted as those that a call begins with.

    A live step takes those that it finds in a replay. What the function sets before
    its step, and takes back, it would not find.
    """
    if session.current() is None:
        _begun_with[optimizer] = _plain(optimizer)
    return optimizer


def scheduled(optimizer: Any) -> None:
    """Note that a scheduler has set an optimizer up, in a function or for its replay.

    Its steps are live from then on, whose settings nobody guards.
    """
    _scheduled.add(optimizer)
    _begun_with[optimizer] = _plain(optimizer)


class _Step:
    """The step of an optimizer, as an eager region.

    It is passed the parameters of all groups and behind them their gradients, or None,
    and what a scaler has set: those that the function has, which it keeps in slots for
    itself until it returns.
    """

    # What else it changes is the optimizer's own: its counts, and the means it keeps.
    writes, sees, shown = True, False, None
    runs: Callable[..., Any] = bytes  # it is passed all arrays

    def __init__(self, optimizer: Any) -> None:
        self.name = f"{type(optimizer).__name__}.step"
        self._optimizer = optimizer

    def __call__(self, *arrays: Any) -> None:
        optimizer, count = self._optimizer, len(arrays) // 2 - 1
        params, given = arrays[:count], iter(arrays[:count])
        held = [group["params"] for group in optimizer.param_groups]
        before = [each.grad for each in params]
        scaled = _scaling(optimizer)
        try:
            _give(params, arrays[count : 2 * count])
            _scale(optimizer, arrays[2 * count :])
            for group in optimizer.param_groups:
                group["params"] = [*islice(given, len(group["params"]))]
            # Without hooks: those ran, or will, where the function calls the step.
            type(optimizer).step.__wrapped__(optimizer)
            # Where it raises, they are to be found, as the function has bound them.
            _give(params, before)
        finally:
            _scale(optimizer, scaled)
            for group, own in zip(optimizer.param_groups, held, strict=True):
                group["params"] = own

    def held(self) -> Callable[[], Callable[..., Any] | None]:
        """Return what gives the step while there is the optimizer."""
        return partial(_step_of, weakly(self._optimizer))


def _give(params: Sequence[Any], gradients: Sequence[Any]) -> None:
    for each, gradient in zip(params, gradients, strict=True):
        each.grad = gradient


def _scaling(optimizer: Any) -> tuple[Any, Any]:
    """Return what a scaler has set for a step that scales by itself, or None twice."""
    scale, found = (vars(optimizer).get(name) for name in _SCALING)
    return scale, found


def _scale(optimizer: Any, values: Sequence[Any]) -> None:
    for name, value in zip(_SCALING, values, strict=True):
        vars(optimizer).pop(name, None)
        if value is not None:
            setattr(optimizer, name, value)


def _step_of(held: Callable[[], Any]) -> _Step | None:
    optimizer = held()
    return None if optimizer is None else _Step(optimizer)


class _Stepped:
    """Stands for an optimizer whose step has been done: nothing is left to do."""

    param_groups: Final = ()
    defaults: Final = {"differentiable": False}

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("__"):
            raise AttributeError(name)
        return _nothing


def _nothing(*_: object) -> None:
    """Do nothing."""


def _before_step(
    optimizer: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], Mapping[str, Any]] | None:
    """Have a step be an eager region, where the function in progress needs that."""
    if torch.compiler.is_compiling():
        return None  # told to the compiler, which cannot trace what follows
    watching = session.current()
    if watching is None or not watching.may_read(0):
        return None
    if args[1:] or kwargs or args[0] is not optimizer or not steps_live(optimizer):
        return None
    if _begun_with.get(optimizer) != _plain(optimizer):
        return None
    params = parameters_of(optimizer)
    gradients = (each.grad for each in params)
    arrays = *params, *gradients, *_scaling(optimizer)
    watching.live(_Step(optimizer), arrays, {})
    return (_Stepped(),), kwargs


@cache
def notice_steps() -> None:
    """Have all steps of optimizers come by here first, from now on."""
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    register_optimizer_step_pre_hook(_before_step)
