"""A device that cannot tell addresses from numbers, as GPUs cannot, made of any.

What moves is copied there, as on a GPU.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, TypeVar, cast

from sapwood.driver.api import Abilities, Driver, FunctionHandle, Pointer
from sapwood.driver.layers import Layer
from sapwood.units import Addr, Size

__all__ = ["Inexact"]

R = TypeVar("R")

_WORD: Final = struct.Struct("<Q")


class Inexact(Layer):
    """Takes every word for an address that lies in memory which is mapped."""

    def __init__(self, driver: Driver) -> None:
        super().__init__(driver)
        self._pages: set[int] = set()

    @property
    def abilities(self) -> Abilities:
        """What the device is and can do, but for that."""
        return replace(self.driver.abilities, exact_addresses=False)

    def around(self, name: str, call: Callable[..., R], args: tuple[Any, ...]) -> R:
        """Make a call, and note what it maps."""
        if name == "pointers":
            return cast("R", self._suspects(*args))
        result = call(*args)
        if name == "set_access":
            self._pages.update(self._numbers(*args[:2]))
        elif name == "unmap":
            self._pages.difference_update(self._numbers(*args))
        return result

    def _numbers(self, address: Addr, size: Size) -> range:
        page = self.driver.abilities.page
        return range(address // page, (address + size) // page)

    def _suspects(
        self, function: FunctionHandle, params: bytes
    ) -> tuple[Pointer, ...] | None:
        exact = self.driver.pointers(function, params)
        if exact is None:
            return None
        offsets = {pointer.offset for pointer in exact if pointer.lo < pointer.hi}
        offsets.update(range(0, len(params) - _WORD.size + 1, _WORD.size))
        words = [(at, *_WORD.unpack_from(params, at)) for at in sorted(offsets)]
        return tuple(
            Pointer(at, Addr(word), Addr(word + 1), writes=True, exact=False)
            for at, word in words
            if word // self.driver.abilities.page in self._pages
        )
