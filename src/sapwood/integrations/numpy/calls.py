"""The body of an elementwise ufunc call: ``dtype, casting, where, *inputs``.

Python numbers among the inputs are weak, as in NumPy: they take the type that the
arrays choose. Strides of results are NumPy's own, found without touching elements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Literal

import numpy as np

from sapwood.integrations.numpy.bodies import Body, Given, Values
from sapwood.integrations.numpy.layout import Array

Types = tuple[np.dtype[Any], ...]

_COMPARISONS: Final = frozenset(
    (np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal)
)

_EXTREMA: Final = frozenset((np.maximum, np.minimum))
"""For these, NumPy asks for outputs by keyword; for others that is slower."""


def call(ufunc: np.ufunc) -> Body:
    """Return the body of ``ufunc(*inputs, out=, where=, dtype=, casting=)``."""

    def results(
        given: Given, dtype: Any, casting: str | None, mask: Any, *ins: Any
    ) -> Sequence[Any]:
        types = _resolved(ufunc, given, dtype, casting, ins)
        _typed(ufunc, types, ins)
        arrays = [v for v in ins if isinstance(v, np.ndarray)]
        order = None if mask is not None else _trivial_order(types, ins)
        if order is not None and all(out is None for out in given):
            shape = next((a.shape for a in arrays if a.ndim), ())
            return [np.empty(shape, dtype, order) for dtype in types[ufunc.nin :]]
        arrays += [mask] if isinstance(mask, np.ndarray) else []
        return _iterated(arrays, given, types[ufunc.nin :])

    def bind(
        outs: Values, dtype: Any, casting: str | None, mask: Any, *ins: Any
    ) -> Callable[[], Any]:
        types = _resolved(ufunc, outs, dtype, casting, ins)
        options = {"dtype": dtype, "casting": casting, "where": mask}
        options = {name: v for name, v in options.items() if v is not None}
        operands = _typed(ufunc, types, ins)
        if ufunc in _EXTREMA:
            return partial(ufunc, *operands, out=outs, **options)
        return partial(ufunc, *operands, *outs, **options)

    return Body(results, bind)


def _resolved(
    ufunc: np.ufunc, outs: Given, dtype: Any, casting: Any, ins: Values
) -> Types:
    options: dict[str, Any] = {"casting": casting or "same_kind"}
    if dtype is not None:
        options["signature"] = (None,) * ufunc.nin + (dtype,) * ufunc.nout
    asked = [v.dtype if isinstance(v, np.ndarray) else _weak(v) for v in ins]
    asked += [None if v is None else v.dtype for v in outs]
    found: Types = ufunc.resolve_dtypes(tuple(asked), **options)
    return found


def _weak(value: complex) -> Any:
    return np.dtype(np.bool_) if isinstance(value, bool) else type(value)


def _typed(ufunc: np.ufunc, types: Types, ins: Values) -> list[Any]:
    typed = [
        v if isinstance(v, np.ndarray) else _constant(ufunc, v, to)
        for v, to in zip(ins, types, strict=False)
    ]
    if ufunc is np.power and types[0].kind in "iu" and _negative(ins[1]):
        raise ValueError("Integers to negative integer powers are not allowed.")
    return typed


def _negative(value: Any) -> bool:
    return np.ndim(value) == 0 and bool(value < 0)


def _constant(ufunc: np.ufunc, value: complex, dtype: np.dtype[Any]) -> Any:
    try:
        # An array of no dimensions is the cheapest operand for a ufunc.
        return np.array(value, dtype)
    except OverflowError:
        if ufunc in _COMPARISONS:
            return value
        raise


def _trivial_order(types: Types, ins: Values) -> Literal["C", "F"] | None:
    # Where all operands are laid out alike, NumPy takes a short cut whose results
    # differ from its iterator's in the strides of dimensions of length one.
    shaped = [(v, to) for v, to in zip(ins, types, strict=False) if np.ndim(v)]
    for array, to in shaped:
        ready = array.flags.aligned and array.dtype == to
        if array.shape != shaped[0][0].shape or not (ready or array.ndim == 1):
            return None
    if all(array.flags.c_contiguous for array, _ in shaped):
        return "C"
    return "F" if all(array.flags.f_contiguous for array, _ in shaped) else None


def _iterated(arrays: list[Array], given: Given, types: Types) -> Sequence[Any]:
    operands: list[Any] = [*arrays, *given]
    flags: list[Any] = [["readonly"]] * len(arrays)
    flags += [
        ["writeonly", "no_broadcast", *(["allocate"] if out is None else [])]
        for out in given
    ]
    dtypes: list[Any] = [None] * len(arrays)
    dtypes += [t if out is None else None for out, t in zip(given, types, strict=True)]
    walk = np.nditer(operands, ["zerosize_ok"], flags, dtypes)
    return walk.operands[len(arrays) :]
