"""What torch's schema says of an operation, asked once; and what tells two calls apart.

Functions are captured operation by operation: whatever is done for each of them costs
every recording.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, Final, NamedTuple

import torch

_aten: Final[Any] = torch.ops.aten

_WAITS: Final = frozenset(
    {_aten._linalg_check_errors, _aten._local_scalar_dense, _aten._unique2}
    | {_aten.allclose, _aten.bincount, _aten.equal, _aten.is_nonzero, _aten.item}
    | {_aten.masked_select, _aten.nonzero}
    | {_aten.unique_consecutive, _aten.unique_dim}
)
"""Operations whose result is needed on the host, or tells how large another is."""

_ENTERS: Final = frozenset({_aten.lift_fresh, _aten.lift_fresh_copy, _aten.lift})
_INDEXES: Final = frozenset({_aten.index, _aten.index_put_, _aten.index_put})
_MOVES: Final = (
    _INDEXES
    | {_aten._index_put_impl_, _aten._unsafe_index}
    | {_aten._unsafe_index_put, _aten.where}
)
"""Operations that bring tensors of the host to the device by themselves."""

_HOSTED: Final = frozenset({_aten._pack_padded_sequence})
"""Operations on a device whose results on the host come of what was there."""

_COPIES: Final = frozenset({_aten._to_copy, _aten.copy_})

AUTOCASTS: Final = {
    "cpu": torch._C.DispatchKey.AutocastCPU,
    "cuda": torch._C.DispatchKey.AutocastCUDA,
}
"""The keys of autocast, by the kinds of device that it is on for."""

_PLAIN: Final = re.compile(
    r"(Optional\[|List\[)*(bool|int|float|complex|number|str|Device|Generator)\]*"
)
"""Types of arguments that no tensor is in."""


class _Argument(NamedTuple):
    """Where an operation takes tensors, and whether it writes them."""

    place: int
    name: str
    writes: bool


class Operation:
    """One operation of torch's dispatcher; ``packet`` is it with its other overloads.

    ``takes`` are the arguments that may be tensors, or hold some. If it ``enters``, it
    gives what comes from the host; if it ``copies``, that may be between devices; if it
    ``moves``, that is what it does with tensors on the host; if it ``draws``, it gives
    random numbers; if it is ``hosted``, what it gives on the host comes of what it is
    given there; if it ``may_wait``, its arguments decide. A ``composite`` one is others
    one after the other, as which torch gives it to a mode but in inference mode.
    On the devices in ``autocasts``, autocast has kernels of its own for it.
    """

    def __init__(self, func: Any) -> None:
        packet = func.overloadpacket
        self.text, self.packet = str(func), packet
        self.takes = tuple(
            _Argument(
                place, arg.name, arg.alias_info is not None and arg.alias_info.is_write
            )
            for place, arg in enumerate(func._schema.arguments)
            if not _PLAIN.fullmatch(str(arg.type))
        )
        self.enters, self.copies = packet in _ENTERS, packet in _COPIES
        self.moves, self.hosted = packet in _MOVES, packet in _HOSTED
        self.draws = torch.Tag.nondeterministic_seeded in func.tags
        self.always_waits = packet in _WAITS
        self.may_wait = packet in _INDEXES or packet is _aten.repeat_interleave
        own = _has(func, "CUDA")
        self.composite = _has(func, "CompositeImplicitAutograd") and not own
        self.autocasts = [k for k, key in AUTOCASTS.items() if _has(func, key.name)]

    def tensors(
        self, args: tuple[Any, ...], given: Mapping[str, Any]
    ) -> list[tuple[Any, bool]]:
        """Return the tensors of a call, and for each whether it is written."""
        found: list[tuple[Any, bool]] = []
        for place, name, writes in self.takes:
            value = args[place] if place < len(args) else given.get(name)
            if isinstance(value, torch.Tensor):
                found.append((value, writes))
            elif value is not None:
                found += [(each, writes) for each in flat(value)]
        return found

    def waits(self, args: tuple[Any, ...], given: Mapping[str, Any]) -> bool:
        """Return whether a call has the host wait for what is on the device."""
        if not self.may_wait:
            return self.always_waits
        if self.packet is _aten.repeat_interleave:
            return given.get("output_size") is None
        masks = (torch.bool, torch.uint8)
        return any(each.dtype in masks for each in flat(args[1]))


operation_of: Final[Callable[[Any], Operation]] = cache(Operation)
"""Returns what is known of an operation, which torch keeps for good."""


def _has(func: Any, key: str) -> bool:
    found: bool = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key)
    return found


def flat(value: Any) -> Iterator[Any]:
    """Yield the tensors in what an operation takes or gives."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from flat(each)


