"""Torch's storages and this library's: which stands for which, while either lives.

Torch frees a storage when no tensor views it any more, those that autograd has saved
among them; a weak reference to it tells when.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, Final, NamedTuple

import torch
from torch.library import Library, fallthrough_kernel
from torch.utils._python_dispatch import _disable_current_modes

from sapwood.driver.streams import Queue, Stream
from sapwood.errors import MisuseError
from sapwood.memory.storage import Storage, Unowned
from sapwood.tree.call.integration import text_of
from sapwood.units import Addr, Size

_refuse: Any = getattr(torch._C, "_set_storage_data_ptr_access_error_msg", None)

TRAPS: Final = _refuse is not None
"""Whether torch can refuse a storage: it can where it is built with CUDA."""


_cuda_tensor: Any = getattr(
    torch._C, "_construct_CUDA_Tensor_From_Storage_And_Metadata", None
)


def tensor_over(
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: Any,
    theirs: Any,
    first: int = 0,
) -> Any:
    """Return a tensor over a storage of torch's, unseen by whoever watches.

    Its ``first`` element is so many elements into the storage.
    """
    if theirs.device.type == "cuda" and _cuda_tensor is not None:
        look = {"size": tuple(shape), "stride": strides, "dtype": dtype}
        return _cuda_tensor({**look, "storage_offset": first}, theirs)
    with _disable_current_modes():
        empty = torch.empty(0, dtype=dtype, device=theirs.device)
        return empty.set_(theirs, first, shape, strides)


class _Lent(NamedTuple):
    """What a storage of torch's stands for, and whose that is."""

    storage: Storage
    storages: Storages


class _Reference(weakref.ref[Any]):
    """A weak reference to a storage of torch's, by whose number it is known."""

    __slots__ = ("number", "storage")

    number: int
    storage: Storage


class Storages:
    """Finds the one for the other; ``place`` is where the tensors are.

    ``stream_of`` returns the stream here that one of torch's is.
    """

    stream_of: Callable[[Any], Stream]

    def __init__(self, place: torch.device, dropped: Queue) -> None:
        self.place, self._dropped = place, dropped
        self._known: dict[int, _Reference] = {}
        self._made: dict[int, _Reference] = {}
        self._forget = _forgetting(self._known, self._made)

    def __len__(self) -> int:
        return len(self._known)

    def of(self, tensor: Any) -> Storage:
        """Return the storage of a tensor's bytes, whoever allocated them.

        Raises `MisuseError` for a tensor of another device.
        """
        theirs = tensor.untyped_storage()
        found = self._known.get(theirs._cdata)
        if found is not None:
            return found.storage
        if self.place.index is not None and theirs.device != self.place:
            raise MisuseError(
                f"a tensor {text_of(tensor)} on {theirs.device} meets a runtime of "
                f"{self.place}. Move it over with x.to({str(self.place)!r})"
            )
        ours = Storage(
            Addr(theirs.data_ptr()), Size(theirs.nbytes()), Unowned(), self._dropped
        )
        self._remember(theirs, ours)
        return ours

    def made(self, storage: Storage) -> Any:
        """Return torch's storage of these bytes, which it does not own."""
        known = self._made.get(id(storage))
        theirs = None if known is None else known()
        if theirs is None:
            theirs = torch._C._construct_storage_from_data_pointer(
                storage.address, self.place, storage.size
            )
            self._remember(theirs, storage)
            # So the bytes stay as long as it does, whatever becomes of all else.
            theirs.sapwood = _Lent(storage, self)
        return theirs

    def share(self, storages: Iterable[Storage], stream: Any) -> None:
        """Have torch, too, wait for one of its streams before it reuses these bytes."""
        for ours in storages:
            known = self._made.get(id(ours))
            theirs = None if known is None else known()
            if theirs is not None:
                tensor_over((0,), (1,), torch.uint8, theirs).record_stream(stream)

    def alias(self, tensor: Any, freed: Callable[[], None]) -> Any:
        """Return a tensor like one, by a storage of its own of the same bytes.

        ``freed`` is called, anywhere, when no tensor views that storage any more.
        """
        ours, known = self.of(tensor), self._known
        theirs = torch._C._construct_storage_from_data_pointer(
            ours.address, self.place, ours.size
        )

        def forget(reference: _Reference) -> None:
            del known[reference.number]
            freed()

        self._refer(theirs, ours, forget)
        theirs.sapwood = _Lent(ours, self)
        look = tensor.shape, tensor.stride(), tensor.dtype
        return tensor_over(*look, theirs, tensor.storage_offset())

    def _remember(self, theirs: Any, ours: Storage) -> None:
        self._made[id(ours)] = self._refer(theirs, ours, self._forget)
        ours.trap = self._trap if TRAPS else None

    def _refer(self, theirs: Any, ours: Storage, forget: Callable[[Any], None]) -> Any:
        reference = _Reference(theirs, forget)
        reference.number, reference.storage = theirs._cdata, ours
        self._known[reference.number] = reference
        return reference

    def _trap(self, ours: Storage) -> None:
        """Have torch refuse whatever needs to know where these bytes are."""
        known = self._made.get(id(ours))
        theirs = None if known is None else known()
        if theirs is not None:
            _refuse(theirs._cdata, f"sapwood.StaleOutput: {ours.refusal()}")


def _forgetting(
    known: dict[int, _Reference], made: dict[int, _Reference]
) -> Callable[[Any], None]:
    """Return what is called, anywhere, when torch has freed a storage."""

    def forget(reference: _Reference) -> None:
        del made[id(reference.storage)]
        del known[reference.number]

    return forget


_C: Any = torch._C
_KEY: Final = "BackendSelect"
_BELOW: Final = _C._dispatch_keyset_full_after(getattr(_C.DispatchKey, _KEY))
_NAME: Final = "record_stream"
_operator: Final[Any] = torch.ops.aten.record_stream.default


@cache
def notice_stream_uses() -> Library:
    """Have torch's `record_stream` take effect on tensors of replays, from now on.

    Returns what is to be kept: with it, that would end.
    """
    library = Library("aten", "IMPL")
    library.impl(_NAME, _recorded, _KEY, with_keyset=True)
    # Torch would materialise a view of these kinds, and record on the copy.
    for kind in ("Conjugate", "Negative"):
        library.impl(_NAME, fallthrough_kernel, kind)
    return library


def _recorded(keyset: Any, tensor: Any, stream: Any) -> None:
    if not use_on(tensor, stream):
        _operator.redispatch(keyset & _BELOW, tensor, stream)


def use_on(tensor: Any, stream: Any) -> bool:
    """Note that a stream uses a tensor's bytes; return whether they are lent to torch.

    Raises `MisuseError` for a stream of another device.
    """
    if not torch._C._has_storage(tensor):
        return False
    lent: _Lent | None = getattr(tensor.untyped_storage(), "sapwood", None)
    if lent is None:
        return False
    storage, storages = lent
    # What is captured runs as a whole, in one order with all else.
    if storage.size and not storage.captured:
        storage.use_on(storages.stream_of(stream))
    return True
