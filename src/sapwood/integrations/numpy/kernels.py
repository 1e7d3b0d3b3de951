"""The kernels of device arrays: NumPy functions, by name.

All of them are registered with the emulated device as one module. `results` says,
without running one, which arrays it makes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from contextvars import Context
from functools import lru_cache, partial
from typing import Any, Final

import numpy as np

from sapwood.driver.emulated.kernels import Kernel, register_module
from sapwood.integrations.numpy.bodies import (
    DRAWS,
    Body,
    calling,
    copying,
    draw,
    filling,
    quiet,
    several,
    solving,
    writing,
    writing_at,
)
from sapwood.integrations.numpy.layout import array_at, blank_at, layout_of
from sapwood.integrations.numpy.packing import constants, pointers, unpack
from sapwood.integrations.strided import Layout

IMAGE: Final = b"sapwood.integrations.numpy"

UFUNCS: Final = {
    ufunc.__name__: ufunc
    for ufunc in vars(np).values()
    if isinstance(ufunc, np.ufunc) and ufunc is not np.isnat
}
"""Elementwise functions, and the products of stacked matrices and vectors."""


def _named(*functions: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    return {function.__name__: function for function in functions}


FILLING: Final = _named(
    *(np.argmax, np.argmin, np.cumprod, np.cumsum, np.trace),
    *(np.choose, np.clip, np.concatenate, np.dot, np.outer, np.round, np.take),
    *(np.isneginf, np.isposinf),
)
"""Functions that take ``out=``, whose result has a shape known without values."""

COPYING: Final = _named(
    *(np.arange, np.eye, np.identity, np.linspace, np.tri, np.tril, np.triu),
    *(np.column_stack, np.dstack, np.hstack, np.stack, np.vstack),
    *(np.append, np.delete, np.diagflat, np.insert, np.meshgrid, np.resize),
    *(np.pad, np.repeat, np.roll, np.take_along_axis, np.tile, np.vander),
    *(np.argpartition, np.argsort, np.lexsort, np.partition, np.searchsorted),
    *(np.sort, np.sort_complex, np.convolve, np.correlate, np.diff, np.ediff1d),
    *(np.gradient, np.interp, np.polyval, np.trapezoid, np.unwrap),
    *(np.cross, np.einsum, np.inner, np.kron, np.tensordot, np.vdot),
    *(np.angle, np.count_nonzero, np.digitize, np.i0, np.iscomplex, np.isclose),
    *(np.isin, np.isreal, np.nan_to_num, np.packbits, np.select, np.sinc),
    np.unpackbits,
    *(np.fft.fft, np.fft.fft2, np.fft.fftn, np.fft.fftshift, np.fft.hfft),
    *(np.fft.ifft, np.fft.ifft2, np.fft.ifftn, np.fft.ifftshift, np.fft.ihfft),
    *(np.fft.irfft, np.fft.irfft2, np.fft.irfftn),
    *(np.fft.rfft, np.fft.rfft2, np.fft.rfftn),
    *(np.linalg.multi_dot, np.linalg.vector_norm),
)
"""Functions that make new arrays, of a shape known without values."""

LINALG: Final = {
    f"linalg.{function.__name__}": function
    for function in (np.linalg.cross, np.linalg.outer, np.linalg.tensordot)
}
"""More of them, which share their name with another function."""

SOLVING: Final = _named(
    *(np.linalg.cholesky, np.linalg.cond, np.linalg.det, np.linalg.eigh),
    *(np.linalg.eigvalsh, np.linalg.inv, np.linalg.matrix_norm),
    *(np.linalg.matrix_power, np.linalg.norm, np.linalg.pinv, np.linalg.qr),
    *(np.linalg.slogdet, np.linalg.solve, np.linalg.svd, np.linalg.svdvals),
)
"""More of them, which raise for some matrices. Here these give NaN."""

PROBES: Final = {np.linalg.solve: np.linalg.inv, np.linalg.matrix_power: np.linalg.inv}
"""What raises for the same matrices, of functions that take more than these."""

SUMMARIES: Final = _named(
    *(np.mean, np.median, np.percentile, np.ptp, np.quantile, np.std, np.var),
    *(np.nancumprod, np.nancumsum, np.nanmax, np.nanmean, np.nanmedian, np.nanmin),
    *(np.nanpercentile, np.nanprod, np.nanquantile, np.nanstd, np.nansum, np.nanvar),
)
"""Reductions that take ``out=``, and may give other values there."""

ESTIMATES: Final = _named(np.corrcoef, np.cov)
"""Functions that make new arrays, and warn as reductions do."""

WRITING: Final = _named(np.fill_diagonal, np.place, np.put, np.putmask)
"""Functions that write into their first argument."""


def _matmul() -> Body:
    plain = filling(np.matmul)

    def dry(given: Any, args: Any, options: Any) -> Any:
        a, b = args
        if min(a.ndim, b.ndim) > 0 and a.shape[-1] == b.shape[-min(b.ndim, 2)]:
            # A product over no terms has the same layout, for no work.
            a, b = a[..., :0], b[:0] if b.ndim == 1 else b[..., :0, :]
        return plain.bind(given, (a, b), options)

    return Body(plain.bind, dry)


def _blocks(arrays: Any) -> Any:
    """Return ``numpy.block`` of nested tuples, which it does not take."""

    def listed(value: Any) -> Any:
        return [*map(listed, value)] if isinstance(value, tuple) else value

    return np.block(listed(arrays))


def _bodies() -> dict[str, Body]:
    bodies = {
        "copy": writing(np.copyto),
        "gather": copying(operator.getitem),
        "flatten": copying(np.ravel),
        "make:block": copying(_blocks),
        "partition": writing(np.ndarray.partition),
        "put_along_axis": writing(np.put_along_axis),
        "reshape": copying(np.reshape),
        "scatter": writing_at(operator.setitem),
        "sort": writing(np.ndarray.sort),
        "where": copying(np.where),
    }
    calm = {name: quiet(f) for name, f in SUMMARIES.items()}
    bodies |= {f"fill:{name}": filling(f) for name, f in (FILLING | calm).items()}
    calm |= {name: quiet(f) for name, f in ESTIMATES.items()}
    calm |= {name: solving(f, PROBES.get(f)) for name, f in SOLVING.items()}
    made = COPYING | LINALG | calm
    bodies |= {f"make:{name}": copying(f) for name, f in made.items()}
    bodies |= {name: writing(f) for name, f in WRITING.items()}
    bodies |= {f"draw:{name}": draw(name) for name in DRAWS}
    for name, ufunc in UFUNCS.items():
        if ufunc.signature:
            bodies[f"call:{name}"] = filling(ufunc)
            continue
        bodies[f"call:{name}"] = calling(ufunc)
        bodies[f"at:{name}"] = writing_at(ufunc.at)
        if ufunc.nin == 2 and ufunc.nout == 1:
            for method in ("reduce", "accumulate", "reduceat"):
                bodies[f"{method}:{name}"] = filling(getattr(ufunc, method))
    bodies["call:matmul"] = _matmul()
    return bodies


BODIES: Final = _bodies()


@lru_cache(8192)
def results(name: str, bare: bytes) -> tuple[tuple[Layout, ...], type | None]:
    """Return the layouts of what kernel ``name`` makes of packed, bare arguments.

    And the container that they come in, None for one array alone. The first argument is
    the tuple of outputs given by the caller, None for others. Raises what NumPy raises
    where shapes, dtypes or options do not fit.
    """
    _, args = unpack(bare, blank_at)
    with np.errstate(all="ignore"):
        made = BODIES[name].results(*args)
    layouts = tuple(layout_of(np.asarray(array)) for array in several(made))
    return layouts, type(made) if isinstance(made, (tuple, list)) else None


def check(name: str, params: bytes) -> None:
    """Raise `ValueError` where kernel ``name`` would not take parameters like these.

    It is run on zeros in host memory: addresses, and what is there, play no part.
    """
    try:
        outs, args = unpack(constants(params), blank_at)
        run = BODIES[name].bind(outs, *args)
        with np.errstate(all="ignore"):
            if name == "scatter" or name.startswith("at:"):
                # How many places a mask selects is known on the device only.
                BODIES[name].results(outs, *args)
            else:
                run()
    except Exception as error:
        raise ValueError(f"kernel {name} does not take its parameters") from error


SILENT: Final = Context()
SILENT.run(np.seterr, all="ignore")


def _bind(body: Body, params: bytes) -> Callable[[], Any]:
    outs, args = unpack(params, array_at)
    # Like a GPU's, a kernel signals no floating-point errors, whatever its user has
    # set. Running in a context is nearly free, but one at a time: so each has its own.
    return partial(SILENT.copy().run, body.bind(outs, *args))


_KERNELS = [Kernel(name, partial(_bind, b), pointers) for name, b in BODIES.items()]
register_module(IMAGE, _KERNELS)
