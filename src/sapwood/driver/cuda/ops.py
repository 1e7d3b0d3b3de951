"""Ops as the parameters of CUDA's graph nodes, and back.

What CUDA can record and an op cannot say is refused by name, never half told.
"""

from __future__ import annotations

import ctypes
from typing import Any

from sapwood.driver.api import CopyOp, FunctionHandle, KernelOp, SetOp
from sapwood.driver.cuda.bindings import Library, unsupported
from sapwood.driver.cuda.kernels import Function, Kernels, Packed
from sapwood.units import Addr, Size

_EXTRA_BUFFER, _EXTRA_SIZE = 1, 2
_ADDRESS = ctypes.sizeof(ctypes.c_void_p)


def kernel_params(cu: Any, op: KernelOp, function: Function, packed: Packed) -> Any:
    """Return node parameters that are good while ``packed`` lives."""
    params = cu.CUDA_KERNEL_NODE_PARAMS()
    params.func = function.raw
    params.gridDimX, params.gridDimY, params.gridDimZ = op.grid
    params.blockDimX, params.blockDimY, params.blockDimZ = op.block
    params.sharedMemBytes = op.shared
    params.kernelParams = packed.address
    return params


def set_cluster(library: Library, node: Any, op: KernelOp) -> None:
    """Have a kernel node run in clusters of blocks, if its op says so."""
    if max(op.cluster) == 1:
        return
    cu = library.cu
    value = cu.CUkernelNodeAttrValue()
    value.clusterDim.x, value.clusterDim.y, value.clusterDim.z = op.cluster
    which = cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
    library(cu.cuGraphKernelNodeSetAttribute, node, which, value)


def set_params(cu: Any, op: SetOp) -> Any:
    """Return node parameters of a set."""
    params = cu.CUDA_MEMSET_NODE_PARAMS()
    params.dst, params.value = op.dst, op.value
    params.elementSize, params.width, params.height = 1, op.size, 1
    return params


def kernel_of(library: Library, kernels: Kernels, node: Any) -> KernelOp:
    """Return what a kernel node runs; its parameter bytes are copied."""
    cu = library.cu
    params = library(cu.cuGraphKernelNodeGetParams, node)
    function = kernels.foreign(params.func)
    _refuse_cooperative(library, node, function)
    # The struct is a view of the value, which must not go before.
    value = _attribute(library, node, "CLUSTER_DIMENSION")
    cluster = value.clusterDim
    return KernelOp(
        FunctionHandle(int(params.func)),
        parameter_bytes(params, function),
        (params.gridDimX, params.gridDimY, params.gridDimZ),
        (params.blockDimX, params.blockDimY, params.blockDimZ),
        params.sharedMemBytes,
        (max(cluster.x, 1), max(cluster.y, 1), max(cluster.z, 1)),
    )


def copy_of(library: Library, node: Any) -> CopyOp:
    """Return what a copy node copies."""
    cu = library.cu
    params = library(cu.cuGraphMemcpyNodeGetParams, node)
    kinds = {params.srcMemoryType, params.dstMemoryType}
    is_array = cu.CUmemorytype.CU_MEMORYTYPE_ARRAY in kinds
    if is_array or params.Height != 1 or params.Depth != 1:
        raise unsupported(
            f"a copy of {params.Depth * params.Height} rows of {params.WidthInBytes} "
            "bytes, or of an array, was captured: copy contiguous memory only"
        )
    host = cu.CUmemorytype.CU_MEMORYTYPE_HOST
    src = params.srcHost if params.srcMemoryType == host else int(params.srcDevice)
    dst = params.dstHost if params.dstMemoryType == host else int(params.dstDevice)
    size = Size(params.WidthInBytes)
    return CopyOp(Addr(dst + params.dstXInBytes), Addr(src + params.srcXInBytes), size)


def set_of(library: Library, node: Any) -> SetOp:
    """Return what a set node sets."""
    params = library(library.cu.cuGraphMemsetNodeGetParams, node)
    row = params.width * params.elementSize
    value = params.value.to_bytes(4, "little")[: params.elementSize]
    if len(set(value)) != 1 or (params.height != 1 and params.pitch != row):
        raise unsupported(
            f"a set of {params.height} rows of {row} bytes to the pattern "
            f"{value.hex()} was captured: fill contiguous memory with one byte"
        )
    return SetOp(Addr(int(params.dst)), value[0], Size(row * params.height))


def parameter_bytes(params: Any, function: Function) -> bytes:
    """Return the parameters of a kernel node, packed, with zeros where none reads."""
    packed = bytearray(function.size)
    if params.kernelParams:
        for index, (offset, size) in enumerate(function.layout):
            place = _word(params.kernelParams + index * _ADDRESS)
            packed[offset : offset + size] = ctypes.string_at(place, size)
    elif params.extra:
        found = {}
        at = params.extra
        while key := _word(at):
            found[key] = _word(at + _ADDRESS)
            at += 2 * _ADDRESS
        size = min(_word(found[_EXTRA_SIZE]), len(packed))
        packed[:size] = ctypes.string_at(found[_EXTRA_BUFFER], size)
    function.clear_unread(packed)
    return bytes(packed)


def _word(address: int) -> int:
    return ctypes.c_void_p.from_address(address).value or 0


def _attribute(library: Library, node: Any, name: str) -> Any:
    which = getattr(library.cu.CUlaunchAttributeID, f"CU_LAUNCH_ATTRIBUTE_{name}")
    return library(library.cu.cuGraphKernelNodeGetAttribute, node, which)


def _refuse_cooperative(library: Library, node: Any, function: Function) -> None:
    if _attribute(library, node, "COOPERATIVE").cooperative:
        raise unsupported(
            f"kernel {function.name} was captured as a cooperative launch: launch it "
            "without"
        )
