"""Dispatch modes of torch's that begin and end on many threads at once.

Torch notes, for all threads together, whether a mode is on under which nothing may be
compiled, and has each mode put back what was noted when it began. Where modes of two
threads end in another order than they began in, such a note stays for ever; and where a
mode of ours then takes it for its own thread, all compiled code that runs under it is
compiled anew in each call.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from torch._C._dynamo.guards import set_is_in_mode_without_ignore_compile_internals
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode_stack,
    _pop_mode,
    _push_mode,
)


class Mode(TorchDispatchMode):  # type: ignore[misc]
    """A dispatch mode of which only its own thread is told."""

    def __enter__(self) -> Self:
        """Begin to be told of operations."""
        _push_mode(self)
        _note()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Be told no more."""
        _pop_mode()
        _note()


def _note() -> None:
    """Have torch know whether anything may be compiled on this thread."""
    modes = _get_current_dispatch_mode_stack()
    set_is_in_mode_without_ignore_compile_internals(
        not all(each.ignore_compile_internals() for each in modes)
    )
