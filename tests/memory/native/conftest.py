"""Ranges that C serves, called as a library would call them: by function pointer."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import pytest

from sapwood.memory.native import Segments, open_segments

MIB = 1 << 20
SERVE = ctypes.CFUNCTYPE(
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p
)
TAKE_BACK = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p
)


@dataclass(frozen=True)
class Caller:
    """A library that was handed the two functions of a range."""

    segments: Segments

    def serve(self, size: int, stream: int = 0, device: int = 0) -> int | None:
        return SERVE(self.segments.serve)(size, device, stream)

    def take_back(self, address: int, size: int = 1, stream: int = 0) -> None:
        TAKE_BACK(self.segments.take_back)(address, size, 0, stream)


@pytest.fixture
def opened():
    """Open ranges that are given back whole at the end."""
    callers: list[Caller] = []

    def open_range(pages: int, base: int = 1 << 40, **options) -> Caller:
        segments = open_segments(base, pages * 2 * MIB, **options)
        callers.append(Caller(segments))
        return callers[-1]

    yield open_range
    for caller in callers:
        if not caller.segments.closed:
            assert caller.segments.counters().held == 0
            caller.segments.close()
