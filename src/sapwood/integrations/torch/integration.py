"""What the tree asks of a framework, answered for torch's tensors.

Tensors of any origin are leaves: those that torch allocated, parameters among them,
and those that replays return, which lie over this library's storages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from operator import attrgetter
from typing import Any, Final

import torch

from sapwood import _fast
from sapwood.integrations.torch.exchange import exchange_table, looks_of_tensors
from sapwood.integrations.torch.layout import (
    ALIGNED,
    CONJUGATE,
    KINDS,
    NEGATIVE,
    Layout,
    layout_of,
    refusal_of,
    spent,
)
from sapwood.integrations.torch.modes import MODES
from sapwood.integrations.torch.storages import Storages, tensor_over
from sapwood.memory.device import Device
from sapwood.memory.storage import Storage
from sapwood.tree.call.integration import (
    Integration,
    Kept,
    LayoutProbe,
    Look,
    Made,
    Probe,
    text_of,
)
from sapwood.tree.watch.capturer import Undetached
from sapwood.units import Addr

_kinds = frozenset(KINDS)
_FLAGS: Final[tuple[Any, ...]] = (
    *("requires_grad", "is_leaf"),
    *(torch.Tensor.is_conj, torch.Tensor.is_neg, torch.Tensor.is_inference),
)
_grad_enabled = torch.is_grad_enabled
_strided = torch.strided
_tensor_like: Final[Callable[[Any], Any]] = attrgetter("data")
"""Makes a tensor over the storage of another that has nothing else to do with it.

A version of its own, too: what `Tensor.detach` gives shares that with the other.
"""
_users_of = torch._C._storage_Use_Count
_where: Any = torch.Tensor.data_ptr
_wants = torch.Tensor.requires_grad.__get__
_version: Any = torch.Tensor._version.__get__


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

        Sparse ones have no memory of their own, but are made of other tensors, and
        zeros that autograd makes have none at all.
        """
        if type(value) not in _kinds or not self._is_here(value):
            return False
        dense = value.layout is _strided  # type: ignore[attr-defined]
        return dense and not value._is_zerotensor()  # type: ignore[attr-defined]

    def refuse(self, value: Any) -> None:
        """Refuse host arrays, CPU tensors, and what is no plain tensor."""
        if not self.is_array(value) or value.is_quantized:
            refusal = refusal_of(value, self.place.type)
            if refusal is not None:
                raise TypeError(refusal)
        elif value.requires_grad and not value.is_leaf and _grad_enabled():
            raise Undetached(
                f"a tensor {text_of(value)} that requires grad, and was computed, is "
                "an argument of a graphed function: no replay could send a gradient "
                "back through it. Pass x.detach(), or call under torch.no_grad()"
            )

    def look(self, array: Any) -> Look:
        """Return layout, storage and address, or what that was before it was stale."""
        storage = self.storages_of.of(array)
        try:
            at = _where(array)
        except RuntimeError:
            if storage.stale is None:
                raise
            at = storage.address + array.storage_offset() * array.element_size()
        return Look(layout_of(array, at), storage, Addr(at))

    def probe(self, arrays: Sequence[Any]) -> Probe:
        """Return what compares layouts, in C where torch lets it."""
        return self._probe(arrays, _FLAGS, _grad_enabled)

    def probe_guarded(self, arrays: Sequence[Any]) -> Probe:
        """Return what compares all but what autograd and lazy views make of tensors."""
        return self._probe(arrays, (), bool)

    def _probe(
        self, arrays: Sequence[Any], flags: tuple[Any, ...], mode: Callable[[], bool]
    ) -> Probe:
        native, table, made = _fast.native(), exchange_table(), None
        if native is not None and table is not None:
            quick = looks_of_tensors() or ((), 0)
            made = native.make_probe(table, *quick, flags, mode, ALIGNED, (*arrays,))
        return made or LayoutProbe(self, arrays, lambda _: False, mode)

    def versions(self, arrays: Sequence[Any]) -> list[tuple[Any, int]] | None:
        """Return where tensors are, whether they require grad, and their versions.

        Those made in inference mode have none.
        """
        try:
            looks = zip(map(_where, arrays), map(_wants, arrays), strict=True)
            return [*zip(looks, map(_version, arrays), strict=True)]
        except RuntimeError:
            for array in arrays:
                self.look(array).checked()
            return None

    def make(self, layout: Layout, storage: Storage, address: Addr) -> Any:
        """Return a tensor of that layout, which requires grad if it is a leaf."""
        offset = address - storage.address
        return self._over(layout, self.storages_of.made(storage), offset)

    def is_bare(self, array: Any) -> bool:
        """Return whether a tensor has no gradient, no hook and no attribute."""
        wants = array.requires_grad and _grad_enabled()
        hooks = array._backward_hooks
        return not (wants or hooks or array.grad_fn or vars(array)) and (
            not array.is_leaf or array.grad is None
        )

    def _over(self, layout: Layout, theirs: Any, offset: int) -> Any:
        """Return a tensor over a storage of torch's, so many bytes on."""
        first = offset // layout.dtype.itemsize
        with torch.inference_mode() if layout.is_inference else nullcontext():
            tensor = tensor_over(*layout[:3], theirs, first)
        return tensor if layout.is_plain else _finished(tensor, layout)

    def keep(self, storages: Sequence[Storage], arrays: Sequence[Made]) -> Kept:
        """Return storages kept, by those of torch's that stand for them."""
        theirs = [*map(self.storages_of.made, storages)]
        makers: list[Callable[[], Any]] = []
        had: list[int] = []
        shared: set[int] = set()
        for k, layout, address in arrays:
            offset = address - storages[k].address
            like = self._like(layout, theirs[k], offset)
            if like is None:
                had.append(k)
                like = partial(self._over, layout, theirs[k], offset)
            else:
                shared.add(k)
            makers.append(like)
        had += shared  # since torch 2.10, a reference of all tensors together
        numbers = [each._cdata for each in theirs]
        return Kept(storages, theirs, makers, had, _users_of, numbers)

    def _like(
        self, layout: Layout, theirs: Any, offset: int
    ) -> Callable[[], Any] | None:
        """Return what makes tensors quickly, like one that it has; None for others."""
        if not self._on_cuda or layout.is_special:
            return None
        first = offset // layout.dtype.itemsize
        if layout.is_spent:
            plain = tensor_over(*layout[:3], theirs, first)
            return partial(spent, plain.requires_grad_())
        return partial(_tensor_like, self._over(layout, theirs, offset))


def _finished(tensor: Any, layout: Layout) -> Any:
    """Return the tensor with what its storage does not say."""
    flags, kind = layout.flags, KINDS[layout.kind]
    with torch.no_grad():
        if flags & CONJUGATE:
            tensor = torch._conj(tensor)
        if flags & NEGATIVE:
            tensor = torch._neg_view(tensor)
    if kind is torch.nn.Parameter:
        return torch.nn.Parameter(tensor, requires_grad=layout.wants_grad)
    if kind is torch.nn.Buffer:
        return torch.nn.Buffer(tensor)
    if layout.is_spent:
        return spent(tensor.requires_grad_())
    return tensor.requires_grad_() if layout.wants_grad else tensor
