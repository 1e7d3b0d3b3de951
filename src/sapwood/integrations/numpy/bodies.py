"""What kernels do: families of bodies over NumPy functions.

A body says what arrays come out, from a dry run over blank arrays, and binds a call
to real ones once; what is bound then costs what plain NumPy costs with ``out=``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from sapwood.integrations.numpy.layout import Array

Given: TypeAlias = tuple[Array | None, ...]
Values: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Body:
    """One kernel.

    ``results(given, *args)`` returns the arrays that come out where the caller gave
    ``given`` (None: a new one), and raises what NumPy raises for such arguments.
    ``bind(outs, *args)`` returns the call that fills ``outs``.
    """

    results: Callable[..., Sequence[Any]]
    bind: Callable[..., Callable[[], Any]]


def _several(result: Any) -> Sequence[Any]:
    return result if isinstance(result, (tuple, list)) else (result,)


def filling(function: Callable[..., Any]) -> Body:
    """Return the body of a function that takes ``out=``."""

    def results(given: Given, args: Values, options: Values) -> Sequence[Any]:
        out = {} if given[0] is None else {"out": given[0]}
        return (function(*args, **dict(options), **out),)

    def bind(outs: Values, args: Values, options: Values) -> Callable[[], Any]:
        return partial(function, *args, **dict(options), out=outs[0])

    return Body(results, bind)


def copying(function: Callable[..., Any]) -> Body:
    """Return the body of a function whose results are new arrays."""

    def results(_: Given, args: Values, options: Values) -> Sequence[Any]:
        return _several(function(*args, **dict(options)))

    def bind(outs: Values, args: Values, options: Values) -> Callable[[], Any]:
        made = partial(function, *args, **dict(options))

        def run() -> None:
            for out, result in zip(outs, _several(made()), strict=True):
                np.copyto(out, result)

        return run

    return Body(results, bind)


def writing(function: Callable[..., Any]) -> Body:
    """Return the body of a function that writes into its first argument."""

    def results(given: Given, args: Values, options: Values) -> Sequence[Any]:
        function(given[0], *args, **dict(options))
        return ()

    def bind(outs: Values, args: Values, options: Values) -> Callable[[], Any]:
        return partial(function, outs[0], *args, **dict(options))

    return Body(results, bind)


def writing_at(function: Callable[..., Any]) -> Body:
    """Return the body of a function ``(target, index, ...)`` that writes there."""
    plain = writing(function)

    def results(given: Given, args: Values, options: Values) -> Sequence[Any]:
        target, index = given[0], args[0]
        if any(_is_mask(item) and item.flags.writeable for item in index):
            # How many places a mask selects is known on the device only, except for
            # constants, which are read-only.
            check: Any = operator.getitem
            check(target, index)
            return ()
        return plain.results(given, args, options)

    return Body(results, plain.bind)


def _is_mask(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype == np.bool_
