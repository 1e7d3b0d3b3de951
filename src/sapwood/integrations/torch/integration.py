"""What the tree asks of a framework, answered for torch's tensors.

Tensors of any origin are leaves: those that torch allocated, parameters among them,
and those that replays return, which lie over this library's storages.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

import torch

from sapwood.integrations.torch.exchange import exchange_table, looks_of_tensors
from sapwood.integrations.torch.layout import (
    CONJUGATE,
    KINDS,
    LEAF,
    NEGATIVE,
    REQUIRES_GRAD,
    Template,
    extent_of,
    flags_of,
    layout_of,
    length_of,
    look_of,
    refusal_of,
    text,
)
from sapwood.integrations.torch.modes import MODES
from sapwood.integrations.torch.storages import Storages, tensor_over
from sapwood.integrations.torch.witness import Witness, witness_of
from sapwood.memory.device import Device
from sapwood.memory.storage import Storage
from sapwood.tree.call.integration import Exchange, Integration, Kept, Made, Marks
from sapwood.units import Addr, Size

_kinds = frozenset(KINDS)
_FLAGS = (
    ("requires_grad", False),
    ("is_leaf", False),
    ("is_conj", True),
    ("is_neg", True),
    ("is_inference", True),
)
_grad_enabled = torch.is_grad_enabled
_clone: Any = torch.clone
_strided = torch.strided
_tensor_like: Any = getattr(torch._C._dynamo.guards, "_reinterpret_tensor", None)
"""Makes a tensor over the storage of another that has nothing else to do with it."""
_users_of = torch._C._storage_Use_Count
_where: Any = torch.Tensor.data_ptr
_wants = torch.Tensor.requires_grad.__get__


class TorchIntegration(Integration):
    """The adapter of the tensors of one device, ``cuda:0`` or the like."""

    def __init__(self, device: Device, place: torch.device) -> None:
        self.device, self.place = device, place
        self.storages_of = Storages(place, device.returns)
        self._on_cuda = place.type == "cuda"
        self._is_here = attrgetter(f"is_{place.type}")

    def surroundings(self) -> Iterator[tuple[str, object]]:
        """Yield what every function reads, by its path."""
        yield "torch", MODES

    def is_array(self, value: object) -> bool:
        """Return whether ``value`` is a tensor on a device of this kind, in one piece.

        Sparse ones have no memory of their own, but are made of other tensors.
        """
        kind = type(value) in _kinds and bool(self._is_here(value))
        return kind and value.layout is _strided  # type: ignore[attr-defined]

    def text(self, array: Any) -> str:
        """Return the tensor's dtype and shape."""
        return text(array)

    def refusal(self, value: object) -> str | None:
        """Refuse host arrays, CPU tensors, and what is no plain tensor."""
        return refusal_of(value, self.place.type)

    def look(self, value: Any) -> tuple[Hashable, Storage, Addr] | None:
        """Return layout, storage and first byte of a tensor."""
        if type(value) not in _kinds or not self._is_here(value):
            return None
        self._check(value)
        return self.layout(value), self.storage(value), Addr(value.data_ptr())

    def _check(self, tensor: Any) -> None:
        if tensor.layout is not torch.strided or tensor.is_quantized:
            raise TypeError(refusal_of(tensor, self.place.type))
        if tensor.requires_grad and not tensor.is_leaf and torch.is_grad_enabled():
            raise TypeError(
                f"a tensor {text(tensor)} that requires grad, and was computed, is an "
                "argument of a graphed function: no replay could send a gradient back "
                "through it. Pass x.detach(), or call under torch.no_grad()"
            )

    def marks(self, arrays: Sequence[Any]) -> Marks:
        """Return where tensors are, and where it matters, whether they require grad."""
        wanted = _grad_enabled()
        try:
            return [*map(_where, arrays)], [*map(_wants, arrays)] if wanted else ()
        except RuntimeError:
            self._check_stale(arrays)
            raise

    def layout(self, array: Any) -> Hashable:
        """Return shape, strides, dtype, alignment, flags and class."""
        try:
            return layout_of(array)
        except RuntimeError:
            self._check_stale([array])
            raise

    def steady(self, arrays: Sequence[Any]) -> Witness | None:
        """Return torch's guards of what tensors look like, where it has any."""
        return witness_of(arrays)

    def _check_stale(self, arrays: Sequence[Any]) -> None:
        """Raise `StaleOutput` where torch has refused one for that."""
        for array in arrays:
            self.storage(array).check()

    def address(self, array: Any) -> Addr:
        """Return where the first element lies, or did before it was stale."""
        try:
            at: Addr = _where(array)
        except RuntimeError:
            ours = self.storage(array)
            if ours.stale is None:
                raise
            offset = array.storage_offset() * array.element_size()
            at = Addr(ours.address + offset)
        return at

    def span(self, array: Any) -> tuple[Addr, Addr]:
        """Return the bytes that the elements lie in."""
        low = self.address(array)
        high: Any = low + length_of(array)
        return low, high

    def versions(self, arrays: Sequence[Any]) -> list[int] | None:
        """Return the versions of tensors; those made in inference mode have none."""
        try:
            return [each._version for each in arrays]
        except RuntimeError:
            return None

    def storage(self, array: Any) -> Storage:
        """Return the storage that the tensor views."""
        return self.storages_of.of(array)

    def bits(self, array: Any) -> bytes:
        """Return the bytes of all elements in C order."""
        found = array.detach().resolve_conj().resolve_neg().cpu()
        # One element is contiguous whatever its strides, and no bytes for torch.
        flat = torch.empty(found.numel(), dtype=found.dtype).copy_(found.reshape(-1))
        return bytes(flat.view(torch.uint8).numpy().tobytes())

    def template(self, array: Any) -> Template:
        """Return what the tensor looks like."""
        return Template(look_of(array), flags_of(array), KINDS.index(type(array)))

    def make(self, template: Template, storage: Storage, address: Addr) -> Any:
        """Return a tensor like the template's, which requires grad if it is a leaf."""
        offset = address - storage.address
        return self._over(template, self.storages_of.made(storage), offset)

    def is_bare(self, array: Any) -> bool:
        """Return whether a tensor has no gradient, no hook and no attribute."""
        wants = array.requires_grad and _grad_enabled()
        hooks = array._backward_hooks
        return not (wants or hooks or array.grad_fn or vars(array)) and (
            not array.is_leaf or array.grad is None
        )

    def copier(
        self, template: Template, address: Addr, size: Size, room: Callable[[], bool]
    ) -> Callable[[], Any] | None:
        """Return what makes clones of a plain, dense tensor that is all of its bytes.

        They are torch's own, in memory of its pool.
        """
        look, flags, kind = template
        count = functools.reduce(operator.mul, look["size"], 1)
        whole = count * look["dtype"].itemsize == size > 0
        plain = self._on_cuda and whole and _is_plain(flags, kind)
        if not plain or not _is_dense(look):
            return None
        theirs = torch._C._construct_storage_from_data_pointer(
            address, self.place, size
        )
        look["storage_offset"] = 0
        return partial(_cloned, tensor_over(look, theirs), room)

    def _over(self, template: Template, theirs: Any, offset: int) -> Any:
        """Return a tensor over a storage of torch's, so many bytes on."""
        look, flags, kind = template
        look["storage_offset"] = offset // look["dtype"].itemsize
        tensor = tensor_over(look, theirs)
        if not _is_plain(flags, kind):
            return _finished(tensor, flags, KINDS[kind])
        return tensor

    def keep(self, storages: Sequence[Storage], arrays: Sequence[Made]) -> Kept:
        """Return storages kept, by those of torch's that stand for them."""
        theirs = [*map(self.storages_of.made, storages)]
        makers: list[Callable[[], Any]] = []
        had: list[int] = []
        shared: set[int] = set()
        for k, template, address in arrays:
            offset = address - storages[k].address
            like = self._like(template, theirs[k], offset)
            if like is None:
                had.append(k)
                like = partial(self._over, template, theirs[k], offset)
            else:
                shared.add(k)
            makers.append(like)
        had += shared  # since torch 2.10, a reference of all tensors together
        numbers = [each._cdata for each in theirs]
        return Kept(storages, theirs, makers, had, _users_of, numbers)

    def _like(
        self, template: Template, theirs: Any, offset: int
    ) -> Callable[[], Any] | None:
        """Return what makes tensors quickly, like one that it has; None for others."""
        look, flags, kind = template
        if not self._on_cuda or not _is_plain(flags, kind) or _tensor_like is None:
            return None
        first = self._over(template, theirs, offset)
        return partial(_tensor_like, first, look["size"], look["stride"], 0)

    def exchange(self) -> Exchange | None:
        """Return how C looks at tensors of a GPU; None before torch 2.10."""
        table = exchange_table()
        if table is None or not self._on_cuda or self.place.index is None:
            return None
        quick, inside = looks_of_tensors() or ((), 0)
        return Exchange(table, self.place.index, _FLAGS, quick, inside)

    def extent(self, template: Template) -> tuple[int, int]:
        """Return the bytes that the elements lie in, from the first element."""
        look = template.look
        return extent_of(look["size"], look["stride"], look["dtype"].itemsize)


