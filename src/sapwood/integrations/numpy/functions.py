"""NumPy's functions of device arrays: `call_function`, for `__array_function__`.

Every supported function is in one table; all others raise a `TypeError` that names
them.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any, Final

import numpy as np

from sapwood.integrations.numpy import creation, reductions, views
from sapwood.integrations.numpy.arithmetic import elementwise, unsupported
from sapwood.integrations.numpy.copies import converted, raveled, reshaped, source
from sapwood.integrations.numpy.faced import A, Faced
from sapwood.integrations.numpy.host import constant, download, is_host_array
from sapwood.integrations.numpy.kernels import COPYING, FILLING
from sapwood.integrations.numpy.launch import arrays_in, made, mutate

__all__ = ["FUNCTIONS", "call_function"]


def call_function(
    like: Faced, function: Callable[..., Any], args: Any, options: dict[str, Any]
) -> Any:
    """Run a NumPy function on the device and return what it returns.

    Raises `TypeError` for functions and operands that are not supported.
    """
    create = creation.CREATORS.get(function)
    if create is not None:
        return create(like, *args, **options)
    run = FUNCTIONS.get(function)
    if run is None:
        module = function.__module__.removeprefix("numpy").lstrip(".")
        name = f"{module}.{function.__name__}" if module else function.__name__
        raise unsupported(
            name, "compose it of supported ones, or use numpy.asarray(x) on the host"
        )
    return run(*args, **options)


def _frozen(value: Any, name: str) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(_frozen(item, name) for item in value)
    return constant(value, name) if is_host_array(value) else value


def _general(kernel: str, name: str) -> Callable[..., Any]:
    def run(*args: Any, out: Any = None, **options: Any) -> Any:
        named = tuple(
            (key, _frozen(value, name))
            for key, value in options.items()
            if value is not reductions.UNSET
        )
        values = tuple(_frozen(value, name) for value in args)
        like = next(arrays_in((values, named, out)))
        return made(like, kernel, (values, named), (out,))[0]

    return run


def _repeat(a: A, repeats: Any, axis: int | None = None) -> A:
    if isinstance(repeats, Faced):
        raise unsupported("repeat(x, array)", "give the repeats as a list of integers")
    found: A = _general("make:repeat", "repeat")(a, repeats, axis)
    return found


def _where(condition: Any, *choices: Any) -> Any:
    if not choices:
        return _read_through(np.nonzero)(condition)
    values = tuple(constant(v, "where") for v in (condition, *choices))
    like: Any = next(arrays_in(values))
    return made(like, "where", (values, ()))[0]


def _read_through(function: Callable[..., Any]) -> Callable[..., Any]:
    """Functions whose shape depends on values run on the host, and come back."""

    def run(a: A, *args: Any, **options: Any) -> Any:
        host = download(a, f"numpy.{function.__name__}(x)")
        found = function(host, *args, **options)
        if isinstance(found, tuple):
            return tuple(creation.from_host(type(a), a.device, part) for part in found)
        return creation.from_host(type(a), a.device, found)

    return run


def _allclose(a: Any, b: Any, *args: Any, **options: Any) -> bool:
    close = _general("make:isclose", "isclose")(a, b, *args, **options)
    return bool(download(reductions.reduction(np.logical_and)(close), "allclose"))


def _array_equal(a1: Any, a2: Any, equal_nan: bool = False) -> bool:
    if np.shape(a1) != np.shape(a2):
        return False
    same = elementwise(np.equal, (a1, a2))
    if equal_nan:
        nans = elementwise(np.not_equal, (a1, a1))
        others = elementwise(np.not_equal, (a2, a2))
        nans = elementwise(np.logical_and, (nans, others))
        same = elementwise(np.logical_or, (same, nans))
    return bool(download(reductions.reduction(np.logical_and)(same), "array_equal"))


def _copyto(dst: Any, src: Any, casting: Any = "same_kind", where: Any = True) -> None:
    if not isinstance(dst, Faced):
        raise TypeError(
            "numpy.copyto cannot write device data into a host array; use "
            "numpy.asarray(x) to read it"
        )
    if not isinstance(src, (Faced, bool, int, float, complex, np.generic)):
        src = source(dst, src, "numpy.copyto")
    options: tuple[tuple[str, Any], ...] = (("casting", casting),)
    if where is not True:
        options += (("where", constant(where, "copyto")),)
    mutate("copy", dst, ((src,), options))


def _put_along_axis(arr: A, indices: Any, values: Any, axis: int) -> None:
    given = source(arr, values, "numpy.put_along_axis")
    mutate("put_along_axis", arr, ((constant(indices, "take"), given, axis), ()))


def _on_faces(function: Callable[..., Any]) -> Callable[..., Any]:
    def ask(*args: Any, **options: Any) -> Any:
        faces = [a.face if isinstance(a, Faced) else a for a in args]
        return function(*faces, **options)

    return ask


def _typed(*args: Any) -> np.dtype[Any]:
    return np.result_type(*(a.dtype if isinstance(a, Faced) else a for a in args))


def _astype(x: A, dtype: Any, *, copy: bool = True, **_: Any) -> A:
    return converted(x, dtype) if copy or np.dtype(dtype) != x.dtype else x


def _copy(a: A, order: Any = "K", **_: Any) -> A:
    return converted(a, None, order)


REDUCTIONS: Final = (
    (np.add, (np.sum,)),
    (np.multiply, (np.prod,)),
    (np.maximum, (np.max, np.amax)),
    (np.minimum, (np.min, np.amin)),
    (np.logical_or, (np.any,)),
    (np.logical_and, (np.all,)),
)

FUNCTIONS: Final[dict[Callable[..., Any], Callable[..., Any]]] = {
    **{f: _general(f"make:{name}", name) for name, f in COPYING.items()},
    **{f: _general(f"fill:{name}", name) for name, f in FILLING.items()},
    **{f: views.viewed(f) for f in views.VIEWS},
    **{f: reductions.reduction(ufunc) for ufunc, fs in REDUCTIONS for f in fs},
    **{f: _on_faces(f) for f in (np.iscomplexobj, np.isrealobj, np.ndim, np.shape)},
    **{f: _read_through(f) for f in (np.argwhere, np.flatnonzero, np.nonzero)},
    **creation.LIKES,
    np.allclose: _allclose,
    np.around: _general("fill:round", "round"),
    np.array_equal: _array_equal,
    np.astype: _astype,
    np.copy: _copy,
    np.copyto: _copyto,
    np.count_nonzero: reductions.count_nonzero,
    np.imag: views.imaginary,
    np.mean: reductions.mean,
    np.ptp: reductions.ptp,
    np.put_along_axis: _put_along_axis,
    np.ravel: raveled,
    np.repeat: _repeat,
    np.reshape: reshaped,
    np.result_type: _typed,
    np.size: _on_faces(np.size),
    np.std: reductions.std,
    np.unique: _read_through(np.unique),
    np.var: reductions.var,
    np.where: _where,
}
"""Every supported function, and what it does with device arrays."""

for _of, _run in FUNCTIONS.items():
    if isinstance(_run, FunctionType):
        # So errors of a call name what was called.
        _run.__qualname__ = f"numpy.{_of.__name__}"
