"""What kernels do: families of bodies over NumPy functions.

A body says what arrays come out, from a dry run over blank arrays, and binds a call
to real ones once; what is bound then costs what plain NumPy costs with ``out=``.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np

from sapwood.integrations.numpy.layout import Array
from sapwood.integrations.strided import WORDS, state_words

Given: TypeAlias = tuple[Array | None, ...]
Values: TypeAlias = tuple[Any, ...]
Bind: TypeAlias = Callable[..., Callable[[], Any]]


@dataclass(frozen=True, slots=True)
class Body:
    """One kernel.

    ``bind(outs, *args)`` returns the call that fills ``outs``. ``dry``, by default the
    same, does so for a run over blank arrays, where None among ``outs`` are new ones:
    that returns what comes out, and raises what NumPy raises for such arguments.
    """

    bind: Bind
    dry: Bind | None = None

    def results(self, given: Given, *args: Any) -> Any:
        """Return what comes out where the caller gave ``given``."""
        return (self.dry or self.bind)(given, *args)()


def several(result: Any) -> Sequence[Any]:
    """Return the arrays that a function gives."""
    if result is None:
        return ()
    return result if isinstance(result, (tuple, list)) else (result,)


def filling(function: Callable[..., Any]) -> Body:
    """Return the body of a function that takes ``out=``."""

    def bind(outs: Values, args: Values, options: Values) -> Callable[[], Any]:
        return partial(function, *args, **dict(options), out=outs[0])

    return Body(bind)


def quiet(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a reduction that does not warn of too few elements, or of NaNs alone.

    Where warnings are errors, one would end the stream that the kernel runs on. Filters
    are changed for such calls alone: others' warnings are shown anew after that.
    """

    def run(a: Any, *args: Any, **options: Any) -> Any:
        freedom = options.get("ddof") or options.get("correction") or 0
        few = freedom >= min(np.shape(a), default=1)
        if not few and not (a.dtype.kind in "fc" and np.isnan(a).any()):
            return function(a, *args, **options)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            return function(a, *args, **options)

    return run


def solving(
    function: Callable[..., Any], probe: Callable[..., Any] | None = None
) -> Callable[..., Any]:
    """Return a function of stacked matrices that gives NaN where NumPy raises.

    A kernel cannot raise `numpy.linalg.LinAlgError`, as for a singular matrix: that
    would end the stream. ``probe`` raises for the same matrices, by default the
    function itself. Errors of shapes are raised all the same.
    """

    def run(a: Any, *args: Any, **options: Any) -> Any:
        try:
            return function(a, *args, **options)
        except np.linalg.LinAlgError:
            fit, unfit = _mended(np.array(a), probe or function)
        found = function(fit, *args, **options)
        outs = [np.array(each) for each in several(found)]
        for each in outs:
            each[unfit] = np.nan
        return together(outs, type(found) if isinstance(found, tuple) else None)

    return run


def _mended(stack: Array, probe: Callable[..., Any]) -> tuple[Array, Array]:
    """Return matrices, unit ones where a function raises, and where that is."""
    unfit = np.zeros(stack.shape[:-2], np.bool_)
    for place in np.ndindex(unfit.shape) if stack.ndim > 1 else ():
        try:
            probe(stack[place])
        except np.linalg.LinAlgError:
            unfit[place] = True
            stack[place] = np.eye(*stack.shape[-2:])
    return stack, unfit


def together(outs: Sequence[Any], kind: type | None) -> Any:
    """Return arrays as a function of NumPy's gives them: the one, or in a container."""
    if kind is None:
        return outs[0]
    return kind(*outs) if hasattr(kind, "_fields") else kind(outs)


def copying(function: Callable[..., Any]) -> Body:
    """Return the body of a function whose results are new arrays."""

    def dry(_: Given, args: Values, options: Values) -> Callable[[], Any]:
        return partial(function, *args, **dict(options))

    def bind(outs: Values, args: Values, options: Values) -> Callable[[], Any]:
        made = dry(outs, args, options)

        def run() -> None:
            for out, result in zip(outs, several(made()), strict=True):
                np.copyto(out, result)

        return run

    return Body(bind, dry)


def writing(function: Callable[..., Any]) -> Body:
    """Return the body of a function that writes into its first argument."""

    def bind(outs: Values, args: Values, options: Values) -> Callable[[], Any]:
        return partial(function, outs[0], *args, **dict(options))

    return Body(bind)


def writing_at(function: Callable[..., Any]) -> Body:
    """Return the body of a function ``(target, index, ...)`` that writes there."""
    bind = writing(function).bind

    def dry(given: Given, args: Values, options: Values) -> Callable[[], Any]:
        if any(_is_mask(item) and item.flags.writeable for item in args[0]):
            # How many places a mask selects is known on the device only, except for
            # constants, which are read-only.
            return partial(operator.getitem, given[0], args[0])
        return bind(given, args, options)

    return Body(bind, dry)


