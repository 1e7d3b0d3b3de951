"""Whether tensors look as others do, asked of torch for all of them at once.

Torch's own guards compare the class, what sets the kind of a tensor apart (its device
and whether it is conjugate, negative, or of inference mode are among it), dtype, shape,
strides and whether it requires grad. What is left is asked beside.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from sapwood.integrations.torch.layout import alignment

_C: Any = torch._C
_is_leaf = attrgetter("is_leaf")
_where = torch.Tensor.data_ptr


class Witness:
    """Says whether values are tensors like those that it was made of, each like one."""

    __slots__ = ("_check", "_firsts", "_leaves", "_lows", "_steps", "_twins")

    def __init__(self, tensors: Sequence[Any]) -> None:
        seen: dict[int, int] = {}
        first = [seen.setdefault(id(each), k) for k, each in enumerate(tensors)]
        # Torch takes no tensor twice: which places held the same is compared here.
        self._twins = [(k, at) for k, at in enumerate(first) if k != at]
        self._firsts = [*seen.values()]
        each = [tensors[k] for k in self._firsts]
        made = _C._dynamo.guards.TensorGuards(
            *each, dynamic_dims_sizes=None, dynamic_dims_strides=None
        )
        self._check = made.check
        self._leaves = [*map(_is_leaf, tensors)]
        self._lows = [*map(_where, tensors)]
        self._steps = [*map(alignment, self._lows)]

    def __call__(self, values: Sequence[Any]) -> bool:
        """Return whether all look alike; perhaps False where they do."""
        each = values
        if self._twins:
            if any(values[k] is not values[at] for k, at in self._twins):
                return False
            each = [values[k] for k in self._firsts]
        if not self._check(*each) or [*map(_is_leaf, values)] != self._leaves:
            return False
        try:
            lows = [*map(_where, values)]
        except RuntimeError:  # one of them is stale
            return False
        return lows == self._lows or [*map(alignment, lows)] == self._steps


def witness_of(tensors: Sequence[Any]) -> Witness | None:
    """Return a witness; None where this torch has none that tells the truth."""
    if not tensors or not _is_truthful():
        return None
    try:
        return Witness(tensors)
    except RuntimeError:  # one of them is stale
        return None


@functools.cache
def _is_truthful() -> bool:
    """Return whether torch's guards tell all apart that they are relied on for.

    Nobody's modes see that, or have a part in it: the answer is for good.
    """
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        return _tell_apart()


def _tell_apart() -> bool:
    pairs = [pair for one, other in _samples() for pair in ((one, other), (other, one))]
    for mode in torch.enable_grad, torch.no_grad, torch.inference_mode:
        with mode():
            try:
                told = [(Witness([a])([a]), Witness([a])([b])) for a, b in pairs]
            except (AttributeError, RuntimeError, TypeError):
                return False
        if any(each != (True, False) for each in told):
            return False
    return True


def _samples() -> list[tuple[Any, Any]]:
    """Return pairs of tensors that differ in one thing only."""
    with torch.inference_mode(mode=True):
        inferred = _zeros(2, 2)
    with torch.inference_mode(mode=False), torch.no_grad():
        plain, spun = _zeros(2, 2), _zeros(2, dtype=torch.complex64)
        others = [
            inferred,
            _zeros(2, 3)[:, :2],
            _zeros(3, 2)[:2, :1],
            _zeros(2, 2, 1),
            _zeros(2),
            _zeros(2, 2, dtype=torch.int32),
            _zeros(2, 2, device="meta"),
            _zeros(2, 2).requires_grad_(),
            torch._neg_view(plain),
            torch.nn.Parameter(plain, requires_grad=False),
        ]
        return [
            *((plain, other) for other in others),
            (plain[:1], _zeros(1, 3)[:, :2]),
            (plain[:0], _zeros(0, 3)[:, :2]),
            (spun, spun.conj()),
        ]


def _zeros(*shape: int, dtype: Any = torch.float32, device: str = "cpu") -> Any:
    return torch.zeros(shape, dtype=dtype, device=device)
