"""Torch's modes and settings, which decide what its operations do."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial, wraps
from types import SimpleNamespace
from typing import Any, Final

import torch
from torch.utils._device import DeviceContext
from torch.utils.hooks import RemovableHandle

from sapwood.memory.framework import Manner
from sapwood.tree.guards.frameworks import Modes
from sapwood.tree.guards.views import Way, Witness

_C: Final[Any] = torch._C

_interned: dict[Any, Any] = {}
_PRECISE: Final = ("all", "matmul", "conv", "rnn")


def _same(getter: Callable[[], Any]) -> Callable[[], Any]:
    """Return what gives the same object for the same value, as most getters do."""
    if getter() is getter():
        return getter
    return lambda: _interned.setdefault(value := getter(), value)


_CHECKING: Final = "torch._functorch._aot_autograd.runtime_wrappers"
"""Where a mode is from that looks once, and first, at operations of compiled code."""

_function_modes: Final[Callable[[], int]] = _C._len_torch_function_stack


def _dispatch_modes() -> int:
    """Return how many modes are entered that are told of operations, but for torch's.

    Counted, a compiled function would be warmed up twice.
    """
    count: int = _C._len_torch_dispatch_stack()
    if not count:
        return 0
    modes = map(_C._get_dispatch_stack_at, range(count))
    return sum(type(mode).__module__ != _CHECKING for mode in modes)


_traced: Final[Callable[[], bool]] = _C._is_tracing
_strange: Final = itertools.count()
_ENTERED: Final[dict[str, Callable[[], Any]]] = {
    "function modes": _function_modes,
    "dispatch modes": _dispatch_modes,
    "tracing": _traced,
}
"""What is falsy while no mode is entered, so that guards need not ask which."""


def _contexts() -> tuple[str, ...]:
    """Return the default devices that are set, as by `torch.device` as a context.

    Under any other mode, and where a call is traced, it is another value each time.
    """
    if not any(count() for count in _ENTERED.values()):
        return ()
    if is_told_of_operations():
        return (f"strange {next(_strange)}",)
    each = map(_C._get_function_stack_at, range(_function_modes()))
    value = tuple(str(mode.device) for mode in each)
    found: tuple[str, ...] = _interned.setdefault(value, value)
    return found


def is_told_of_operations() -> bool:
    """Return whether code of the user's, or of a tool, is told of each operation.

    Such a mode counts them, say, or does something else in their place: a replay would
    pass it by.
    """
    modes = map(_C._get_function_stack_at, range(_function_modes()))
    return bool(
        _dispatch_modes()
        or _traced()
        or any(type(mode) is not DeviceContext for mode in modes)
    )


_SETTINGS: Final = {
    "backends.cuda.sdp_priority_order": "sdp_priority_order",
    "backends.cuda.preferred_blas_library()": "blas_preferred_backend",
    "backends.cuda.preferred_linalg_library()": "linalg_preferred_backend",
    "backends.cudnn.depthwise_kernel": "cudnn_depthwise_kernel",
}
"""What takes so long to get that it is noted when it is set, by the name of that."""

_noted: Final = SimpleNamespace()


def notice_settings() -> None:
    """Note what `_SETTINGS` are, and from now on whenever torch's code sets them.

    Hooks that are removed are counted, too.
    """
    for name in _SETTINGS.values():
        setter = getattr(_C, f"_set_{name}", None)
        if setter is not None and not hasattr(setter, "__wrapped__"):
            setattr(_C, f"_set_{name}", _noticing(name, setter))
            _note(name)
    if not hasattr(RemovableHandle.remove, "__wrapped__"):
        RemovableHandle.remove = _counting(RemovableHandle.remove)


def _counting(remove: Callable[[Any], None]) -> Callable[[Any], None]:
    """Have removals counted, as torch counts what is registered: by the next number."""

    @wraps(remove)
    def counting(self: Any) -> None:
        remove(self)
        RemovableHandle.next_id += 1

    return counting


def _noticing(name: str, setter: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(setter)
    def noticing(*args: Any) -> Any:
        try:
            return setter(*args)
        finally:
            _note(name)

    return noticing


def _note(name: str) -> None:
    setattr(_noted, name, sys.intern(str(getattr(_C, f"_get_{name}")())))


_FLAGS: Final = {
    "backends.cuda.cudnn_sdp_enabled()": "_get_cudnn_sdp_enabled",
    "backends.cuda.fa3_sdp_enabled()": "_get_fa3_sdp_enabled",
    "backends.cuda.fp16_bf16_reduction_math_sdp_allowed()": (
        "_get_math_sdp_allow_fp16_bf16_reduction"
    ),
    "backends.cuda.matmul.allow_fp16_accumulation": (
        "_get_cublas_allow_fp16_accumulation"
    ),
    "is_deterministic_algorithms_warn_only_enabled()": (
        "_get_deterministic_algorithms_warn_only"
    ),
    "utils.deterministic.fill_uninitialized_memory": (
        "_get_deterministic_fill_uninitialized_memory"
    ),
}
"""Flags that not every torch has."""

_einsum: Final[Any] = torch.backends.opt_einsum

_GETTERS: Final[dict[str, Callable[[], Any]]] = {
    "modes": _contexts,
    **_ENTERED,
    "backends.mha.get_fastpath_enabled()": partial(
        getattr, torch.backends.mha, "_is_fastpath_enabled", True
    ),
    **{
        f"backends.opt_einsum.{name}": partial(getattr, _einsum.m, name)
        for name in ("enabled", "strategy")
        if _einsum.is_available()
    },
    "is_grad_enabled()": _C.is_grad_enabled,
    "is_inference_mode_enabled()": _C.is_inference_mode_enabled,
    'is_autocast_enabled("cuda")': partial(_C.is_autocast_enabled, "cuda"),
    'get_autocast_dtype("cuda")': partial(torch.get_autocast_dtype, "cuda"),
    "is_autocast_cache_enabled()": _C.is_autocast_cache_enabled,
    "get_default_dtype()": _C.get_default_dtype,
    "backends.cuda.matmul.allow_tf32": _C._get_cublas_allow_tf32,
    "backends.cudnn.allow_tf32": _C._get_cudnn_allow_tf32,
    "backends.cuda.matmul.allow_fp16_reduced_precision_reduction": (
        _same(_C._get_cublas_allow_fp16_reduced_precision_reduction)
    ),
    "backends.cuda.matmul.allow_bf16_reduced_precision_reduction": (
        _same(_C._get_cublas_allow_bf16_reduced_precision_reduction)
    ),
    "are_deterministic_algorithms_enabled()": _C._get_deterministic_algorithms,
    "backends.cudnn.enabled": _C._get_cudnn_enabled,
    "backends.cudnn.benchmark": _C._get_cudnn_benchmark,
    "backends.cudnn.deterministic": _C._get_cudnn_deterministic,
    "backends.cuda.flash_sdp_enabled()": _C._get_flash_sdp_enabled,
    "backends.cuda.mem_efficient_sdp_enabled()": _C._get_mem_efficient_sdp_enabled,
    "backends.cuda.math_sdp_enabled()": _C._get_math_sdp_enabled,
    "is_anomaly_enabled()": _C.is_anomaly_enabled,
    "hooks.registered": partial(getattr, RemovableHandle, "next_id"),
    **{mode: getattr(_C, name) for mode, name in _FLAGS.items() if hasattr(_C, name)},
    **{
        mode: partial(getattr, _noted, name, "")
        for mode, name in _SETTINGS.items()
        if hasattr(_C, f"_set_{name}")
    },
}


def _asked(getter: Callable[[], Any]) -> Any:
    """Return a mode; where it was set by torch's newer names, all that these say."""
    try:
        return getter()
    except RuntimeError:
        return tuple([_C._get_fp32_precision_getter("cuda", op) for op in _PRECISE])