def constants_of(
    args: Sequence[Any], given: Mapping[str, Any], *, hosts: Sequence[Any] = ()
) -> bytes:
    """Return what tells a call from others of its operation, addresses left out.

    What is in them tells tensors on the host apart, which are in ``hosts``.
    """
    found = [*map(_text, args)]
    if given:
        found += [f"{name}={_text(value)}" for name, value in given.items()]
    found += [hashlib.sha256(_bytes_of(host)).hexdigest() for host in hosts]
    return ",".join(found).encode()


def _bytes_of(host: Any) -> bytes:
    """Return the elements of a tensor on the host, in C order."""
    plain = host.detach().resolve_conj().resolve_neg().reshape(-1).contiguous()
    return ctypes.string_at(plain.data_ptr(), plain.numel() * plain.element_size())


_TOLD: Final = (
    *(bool, int, float, complex, str, type(None)),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)
"""Classes of constants that say what they are."""

_told: Final = frozenset(_TOLD)


@lru_cache(maxsize=4096)
def _look(*look: Any) -> str:
    return repr(look)


def _text(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return _look(value.dtype, value.shape, value.stride())
    cls = type(value)
    if cls in _told:
        return repr(value)
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(_text, value))}]"
    # What others say of themselves may be where they lie, or what is in them: to say
    # that, a storage asks the device.
    return repr(value) if isinstance(value, _TOLD) else cls.__qualname__


def draws_normal(
    op: Operation, args: tuple[Any, ...], given: Mapping[str, Any]
) -> bool:
    """Return whether an operation looks at its deviations, and then draws by them."""
    if op.packet is not _aten.normal:
        return False
    std = args[1] if len(args) > 1 else given.get("std")
    return isinstance(std, torch.Tensor) and "out" not in given


def normal(mean: Any, std: Any, *, generator: torch.Generator | None = None) -> Any:
    """Draw as ``torch.normal`` does with deviations in a tensor, one step by the other.

    So that its look at them, which has the host wait, is told apart from the drawing.
    The steps are those of ATen/native/DistributionTemplates.h.
    """
    if std.numel() and not std.min().ge(0).item():
        raise RuntimeError("normal expects all elements of std >= 0.0")
    shape, like = std.shape, std
    if isinstance(mean, torch.Tensor):
        shape, like = torch.broadcast_shapes(mean.shape, std.shape), mean
    drawn = torch.empty(shape, dtype=like.dtype, device=like.device)
    drawn.normal_(0, 1, generator=generator)
    if not isinstance(mean, torch.Tensor):
        mean = torch.full((), mean, dtype=drawn.dtype, device=drawn.device)
    return drawn.mul_(std).add_(mean)


def is_dense(use: tuple[Any, bool]) -> bool:
    """Return whether a tensor's elements lie in a storage of its own."""
    tensor, _ = use
    return tensor.layout is torch.strided and not tensor.is_nested


def makes(given: Mapping[str, Any], kind: str) -> bool:
    """Return whether an operation is to give tensors on a ``kind`` of device."""
    device = given.get("device")
    return device is not None and torch.device(device).type == kind


def has_bytes(tensor: Any) -> bool:
    """Return whether a tensor's elements can be read where they lie."""
    return is_dense((tensor, False)) and bool(torch._C._has_storage(tensor))
