"""A layer that knows what is mapped where, and can make a large device small."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar, cast

from sapwood.allocator.caching.validate import Mapped
from sapwood.driver.api import Driver, ExtentHandle, MemoryInfo
from sapwood.driver.layers import Layer
from sapwood.errors import OutOfMemory
from sapwood.units import Addr, Size

__all__ = ["Atlas"]

R = TypeVar("R")


class Atlas(Layer):
    """Remembers physical memory and where it is mapped, for `validate`.

    With ``total``, the device has no more bytes than that for what is created through
    this layer, and nobody else uses any.
    """

    def __init__(self, driver: Driver, total: Size | None = None) -> None:
        super().__init__(driver)
        self._total = total
        self._lock = threading.Lock()
        self._sizes: dict[ExtentHandle, Size] = {}
        self._held: set[ExtentHandle] = set()
        self._at: dict[Addr, ExtentHandle] = {}

    def mapped(self) -> list[Mapped]:
        """Return everything that is mapped, in no order."""
        with self._lock:
            return [Mapped(at, self._sizes[e], e) for at, e in self._at.items()]

    def used(self) -> Size:
        """Return the bytes of what was created and is needed still, each once."""
        with self._lock:
            return Size(self._used())

    def around(self, name: str, call: Callable[..., R], args: tuple[Any, ...]) -> R:
        """Make the call, and note what it gave or took."""
        if name not in {"create", "map", "memory_info", "release", "unmap"}:
            return call(*args)
        with self._lock:
            if name == "create":
                self._refuse_more(args[0])
            try:
                result: Any = call(*args)
            except Exception:
                if name in {"release", "unmap"}:
                    self._note(name, args, None)
                raise
            self._note(name, args, result)
            if name == "memory_info" and self._total is not None:
                result = MemoryInfo(Size(self._total - self._used()), self._total)
            return cast("R", result)

    def _refuse_more(self, size: Size) -> None:
        if self._total is not None and self._used() + size > self._total:
            free = self._total - self._used()
            raise OutOfMemory("create", asked=size, free=free)

    def _note(self, name: str, args: tuple[Any, ...], result: Any) -> None:
        if name == "create":
            self._sizes[result] = args[0]
            self._held.add(result)
        elif name == "release":
            self._held.discard(args[0])
        elif name == "map":
            self._at[args[0]] = args[1]
        elif name == "unmap":
            lo, hi = args[0], args[0] + args[1]
            for address in [at for at in self._at if lo <= at < hi]:
                del self._at[address]
        needed = self._held | set(self._at.values())
        for extent in self._sizes.keys() - needed:
            del self._sizes[extent]

    def _used(self) -> int:
        return sum(self._sizes.values())