def _is_mask(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.dtype == np.bool_


_COMPARISONS: Final = frozenset(
    (np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal)
)
_EXTREMA: Final = frozenset((np.maximum, np.minimum))
"""For these, NumPy asks for outputs by keyword; for others that is slower."""


def calling(ufunc: np.ufunc) -> Body:
    """Return the body of a ufunc call: ``dtype, casting, where, *inputs``.

    Python numbers among the inputs are weak, as in NumPy: they take the type that the
    arrays choose.
    """

    def bind(
        outs: Values, dtype: Any, casting: str | None, mask: Any, *ins: Any
    ) -> Callable[[], Any]:
        rules: dict[str, Any] = {"casting": casting or "same_kind"}
        if dtype is not None:
            rules["signature"] = (None,) * ufunc.nin + (dtype,) * ufunc.nout
        asked = [v.dtype if isinstance(v, np.ndarray) else _weak(v) for v in ins]
        asked += [None if v is None else v.dtype for v in outs]
        types = ufunc.resolve_dtypes(tuple(asked), **rules)
        # Numbers become arrays of the types that NumPy gives them.
        operands = [
            v if isinstance(v, np.ndarray) else _constant(ufunc, v, to)
            for v, to in zip(ins, types, strict=False)
        ]
        if ufunc is np.power and types[0].kind in "iu" and _is_negative(ins[1]):
            raise ValueError("Integers to negative integer powers are not allowed.")
        options = {"dtype": dtype, "casting": casting, "where": mask}
        options = {name: v for name, v in options.items() if v is not None}
        # By keyword it may be None under a mask, of which NumPy warns else.
        if mask is not None or ufunc in _EXTREMA:
            return partial(ufunc, *operands, out=outs, **options)
        return partial(ufunc, *operands, *outs, **options)

    return Body(bind)


def _weak(value: complex) -> Any:
    return np.dtype(np.bool_) if isinstance(value, bool) else type(value)


def _is_negative(value: Any) -> bool:
    return np.ndim(value) == 0 and bool(value < 0)


def _constant(ufunc: np.ufunc, value: complex, dtype: np.dtype[Any]) -> Any:
    try:
        # An array of no dimensions is the cheapest operand for a ufunc.
        return np.array(value, dtype)
    except OverflowError:
        if ufunc in _COMPARISONS:
            return value
        raise


DRAWS: Final = (
    *("beta", "binomial", "chisquare", "choice", "exponential", "f", "gamma"),
    *("geometric", "gumbel", "integers", "laplace", "logistic", "lognormal"),
    *("logseries", "negative_binomial", "normal", "pareto", "permutation"),
    *("poisson", "power"),
    *("random", "rayleigh", "standard_cauchy", "standard_exponential"),
    *("standard_gamma", "standard_normal", "standard_t", "triangular", "uniform"),
    *("vonmises", "wald", "weibull", "zipf"),
)
_FILLING: Final = frozenset(("random", "standard_exponential", "standard_normal"))


def _load(philox: np.random.Philox, words: Array) -> None:
    # Of any words whatever: a device does not stop at numbers that make no sense.
    # The place is from 1 to 4 in every state that NumPy gives, and takes since 2.5.
    philox.state = {
        "bit_generator": "Philox",
        "state": {"counter": words[0:4], "key": words[4:6]},
        "buffer": words[6:10],
        "buffer_pos": min(max(int(words[10]), 1), 4),
        "has_uint32": int(words[11]) & 1,
        "uinteger": int(words[12]) & 0xFFFF_FFFF,
    }


def draw(method: str) -> Body:
    """Return the body of a method of `numpy.random.Generator`: ``args, options``.

    It is over a Philox state, which is read, moved on and written in place.
    """

    def dry(given: Given, args: Values, options: Values) -> Callable[[], Any]:
        drawn = getattr(np.random.Generator(np.random.Philox(0)), method)
        return lambda: (drawn(*args, **dict(options)), given[1])

    def bind(outs: Values, args: Values, options: Values) -> Callable[[], None]:
        out, words = outs
        if words.shape != (WORDS,) or words.dtype != np.uint64:
            # Philox itself would not look, and read what is not there.
            raise ValueError(f"a state is {WORDS} words of uint64")
        philox = np.random.Philox(0)
        function = getattr(np.random.Generator(philox), method)
        keywords = dict(options)
        if method in _FILLING and out.ndim and out.flags.carray:
            keywords = {k: v for k, v in keywords.items() if k != "size"}
            keywords["out"] = out

        def run() -> None:
            _load(philox, words)
            drawn = function(*args, **keywords)
            if drawn is not out:
                np.copyto(out, drawn)
            words[:] = state_words(philox)

        return run

    return Body(bind, dry)
