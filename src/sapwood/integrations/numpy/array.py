"""`Array`: NumPy's interface over device memory.

Methods and operators are NumPy's functions, which come back here through
``__array_ufunc__`` and ``__array_function__``. Values leave only by host reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NoReturn, Self

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from sapwood.integrations.numpy.copies import (
    assign,
    converted,
    download,
    element,
    raveled,
    reshaped,
    write_element,
)
from sapwood.integrations.numpy.faced import Faced
from sapwood.integrations.numpy.functions import (
    call_function,
    call_ufunc,
    imaginary,
    power,
)
from sapwood.integrations.numpy.launch import mutate
from sapwood.tree.record.reading import TELL

_UNLIKE: Final = (type(None), str, bytes)
"""What no element of an array equals."""


def _method(function: Any) -> Callable[..., Any]:
    """Return a function of NumPy's as a method."""

    def call(self: Faced, *args: Any, **options: Any) -> Any:
        return function(self, *args, **options)

    call.__name__, call.__qualname__ = function.__name__, f"Array.{function.__name__}"
    call.__doc__ = f"Return ``numpy.{function.__name__}`` of this array."
    return call


class Array(Faced, NDArrayOperatorsMixin):
    """An array in device memory, with NumPy's interface.

    Views share a ``storage``. Equality is elementwise, hashing by identity.
    ``numpy.asarray(x)``, ``float(x)`` and printing read the values on the host, which
    a graphed function may not.
    """

    __slots__ = ()
    __array_priority__ = 1000
    __hash__ = object.__hash__

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any
    ) -> Any:
        return call_ufunc(ufunc, method, inputs, options)

    def __array_function__(
        self, function: Any, types: Any, args: Any, options: dict[str, Any]
    ) -> Any:
        return call_function(self, function, args, options)

    # Operators that are more than a ufunc.

    def __eq__(self, other: object) -> Any:
        if isinstance(other, _UNLIKE):
            return self._all(value=False)
        return super().__eq__(other)

    def __ne__(self, other: object) -> Any:
        if isinstance(other, _UNLIKE):
            return self._all(value=True)
        return super().__ne__(other)

    def _all(self, *, value: bool) -> Array:
        found: Any = super().__eq__(0)
        assign(found, value)
        return found  # type: ignore[no-any-return]

    def __pow__(self, exponent: Any) -> Array:
        return power(self, exponent)

    def __ipow__(self, exponent: Any) -> Self:
        return power(self, exponent, self)

    def __getitem__(self, index: Any) -> Array:
        return element(self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        write_element(self, index, value)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    def __iter__(self) -> Iterator[Array]:
        if not self.shape:
            raise TypeError("iteration over a 0-d array")
        return (self[place] for place in range(self.shape[0]))

    # Host reads.

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        if copy is False:
            raise ValueError(
                "the host cannot see device memory without a copy; leave copy=False "
                "away"
            )
        host = download(self, "numpy.asarray(x)")
        return host if dtype is None else host.astype(dtype, copy=False)

    def __float__(self) -> float:
        return float(download(self, "float(x)"))

    def __int__(self) -> int:
        return int(download(self, "int(x)"))

    def __bool__(self) -> bool:
        return bool(download(self, "bool(x)"))

    def __complex__(self) -> complex:
        return complex(download(self, "complex(x)"))

    def __index__(self) -> int:
        return download(self, "an index made of x").__index__()

    def __format__(self, spec: str) -> str:
        if not spec:
            return str(self)
        return format(download(self, "format(x)", TELL)[()], spec)

    def item(self, *index: Any) -> Any:
        """Return one element as a Python number."""
        return download(self, "x.item()").item(*index)

    def tobytes(self, order: Any = "C") -> bytes:
        """Return the bytes of all elements."""
        return download(self, "x.tobytes()").tobytes(order)

    def __contains__(self, value: object) -> bool:
        return value in download(self, "value in x")

    def tolist(self) -> Any:
        """Return the elements as nested lists of Python numbers."""
        return download(self, "x.tolist()").tolist()

    def __repr__(self) -> str:
        about = f"shape={self.shape}, dtype={self.dtype}"
        if self.storage.stale is not None:
            return f"sapwood.Array({about}, stale: {self.storage.stale})"
        host = download(self, "repr(x)", TELL)
        values = np.array2string(host, separator=", ", prefix="  ")
        return f"sapwood.Array({values}, dtype={self.dtype})"

    def __str__(self) -> str:
        if self.storage.stale is not None:
            return repr(self)
        return str(download(self, "str(x)", TELL))

    # Copies.

    def __copy__(self) -> Array:
        return converted(self)

    def __deepcopy__(self, _: Any) -> Array:
        return converted(self)

    def __reduce_ex__(self, _: Any) -> NoReturn:
        raise TypeError(
            "sapwood arrays cannot be pickled: pickle numpy.asarray(x), and bring it "
            "back with rt.array(...)"
        )

    def copy(self, order: Any = "C") -> Array:
        """Return a copy in new memory."""
        return converted(self, None, order)

    def astype(
        self,
        dtype: Any,
        order: Any = "K",
        casting: Any = "unsafe",
        subok: bool = True,  # noqa: ARG002 - NumPy's signature
        copy: bool = True,
    ) -> Array:
        """Return a copy with another dtype."""
        dtype = np.dtype(dtype)
        if not np.can_cast(self.dtype, dtype, casting):
            raise TypeError(
                f"Cannot cast array data from {self.dtype!r} to {dtype!r} according "
                f"to the rule {casting!r}"
            )
        if not copy and dtype == self.dtype and order == "K":
            return self
        return converted(self, dtype, order)

    def fill(self, value: Any) -> None:
        """Set every element to ``value``."""
        assign(self, value)

    # Views.

    @property
    def T(self) -> Array:  # noqa: N802 - NumPy's name
        """The array with its dimensions in reverse order."""
        return self.seen(self.face.T)

    @property
    def mT(self) -> Array:  # noqa: N802 - NumPy's name
        """The array with its last two dimensions swapped."""
        return self.seen(self.face.mT)

    @property
    def real(self) -> Array:
        """The real part, a view."""
        return self.seen(self.face.real)

    @real.setter
    def real(self, value: Any) -> None:
        """Write the real part."""
        assign(self.real, value)

    @property
    def imag(self) -> Array:
        """The imaginary part: a view of complex arrays, zeros of others."""
        return imaginary(self)

    @imag.setter
    def imag(self, value: Any) -> None:
        """Write the imaginary part of a complex array."""
        if self.dtype.kind != "c":
            raise TypeError("cannot set imaginary part of real array")
        assign(self.imag, value)

    def view(self, dtype: Any = None) -> Array:
        """Return the same bytes as another dtype."""
        return self.seen(self.face.view() if dtype is None else self.face.view(dtype))

    def reshape(self, *shape: Any, order: Any = "C") -> Array:
        """Return the elements in another shape, a view where possible."""
        return reshaped(self, shape[0] if len(shape) == 1 else shape, order)

    def ravel(self, order: Any = "C") -> Array:
        """Return the elements in one dimension, a view where possible."""
        return raveled(self, order)

    def flatten(self, order: Any = "C") -> Array:
        """Return a copy of the elements in one dimension."""
        return raveled(self, order, copy=True)

    def transpose(self, *axes: Any) -> Array:
        """Return the dimensions in another order."""
        return self.seen(self.face.transpose(*axes))

    def swapaxes(self, axis1: int, axis2: int) -> Array:
        """Return two dimensions swapped."""
        return self.seen(self.face.swapaxes(axis1, axis2))

    def squeeze(self, axis: Any = None) -> Array:
        """Return the array without dimensions of length one."""
        return self.seen(self.face.squeeze(axis))

    def diagonal(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Array:
        """Return a diagonal, a read-only view."""
        return self.seen(self.face.diagonal(offset, axis1, axis2))

    def conj(self) -> Array:
        """Return the complex conjugate; an array that is not complex itself."""
        if self.dtype.kind != "c":
            return self
        conjugate: Array = np.conjugate(self)  # type: ignore[assignment]
        return conjugate

    conjugate = conj

    # In place.

    def sort(self, axis: int = -1, kind: Any = None) -> None:
        """Sort the elements along an axis, in place."""
        mutate("sort", self, ((axis, kind), ()))

    def partition(self, kth: Any, axis: int = -1, kind: Any = "introselect") -> None:
        """Have the elements ``kth`` along an axis be where sorting puts them."""
        kth = tuple(kth) if isinstance(kth, list) else kth
        mutate("partition", self, ((kth, axis, kind), ()))


_METHODS: Final = (
    *(np.all, np.any, np.argmax, np.argmin, np.argpartition, np.argsort, np.choose),
    *(np.clip, np.cumprod, np.cumsum, np.dot, np.max, np.mean, np.min, np.nonzero),
    *(np.prod, np.put, np.repeat, np.round, np.searchsorted, np.std, np.sum, np.take),
    *(np.trace, np.var),
)
"""NumPy's functions that are methods."""

for _function in _METHODS:
    setattr(Array, _function.__name__, _method(_function))
