"""What NumPy does with device arrays: `call_ufunc` and `call_function`.

These are for `__array_ufunc__` and `__array_function__`.

Every supported function is in one table; all others raise a `TypeError` that names
them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import signature
from types import FunctionType
from typing import Any, Final

import numpy as np

from sapwood.integrations.numpy.bodies import several, together
from sapwood.integrations.numpy.copies import (
    CREATORS,
    LIKES,
    assign,
    constant,
    converted,
    download,
    filled,
    from_host,
    index_items,
    raveled,
    reshaped,
    source,
)
from sapwood.integrations.numpy.faced import A, Faced
from sapwood.integrations.numpy.kernels import (
    COPYING,
    ESTIMATES,
    FILLING,
    LINALG,
    SOLVING,
    SUMMARIES,
    UFUNCS,
    WRITING,
)
from sapwood.integrations.numpy.launch import arrays_in, given_as, made, mutate

_PRODUCTS: Final = frozenset(u for u in UFUNCS.values() if u.signature)
_DEFAULTS: Final = {"order": "K", "subok": True, "where": True}
"""Options of ufuncs that may as well be left away."""


def _reduced(x: A, ufunc: np.ufunc, axis: Any, **options: Any) -> A:
    """Return ``ufunc.reduce(x, axis, ...)``; ``axis`` None means all.

    NumPy's own ``ufunc.reduce`` keeps its arguments for ever where we refuse them.
    """
    options |= {"axis": axis, "out": (options.pop("out", None),)}
    found: A = call_ufunc(ufunc, "reduce", (x,), options)
    return found


def _unsupported(what: str, hint: str) -> TypeError:
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
        raise _unsupported(name, "compute it on numpy.asarray(x), outside graphs")
    outs = options.pop("out", None) or (None,) * ufunc.nout
    if any(not isinstance(out, Faced | None) for out in outs):
        raise TypeError(
            f"numpy.{name} of a sapwood array cannot write into a host array; leave "
            "out= away and read the result with numpy.asarray"
        )
    for option, default in _DEFAULTS.items():
        value = options.get(option)
        if isinstance(value, (bool, str)) and value == default:
            del options[option]
    if method == "at":
        return _at(ufunc, inputs)
    if method == "outer":
        return _elementwise(ufunc, _crossed(ufunc, *inputs), outs, **options)
    if method == "__call__" and ufunc not in _PRODUCTS:
        return _elementwise(ufunc, inputs, outs, **options)
    kernel = f"{'call' if method == '__call__' else method}:{name}"
    if method == "reduceat":
        operands = (constant(inputs[0], name), *index_items(inputs[1]))
    else:
        operands = tuple([constant(value, name) for value in inputs])
    if options.get("dtype") is not None:
        options["dtype"] = np.dtype(options["dtype"])
    like = next(arrays_in((*operands, *outs)))
    return made(like, kernel, (operands, tuple(options.items())), outs)[0]


def _crossed(ufunc: np.ufunc, *inputs: Any) -> tuple[Any, Any]:
    first, second = (constant(value, f"{ufunc.__name__}.outer") for value in inputs)
    if isinstance(first, Faced) and isinstance(second, Faced):
        first = first.seen(first.face[(..., *(None,) * second.ndim)])
    return first, second


def _elementwise(
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
        raise _unsupported(f"{name}({next(iter(others))}=...)", "leave the option away")
    outs = outs or (None,) * ufunc.nout
    operands = tuple([constant(value, name) for value in inputs])
    mask = where if where is None else constant(where, name)
    dtype = dtype if dtype is None else np.dtype(dtype)
    like = next(arrays_in((*operands, *outs, mask)))
    found = made(like, f"call:{name}", (dtype, casting, mask, *operands), outs)
    return found[0] if ufunc.nout == 1 else found


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
    found: A = _elementwise(short or np.power, inputs, (out,))
    return found


VIEWS: Final[tuple[Callable[..., Any], ...]] = (
    *(np.atleast_1d, np.atleast_2d, np.atleast_3d, np.expand_dims, np.squeeze),
    *(np.broadcast_arrays, np.broadcast_to, np.diagonal, np.real),
    *(np.flip, np.fliplr, np.flipud, np.rot90, np.moveaxis, np.rollaxis),
    *(np.matrix_transpose, np.swapaxes, np.transpose),
    *(np.linalg.diagonal, np.linalg.matrix_transpose),
    np.lib.stride_tricks.sliding_window_view,
    *(np.array_split, np.dsplit, np.hsplit, np.split, np.unstack, np.vsplit),
)
"""Functions that make views of their first argument without reading elements."""


def viewed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``function`` for device arrays: NumPy's own, on the faces."""

    def view(*arrays: Any, **options: Any) -> Any:
        first = next(array for array in arrays if isinstance(array, Faced))
        if function is np.flip and first.ndim == 0:
            return first.seen(first.face.view())
        faces = [a.face if isinstance(a, Faced) else a for a in arrays]
        found = function(*faces, **options)
        if isinstance(found, np.ndarray):
            return first.seen(found)
        alone = sum(isinstance(array, Faced) for array in arrays) == 1
        if function is not np.broadcast_arrays and alone:
            return type(found)(first.seen(face) for face in found)
        pairs = zip(arrays, found, strict=True)
        return type(found)(array.seen(face) for array, face in pairs)

    return view


