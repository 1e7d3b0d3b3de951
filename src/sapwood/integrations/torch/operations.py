"""What torch's schema says of an operation, asked once; and what tells two calls apart.

Functions are captured operation by operation: whatever is done for each of them costs
every recording.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, lru_cache, partial
from typing import Any, Final, NamedTuple

import torch

_aten: Final[Any] = torch.ops.aten

_WAITS: Final = frozenset(
    {_aten._linalg_check_errors, _aten._local_scalar_dense, _aten._unique2}
    | {_aten.allclose, _aten.bincount, _aten.equal, _aten.is_nonzero, _aten.item}
    | {_aten.masked_select, _aten.nonzero}
    | {_aten.unique_consecutive, _aten.unique_dim, _aten.masked_scatter_backward}
)
"""Operations whose result is needed on the host, or tells how large another is."""

_ENTERS: Final = frozenset({_aten.lift_fresh, _aten.lift_fresh_copy, _aten.lift})
_INDEXES: Final = frozenset({_aten.index, _aten.index_put_, _aten.index_put})
_PUTS_ANEW: Final = frozenset({_aten.index_put, _aten._unsafe_index_put})
_PUTS: Final = _PUTS_ANEW | {_aten.index_put_, _aten._index_put_impl_}
_FILLS: Final = frozenset({_aten.index_fill, _aten.index_fill_})
_BY_MASK: Final = _PUTS | {_aten.index}
_IN_STEPS: Final = (
    _BY_MASK | _FILLS | {_aten.normal, _aten.masked_fill, _aten.masked_fill_}
)
"""Operations in which the host may wait for some of what they do."""

_MOVES: Final = (
    _INDEXES
    | {_aten._index_put_impl_, _aten._unsafe_index}
    | {_aten._unsafe_index_put, _aten.where}
)
"""Operations that bring tensors of the host to the device by themselves."""

_HOSTED: Final = frozenset({_aten._pack_padded_sequence})
"""Operations on a device whose results on the host come of what was there."""

_TRAINS: Final = frozenset(
    {_aten.native_batch_norm, _aten.cudnn_batch_norm, _aten.miopen_batch_norm}
    | {_aten.batch_norm_update_stats, _aten.batch_norm_gather_stats}
    | {_aten.batch_norm_gather_stats_with_counts}
)
"""Operations that write running statistics, which their schemas do not say."""

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
    given there; if it ``may_wait``, its arguments decide, as they do whether it is done
    ``in_steps``. A ``composite`` one is others one after the other, as which torch
    gives it to a mode but in inference mode. On the devices in ``autocasts``, autocast
    has kernels of its own for it.
    """

    def __init__(self, func: Any) -> None:
        packet = func.overloadpacket
        self.text, self.packet = str(func), packet
        self.takes = tuple(
            _Argument(
                place,
                arg.name,
                (arg.alias_info is not None and arg.alias_info.is_write)
                or (packet in _TRAINS and arg.name.startswith("running_")),
            )
            for place, arg in enumerate(func._schema.arguments)
            if not _PLAIN.fullmatch(str(arg.type))
        )
        self.enters, self.copies = packet in _ENTERS, packet in _COPIES
        self.moves, self.hosted = packet in _MOVES, packet in _HOSTED
        names = [arg.name for arg in func._schema.arguments]
        trains = packet in _TRAINS and "training" in names
        self._training = names.index("training") if trains else len(names)
        self.draws = torch.Tag.nondeterministic_seeded in func.tags
        self.in_steps = packet in _IN_STEPS
        self.always_waits = packet in _WAITS
        self.may_wait = packet in _PUTS | _INDEXES | {_aten.repeat_interleave}
        own = _has(func, "CUDA")
        self.composite = _has(func, "CompositeImplicitAutograd") and not own
        self.autocasts = [k for k, key in AUTOCASTS.items() if _has(func, key.name)]

    def tensors(
        self, args: tuple[Any, ...], given: Mapping[str, Any]
    ) -> list[tuple[Any, bool]]:
        """Return the tensors of a call, and for each whether it is written."""
        found: list[tuple[Any, bool]] = []
        evaluates = args[self._training : self._training + 1] == (False,)
        for place, name, may_write in self.takes:
            writes = may_write and not evaluates
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


def in_steps(
    op: Operation,
    args: tuple[Any, ...],
    given: Mapping[str, Any],
    where: Callable[[Any], Any],
) -> Callable[[], Any] | None:
    """Return what does an operation as others, one after the other, if one is to.

    That is one within which the host waits, so that what it waits for is told apart:
    ``where`` returns where a mask is true, as ``torch.nonzero`` does.
    """
    if "out" in given:
        return None
    if op.packet is _aten.normal:
        std = args[1] if len(args) > 1 else given.get("std")
        return partial(_normal, *args, **given) if torch.is_tensor(std) else None
    if op.packet in _BY_MASK:
        if not _goes_by_mask(*args[:2]):
            return None
        if op.packet is _aten.index:
            return lambda: _aten.index(args[0], _unmasked(args[1], where))
        return partial(_put, where, op, *args, **given)
    return _filling(op, *args)


