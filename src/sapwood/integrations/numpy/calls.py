"""The body of an elementwise ufunc call: ``dtype, casting, where, *inputs``.

Python numbers among the inputs are weak, as in NumPy: they take the type that the
arrays choose. Strides of results are NumPy's own, found without touching elements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import numpy as np

from sapwood.integrations.numpy.bodies import Body, Given, Values
from sapwood.integrations.numpy.layout import Array

__all__ = ["call"]

Types = tuple[np.dtype[Any], ...]

COMPARISONS: Final = frozenset(
    (np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal)
)


def call(ufunc: np.ufunc) -> Body:
    """Return the body of ``ufunc(*inputs, out=, where=, dtype=, casting=)``."""

    def results(
        given: Given, dtype: Any, casting: str | None, mask: Any, *ins: Any
    ) -> Sequence[Any]:
        types = _resolved(ufunc, given, dtype, casting, ins)
        _typed(ufunc, types, ins)
        arrays = [v for v in ins if isinstance(v, np.ndarray)]
        if mask is None and any(g is None for g in given):
            order = _trivial_order(arrays, types)
            if order is not None:
                shape = next((a.shape for a in arrays if a.ndim), ())
                made = [np.empty(shape, t, order) for t in types[ufunc.nin :]]
                return [m if g is None else g for m, g in zip(made, given, strict=True)]
        arrays += [mask] if isinstance(mask, np.ndarray) else []
        return _iterated(arrays, given, types[ufunc.nin :])

    def bind(
        outs: Values, dtype: Any, casting: str | None, mask: Any, *ins: Any
    ) -> Callable[[], Any]:
        types = _resolved(ufunc, outs, dtype, casting, ins)
        options = {"dtype": dtype, "casting": casting, "where": mask}
        options = {name: v for name, v in options.items() if v is not None}
        return partial(ufunc, *_typed(ufunc, types, ins), *outs, **options)

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
    if ufunc is np.power and types[0].kind in "iu" and _negative(ins[1]):
        raise ValueError("Integers to negative integer powers are not allowed.")
    return [
        v if isinstance(v, np.ndarray) else _constant(ufunc, v, to)
        for v, to in zip(ins, types, strict=False)
    ]


def _negative(value: Any) -> bool:
    return np.ndim(value) == 0 and bool(value < 0)


def _constant(ufunc: np.ufunc, value: complex, dtype: np.dtype[Any]) -> Any:
    try:
        # An array of no dimensions is the cheapest operand for a ufunc.
        return np.array(value, dtype)
    except OverflowError:
        if ufunc in COMPARISONS:
            return value
        raise


def _trivial_order(arrays: list[Array], types: Types) -> str | None:
    # Where all operands are laid out alike, NumPy takes a short cut whose results
    # differ from its iterator's in the strides of dimensions of length one.
    shaped = [a for a in arrays if a.ndim]
    if any(a.shape != shaped[0].shape for a in shaped):
        return None
    for order, flag in (("C", "C_CONTIGUOUS"), ("F", "F_CONTIGUOUS")):
        if all(a.flags[flag] for a in shaped):
            return order
    return None


def _iterated(arrays: list[Array], given: Given, types: Types) -> Sequence[Any]:
    new = ["writeonly", "allocate", "no_broadcast"]
    old = ["writeonly", "no_broadcast"]
    walk: Any = np.nditer(
        [*arrays, *given],
        ["zerosize_ok"],
        [["readonly"]] * len(arrays) + [new if g is None else old for g in given],
        [None] * len(arrays)
        + [t if g is None else None for g, t in zip(given, types, strict=True)],
    )
    return tuple(walk.operands[len(arrays) :])
