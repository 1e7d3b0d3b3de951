"""A graph that a framework has captured by itself, run as it is.

Nothing in it is taken apart. What is copied in and back for a call stands around it,
in the same graph; the framework makes that launchable, and keeps it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from sapwood.driver.api import CopyOp, Driver, FunctionHandle, GraphHandle, StreamHandle
from sapwood.driver.release import Release
from sapwood.errors import CaptureError, InternalError
from sapwood.graphs.exec import Copies, Exec, Staged
from sapwood.graphs.recording import Recording
from sapwood.units import Addr, Size

__all__ = ["Adopted", "Owner", "adopt"]


class Owner(Protocol):
    """One capture of a framework that captures by itself."""

    @property
    def launches(self) -> bool:
        """Whether only `launch` does all that a replay is."""
        ...

    def begin(self) -> None:
        """Begin to capture this thread's work, and to allocate from the range."""

    def end(self) -> int:
        """End the capture; return what its graph is called.

        Raises `DriverError` where it was spoilt.
        """
        ...

    def abandon(self) -> None:
        """End a capture that nobody wants; raises nothing that is not a bug."""

    def spans(self) -> list[tuple[Addr, Addr]]:
        """Return the addresses that were served to the framework's allocator."""
        ...

    def survivors(self) -> list[tuple[Addr, Size]]:
        """Return the allocations of the capture that are alive."""
        ...

    def refusal(self, result: Any, arrays: Sequence[Any]) -> CaptureError | None:
        """Return why no replay could do what was done with arrays, for a result."""
        ...

    def instantiate(self) -> int:
        """Make the graph launchable; return what that is called."""
        ...

    def launch(self) -> None:
        """Launch on the framework's current stream."""

    def close(self) -> None:
        """Let go of the graph, and of what its capture has allocated."""


class Adopted(Exec):
    """An adopted graph that can be launched; made by `adopt`."""

    def __init__(
        self,
        driver: Driver,
        graph: GraphHandle,
        recording: Recording,
        addresses: list[Addr],
        copies: Sequence[Copies],
        owner: Owner,
    ) -> None:
        handle = driver.adopt_exec(graph, owner.instantiate())
        super().__init__(
            driver, handle, recording, addresses, (), copies, _no_functions
        )
        self.owner = owner

    def launch(self, stream: StreamHandle) -> None:
        """Run all ops, in stream order."""
        if self.owner.launches:
            self.owner.launch()
        else:
            super().launch(stream)

    def close(self) -> None:
        """Forget what was instantiated, and have its owner let go."""
        with Release() as release:
            release(super().close)
            release(self.owner.close)


def _no_functions(image: bytes, name: str) -> FunctionHandle:
    raise InternalError(f"an adopted graph is not patched, but {name} {image!r} is")


def adopt(
    driver: Driver,
    graph: GraphHandle,
    recording: Recording,
    addresses: Sequence[Addr],
    staged: Sequence[Staged],
    owner: Owner,
) -> Adopted:
    """Make an adopted graph launchable, staged places copied around it.

    ``recording`` tells what it uses.
    """
    sources = [addresses[place.symbol] for place in staged]
    pairs = list(zip(staged, sources, strict=True))
    backs = [pair for pair in pairs if pair[0].back]
    first, last = driver.surround(
        graph,
        tuple(CopyOp(place.address, at, place.size) for place, at in pairs),
        tuple(CopyOp(at, place.address, place.size) for place, at in backs),
    )
    back = {place.symbol: node for (place, _), node in zip(backs, last, strict=True)}
    copies = [
        Copies(place, node, back.get(place.symbol))
        for place, node in zip(staged, first, strict=True)
    ]
    return Adopted(driver, graph, recording, list(addresses), copies, owner)
