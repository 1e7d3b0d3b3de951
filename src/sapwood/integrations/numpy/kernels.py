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
    *(np.clip, np.concatenate, np.dot, np.outer, np.round, np.take),
)
"""Functions that take ``out=``, whose result has a shape known without values."""

COPYING: Final = _named(
    *(np.arange, np.eye, np.identity, np.linspace, np.tri, np.tril, np.triu),
    *(np.column_stack, np.dstack, np.hstack, np.stack, np.vstack),
    *(np.pad, np.repeat, np.roll, np.take_along_axis, np.tile),
    *(np.argsort, np.searchsorted, np.sort, np.convolve, np.diff),
    *(np.cross, np.einsum, np.inner, np.kron, np.tensordot, np.vdot),
    *(np.count_nonzero, np.isclose, np.linalg.norm, np.nan_to_num),
    *(np.fft.fft, np.fft.fft2, np.fft.ifft, np.fft.ifft2, np.fft.irfft, np.fft.rfft),
)
"""Functions that make new arrays, of a shape known without values."""


SUMMARIES: Final = _named(np.mean, np.ptp, np.std, np.var)
"""Reductions that take ``out=``, and may give other values there."""


def _matmul() -> Body:
    plain = filling(np.matmul)

    def dry(given: Any, args: Any, options: Any) -> Any:
        a, b = args
        if min(a.ndim, b.ndim) > 0 and a.shape[-1] == b.shape[-min(b.ndim, 2)]:
            # A product over no terms has the same layout, for no work.
            a, b = a[..., :0], b[:0] if b.ndim == 1 else b[..., :0, :]
        return plain.bind(given, (a, b), options)

    return Body(plain.bind, dry)


def _bodies() -> dict[str, Body]:
    bodies = {
        "copy": writing(np.copyto),
        "gather": copying(operator.getitem),
        "flatten": copying(np.ravel),
        "put_along_axis": writing(np.put_along_axis),
        "reshape": copying(np.reshape),
        "scatter": writing_at(operator.setitem),
        "where": copying(np.where),
    }
    calm = {name: quiet(f) for name, f in SUMMARIES.items()}
    bodies |= {f"fill:{name}": filling(f) for name, f in (FILLING | calm).items()}
    bodies |= {f"make:{name}": copying(f) for name, f in (COPYING | calm).items()}
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
def results(name: str, bare: bytes) -> tuple[Layout, ...]:
    """Return the layouts of what kernel ``name`` makes of packed, bare arguments.

    The first argument is the tuple of outputs given by the caller, None for others.
    Raises what NumPy raises where shapes, dtypes or options do not fit.
    """
    _, args = unpack(bare, blank_at)
    with np.errstate(all="ignore"):
        made = BODIES[name].results(*args)
    return tuple(layout_of(np.asarray(array)) for array in made)


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


register_module(
    IMAGE,
    [Kernel(name, partial(_bind, body), pointers) for name, body in BODIES.items()],
)
