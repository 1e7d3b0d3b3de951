"""Host data that a function makes from plain values: each replay brings it anew.

A capture copies it from memory of its own on the host, which lives as long as its graph
does.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch

from sapwood.driver.streams import Queue
from sapwood.integrations.torch.operations import Operation
from sapwood.integrations.torch.storages import tensor_over
from sapwood.memory.device import Device
from sapwood.tree.watch.session import Session
from sapwood.units import Addr, Size

_C: Final[Any] = torch._C
_aten: Final[Any] = torch.ops.aten


class _Pinned:
    """Memory of the host that a GPU copies from, given back when nobody has it."""

    def __init__(self, device: Device, size: Size) -> None:
        self._free, self._returns = device.driver.free_host, device.returns
        self.address: Addr = device.driver.allocate_host(size)

    def __del__(self) -> None:
        if hasattr(self, "address"):
            returns: Queue = self._returns
            returns.append((self._free, self.address))


class Bringing:
    """Brings tensors of the host to a device, in captures."""

    def __init__(self, device: Device, place: torch.device) -> None:
        self._device, self._place = device, place

    def __call__(self, session: Session, host: Any) -> Any:
        """Return a new tensor on the device that looks as a dense one on the host.

        Each replay copies the bytes that are there now.
        """
        host = host.detach().resolve_conj().resolve_neg()
        size = Size(host.numel() * host.element_size())
        made = torch.empty(size, dtype=torch.uint8, device=self._place)
        if size:
            made.copy_(self._kept(host, size, session), non_blocking=True)
        return tensor_over(
            host.shape, host.stride(), host.dtype, made.untyped_storage()
        )

    def _kept(self, host: Any, size: Size, session: Session) -> Any:
        pinned = _Pinned(self._device, size)
        session.constants.append(pinned)
        ctypes.memmove(pinned.address, host.data_ptr(), size)
        theirs = _C._construct_storage_from_data_pointer(
            pinned.address, torch.device("cpu"), size
        )
        return torch.empty(0, dtype=torch.uint8).set_(theirs, 0, (size,), (1,))


def brought(
    func: Any,
    op: Operation,
    args: Sequence[Any],
    given: Mapping[str, Any],
    bring: Callable[[Any], Any],
    kind: str,
) -> Any:
    """Run an operation with what it has of the host brought to a ``kind`` of device."""
    if op.moves:
        return func(*_replaced(args, bring), **_replaced(given, bring))
    first, *rest = args
    if op.packet is _aten.copy_:
        source, *more = rest
        if source.device.type == "cpu" and first.device.type == kind:
            source = bring(source.to(first.dtype).contiguous())
        return func(first, source, *more, **given)
    wanted = given.get("device")
    there = not isinstance(first, torch.Tensor) or first.device.type != "cpu"
    if there or wanted is None or wanted.type != kind:
        return func(*args, **given)
    # Torch converts what it copies to a device before, on the host.
    return bring(func(*args, **{**given, "device": torch.device("cpu")}))


def _replaced(value: Any, bring: Callable[[Any], Any]) -> Any:
    """Return arguments with tensors on the device for those on the host."""
    if isinstance(value, torch.Tensor):
        return bring(value.contiguous()) if value.device.type == "cpu" else value
    if isinstance(value, (list, tuple)):
        return type(value)(_replaced(each, bring) for each in value)
    if isinstance(value, Mapping):
        return {name: _replaced(each, bring) for name, each in value.items()}
    return value


@contextmanager
def lifted() -> Iterator[None]:
    """Have torch bring lists and numbers to a device by an operation, as all else.

    It would bring them unseen. What they are, and where, is the same.
    """
    before = _C._only_lift_cpu_tensors()
    _C._set_only_lift_cpu_tensors(True)
    try:
        yield
    finally:
        _C._set_only_lift_cpu_tensors(before)
