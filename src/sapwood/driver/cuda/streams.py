"""The streams of a GPU: those made here, and those of others that were adopted.

CUDA's default streams are numbers, which mean what the current context, or the thread,
makes of them. So theirs are small handles, used only where the context is current;
and a thread's own means, to all other threads, the one that all wait for.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import count
from typing import Any, Final

from sapwood.driver.api import StreamHandle
from sapwood.driver.cuda.bindings import Library
from sapwood.driver.handles import Table
from sapwood.driver.results import Refusal, Result

__all__ = ["Streams"]

_DEFAULT, _LEGACY, _PER_THREAD = 0, 1, 2
_NAMED: Final = 0x1000  # handles of default streams are below, the rest are addresses


class Streams(Table[StreamHandle, Any]):
    """What CUDA calls each stream.

    ``foreign`` ones are somebody else's, who may capture them, and of no context where
    they are default streams.
    """

    __slots__ = (
        "_device",
        "_legacy",
        "_library",
        "_mine",
        "_numbers",
        "_of_threads",
        "_per_thread",
        "foreign",
    )

    def __init__(self, library: Library, device: Any) -> None:
        super().__init__("stream")
        self._library, self._device = library, device
        self._legacy = library.cu.CUstream(_LEGACY)
        self._per_thread = library.cu.CUstream(_PER_THREAD)
        self.foreign: set[StreamHandle] = set()
        self._of_threads: set[StreamHandle] = set()
        self._mine = threading.local()
        self._numbers = count(_PER_THREAD)

    def find(self, handle: StreamHandle) -> Any:
        """Return what this thread calls a stream."""
        found = self.values.get(handle)
        return self._of_thread(handle) if found is None else found

    def take(self, handle: StreamHandle) -> Any:
        """Return what this thread calls a stream, and end the handle."""
        raw = self.find(handle)
        self.values.pop(handle, None)
        self._of_threads.discard(handle)
        self.foreign.discard(handle)
        return raw

    def adopt(self, raw: int) -> StreamHandle:
        """Return the handle of a stream by its CUstream."""
        if raw == _PER_THREAD:
            return self._adopt_per_thread()
        handle = StreamHandle(_DEFAULT if raw == _LEGACY else raw)
        if handle not in self.values:
            self.put(handle, self._legacy if handle == _DEFAULT else self._own(raw))
            self.foreign.add(handle)
        return handle

    def raw(self, handle: StreamHandle) -> int:
        """Return the CUstream of a stream."""
        return int(self.find(handle)) if handle else _DEFAULT

    def is_legacy(self, handle: StreamHandle) -> bool:
        """Return whether this is the default stream that nobody can capture."""
        return handle == _DEFAULT

    def all(self) -> Iterator[Any]:
        """Yield streams whose work together is all work."""
        yield from self.values.values()
        if self._of_threads:
            yield self._legacy

    def handles(self) -> list[StreamHandle]:
        """Return all handles."""
        return [*self.values, *self._of_threads]

    def __len__(self) -> int:
        return len(self.values) + len(self._of_threads)

    def _adopt_per_thread(self) -> StreamHandle:
        handle: StreamHandle | None = getattr(self._mine, "handle", None)
        if handle not in self._of_threads:
            handle = self._mine.handle = StreamHandle(next(self._numbers))
            self._of_threads.add(handle)
            self.foreign.add(handle)
        return handle

    def _own(self, raw: int) -> Any:
        """Return the stream at an address, if it is this GPU's."""
        if raw < _NAMED:
            raise Refusal(
                Result.INVALID_HANDLE,
                f"{raw:#x} is no stream: adopt a CUstream, which is an address, or 0, "
                "1 or 2 for the default ones",
            )
        stream = self._library.cu.CUstream(raw)
        device = self._library(self._library.cu.cuStreamGetDevice, stream)
        if int(device) != int(self._device):
            raise Refusal(
                Result.INVALID_VALUE,
                f"stream {raw:#x} is one of GPU {int(device)}, this is "
                f"{int(self._device)}: adopt it on its own",
            )
        return stream

    def _of_thread(self, handle: StreamHandle) -> Any:
        if handle not in self._of_threads:
            raise self._unknown(handle)
        mine = getattr(self._mine, "handle", None) == handle
        # The legacy stream waits for every thread's, and they for it.
        return self._per_thread if mine else self._legacy
