"""What CuPy does in functions of torch's tensors.

On its own stream it would run while torch is captured, and once more in the eager run.
So its current stream is torch's meanwhile, where its kernels are captured among others.
What it allocates is no recording's, and refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import cupy

from sapwood.integrations.cupy.streams import stream_over
from sapwood.tree.watch.session import Session


class Guest:
    """CuPy in one warm-up or capture of a function of torch's."""

    def __init__(self) -> None:
        self._stream = cupy.cuda.get_current_stream()
        self._allocate = cupy.cuda.get_allocator()

    @contextmanager
    def watched(self, raw: int, watching: Session) -> Iterator[None]:
        """Have work go to a stream, by its number, and refuse what is allocated."""

        def allocate(size: int) -> Any:
            watching.refuse(
                "CuPy allocates in a function of torch's tensors",
                "Graph a function that computes with CuPy alone, or mark that part of "
                "this one with @sw.eager",
            )
            return self._allocate(size)

        with cupy.cuda.using_allocator(allocate), stream_over(raw):
            yield

    @contextmanager
    def resting(self) -> Iterator[None]:
        """Have all be as it was outside."""
        with cupy.cuda.using_allocator(self._allocate), self._stream:
            yield
