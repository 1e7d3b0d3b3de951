"""Copies inside graphs, as kernels.

Aiming a copy anew costs a quarter of the time where it is a kernel: CUDA looks up both
ends of its own copy nodes, and refuses ends that were unmapped since.
"""

from __future__ import annotations

import struct
from typing import Final

from sapwood.driver.api import CopyOp, FunctionHandle, KernelOp
from sapwood.driver.cuda.kernels import Kernels
from sapwood.units import Addr, Size

__all__ = ["Copies"]

_THREADS: Final = 256
_MOST_BLOCKS: Final = 1056
_VECTOR: Final = 16
_PARAMS: Final = struct.Struct("<3Q")
_NAME: Final = "sapwood_copy"
_PTX: Final = b"""
.version 7.5
.target sm_75
.address_size 64
.visible .entry sapwood_copy(.param .u64 pdst, .param .u64 psrc, .param .u64 psize) {
  .reg .pred p;
  .reg .b16 byte;
  .reg .b32 a, b, c, d;
  .reg .b64 dst, src, size, i, step, end, at, from, low;
  ld.param.u64 dst, [pdst];
  ld.param.u64 src, [psrc];
  ld.param.u64 size, [psize];
  mov.u32 a, %ctaid.x;
  mov.u32 b, %ntid.x;
  mov.u32 c, %tid.x;
  mov.u32 d, %nctaid.x;
  mul.wide.u32 i, a, b;
  cvt.u64.u32 low, c;
  add.u64 i, i, low;
  mul.wide.u32 step, d, b;
  or.b64 low, dst, src;
  and.b64 low, low, 15;
  setp.eq.u64 p, low, 0;
  shr.u64 end, size, 4;
  selp.b64 end, end, 0, p;
  mov.u64 low, i;
vectors:
  setp.ge.u64 p, i, end;
  @p bra tail;
  shl.b64 at, i, 4;
  add.u64 from, src, at;
  add.u64 at, dst, at;
  ld.global.v4.u32 {a, b, c, d}, [from];
  st.global.v4.u32 [at], {a, b, c, d};
  add.u64 i, i, step;
  bra vectors;
tail:
  shl.b64 end, end, 4;
  add.u64 i, low, end;
bytes:
  setp.ge.u64 p, i, size;
  @p bra done;
  add.u64 from, src, i;
  add.u64 at, dst, i;
  ld.global.u8 byte, [from];
  st.global.u8 [at], byte;
  add.u64 i, i, step;
  bra bytes;
done:
  ret;
}
"""


class Copies:
    """The kernel that copies, loaded when it is first needed."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self._function: FunctionHandle | None = None

    def kernel(self, op: CopyOp) -> KernelOp:
        """Return a copy as the launch of a kernel."""
        if self._function is None:
            self._function = self._kernels.keep(_PTX, _NAME)
        blocks = -(-op.size // (_THREADS * _VECTOR))
        return KernelOp(
            self._function,
            _PARAMS.pack(op.dst, op.src, op.size),
            (max(1, min(blocks, _MOST_BLOCKS)), 1, 1),
            (_THREADS, 1, 1),
        )

    def copy(self, op: KernelOp) -> CopyOp:
        """Return the copy that a launch of this kernel is."""
        dst, src, size = _PARAMS.unpack(op.params)
        return CopyOp(Addr(dst), Addr(src), Size(size))