def imaginary(x: A) -> A:
    """Return the imaginary part: a view of complex arrays, zeros of others."""
    if x.dtype.kind == "c":
        return x.seen(x.face.imag)
    return filled(x, np.empty_like(x.face), 0)


_UNSET: Final = signature(np.sum).parameters["keepdims"].default
"""What NumPy's signatures have where an option is left away."""


def _options(options: dict[str, Any]) -> dict[str, Any]:
    return {name: v for name, v in options.items() if v is not _UNSET and v is not None}


def reduction(ufunc: np.ufunc) -> Any:
    """Return NumPy's function for ``ufunc.reduce``, such as ``numpy.sum``."""

    def reduce(
        a: Any, axis: Any = None, dtype: Any = None, out: Any = None, **options: Any
    ) -> Any:
        return _reduced(a, ufunc, axis, dtype=dtype, out=out, **_options(options))

    def reduce_plain(a: Any, axis: Any = None, out: Any = None, **options: Any) -> Any:
        return _reduced(a, ufunc, axis, out=out, **_options(options))

    return reduce if ufunc in (np.add, np.multiply) else reduce_plain


def call_function(
    like: Faced, function: Callable[..., Any], args: Any, options: dict[str, Any]
) -> Any:
    """Run a NumPy function on the device and return what it returns.

    Raises `TypeError` for functions and operands that are not supported.
    """
    create = CREATORS.get(function)
    if create is not None:
        return create(like, *args, **options)
    run = FUNCTIONS.get(function)
    if run is None:
        module = function.__module__.removeprefix("numpy").lstrip(".")
        name = f"{module}.{function.__name__}" if module else function.__name__
        raise _unsupported(
            name, "compose it of supported ones, or use numpy.asarray(x) on the host"
        )
    return run(*args, **options)


def _frozen(value: Any, name: str) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(_frozen(item, name) for item in value)
    is_host = isinstance(value, np.ndarray) and value.ndim > 0
    return constant(value, name) if is_host else value


def _general(kernel: str, name: str) -> Callable[..., Any]:
    def run(*args: Any, out: Any = None, **options: Any) -> Any:
        given = {key: v for key, v in options.items() if v is not _UNSET}
        named = tuple((key, _frozen(value, name)) for key, value in given.items())
        values = tuple(_frozen(value, name) for value in args)
        like = next(arrays_in((values, named, out)))
        return given_as(like, kernel, (values, named), out)

    return run


_LEFT_OUT: Final = {
    "where": "use numpy.where and numpy.sum",
    "mean": "leave it",
    "weights": "use numpy.sum of products with them",
}
"""Options of reductions whose meaning depends on values; what to do instead."""


