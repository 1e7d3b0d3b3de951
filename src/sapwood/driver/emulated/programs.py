"""Programs: ops bound to what runs them, checked against the memory map.

Binding decodes everything once, so that a run only checks whether the memory map
is the one that was verified, and calls. Programs do not change: a changed parameter
makes another program, and launches already made keep theirs.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from sapwood.driver.api import CopiesOp, CopyOp, EmptyOp, KernelOp, SetOp
from sapwood.driver.check import check_op
from sapwood.driver.emulated.kernels import Kernel, Module
from sapwood.driver.emulated.memory import Memory
from sapwood.driver.results import Refusal, Result

__all__ = ["Program", "Step", "bind_kernel", "bind_plain"]

_UNVERIFIED = -1
_ROOM = 50  # frames


@dataclass(frozen=True, slots=True)
class Step:
    """One bound op: its call, the ``(lo, hi, writes)`` it touches, its module."""

    call: Callable[[], object]
    spans: tuple[tuple[int, int, bool], ...] = ()
    module: Module | None = None

    def verify(self, memory: Memory) -> None:
        """Refuse what may not run now."""
        if self.module is not None and not self.module.loaded:
            raise Refusal(
                Result.INVALID_HANDLE,
                "the kernel's module was unloaded: keep modules while work uses them",
            )
        for lo, hi, writes in self.spans:
            memory.check(lo, hi, writes)


class Program:
    """Steps and an order to run them in; calling it runs all."""

    __slots__ = ("calls", "memory", "order", "steps", "verified")

    def __init__(
        self, memory: Memory, steps: Sequence[Step], order: Sequence[int]
    ) -> None:
        self.memory, self.steps, self.order = memory, steps, order
        self.calls = tuple([steps[index].call for index in order])
        self.verified = _UNVERIFIED

    def __call__(self) -> None:
        if self.verified != self.memory.version:
            try:
                self._verify()
            except RecursionError:
                # A device has no stack of Python's, which a caller may have filled.
                limit = sys.getrecursionlimit()
                sys.setrecursionlimit(limit + _ROOM)
                try:
                    self._verify()
                finally:
                    sys.setrecursionlimit(limit)
        for call in self.calls:
            call()

    def _verify(self) -> None:
        self.verified = _UNVERIFIED
        for step in self.steps:
            step.verify(self.memory)
        self.verified = self.memory.version

    def ordered(self, order: Sequence[int]) -> Program:
        """Return the same steps in another order."""
        program = Program(self.memory, self.steps, order)
        program.verified = self.verified
        return program

    def replaced(self, index: int, step: Step) -> Program:
        """Return the program with another step at ``index``."""
        steps = list(self.steps)
        steps[index] = step
        program = Program(self.memory, steps, self.order)
        if self.verified == self.memory.version:
            try:
                step.verify(self.memory)
            except Refusal:
                return program  # a later launch says so, if it is still true then
            program.verified = self.verified
        return program


def bind_plain(op: CopyOp | CopiesOp | SetOp | EmptyOp) -> Step:
    """Bind an op that needs no kernel."""
    check_op(op)
    match op:
        case CopyOp(dst, src, size):
            spans = ((src, src + size, False), (dst, dst + size, True))
            return Step(partial(ctypes.memmove, dst, src, size), spans)
        case CopiesOp():
            return _bind_copies(op)
        case SetOp(dst, value, size):
            call = partial(ctypes.memset, dst, value, size)
            return Step(call, ((dst, dst + size, True),))
        case EmptyOp():
            return Step(_nothing)


def _bind_copies(op: CopiesOp) -> Step:
    """Bind copies, made in the order that nobody would think of: the last first."""
    copies = list(zip(op.dsts, op.srcs, op.sizes, strict=True))[::-1]
    calls = [partial(ctypes.memmove, *copy) for copy in copies]
    spans = [(src, src + size, False) for _, src, size in copies]
    spans += [(dst, dst + size, True) for dst, _, size in copies]
    return Step(lambda: [call() for call in calls], tuple(spans))


def bind_kernel(op: KernelOp, kernel: Kernel, module: Module) -> Step:
    """Bind a kernel to its parameters."""
    pointers = kernel.taken(kernel.pointers, op.params)
    call = kernel.taken(kernel.bind, op.params)
    spans = tuple([(each.lo, each.hi, each.writes) for each in pointers])
    return Step(call, spans, module)


def _nothing() -> None:
    pass
