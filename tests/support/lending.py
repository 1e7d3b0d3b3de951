"""An emulated device that C may launch on, with arrays that C may look at.

On a GPU fast replays are played in C, which nobody sees from outside. Here C calls
back: so it meets every layer, schedule and law that there is, on arrays like NumPy's.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any, Final

import numpy as np
import pytest

from sapwood import _fast
from sapwood.driver.api import CopiesOp, Driver, ExecHandle, NodeHandle, StreamHandle
from sapwood.driver.layers import Layer
from sapwood.driver.native import Native, NativeCopies
from sapwood.driver.streams import Stream
from sapwood.errors import DriverError, OutOfMemory
from sapwood.integrations.numpy.array import Array
from sapwood.integrations.numpy.integration import NumpyIntegration
from sapwood.integrations.strided import Layout
from sapwood.memory.pages import Pages
from sapwood.memory.storage import Storage
from sapwood.runtime.core import Runtime
from sapwood.tree.call.integration import LayoutProbe, Probe
from sapwood.units import Addr, Size

__all__ = ["Lending", "lend", "looked_at_by_attributes", "relook"]

_CONTEXT: Final = 7
_DIMS: Final = 16
_CODES: Final = {"b": 6, "i": 0, "u": 1, "f": 2, "c": 5}
"""As DLPack numbers the kinds of dtypes."""


class _Tensor(ctypes.Structure):
    """DLTensor of dlpack.h."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32),
        ("ordinal", ctypes.c_int32),
        ("dims", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("offset", ctypes.c_uint64),
    )


_Look = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(_Tensor))
_Told: Final = tuple(
    ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(kind))
    for kind in (
        ctypes.c_void_p,
        ctypes.c_int64,
        ctypes.POINTER(ctypes.c_int64),
        ctypes.POINTER(ctypes.c_int64),
        ctypes.c_int32,
    )
)
_Current = ctypes.PYFUNCTYPE(
    ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p)
)
_Launch = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_SetParams = ctypes.PYFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
)
_ContextOf = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_void_p))


def _address(function: Any) -> int:
    return int(ctypes.cast(function, ctypes.c_void_p).value or 0)


def _copied(copy: Callable[[], Any], pages: Pages, room: Callable[[], bool]) -> Any:
    """Return a copy in memory that recordings are not asked for but by ``room``.

    So it is with a framework's own pool. A heap that asks would have the recording go
    whose output is about to be copied.
    """
    while True:
        asks, pages.reclaim = pages.reclaim, bool
        try:
            return copy()
        except OutOfMemory as error:
            if not room():
                raise MemoryError(error) from None  # an error of the framework's own
        finally:
            pages.reclaim = asks


