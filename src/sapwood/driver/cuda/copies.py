"""Copies inside graphs, as kernels.

Aiming a copy anew costs a quarter of the time where it is a kernel: CUDA looks up both
ends of its own copy nodes, and refuses ends that were unmapped since. Where there are
several, each block finds its copy in a table that is the kernel's parameter.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

from sapwood.driver.api import MOST_COPIES, CopiesOp, CopyOp, FunctionHandle, KernelOp
from sapwood.driver.cuda.kernels import Kernels
from sapwood.units import Size

ROOMS: Final = (1, 8, 32, MOST_COPIES)
"""For so many copies there are tables; powers of two, which the search relies on."""

_THREADS: Final = 256
_MOST_BLOCKS: Final = 1056  # of one copy
_VECTOR: Final = 16
_NO_BLOCK: Final = 0xFFFFFFFF

_HEAD: Final = """
.version 7.5
.target sm_75
.address_size 64
.visible .entry NAME(.param .align 8 .b8 table[SIZE]) {
  .reg .pred p;
  .reg .b16 byte;
  .reg .b32 a, b, c, d, e;
  .reg .b64 dst, src, size, i, step, end, at, from, low;
  mov.u32 a, %ctaid.x;
  mov.u32 d, %nctaid.x;
"""
_ONLY: Final = """
  ld.param.u64 dst, [table];
  ld.param.u64 src, [table+8];
  ld.param.u64 size, [table+16];
"""
# The last copy that begins at this block or before: `a` becomes the block's number
# among those of its copy, `d` how many those are.
_SEARCH: Final = """
  mov.u64 low, table;
  mov.u32 e, 0;
  mov.u32 c, HALF;
search:
  add.u32 b, e, c;
  mul.wide.u32 at, b, 4;
  add.u64 at, low, at;
  ld.param.u32 b, [at+FIRSTS];
  setp.le.u32 p, b, a;
  add.u32 b, e, c;
  selp.b32 e, b, e, p;
  shr.u32 c, c, 1;
  setp.ne.u32 p, c, 0;
  @p bra search;
  mul.wide.u32 at, e, 4;
  add.u64 at, low, at;
  ld.param.u32 b, [at+FIRSTS];
  ld.param.u32 c, [at+NEXTS];
  min.u32 d, d, c;
  sub.u32 d, d, b;
  sub.u32 a, a, b;
  mul.wide.u32 at, e, 8;
  add.u64 at, low, at;
  ld.param.u64 dst, [at];
  ld.param.u64 src, [at+SRCS];
  ld.param.u64 size, [at+SIZES];
"""
_BODY: Final = """
  mov.u32 b, %ntid.x;
  mov.u32 c, %tid.x;
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
    """The kernels that copy, loaded when they are first needed.

    The parameter of each is a table in columns: addresses to copy to, addresses to
    copy from, sizes, of 8 bytes each. Where there is room for several there is a column
    of 4 bytes more: the first block of each copy, one word longer than the others.
    """

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self._functions: dict[int, FunctionHandle] = {}

    def kernel(self, op: CopyOp | CopiesOp) -> KernelOp:
        """Return copies as the launch of a kernel."""
        if isinstance(op, CopyOp):
            op = CopiesOp((op.dst,), (op.src,), (op.size,))
        room = room_for(len(op.sizes))
        if room not in self._functions:
            name = f"sapwood_copy_{room}"
            self._functions[room] = self._kernels.keep(_image(name, room), name)
        firsts = [0, *accumulate(map(_blocks, op.sizes))]
        params, blocks = _packed(op, room, firsts), max(1, firsts[-1])
        function = self._functions[room]
        return KernelOp(function, params, (blocks, 1, 1), (_THREADS, 1, 1))


def copies_of(op: KernelOp) -> CopiesOp:
    """Return the copies that a launch of one of these kernels makes."""
    room = next(room for room in ROOMS if _table_size(room) == len(op.params))
    words = struct.unpack_from(f"<{3 * room}Q", op.params)
    firsts = struct.unpack_from(f"<{room}I", op.params, 24 * room) if room > 1 else (0,)
    count = sum(first != _NO_BLOCK for first in firsts)
    dsts, srcs, sizes = (words[at : at + count] for at in range(0, 3 * room, room))
    return CopiesOp(dsts, srcs, sizes)


def room_for(count: int) -> int:
    """Return for how many copies there is room in the smallest table for ``count``."""
    return next(room for room in ROOMS if count <= room)


def _table_size(room: int) -> int:
    return 24 if room == 1 else 28 * room + 4


def _blocks(size: Size) -> int:
    return min(-(-size // (_THREADS * _VECTOR)), _MOST_BLOCKS)


def _packed(op: CopiesOp, room: int, firsts: Sequence[int]) -> bytes:
    count = len(op.sizes)
    none = [0] * (room - count)
    words = [*op.dsts, *none, *op.srcs, *none, *op.sizes, *none]
    table = struct.pack(f"<{3 * room}Q", *words)
    if room == 1:
        return table
    last = [_NO_BLOCK] * (room + 1 - count)
    return table + struct.pack(f"<{room + 1}I", *firsts[:count], *last)


def _image(name: str, room: int) -> bytes:
    numbers = {
        "NAME": name,
        "SIZE": _table_size(room),
        "HALF": room // 2,
        "SRCS": 8 * room,
        "SIZES": 16 * room,
        "FIRSTS": 24 * room,
        "NEXTS": 24 * room + 4,
    }
    source = _HEAD + (_ONLY if room == 1 else _SEARCH) + _BODY
    return re.sub(r"[A-Z]{4,}", lambda word: str(numbers[word[0]]), source).encode()
