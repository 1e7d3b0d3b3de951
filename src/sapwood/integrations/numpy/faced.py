"""Bytes of device memory seen as an array, before any arithmetic.

The face is a `numpy.ndarray` over the device addresses. Work on the device runs when
its stream comes to it, so the host neither reads nor writes through the face: it only
asks it for shape, strides and dtype, and lets NumPy make views of it.
"""

from __future__ import annotations

from typing import Any, NoReturn, Self, TypeVar

import numpy as np

from sapwood.integrations.numpy import layout as layouts
from sapwood.integrations.strided import Layout
from sapwood.memory.device import Device
from sapwood.memory.storage import Storage
from sapwood.units import Addr

A = TypeVar("A", bound="Faced")


class Flags:
    """NumPy's flags of an array, to be read: an array looks as it does while it lives.

    Faces are shared by arrays at one address, and recordings go by what they look like.
    """

    __slots__ = ("_flags",)

    def __init__(self, flags: Any) -> None:
        object.__setattr__(self, "_flags", flags)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._flags, name)

    def __getitem__(self, name: str) -> Any:
        return self._flags[name]

    def __setattr__(self, name: str, value: object) -> NoReturn:
        _refuse(name)

    def __setitem__(self, name: str, value: object) -> NoReturn:
        _refuse(name)

    def __eq__(self, other: object) -> Any:
        return self._flags == (other._flags if isinstance(other, Flags) else other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self._flags)


def _refuse(name: str) -> NoReturn:
    raise AttributeError(
        f"the flag {name} of a sapwood array cannot be set; for a view that is "
        "read-only, use np.broadcast_to(x, x.shape)"
    )


class Faced:
    """A storage, and where in it the elements of an array lie.

    The ``face`` of its ``layout`` and ``address`` is made once somebody asks for it.
    """

    __slots__ = ("__weakref__", "_face", "address", "device", "layout", "storage")

    def __init__(
        self,
        storage: Storage,
        device: Device,
        layout: Layout,
        address: int,
        face: layouts.Array | None = None,
    ) -> None:
        self.storage = storage
        self.device = device
        self.layout = layout
        self.address = address
        self._face = face

    @property
    def face(self) -> layouts.Array:
        """NumPy's array over the addresses, neither read nor written."""
        face = self._face
        if face is None:
            face = self._face = layouts.array_at(self.address, self.layout)
        return face

    def seen(self, face: layouts.Array) -> Self:
        """Return a view: the same storage under a face made from this one's."""
        layout, address = layouts.layout_of(face), layouts.address_of(face)
        return type(self)(self.storage, self.device, layout, address, face)

    @property
    def span(self) -> tuple[Addr, Addr]:
        """The bytes ``[lo, hi)`` that the elements lie in."""
        low, high = self.layout.extent
        return Addr(self.address + low), Addr(self.address + high)

    @property
    def shape(self) -> tuple[int, ...]:
        """The length of every dimension."""
        return self.layout[0]

    @property
    def strides(self) -> tuple[int, ...]:
        """The bytes from one element to the next, for every dimension."""
        return self.layout[1]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the elements."""
        return self.face.dtype

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.layout[0])

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.face.size

    @property
    def itemsize(self) -> int:
        """The bytes of one element."""
        return self.face.itemsize

    @property
    def nbytes(self) -> int:
        """The bytes of all elements."""
        return self.face.nbytes

    @property
    def flags(self) -> Flags:
        """NumPy's memory flags, such as ``c_contiguous`` and ``writeable``."""
        return Flags(self.face.flags)