def _is_dense(look: dict[str, Any]) -> bool:
    """Return whether a clone has the strides that a tensor has."""
    like = torch.empty_strided(look["size"], look["stride"], device="meta")
    return bool(torch.empty_like(like).stride() == look["stride"])


def _cloned(tensor: Any, room: Callable[[], bool]) -> Any:
    """Return a clone; where there is no memory, some is made."""
    while True:
        try:
            return _clone(tensor)
        except torch.OutOfMemoryError:
            if not room():
                raise


def _is_plain(flags: int, kind: int) -> bool:
    """Return whether a tensor is all that its storage says.

    One that required grad, and was no leaf, has no way back: a replay's requires none.
    """
    return not (kind or _wants_grad(flags) or flags & (CONJUGATE | NEGATIVE))


def _wants_grad(flags: int) -> bool:
    return bool(flags & REQUIRES_GRAD and flags & LEAF)


def _finished(tensor: Any, flags: int, kind: type) -> Any:
    """Return the tensor with what its storage does not say."""
    with torch.no_grad():
        if flags & CONJUGATE:
            tensor = torch._conj(tensor)
        if flags & NEGATIVE:
            tensor = torch._neg_view(tensor)
    wants = _wants_grad(flags)
    if kind is torch.nn.Parameter:
        return torch.nn.Parameter(tensor, requires_grad=wants)
    if kind is torch.nn.Buffer:
        return torch.nn.Buffer(tensor)
    return tensor.requires_grad_() if wants else tensor