def _filling(op: Operation, into: Any, *rest: Any) -> Callable[[], Any] | None:
    """Return what fills with a value on the device, if one is given that torch takes.

    For others torch has errors of its own, and so it has where elements share memory.
    """
    value = rest[-1]
    waits = torch.is_tensor(value) and value.device.type != "cpu"
    if not waits or value.dim() or value.dtype is not into.dtype or _overlaps(into):
        return None
    if op.packet not in _FILLS:
        fill = _fill if op.packet is _aten.masked_fill else _fill_in_place
        return partial(fill, into, *rest) if rest[0].dtype is torch.bool else None
    dim, index = rest[:2]
    is_usual = index.dtype is torch.int64 and index.dim() < 2
    there = -into.dim() <= dim < into.dim()
    return partial(_fill_at, op, into, *rest) if is_usual and there else None


def _overlaps(tensor: Any) -> bool:
    """Return whether a tensor has several elements in one place, as expanded ones."""
    sides = zip(tensor.shape, tensor.stride(), strict=True)
    return any(size > 1 and not step for size, step in sides)


def _normal(mean: Any, std: Any, *, generator: torch.Generator | None = None) -> Any:
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


def _goes_by_mask(into: Any, indices: Sequence[Any]) -> bool:
    """Return whether masks that lie beside a tensor say which elements are meant."""
    at, masked = 0, False
    for each in indices:
        if each is None:
            at += 1
            continue
        is_mask = each.dtype is torch.bool
        size = into.shape[at : at + each.dim()] if is_mask else each.shape
        # Another size raises, and a mask of no dimension is an index of its own kind.
        if each.device != into.device or each.shape != size or not each.dim():
            return False
        if each.dtype is torch.uint8:
            return False
        at += each.dim() if is_mask else 1
        masked |= is_mask
    return masked


def _unmasked(indices: Sequence[Any], where: Callable[[Any], Any]) -> list[Any]:
    """Return indices with the places of elements for the masks among them."""
    found: list[Any] = []
    for each in indices:
        is_mask = each is not None and each.dtype is torch.bool
        found += where(each).unbind(1) if is_mask else [each]
    return found


def _put(
    where: Callable[[Any], Any],
    op: Operation,
    into: Any,
    indices: Sequence[Any],
    values: Any,
    accumulate: bool = False,
    *rest: Any,
) -> Any:
    """Write where masks say as ``into[mask] = values`` does, one step by the other.

    So that the host waits where it must, for how many elements there are, and not for
    one value that goes to all. The steps are those of ``index_put_`` in
    ATen/native/TensorAdvancedIndexing.cpp.
    """
    if op.packet in _PUTS_ANEW:
        into = into.clone(memory_format=torch.preserve_format)
    masks = [each for each in indices if each is not None]
    if len(masks) == 1 and not accumulate and _is_one(values, into):
        if values.requires_grad and torch.is_grad_enabled():
            where(masks[0])  # its gradient comes from there
        before = next(k for k, each in enumerate(indices) if each is not None)
        behind = into.dim() - before - masks[0].dim()
        mask = masks[0].view(*masks[0].shape, *[1] * behind)
        return _fill_in_place(into, mask, values.reshape(()))
    put = op.packet if op.packet is _aten._index_put_impl_ else _aten.index_put_
    return put(into, _unmasked(indices, where), values, accumulate, *rest)


def _is_one(values: Any, into: Any) -> bool:
    """Return whether ``into[mask] = values`` is the same value everywhere."""
    if values.device.type == "cpu":
        return bool(values.numel() == 1)
    same = values.device == into.device and values.dtype is into.dtype
    return same and values.dim() <= 1 and values.numel() == 1 and not _overlaps(into)


def _fill_in_place(into: Any, mask: Any, value: Any) -> Any:
    """Fill with a value that may be on the device, which the host does not wait for."""
    if value.device.type == "cpu":
        return into.masked_fill_(mask, value)
    # A copy: it may be one of the elements.
    return torch.where(mask, value.clone(), into, out=into)


def _fill(into: Any, mask: Any, value: Any) -> Any:
    """Return what ``masked_fill`` gives: a copy in the order of its elements."""
    shape = torch.broadcast_shapes(into.shape, mask.shape)
    made = into.expand(shape).clone(memory_format=torch.contiguous_format)
    return _fill_in_place(made, mask, value)


def _fill_at(op: Operation, into: Any, dim: int, index: Any, value: Any) -> Any:
    """Fill as ``index_fill`` does with a value that the host does not wait for."""
    if op.packet is _aten.index_fill:
        into = into.clone(memory_format=torch.preserve_format)
    index, shape = index.reshape(-1), [*into.shape]
    index = torch.where(index < 0, index + shape[dim], index)
    shape[dim] = len(index)
    return into.index_copy_(dim, index, value.clone().expand(shape))


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
