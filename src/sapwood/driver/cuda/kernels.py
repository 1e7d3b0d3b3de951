"""Modules, their kernels, and how packed parameter bytes reach them.

CUDA knows where the parameters of a kernel lie, not which of them are addresses:
whoever made the image may say so, with `declare_pointers`. For all other kernels every
word counts that is the address of any memory which the GPU can reach.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sapwood.driver.api import FunctionHandle, KernelOp, ModuleHandle, Pointer
from sapwood.driver.cuda.bindings import Answer, Library, unsupported
from sapwood.driver.handles import Table
from sapwood.driver.results import Result, invalid_value
from sapwood.units import Addr

Pointers = Callable[[bytes], tuple[Pointer, ...]]
Layout = tuple[tuple[int, int], ...]
Unread = Callable[[Layout, bytes], Iterable[tuple[int, int]]]

_ELF, _FATBIN = b"\x7fELF", b"\x50\xed\x55\xba"
_ELF_HEAD = struct.Struct("<32x2Q6x4H2x")  # where its two tables lie, and their sizes
_FATBIN_PARTS = slice(6, 8), slice(8, 16)
_WORD = struct.Struct("<Q")
_LOWEST, _HIGHEST = 1 << 16, 1 << 57  # between them lie all addresses
_UNASKED_SHARED = 48 << 10  # bytes that any kernel may have without being told

_declared: dict[bytes, dict[str, Pointers]] = {}
_unread: list[Unread] = []


def declare_pointers(image: bytes, kernels: Mapping[str, Pointers]) -> None:
    """Say which addresses the parameters of an image's kernels hold, by kernel name.

    For modules that this process loads afterwards. Each function takes parameter
    bytes and returns all addresses in them.
    """
    _declared[bytes(image)] = dict(kernels)


def declare_unread(find: Unread) -> None:
    """Say which parameter bytes no kernel reads, whatever it is: they are left over.

    ``find`` takes ``(offset, size)`` of a kernel's parameters and their bytes, and
    returns half-open intervals. What is captured has zeros there.
    """
    _unread.append(find)


@dataclass(slots=True)
class Function:
    """A kernel, ``(offset, size)`` of its parameters, and its addresses if known."""

    raw: Any
    name: str
    layout: Layout
    pointers: Pointers | None = None
    shared: int = _UNASKED_SHARED

    @property
    def size(self) -> int:
        """The number of parameter bytes."""
        offset, size = self.layout[-1] if self.layout else (0, 0)
        return offset + size

    def clear_unread(self, params: bytearray) -> None:
        """Put zeros where no kernel reads."""
        whole = bytes(params)
        for find in _unread:
            for lo, hi in find(self.layout, whole):
                params[lo:hi] = bytes(hi - lo)

    def words(self, params: bytes) -> Iterator[tuple[int, int]]:
        """Yield the offsets and values of the words that could be addresses.

        Pointers are aligned, and none is spread over two parameters.
        """
        for start, size in self.layout:
            for offset in range(start + -start % _WORD.size, start + size - 7, 8):
                (word,) = _WORD.unpack_from(params, offset)
                if _LOWEST <= word < _HIGHEST:
                    yield offset, word


class Packed:
    """Parameter bytes as CUDA takes them: ``address`` of an array of addresses.

    It must live until the call that it is passed to has returned. ``block`` are the
    bytes themselves, and ``base`` is where they lie.
    """

    __slots__ = ("_array", "_function", "address", "base", "block")

    def __init__(self, function: Function, params: bytes) -> None:
        self._function = function
        self._check(params)
        self.block = ctypes.create_string_buffer(params, len(params) or 1)
        self.base = ctypes.addressof(self.block)
        places = [self.base + offset for offset, _ in function.layout]
        self._array = (ctypes.c_void_p * (len(places) or 1))(*places)
        self.address = ctypes.addressof(self._array)

    def write(self, params: bytes) -> None:
        """Replace the bytes."""
        self._check(params)
        ctypes.memmove(self.block, params, len(params))

    def _check(self, params: bytes) -> None:
        function = self._function
        if len(params) != function.size:
            raise invalid_value(
                f"kernel {function.name} takes {function.size} bytes of parameters, "
                f"not {len(params)}: pack them as it says"
            )


class Kernels:
    """The modules and functions of one device."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self.modules = Table[ModuleHandle, tuple[Any, bytes]]("module")
        self.functions = Table[FunctionHandle, Function]("function")
        self._owners: dict[FunctionHandle, ModuleHandle] = {}
        self._kept: list[Any] = []

    def load_module(self, image: bytes) -> ModuleHandle:
        """Load a cubin, fatbin or PTX text."""
        _check_image(image)
        module = self._library(self._library.cu.cuModuleLoadData, image)
        return self.modules.put(ModuleHandle(int(module)), (module, bytes(image)))

    def keep(self, image: bytes, name: str) -> FunctionHandle:
        """Load a kernel for as long as the device is there, and return it."""
        module = self._library(self._library.cu.cuModuleLoadData, image + b"\0")
        self._kept.append(module)
        raw = self._library(self._library.cu.cuModuleGetFunction, module, name.encode())
        return self.functions.put(FunctionHandle(int(raw)), self._function(raw, name))

    def unload_kept(self) -> None:
        """Unload the modules of all kernels that were kept."""
        while self._kept:
            self._library(self._library.cu.cuModuleUnload, self._kept.pop())

    def unload_module(self, module: ModuleHandle) -> None:
        """Unload a module; its kernels may not run any more."""
        raw, _ = self.modules.take(module)
        for each in [f for f, owner in self._owners.items() if owner == module]:
            del self._owners[each]
            del self.functions.values[each]
        self._library(self._library.cu.cuModuleUnload, raw)

    def find_function(self, module: ModuleHandle, name: str) -> FunctionHandle:
        """Return a kernel of a module, loaded so that capturing it loads nothing."""
        raw, image = self.modules.find(module)
        library, cu = self._library, self._library.cu
        function = library(cu.cuModuleGetFunction, raw, name.encode())
        library(cu.cuFuncLoad, function)
        handle = FunctionHandle(int(function))
        if handle not in self.functions.values:
            pointers = _declared.get(image, {}).get(name)
            self.functions.put(handle, self._function(function, name, pointers))
            self._owners[handle] = module
        return handle

    def foreign(self, raw: Any) -> Function:
        """Return a kernel that may be another library's, and know it from now on."""
        handle = FunctionHandle(int(raw))
        found = self.functions.values.get(handle)
        if found is None:
            # Of its own: what parameters hold ends with them.
            own = self._library.cu.CUfunction(int(raw))
            name = self._library(self._library.cu.cuFuncGetName, own).decode()
            found = self._function(own, name)
            self.functions.put(handle, found)
        return found

    def pointers(
        self, function: FunctionHandle, params: bytes
    ) -> tuple[Pointer, ...] | None:
        """Return all addresses in parameters; where nobody has said, what may be."""
        found = self.functions.find(function)
        Packed(found, params)
        if found.pointers is not None:
            return found.pointers(params)
        return tuple(
            Pointer(offset, Addr(word), Addr(word + 1), writes=True, exact=False)
            for offset, word in found.words(params)
            if self._is_memory(word)
        )

    def _is_memory(self, address: int) -> bool:
        cu = self._library.cu
        kind = cu.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
        return not cu.cuPointerGetAttribute(kind, address)[0]

    def prepared(self, op: KernelOp) -> tuple[Function, Packed]:
        """Return a kernel that may be launched as ``op`` says, and its parameters."""
        function = self.functions.find(op.function)
        packed = Packed(function, op.params)
        if op.shared > function.shared:
            cu, of = self._library.cu, self._library.cu.CUfunction_attribute
            most = of.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self._library(cu.cuFuncSetAttribute, function.raw, most, op.shared)
            function.shared = op.shared
        return function, packed

    def launch(self, op: KernelOp, stream: Any) -> None:
        """Give a stream a kernel to run."""
        if max(op.cluster) > 1:
            raise unsupported("a kernel is launched in clusters: only graphs do that")
        function, packed = self.prepared(op)
        library, shape = self._library, (*op.grid, *op.block, op.shared)
        launch = library.cu.cuLaunchKernel
        library(launch, function.raw, *shape, stream, packed.address, 0)

    def _function(
        self, raw: Any, name: str, pointers: Pointers | None = None
    ) -> Function:
        layout: list[tuple[int, int]] = []
        ask = self._library.cu.cuFuncGetParamInfo
        while True:
            try:
                place = self._library(ask, raw, len(layout))
            except Answer as answer:
                if answer.result is not Result.INVALID_VALUE:
                    raise
                return Function(raw, name, tuple(layout), pointers)
            layout.append(place)


def _check_image(image: bytes) -> None:
    """Refuse what CUDA, which is not told its length, would read beyond its end."""
    if image.startswith(_ELF) and len(image) >= _ELF_HEAD.size:
        programs, sections, *sizes = _ELF_HEAD.unpack_from(image)
        ends = programs + sizes[0] * sizes[1], sections + sizes[2] * sizes[3]
        whole = len(image) >= max(ends)
    elif image.startswith(_FATBIN):
        parts = (int.from_bytes(image[part], "little") for part in _FATBIN_PARTS)
        whole = len(image) >= sum(parts)
    else:
        whole = b".version" in image
    if not whole:
        raise Result.INVALID_IMAGE.refusal(
            f"{image[:24]!r} ({len(image)} bytes) is no whole cubin, fatbin or PTX "
            "text: compile it anew for this GPU"
        )
