"""What the tree asks of a framework, answered for CuPy's arrays.

Arrays of any origin are leaves: those over this library's storages, and those over
memory of CuPy's pool or of others. A layout says how far an address is aligned, as
CuPy and the libraries behind it choose kernels by that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import cupy
import cupyx
import numpy as np
from cupy import _core
from cupy._core import _routines_linalg

from sapwood import _fast
from sapwood.errors import MisuseError
from sapwood.integrations.cupy.array import KINDS, Array
from sapwood.integrations.cupy.memory import Foreign, Memory, Place, pointer
from sapwood.integrations.cupy.random import Generator
from sapwood.integrations.cupy.streams import current, tensors
from sapwood.integrations.strided import Layout
from sapwood.memory.device import Device
from sapwood.memory.storage import Storage
from sapwood.tree.call.integration import (
    Files,
    Integration,
    LayoutProbe,
    Look,
    Probe,
    foreign_tensor,
    host_array,
    text_of,
)
from sapwood.tree.guards.constants import is_tensor
from sapwood.tree.guards.frameworks import Modes
from sapwood.tree.guards.views import Way
from sapwood.tree.nests.containers import register_container
from sapwood.units import Addr

_interned: dict[Any, Any] = {}


def _same(get: Callable[[], Any]) -> Any:
    """Return what is got as a tuple, the same object for the same values."""
    value = get()
    value = tuple(value.items() if isinstance(value, dict) else value)
    return _interned.setdefault(value, value)


_theirs: Final[Any] = _routines_linalg
_CHARS: Final = "efdFD"
"""The dtypes for which one may choose what products are computed in."""

SETTINGS: Final = Modes(
    "cupy",
    Way(
        getters={
            **{
                f"_core.get_compute_type({np.dtype(char)})": partial(
                    _theirs.get_compute_type, np.dtype(char)
                )
                for char in _CHARS
            },
            "_core.get_routine_accelerators()": partial(
                _same, _core.get_routine_accelerators
            ),
            "_core.get_reduction_accelerators()": partial(
                _same, _core.get_reduction_accelerators
            ),
            "geterr()": partial(_same, cupyx.geterr),
        }
    ),
)
"""What a replay has baked in. Compute types are CuPy's, by environment or by code."""


# A generator is its state, an array: so a graphed function may be passed one.
register_container(
    Generator,
    lambda generator: ([generator.state], None),
    lambda _, children: Generator(*children),
)

_ALIGNED = 512


class CupyIntegration(Integration):
    """The adapter of CuPy's arrays on one GPU."""

    files = Files(tuple)

    def __init__(self, device: Device, place: Place) -> None:
        self.device, self.place = device, place
        self._foreign = Foreign()

    def is_array(self, value: object) -> bool:
        """Return whether ``value`` is an array of CuPy's, or torch's of that memory."""
        return type(value) in KINDS or self._is_tensor(value)

    def _is_tensor(self, value: object) -> bool:
        # Where torch's stream is another, a replay would not wait for what it does.
        theirs: Any = tensors() if is_tensor(value) else None
        plain = theirs and theirs.is_plain(value, self.place.ordinal)
        return bool(plain and theirs.is_in_order(current()))

    def surroundings(self) -> tuple[tuple[str, object], ...]:
        """Return what every function reads, by its path."""
        return (("cupy", SETTINGS),)

    def refuse(self, value: object) -> None:
        """Refuse host arrays, and subclasses that nobody knows how to make."""
        if self.is_array(value):
            return
        if isinstance(value, np.ndarray):
            raise TypeError(host_array(value))
        if is_tensor(value):
            instead = "Pass cupy.from_dlpack(x), or use arrays='torch'"
            raise TypeError(foreign_tensor(instead))
        if isinstance(value, cupy.ndarray):
            raise TypeError(
                f"an array of {type(value).__name__}, a subclass of cupy.ndarray, is "
                "an argument of a graphed function. Pass x.view(cupy.ndarray)"
            )

    def look(self, array: Any) -> Look:
        """Return layout, storage and address."""
        kind = 0 if type(array) is Array else 1
        if type(array) not in KINDS:
            array, kind = tensors().viewed(array), tensors().KIND
        at = array.data.ptr
        aligned = at & -at if at & (_ALIGNED - 1) else _ALIGNED
        dtype = array.dtype.str
        layout = Layout(array.shape, array.strides, dtype, aligned, kind)
        end = Addr(at + layout.extent[1])
        return Look(layout, self._storage(array, end), Addr(at))

    def probe(self, arrays: Sequence[Any]) -> Probe:
        """Return what compares layouts: of the same arrays, shapes may be assigned."""
        native, made = _fast.native(), None
        if native is not None:
            table = native.look_by_attributes(current, Memory)
            made = native.make_probe(table, (), 0, (), bool, _ALIGNED, (*arrays,))
        return made or LayoutProbe(self, arrays, lambda _: False)

    def _storage(self, array: Any, end: Addr) -> Storage:
        """Return the storage that the array views, which reaches to an address."""
        memory = array.data.mem
        if type(memory) is Memory:
            storage: Storage = memory.storage
            if storage.dropped is not self.device.returns:
                raise MisuseError(
                    f"an array of another runtime, {text_of(array)}, is used with "
                    "this one. Bring it over with rt.array(x)"
                )
            return storage
        if memory.size and memory.device_id != self.place.ordinal:
            raise MisuseError(
                f"an array of GPU {memory.device_id}, {text_of(array)}, meets a "
                f"runtime of GPU {self.place.ordinal}. Copy it over with rt.array(x)"
            )
        return self._foreign.storage(memory, end, self.device.returns)

    def make(self, layout: Layout, storage: Storage, address: Addr) -> Any:
        """Return an array of that layout."""
        at = pointer(storage, address, self.place)
        what = layout.shape, layout.dtype, at, layout.strides
        if layout.kind < len(KINDS):
            return KINDS[layout.kind](*what)
        return tensors().tensor_of(cupy.ndarray(*what))
