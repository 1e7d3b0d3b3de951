"""What NumPy's ufuncs do with device arrays: `call_ufunc`, for `__array_ufunc__`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from sapwood.integrations.numpy.copies import constant, source
from sapwood.integrations.numpy.faced import A, Faced
from sapwood.integrations.numpy.indexing import index_items
from sapwood.integrations.numpy.kernels import UFUNCS
from sapwood.integrations.numpy.launch import arrays_in, made, mutate

PRODUCTS: Final = frozenset(u for u in UFUNCS.values() if u.signature)
OPTIONS: Final = frozenset(("axes", "axis", "initial", "keepdims"))


def reduced(x: A, ufunc: np.ufunc, axis: Any, **options: Any) -> A:
    """Return ``ufunc.reduce(x, axis, ...)``; ``axis`` None means all.

    NumPy's own ``ufunc.reduce`` keeps its arguments for ever where we refuse them.
    """
    options |= {"axis": axis, "out": (options.pop("out", None),)}
    found: A = call_ufunc(ufunc, "reduce", (x,), options)
    return found


def unsupported(what: str, hint: str) -> TypeError:
    """Return the error for a NumPy function that device arrays do not have."""
    return TypeError(f"sapwood arrays do not support numpy.{what}; {hint}")


def call_ufunc(
    ufunc: np.ufunc, method: str, inputs: Sequence[Any], options: dict[str, Any]
) -> Any:
    """Run a method of ``ufunc`` on the device and return its outputs.

    Results equal NumPy's in values, dtype, shape and strides. Raises `TypeError` for
    ufuncs, options and operands that are not supported.
    """
    name = ufunc.__name__
    if UFUNCS.get(name) is not ufunc:
        raise unsupported(name, "compute it on numpy.asarray(x), outside graphs")
    outs = options.pop("out", None) or (None,) * ufunc.nout
    if any(not isinstance(out, Faced | None) for out in outs):
        raise TypeError(
            f"numpy.{name} of a sapwood array cannot write into a host array; leave "
            "out= away and read the result with numpy.asarray"
        )
    _drop_defaults(options)
    if method == "at":
        return _at(ufunc, inputs)
    if method == "outer":
        return elementwise(ufunc, _crossed(ufunc, *inputs), outs, **options)
    if method == "__call__" and ufunc not in PRODUCTS:
        return elementwise(ufunc, inputs, outs, **options)
    kernel = f"{'call' if method == '__call__' else method}:{name}"
    if method == "reduceat":
        operands = (constant(inputs[0], name), *index_items(inputs[1]))
    else:
        operands = tuple([constant(value, name) for value in inputs])
    return _filled(kernel, operands, outs, options)


def _crossed(ufunc: np.ufunc, *inputs: Any) -> tuple[Any, Any]:
    first, second = (constant(value, f"{ufunc.__name__}.outer") for value in inputs)
    if isinstance(first, Faced) and isinstance(second, Faced):
        first = first.seen(first.face[(..., *(None,) * second.ndim)])
    return first, second


def _drop_defaults(options: dict[str, Any]) -> None:
    defaults = {"order": "K", "subok": True, "where": True}
    for option, default in defaults.items():
        value = options.get(option)
        if isinstance(value, (bool, str)) and value == default:
            del options[option]


def elementwise(
    ufunc: np.ufunc,
    inputs: Sequence[Any],
    outs: Sequence[Any] | None = None,
    *,
    where: Any = None,
    dtype: Any = None,
    casting: str | None = None,
    **others: Any,
) -> Any:
    """Run ``ufunc`` element by element, into new arrays where ``outs`` has None."""
    name = ufunc.__name__
    if others:
        raise unsupported(f"{name}({next(iter(others))}=...)", "leave the option away")
    outs = outs or (None,) * ufunc.nout
    operands = tuple([constant(value, name) for value in inputs])
    mask = where if where is None else constant(where, name)
    dtype = dtype if dtype is None else np.dtype(dtype)
    like = next(arrays_in((*operands, *outs, mask)))
    found = made(like, f"call:{name}", (dtype, casting, mask, *operands), outs)
    return found[0] if ufunc.nout == 1 else found


def _filled(
    kernel: str, operands: tuple[Any, ...], outs: Sequence[Any], options: dict[str, Any]
) -> Faced:
    dtype = options.pop("dtype", None)
    if dtype is not None:
        options["dtype"] = np.dtype(dtype)
    like: Faced = next(arrays_in((*operands, *outs)))
    found: Faced = made(like, kernel, (operands, tuple(options.items())), outs)[0]
    return found


def _at(ufunc: np.ufunc, inputs: Sequence[Any]) -> None:
    target, index, *values = inputs
    if not isinstance(target, Faced):
        raise TypeError(
            f"numpy.{ufunc.__name__}.at cannot write into a host array; bring it to "
            "the device with rt.array(...) first"
        )
    operands = tuple(source(target, value, f"{ufunc.__name__}.at") for value in values)
    mutate(f"at:{ufunc.__name__}", target, ((index_items(index), *operands), ()))


def power(base: A, exponent: Any, out: A | None = None) -> A:
    """Return ``base ** exponent`` with the short cuts that NumPy's operator takes."""
    inexact = base.dtype.kind in "fc"
    short: np.ufunc | None = None
    if type(exponent) is int and exponent == 2:
        short = np.square
    elif type(exponent) is int and exponent == -1 and inexact:
        short = np.reciprocal
    elif type(exponent) is float and exponent == 0.5 and inexact:
        short = np.sqrt
    inputs = (base, exponent) if short is None else (base,)
    found: A = elementwise(short or np.power, inputs, (out,))
    return found