class Lending(Layer):
    """Passes all calls on, and has C make some of them; ``launches`` counts its own."""

    def __init__(self, driver: Driver) -> None:
        super().__init__(driver)
        self.launches = 0
        self._ops: dict[NodeHandle, CopiesOp] = {}
        self._words: dict[int, tuple[ExecHandle, NodeHandle, Any, Any]] = {}
        self._functions = (
            _Launch(self._launched),
            _SetParams(self._params_set),
            _ContextOf(_context_of),
        )

    def around(self, name: str, call: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Make a call; remember which copies nodes make."""
        result = call(*args)
        if name == "surround":
            nodes, ops = chain(*result), chain(*args[1:])
            self._ops |= dict(zip(nodes, ops, strict=True))
        elif name == "set_op" and isinstance(args[2], CopiesOp):
            self._ops[args[1]] = args[2]
            for exec_, node, dsts, srcs in self._words.values():
                if (exec_, node) == args[:2]:
                    dsts[:], srcs[:] = args[2].dsts, args[2].srcs
        return result

    def raw_stream(self, stream: StreamHandle) -> int:
        """Return the handle, by which C names the stream."""
        return int(stream)

    def native(self, exec_: ExecHandle, nodes: Sequence[NodeHandle]) -> Native:
        """Return functions that call back, and the words of copies."""
        copies = []
        for node in nodes:
            op, number = self._ops[node], len(self._words) + 1
            ends = op.dsts, op.srcs
            dsts, srcs = ((ctypes.c_uint64 * len(each))(*each) for each in ends)
            self._words[number] = exec_, node, dsts, srcs
            starts = ctypes.addressof(dsts), ctypes.addressof(srcs)
            copies.append(NativeCopies(number, number, *starts, len(op.dsts)))
        launch, set_params, context_of = map(_address, self._functions)
        return Native(
            launch,
            set_params,
            context_of,
            int(exec_),
            _CONTEXT,
            tuple(copies),
            (self,),
        )

    def _launched(self, exec_: int, stream: int) -> int:
        try:
            self.launch_graph(ExecHandle(exec_), StreamHandle(stream or 0))
        except DriverError as error:
            return error.code
        self.launches += 1
        return 0

    def _params_set(self, exec_: int, node: int, params: int) -> int:
        del node
        _, copied, dsts, srcs = self._words[params]
        op = CopiesOp(
            tuple(map(Addr, dsts)), tuple(map(Addr, srcs)), self._ops[copied].sizes
        )
        try:
            self.set_op(ExecHandle(exec_), copied, op)
        except DriverError as error:
            return error.code
        return 0


def _context_of(context: Any) -> int:
    context[0] = _CONTEXT
    return 0


class _Nobodys:
    """The token of bytes that a recording has: nobody gives them back."""

    def ended(self, streams: tuple[Stream, ...]) -> None:
        del streams


class _Looked(NumpyIntegration):
    """The adapter, with arrays that C looks at.

    They may be given other looks.
    """

    def __init__(self, runtime: Runtime) -> None:
        device = runtime._recordings.device
        super().__init__(device)
        self._buffers: dict[str, Any] = {}
        self._device_of = device
        self._functions = _Look(self._looked), _Current(self._current)
        tells = self._data, self._dims, self._shape, self._strides, self._dtype
        pairs = zip(_Told, tells, strict=True)
        self._tells = [kind(tell) for kind, tell in pairs]
        table = (0, 0, 0, 0, 0, *map(_address, self._functions))
        self._table = (ctypes.c_uint64 * len(table))(*table)

    def copier(
        self, layout: Layout, address: Addr, size: Size, room: Callable[[], bool]
    ) -> Callable[[], Any] | None:
        """Return what copies dense arrays, as torch does: nobody holds what is read."""
        shape, strides, kind, _, writeable = layout
        packed = np.empty(shape, kind).strides, np.empty(shape, kind, "F").strides
        if not (layout.extent[1] and strides in packed and writeable):
            return None
        storage = Storage(address, size, _Nobodys(), self._device_of.returns)
        copy = partial(self.make(layout, storage, address).copy, "K")
        return partial(_copied, copy, self._device_of.pages, room)

    def probe(self, arrays: Sequence[Any]) -> Probe:
        """Return a probe of C; no flags are needed."""
        native, quick = _fast.native(), self._quick()
        if native is None:
            return LayoutProbe(self, arrays, lambda _: False)
        table = ctypes.addressof(self._table)
        made: Probe = native.make_probe(table, quick, 0, (), bool, 16, tuple(arrays))
        return made

    def _quick(self) -> tuple[int, ...]:
        return tuple(map(_address, self._tells))

    def _looked(self, array: Any, found: Any) -> int:
        tensor, dtype = found[0], array.dtype
        tensor.data, tensor.offset = array.span[0], 0
        tensor.device, tensor.ordinal, tensor.dims = 1, 0, len(array.shape)
        # DLPack has no word for read-only arrays; so C is told of two lanes.
        tensor.code, tensor.bits, tensor.lanes = (
            _CODES[dtype.kind],
            8 * dtype.itemsize,
            1 if array.flags.writeable else 2,
        )
        tensor.shape = self._kept("shape", array)
        tensor.strides = self._kept("strides", array)
        return 0

    def _kept(self, name: str, array: Any) -> Any:
        """Return a pointer to an array's shape or strides, good until the next."""
        kept = self._buffers[name] = (ctypes.c_int64 * _DIMS)(*getattr(array, name))
        return ctypes.cast(kept, ctypes.POINTER(ctypes.c_int64))

    def _data(self, array: Any, data: Any) -> int:
        data[0] = array.span[0]
        return 0

    def _dims(self, array: Any, dims: Any) -> int:
        dims[0] = len(array.shape)
        return 0

    def _shape(self, array: Any, shape: Any) -> int:
        shape[0] = self._kept("shape", array)
        return 0

    def _strides(self, array: Any, strides: Any) -> int:
        strides[0] = self._kept("strides", array)
        return 0

    def _dtype(self, array: Any, dtype: Any) -> int:
        dtype[0] = 2 * array.dtype.num + array.flags.writeable
        return 0

    def _current(self, device: int, ordinal: int, stream: Any) -> int:
        del device, ordinal
        stream[0] = int(self._device_of.stream().handle)
        return 0


class _Memory:
    """What CuPy's arrays have for bytes of this library."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage


class _Data:
    """Where an array of CuPy's begins, and in which memory."""

    device_id = 0

    def __init__(self, array: Array) -> None:
        self.ptr, self.mem = array.span[0], _Memory(array.storage)


@contextmanager
def looked_at_by_attributes(runtime: Runtime) -> Iterator[None]:
    """Have C look at a runtime's arrays as at CuPy's; it is one of `lend`'s."""
    native, integration = _fast.native(), runtime._recordings.integration
    stream = runtime._recordings.device.stream
    assert native is not None

    def probe(arrays: Sequence[Any]) -> Any:
        table = native.look_by_attributes(lambda: int(stream().handle), _Memory)
        return native.make_probe(table, (), 0, (), bool, 16, tuple(arrays))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(integration, "probe", probe)
        patch.setattr(Array, "data", property(_Data), raising=False)
        yield
    native.look_by_attributes(int, _Memory)  # it would keep the runtime


def relook(array: Array, way: Callable[[Any], Any]) -> None:
    """Give an array in place the looks of the view that ``way`` makes of it."""
    other = array.seen(way(array.face))
    array._face, array.layout, array.address = other.face, other.layout, other.address


def lend(runtime: Runtime) -> None:
    """Have C play a runtime's fast replays; its outermost driver is a `Lending`."""
    recordings = runtime._recordings
    recordings.integration = looked = _Looked(runtime)
    framework: Any = recordings.device.framework
    framework.copier = lambda *given: looked.copier(*given)
