"""What the tree asks of a framework, answered for CuPy's arrays.

Arrays of any origin are leaves: those over this library's storages, and those over
memory of CuPy's pool or of others. A layout says how far an address is aligned, as
CuPy and the libraries behind it choose kernels by that.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Final, NamedTuple

import cupy
import cupyx
import numpy as np
from cupy import _core
from cupy._core import _routines_linalg

from sapwood.errors import MisuseError
from sapwood.integrations.cupy.array import Array
from sapwood.integrations.cupy.memory import Foreign, Memory, Place, pointer
from sapwood.integrations.cupy.plans import plans
from sapwood.integrations.cupy.random import Generator
from sapwood.memory.device import Device
from sapwood.memory.storage import Storage
from sapwood.tree.call.integration import Integration, foreign_tensor, host_array, reach
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

_ALIGNED = 512 - 1
_shape = attrgetter("shape", "strides")
_KINDS: tuple[type, ...] = (Array, cupy.ndarray)

Layout = tuple[tuple[int, ...], tuple[int, ...], str, int, int]
"""Shape, strides, dtype, alignment, and which of the kinds of array."""


class Shape(NamedTuple):
    """What an array looks like."""

    layout: Layout
    dtype: Any


class CupyIntegration(Integration):
    """The adapter of CuPy's arrays on one GPU."""

    def __init__(self, device: Device, place: Place) -> None:
        self.device, self.place = device, place
        self._foreign = Foreign()

    def is_array(self, value: object) -> bool:
        """Return whether ``value`` is an array of CuPy's."""
        return type(value) in _KINDS

    def remembered(self) -> Iterable[object]:
        """Return the plans of cuFFT that there are, and arrays of their memory."""
        return plans()

    def surroundings(self) -> tuple[tuple[str, object], ...]:
        """Return what every function reads, by its path."""
        return (("cupy", SETTINGS),)

    def text(self, array: Any) -> str:
        """Return the array's dtype and shape."""
        return f"{array.dtype}{list(array.shape)}"

    def refusal(self, value: object) -> str | None:
        """Refuse host arrays, and subclasses that nobody knows how to make."""
        if isinstance(value, np.ndarray):
            return host_array(f"{value.dtype}{list(value.shape)}")
        if is_tensor(value):
            return foreign_tensor("cupy.from_dlpack(x), or use arrays='torch'")
        if isinstance(value, cupy.ndarray):
            return (
                f"an array of {type(value).__name__}, a subclass of cupy.ndarray, is "
                "an argument of a graphed function. Pass x.view(cupy.ndarray)"
            )
        return None

    def look(self, value: Any) -> tuple[Hashable, Storage, Addr] | None:
        """Return layout, storage and first byte of an array."""
        if type(value) not in _KINDS:
            return None
        storage = self.storage(value)
        if storage.stale is not None:
            storage.check()
        return _layout(value), storage, Addr(value.data.ptr + _extent(value)[0])

    def steady(self, arrays: Sequence[Any]) -> Callable[[Sequence[Any]], bool]:
        """Return what compares shapes, which may be assigned, and strides with them."""
        known = [*map(_shape, arrays)]
        return lambda values: [*map(_shape, values)] == known

    def layout(self, array: Any) -> Hashable:
        """Return shape, strides, dtype, alignment and kind."""
        self.storage(array).check()
        return _layout(array)

    def address(self, array: Any) -> Addr:
        """Return where the first element lies."""
        return Addr(array.data.ptr)

    def span(self, array: Any) -> tuple[Addr, Addr]:
        """Return the bytes that the elements lie in."""
        at = array.data.ptr
        low, high = _extent(array)
        return Addr(at + low), Addr(at + high)

    def storage(self, array: Any) -> Storage:
        """Return the storage that the array views."""
        memory = array.data.mem
        if type(memory) is Memory:
            storage: Storage = memory.storage
            if storage.dropped is not self.device.returns:
                raise MisuseError(
                    f"an array of another runtime, {self.text(array)}, is used with "
                    "this one. Bring it over with rt.array(x)"
                )
            return storage
        if memory.size and memory.device_id != self.place.ordinal:
            raise MisuseError(
                f"an array of GPU {memory.device_id}, {self.text(array)}, meets a "
                f"runtime of GPU {self.place.ordinal}. Copy it over with rt.array(x)"
            )
        end = self.span(array)[1]
        return self._foreign.storage(memory, end, self.device.returns)

    def bits(self, array: Any) -> bytes:
        """Return the bytes of all elements in C order."""
        return bytes(cupy.ndarray.get(array.view(cupy.ndarray)).tobytes())

    def template(self, array: Any) -> Shape:
        """Return the array's layout and dtype."""
        return Shape(_layout(array), array.dtype)

    def make(self, template: Shape, storage: Storage, address: Addr) -> Any:
        """Return an array like the template's."""
        shape, strides, _, _, kind = template.layout
        at = pointer(storage, address, self.place)
        return _KINDS[kind](shape, template.dtype, at, strides)

    def dump(self, template: Shape) -> tuple[Any, ...]:
        """Return a template as plain values, for messages."""
        return template.layout

    def extent(self, template: Shape) -> tuple[int, int]:
        """Return the bytes that the elements lie in, from the first element."""
        shape, strides, *_ = template.layout
        return reach(shape, strides, template.dtype.itemsize)


def _layout(array: Any) -> Layout:
    at = array.data.ptr
    aligned = at & -at if at & _ALIGNED else _ALIGNED + 1
    kind = 0 if type(array) is Array else 1
    return array.shape, array.strides, array.dtype.str, aligned, kind


def _extent(array: Any) -> tuple[int, int]:
    if array.flags.c_contiguous:
        return 0, array.nbytes
    return reach(array.shape, array.strides, array.itemsize)