def _summary(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a reduction of several steps, which NumPy takes otherwise for ``out=``."""
    name, known = function.__name__, signature(function)

    def run(*args: Any, **options: Any) -> Any:
        given = known.bind(*args, **options).arguments
        for option, hint in _LEFT_OUT.items():
            if option in given:
                raise _unsupported(f"{name}({option}=...)", hint)
        given.pop("overwrite_input", None)  # which a function need not use
        out = given.pop("out", None)
        kernel = f"make:{name}" if out is None else f"fill:{name}"
        return _general(kernel, name)(given.pop("a"), out=out, **given)

    return run


def _counted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose shape depends on the values of its second argument."""
    name = function.__name__
    known, unknown = _general(f"make:{name}", name), _read_through(function)

    def run(a: Any, places: Any, *args: Any, **options: Any) -> Any:
        of = unknown if isinstance(places, Faced) else known
        return of(a, places, *args, **options)

    return run


def _where(condition: Any, *choices: Any) -> Any:
    if not choices:
        return _read_through(np.nonzero)(condition)
    values = tuple(constant(v, "where") for v in (condition, *choices))
    like: Any = next(arrays_in(values))
    return made(like, "where", (values, ()))[0]


def _read_through(function: Callable[..., Any]) -> Callable[..., Any]:
    """Functions whose shape depends on values run on the host, and come back."""

    def run(*args: Any, **options: Any) -> Any:
        like = next(arrays_in((args, (*options.values(),))))
        found = _on_host(function, args, options)
        outs = [from_host(type(like), like.device, each) for each in several(found)]
        return together(outs, type(found) if isinstance(found, tuple) else None)

    return run


def _on_host(function: Callable[..., Any], args: Any, options: dict[str, Any]) -> Any:
    """Return what a function says of values on the host."""

    def read(value: Any) -> Any:
        named = f"numpy.{function.__name__}(x)"
        return download(value, named) if isinstance(value, Faced) else value

    named = {name: read(value) for name, value in options.items()}
    return function(*map(read, args), **named)


def _allclose(a: Any, b: Any, *args: Any, **options: Any) -> bool:
    close = _general("make:isclose", "isclose")(a, b, *args, **options)
    return bool(download(reduction(np.logical_and)(close), "allclose"))


def _array_equal(a1: Any, a2: Any, equal_nan: bool = False) -> bool:
    if np.shape(a1) != np.shape(a2):
        return False
    one, other = (
        download(a, "array_equal") if isinstance(a, Faced) else constant(a, "equal")
        for a in (a1, a2)
    )
    return np.array_equal(one, other, equal_nan)


def _check_written(target: Any, name: str) -> None:
    if not isinstance(target, Faced):
        raise TypeError(
            f"numpy.{name} cannot write device data into a host array; use "
            "numpy.asarray(x) to read it"
        )


def _copyto(dst: Any, src: Any, casting: Any = "same_kind", where: Any = True) -> None:
    _check_written(dst, "copyto")
    if not isinstance(src, (Faced, bool, int, float, complex, np.generic)):
        src = source(dst, src, "numpy.copyto")
    options: tuple[tuple[str, Any], ...] = (("casting", casting),)
    if where is not True:
        options += (("where", constant(where, "copyto")),)
    mutate("copy", dst, ((src,), options))


def _average(a: Any, axis: Any = None, weights: Any = None, **options: Any) -> Any:
    if weights is None and not options.get("returned"):
        return np.mean(a, axis, **{k: v for k, v in options.items() if k == "keepdims"})
    return _read_through(np.average)(a, axis, weights, **options)


def _block(arrays: Any) -> Any:
    values = _frozen(arrays, "block")
    return made(next(arrays_in((values,))), "make:block", ((values,), ()))[0]


def _diag(v: Any, k: int = 0) -> Any:
    return v.seen(np.diag(v.face, k)) if v.ndim > 1 else np.diagflat(v, k)


def _nan_to_num(x: A, copy: bool = True, **options: Any) -> A:
    found: A = _general("make:nan_to_num", "nan_to_num")(x, **options)
    if not copy:
        assign(x, found)
    return found if copy else x


def _writing(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that writes into its first argument."""
    name = function.__name__

    def run(a: Any, *args: Any, **options: Any) -> None:
        _check_written(a, name)
        named = tuple((key, _frozen(value, name)) for key, value in options.items())
        mutate(name, a, (tuple(_frozen(value, name) for value in args), named))

    return run


def _put_along_axis(arr: A, indices: Any, values: Any, axis: int) -> None:
    given = source(arr, values, "numpy.put_along_axis")
    mutate("put_along_axis", arr, ((constant(indices, "take"), given, axis), ()))


def _on_faces(function: Callable[..., Any]) -> Callable[..., Any]:
    def ask(*args: Any, **options: Any) -> Any:
        faces = [a.face if isinstance(a, Faced) else a for a in args]
        return function(*faces, **options)

    return ask


def _astype(x: A, dtype: Any, *, copy: bool = True, **_: Any) -> A:
    return converted(x, dtype) if copy or np.dtype(dtype) != x.dtype else x


_ASKING: Final = (
    *(np.common_type, np.iscomplexobj, np.isrealobj, np.ndim, np.result_type),
    *(np.shape, np.size),
)
READING: Final = (
    *(np.argwhere, np.bincount, np.compress, np.extract, np.flatnonzero),
    *(np.histogram, np.histogram2d, np.histogram_bin_edges, np.histogramdd),
    *(np.intersect1d, np.linalg.eig, np.linalg.eigvals, np.linalg.lstsq),
    *(np.linalg.matrix_rank, np.nanargmax, np.nanargmin, np.nonzero, np.poly),
    *(np.polyfit, np.real_if_close, np.roots, np.setdiff1d, np.setxor1d),
    *(np.trim_zeros, np.union1d, np.unique, np.unique_all, np.unique_counts),
    *(np.unique_inverse, np.unique_values),
)
"""Functions whose result has a shape or dtype that depends on values."""
_MAKING: Final = COPYING | LINALG | ESTIMATES | SOLVING
_REDUCTIONS: Final = (
    (np.add, (np.sum,)),
    (np.multiply, (np.prod,)),
    (np.maximum, (np.max, np.amax)),
    (np.minimum, (np.min, np.amin)),
    (np.logical_or, (np.any,)),
    (np.logical_and, (np.all,)),
)

FUNCTIONS: Final[dict[Callable[..., Any], Callable[..., Any]]] = {
    **{f: _general(f"make:{name}", name) for name, f in _MAKING.items()},
    **{f: _general(f"fill:{name}", name) for name, f in FILLING.items()},
    **{f: viewed(f) for f in VIEWS},
    **{f: reduction(ufunc) for ufunc, fs in _REDUCTIONS for f in fs},
    **{f: _summary(f) for f in SUMMARIES.values()},
    **{f: _writing(f) for f in WRITING.values()},
    **{f: _counted(f) for f in (np.delete, np.insert, np.repeat)},
    **{f: _on_faces(f) for f in _ASKING},
    **{f: _read_through(f) for f in READING},
    **LIKES,
    np.allclose: _allclose,
    np.around: _general("fill:round", "round"),
    np.array_equal: _array_equal,
    np.array_equiv: lambda *args, **options: _on_host(np.array_equiv, args, options),
    np.astype: _astype,
    np.average: _average,
    np.block: _block,
    np.copy: lambda a, order="K", **_: converted(a, None, order),
    np.copyto: _copyto,
    np.diag: _diag,
    np.imag: imaginary,
    np.linalg.matmul: np.matmul,
    np.linalg.trace: lambda x, /, *, offset=0, dtype=None: np.trace(
        x, offset, -2, -1, dtype
    ),
    np.linalg.vecdot: np.vecdot,
    np.nan_to_num: _nan_to_num,
    np.put_along_axis: _put_along_axis,
    np.ravel: raveled,
    np.reshape: reshaped,
    np.where: _where,
}
"""Every supported function, and what it does with device arrays."""

for _of, _run in FUNCTIONS.items():
    if isinstance(_run, FunctionType):
        # So errors of a call name what was called.
        _run.__qualname__ = f"numpy.{_of.__name__}"
