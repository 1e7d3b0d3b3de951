"""A graph that a framework has captured by itself, run as it is.

Nothing in it is taken apart. What is copied in and back for a call stands around it,
in the same graph; the framework makes that launchable, and keeps it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from sapwood.driver.api import Driver, GraphHandle, StreamHandle
from sapwood.driver.release import Release
from sapwood.errors import CaptureError
from sapwood.graphs.exec import Exec, Lent, Staged, surround
from sapwood.memory.fold import Life
from sapwood.memory.storage import Storage
from sapwood.units import Addr, Size


class Owner(Protocol):
    """One capture of a framework that captures by itself."""

    @property
    def launches(self) -> bool:
        """Whether only `launch` does all that a replay is."""

    @property
    def short(self) -> bool:
        """Whether there was less room than has been asked for so far."""

    def holding(self, arrays: Sequence[Any]) -> AbstractContextManager[object]:
        """Return a context after which arrays have the memory that they have now.

        Whatever has become of them inside is told by `refusal`.
        """

    def follow(self, stages: Sequence[Storage]) -> None:
        """Note when these stages of inputs are used last, if that can be known."""

    def begin(self) -> None:
        """Begin to capture this thread's work, and to allocate from the range."""

    def end(self) -> int:
        """End the capture; return what its graph is called.

        Raises `DriverError` where it was spoilt.
        """

    def returned(self, result: Any) -> None:
        """Note what the function returned, which says more than its memory."""

    def abandon(self) -> None:
        """End a capture that nobody wants; raises nothing that is not a bug."""

    def lives(self, stages: Sequence[Storage]) -> list[Life]:
        """Return when what was allocated was in use, by the order of the capture.

        All addresses that were served to the framework's allocator are in it. So are
        the stages, which are in use from the beginning, unless all are to the end.
        """

    def survivors(self) -> list[tuple[Addr, Size]]:
        """Return the allocations of the capture that are alive."""

    def refusal(self, result: Any, arrays: Sequence[Any]) -> CaptureError | None:
        """Return why no replay could do what was done with arrays, for a result."""

    def instantiate(self) -> int:
        """Make the graph launchable; return what that is called."""

    def launch(self) -> None:
        """Launch on the framework's current stream."""

    def close(self) -> None:
        """Let go of the graph, and of what its capture has allocated."""


class Adopted(Exec):
    """An adopted graph, made launchable with staged places copied around it.

    ``code`` is what its ops are of, which nobody else may keep.
    """

    def __init__(
        self,
        driver: Driver,
        graph: GraphHandle,
        addresses: Sequence[Addr],
        staged: Sequence[Staged],
        owner: Owner,
        code: tuple[object, ...] = (),
    ) -> None:
        copies = surround(driver, graph, addresses, staged)
        handle = driver.adopt_exec(graph, owner.instantiate())
        super().__init__(driver, handle, addresses, copies)
        self.owner, self.code = owner, code

    def _start(self, stream: StreamHandle) -> None:
        if self.owner.launches:
            self.owner.launch()
        else:
            super()._start(stream)

    def lend(self) -> Lent | None:
        """Let C aim and launch it, too; its owner launches it where only that can."""
        lent, launch = super().lend(), self.owner.launch
        return lent._replace(launch=launch) if lent and self.owner.launches else lent

    def close(self) -> None:
        """Forget what was instantiated, and have its owner let go."""
        with Release() as release:
            release(super().close)
            release(self.owner.close)
