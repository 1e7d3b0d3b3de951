"""Torch's modes and settings, which decide what its operations do.

They are guarded like any value that a function reads, but read by every call: so
their values are put together without much ado, and named only where one differs.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch.utils.hooks import RemovableHandle

from sapwood.tree.ambient.frameworks import declare_opening
from sapwood.tree.ambient.scope import Opening, Openings, Reach
from sapwood.tree.ambient.views import View

__all__ = ["MODES", "Modes"]

_C: Final[Any] = torch._C
_autocast_dtype: Final = torch.get_autocast_dtype

_NAMES: Final = (
    "is_grad_enabled()",
    "is_inference_mode_enabled()",
    'is_autocast_enabled("cuda")',
    'get_autocast_dtype("cuda")',
    "is_autocast_cache_enabled()",
    "get_default_dtype()",
    "backends.cuda.matmul.allow_tf32",
    "backends.cudnn.allow_tf32",
    "backends.cuda.matmul.allow_fp16_reduced_precision_reduction",
    "backends.cuda.matmul.allow_bf16_reduced_precision_reduction",
    "are_deterministic_algorithms_enabled()",
    "backends.cudnn.enabled",
    "backends.cudnn.benchmark",
    "backends.cudnn.deterministic",
    "backends.cuda.flash_sdp_enabled()",
    "backends.cuda.mem_efficient_sdp_enabled()",
    "backends.cuda.math_sdp_enabled()",
    "is_anomaly_enabled()",
    "hooks.registered",
)


def _values() -> tuple[Any, ...]:
    return (
        _C.is_grad_enabled(),
        _C.is_inference_mode_enabled(),
        _C.is_autocast_enabled("cuda"),
        _autocast_dtype("cuda"),
        _C.is_autocast_cache_enabled(),
        _C.get_default_dtype(),
        _C._get_cublas_allow_tf32(),
        _C._get_cudnn_allow_tf32(),
        _C._get_cublas_allow_fp16_reduced_precision_reduction(),
        _C._get_cublas_allow_bf16_reduced_precision_reduction(),
        _C._get_deterministic_algorithms(),
        _C._get_cudnn_enabled(),
        _C._get_cudnn_benchmark(),
        _C._get_cudnn_deterministic(),
        _C._get_flash_sdp_enabled(),
        _C._get_mem_efficient_sdp_enabled(),
        _C._get_math_sdp_enabled(),
        _C.is_anomaly_enabled(),
        RemovableHandle.next_id,
    )


class Modes:
    """The values of all modes; for the same values it gives the same mapping."""

    LIMIT: Final = 1024

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], dict[str, Any]] = {}

    def now(self) -> dict[str, Any]:
        """Return the modes that this thread is in, by what one would write."""
        values = _values()
        found = self._known.get(values)
        if found is None:
            if len(self._known) >= self.LIMIT:
                self._known.clear()
            found = self._known[values] = _named(values)
        return found


def _named(values: tuple[Any, ...]) -> dict[str, Any]:
    plain = (str(each) if isinstance(each, torch.dtype) else each for each in values)
    return dict(zip(_NAMES, plain, strict=True))


MODES: Final = Modes()

_VIEW: Final = View(
    "torch modes", Modes.now, lambda path, _, key: f"{path}.{key}", portable=False
)


def _open(_: Any, __: Reach) -> Openings:
    yield Opening(_VIEW, frozenset(_NAMES))


declare_opening(Modes, _open, lambda _: ())
