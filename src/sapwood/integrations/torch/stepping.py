"""Optimizers that no recording can step, and those whose settings always change.

Adam and its like count their steps on the host, unless they are ``capturable``. A
schedule gives an optimizer another rate in each call. Their steps are eager regions:
what is in front of one and behind it is recorded, and the step runs on every call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from typing import Any, Final
from weakref import WeakKeyDictionary

import torch

from sapwood.tree.nests.containers import constant_key, weakly
from sapwood.tree.watch import session

_OPTIMIZERS: Final = "torch.optim."
_COUNTLESS: Final = frozenset({"SGD", "Muon"})
"""Optimizers of torch's that count no steps: their code is the same in each."""
_SEVERAL: Final = 4
"""With so many settings a step may be recorded for each; with more it runs live."""

_settings: Final[WeakKeyDictionary[Any, set[Any]]] = WeakKeyDictionary()
"""With what settings optimizers were seen, up to one more than several."""


def settings_of(optimizer: Any) -> Iterator[tuple[tuple[int, str], Any]]:
    """Yield what groups say besides their parameters, by the group and the name."""
    for i, group in enumerate(optimizer.param_groups):
        for name, value in group.items():
            if name != "params":
                yield (i, name), value


def steps_live(optimizer: Any) -> bool:
    """Return whether the steps of an optimizer are eager regions.

    Only those are that torch's own code does, and that nothing is hooked to.
    """
    step: Any = getattr(type(optimizer).step, "__wrapped__", type(optimizer).step)
    of_torch = str(getattr(step, "__module__", "")).startswith(_OPTIMIZERS)
    if not of_torch or optimizer._optimizer_step_pre_hooks:
        return False
    name = step.__qualname__.partition(".")[0]
    groups = optimizer.param_groups
    if name == "LBFGS" or any(group.get("differentiable") for group in groups):
        return False
    counts = name not in _COUNTLESS
    if counts and not all(group.get("capturable") for group in groups):
        return True
    return _often_changes(optimizer)


def _often_changes(optimizer: Any) -> bool:
    known = _settings.setdefault(optimizer, set())
    if len(known) <= _SEVERAL:
        plain = (
            (key, constant_key(value))
            for key, value in settings_of(optimizer)
            if not isinstance(value, torch.Tensor)
        )
        known.add(tuple(plain))
    return len(known) > _SEVERAL


class _Step:
    """The step of an optimizer, as an eager region."""

    writes = True

    def __init__(self, optimizer: Any) -> None:
        cls = type(optimizer)
        self.name = f"{cls.__name__}.step"
        # Without hooks: those ran, or will, where the function calls the step.
        self.runs = partial(cls.step.__wrapped__, optimizer)

    def __call__(self) -> None:
        self.runs()

    def held(self) -> Callable[[], Callable[..., Any] | None]:
        """Return what gives the step while there is the optimizer."""
        (optimizer,) = self.runs.args
        return partial(_step_of, weakly(optimizer))


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
    watching = session.current()
    if watching is None or not watching.may_read(0):
        return None
    if args[1:] or kwargs or args[0] is not optimizer or not steps_live(optimizer):
        return None
    watching.live(_Step(optimizer), (), {})
    return (_Stepped(),), kwargs


@cache
def notice_steps() -> None:
    """Have all steps of optimizers come by here first, from now on."""
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    register_optimizer_step_pre_hook(_before_step)