def _shown(value: Any) -> Any:
    return str(value) if isinstance(value, torch.dtype) else value


class Prevailing(Manner):
    """The modes of this thread; contexts are in those that code often switches to."""

    def __init__(self) -> None:
        self._switched, self._others = _switched(), _others()

    def __call__(self) -> AbstractContextManager[object]:
        """Return a context in these modes."""
        # Most code is called in the modes that it works in.
        if _switched() == self._switched:
            return _AS_IS
        return _entered(*self._switched)

    def strange(self, outer: Manner) -> str | None:
        """Name a mode that was another in an outer manner, and that no context sets."""
        if not isinstance(outer, Prevailing):
            return None
        before = outer._others
        found = (name for name, value in self._others.items() if before[name] != value)
        return next(found, None)


_AS_IS: Final = nullcontext()


def _others() -> dict[str, Any]:
    """Return modes that are not guarded: no operation on a device goes by them."""
    return {
        'is_autocast_enabled("cpu")': torch.is_autocast_enabled("cpu"),
        "torch's function modes": _C._len_torch_function_stack(),
    }


def _switched() -> tuple[bool, bool, bool, torch.dtype]:
    return (
        torch.is_inference_mode_enabled(),
        torch.is_grad_enabled(),
        torch.is_autocast_enabled("cuda"),
        torch.get_autocast_dtype("cuda"),
    )


@contextmanager
def _entered(
    inference: bool, grad: bool, autocast: bool, dtype: torch.dtype
) -> Iterator[None]:
    with (
        torch.inference_mode(inference),
        torch.set_grad_enabled(grad),
        torch.autocast("cuda", dtype=dtype, enabled=autocast),
    ):
        yield


_STATE: Final = {
    "is_grad_enabled()": "grad_mode",
    # Not the dtype: it does not count there while autocast is off.
    'is_autocast_enabled("cuda")': "autocast_state",
    "is_autocast_cache_enabled()": "autocast_state",
    "get_default_dtype()": "default_dtype",
    "backends.cuda.matmul.allow_tf32": "allow_tf32",
    "backends.cuda.matmul.allow_fp16_reduced_precision_reduction": (
        "allow_fp16_reduce"
    ),
    "backends.cuda.matmul.allow_bf16_reduced_precision_reduction": (
        "allow_bf16_reduce"
    ),
    "are_deterministic_algorithms_enabled()": "deterministic_algorithms",
    "is_deterministic_algorithms_warn_only_enabled()": (
        "deterministic_algorithms_warn_only"
    ),
}
"""The modes that torch's own guard of its state holds, and as what."""


def _witness() -> Witness | None:
    """Return torch's guard of its state; None where this torch has none, or another."""
    try:
        made = _C._dynamo.guards.GlobalStateGuard()
        state = json.loads(made.__getstate__())
    except (AttributeError, RuntimeError, TypeError, ValueError):
        return None
    return Witness(made.check, {mode for mode, held in _STATE.items() if held in state})


def _implied() -> frozenset[str]:
    """Return which modes follow from others: where none is entered, no default is."""
    return frozenset() if _contexts() else frozenset(["modes"])


MODES: Final = Modes(
    "torch",
    Way(getters=_GETTERS, shown=_shown, witness=_witness, implied=_implied),
    _asked,
)
